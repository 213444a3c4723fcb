"""Every script of tools/ that a page names is run by a test, with the options that the page shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from markdown_pages import code_spans, shell_lines

PROJECT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*PROJECT.glob("*.md"), *PROJECT.glob("examples/*/README.md"), *PROJECT.glob("docs/**/*.md")]
LAYERS = "--hidden 128 --layers 2"  # enough heads for two slices
# Shell command below tools/: what its output contains. Small sizes; the numbers mean nothing.
RUNS = {
    "bench_step.py --limit --steps 1 --warmup-steps 1 --max-new-tokens 4 --slots 8": '"share_by_phase"',
    "bench_step.py --layouts --scenario gsm8k --steps 1 --max-new-tokens 4": '"graphs"',
    f"bench_step.py --against {PROJECT} --rounds 1 --most-ratio 99 --steps 1 --max-new-tokens 4": '"ratio"',
    f"bench_resume.py {LAYERS} --runs 1": '"slices"',
    "bench_rewards.py --responses 20 --comparisons 4 --runs 1 --timeout 1": '"timeout": 1',
    "bench_schedules.py --steps 2 --skip 0 --prompts 8 --token-seconds 0.001 --only sync": '"schedules"',
    "bench_environments.py --repeats 1 --seconds 0.01 --turns 2 --workers 2 --set rollout.max_new_tokens=64 "
    "model.max_position_embeddings=128": '"busy_slot_share"',
    "make_memory_table.py --check": "",
    f"convert_weights.py {PROJECT}/examples/arithmetic/warmed_up float32 --dtype float32": "float32",
}
SLOW_MODEL = "bench_schedules.py --slow-model PORT --slots 4 --token-seconds 0.001"


def start(command: str, **options: object) -> subprocess.Popen[str]:
    name, *words = command.split()
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    return subprocess.Popen(
        [sys.executable, str(PROJECT / "tools" / name), *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, **options,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", RUNS)
def test_a_tool_that_a_page_names_runs(command: str, tmp_path: Path) -> None:
    process = start(command, cwd=tmp_path)
    output, _ = process.communicate(timeout=600)
    # A stale page is the finding of --check, not a failure of the tool.
    assert process.returncode == 0 or ("--check" in command and output.startswith("stale: ")), output
    assert RUNS[command] in output


@pytest.mark.slow
def test_the_slow_model_answers(tmp_path: Path) -> None:
    process = start(SLOW_MODEL.replace("PORT", "8437"), cwd=tmp_path)
    try:
        assert process.stdout is not None and process.stdout.readline()  # printed once it listens
        deadline = time.monotonic() + 300
        while True:
            try:
                with urllib.request.urlopen("http://127.0.0.1:8437/v1/models", timeout=10) as answer:
                    assert json.load(answer)["data"]
                return
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.5)
    finally:
        process.terminate()
        process.wait(30)


def test_every_tool_and_option_that_a_page_names_is_in_a_test() -> None:
    """Tools that `RUNS` leaves out have tests of their own."""
    named: dict[str, set[str]] = {}
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for line in [*shell_lines(text), *code_spans(text)]:
            for tool, rest in re.findall(r"tools/(\w+)\.py([^|&]*)", line):
                named.setdefault(tool, set()).update(re.findall(r"(?<=\s)--[a-z_-]+", rest))
    assert len(named) >= 15
    tests = [path.read_text(encoding="utf-8") for path in PROJECT.glob("tests/**/*.py")]
    for tool, options in named.items():
        assert any(re.search(rf"\b{tool}\b", text) for text in tests), f"no test names tools/{tool}.py"
        # Scripts that wrap a command share the tests of its options.
        missing = {one for one in options if not any(re.search(rf"{one}\b", text) for text in tests)}
        assert not missing, f"no test of tools/{tool}.py uses {missing}"
