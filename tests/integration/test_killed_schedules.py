"""Runs with servers of their own, killed again and again: nothing is lost, nothing is trained twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from games import GAME, GAMES
from running import command, environment, read_lines, reproducible, sets

MODEL = Path(__file__).resolve().parents[2] / "model_configs" / "qwen2_tiny.yaml"
EXPERIMENT = f"""include: {MODEL}
experiment: killed
seed: 1
model: {{hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2}}
data:
  train: {{format: arithmetic, split: train}}
  eval: {{format: arithmetic, split: test, max_rows: 8}}
  max_prompt_length: 32
rollout: {{prompts_per_step: 4, num_generations: 4, max_new_tokens: 64, slots: 8}}
optimizer: {{lr: 1e-4}}
trainer: {{max_steps: 40, prompts_per_mini_batch: 2, samples_per_micro_batch: 8, length_multiple: 16, save_every: 1}}
eval: {{every: 10}}
logging: {{groups_per_step: null}}
"""
RESPONSES = 16


def start(folder: Path, name: str, *settings: str) -> subprocess.Popen:
    path = folder / "killed.yaml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    (folder / "game.py").write_text(GAME, encoding="utf-8")
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command("run", path, *sets(f"run_dir={folder / name}", "resume=auto", *settings)),
            stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=environment(), start_new_session=True,
        )  # fmt: skip


def finish(folder: Path, name: str, *settings: str) -> None:
    assert start(folder, name, *settings).wait(600) == 0, (folder / f"{name}.log").read_text()[-4000:]


def num_steps(run_dir: Path) -> int:
    path = run_dir / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def kill(run: subprocess.Popen) -> None:
    """The trainer alone: its servers must follow, and its reward processes."""
    family = psutil.Process(run.pid).children(recursive=True)
    run.send_signal(signal.SIGKILL)
    run.wait()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert not alive, [process.cmdline() for process in alive]


def check_account(run_dir: Path, *, batches_ahead: int) -> None:
    """Every step once; what waited + what was begun = what was drawn + what waits; every prompt is trained once."""
    steps = [row for row in read_lines(run_dir / "metrics.jsonl") if "samples/generated" in row]
    assert [row["step"] for row in steps] == list(range(1, 41))
    waiting = 0
    for row in steps:
        drawn = row["samples/generated"]
        assert waiting + row["samples/begun"] == drawn + row["samples/waiting"] + row.get("samples/expired", 0), row
        assert drawn == row["samples/trained"] + row["samples/filtered"] + row.get("samples/dropped", 0) == RESPONSES
        assert row["staleness/token_max"] <= batches_ahead
        waiting = row["samples/waiting"]
    assert waiting == 0
    trained = [(row["prompt_index"], row["sample_index"]) for row in read_lines(run_dir / "samples.jsonl")]
    assert len(trained) == len(set(trained)) == 40 * RESPONSES


def samples_of(run_dir: Path) -> list[dict]:
    """Samples without the time that environments took."""
    rows = read_lines(run_dir / "samples.jsonl")
    for row in rows:
        for turn in row.get("episode", {}).get("turns", ()):
            del turn["seconds"]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "staleness", "kills", "games"),
    [("bounded", 2, 20, ()), ("one_step_off", 1, 5, ()), ("bounded", 2, 20, GAMES), ("one_step_off", 1, 20, GAMES)],
    ids=["bounded", "one_step_off", "bounded-games", "one_step_off-games"],
)
def test_a_run_survives_every_kill(
    tmp_path: Path, schedule: str, staleness: int, kills: int, games: tuple[str, ...]
) -> None:
    settings = (f"trainer.schedule={schedule}", f"trainer.max_staleness={staleness}", *games)
    choose, survived = random.Random(7), 0
    while survived < kills:
        run, before = start(tmp_path, "killed", *settings), num_steps(tmp_path / "killed")
        # Somewhere between its start and a few steps on.
        wanted, rest = before + choose.choice((0, 0, 1, 2)), choose.uniform(0.0, 1.0)
        until = time.monotonic() + choose.uniform(3.0, 25.0)
        while run.poll() is None and time.monotonic() < until and num_steps(tmp_path / "killed") <= wanted:
            time.sleep(0.02)
        time.sleep(0.3 * rest)
        assert run.poll() is None, "it ended before it was killed: " + (tmp_path / "killed.log").read_text()[-2000:]
        kill(run)
        survived += 1
    finish(tmp_path, "killed", *settings)
    check_account(tmp_path / "killed", batches_ahead=staleness)
    if schedule == "one_step_off":  # which weights draw a token does not depend on the clock
        finish(tmp_path, "whole", *settings)
        ours, theirs = (tmp_path / name / "export" / "model.safetensors" for name in ("killed", "whole"))
        assert ours.read_bytes() == theirs.read_bytes()
        ours, theirs = (samples_of(tmp_path / name) for name in ("killed", "whole"))
        assert ours == theirs
        ours, theirs = (read_lines(tmp_path / name / "metrics.jsonl") for name in ("killed", "whole"))
        assert reproducible(ours) == reproducible(theirs)
    print(json.dumps({"schedule": schedule, "kills": kills, "survived": survived}))
