"""A tiny experiment on disk, and the command line as a user starts it: in a child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mindgspo.config import TokenizerSection, load_config
from mindgspo.models.huggingface_config import huggingface_config
from mindgspo.models.names import weight_shapes
from mindgspo.tensor_files import write_safetensors
from mindgspo.tokenization import load_tokenizer

PROJECT = Path(__file__).resolve().parents[2]

# The warm-up teaches "#### d" with d out of three: a policy that then guesses is right often enough for groups
# with unequal rewards, so that GSPO's updates really change the weights.
EXPERIMENT = """
experiment: tiny
seed: 1
model:
  vocab_size: 384
  hidden_size: 32
  intermediate_size: 64
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 2
  max_position_embeddings: 64
tokenizer:
  path: tokenizer
data:
  train: {format: gsm8k, path: rows.jsonl}
  eval: {format: gsm8k, path: held_out.jsonl}
  max_prompt_length: 32
warmup:
  max_steps: 40
  batch_size: 8
  lr: 1e-2
  stop_at_accuracy: 0.99
  check_every: 20
  check: {format: arithmetic, split: dev, max_rows: 4}
rollout:
  prompts_per_step: 4
  num_generations: 4
  max_new_tokens: 8
  slots: 16
optimizer:
  lr: 1e-3
trainer:
  max_steps: 4
  prompts_per_mini_batch: 2
  samples_per_micro_batch: 8
  length_multiple: 32
  save_every: 2
eval:
  every: 2
  num_samples: 2
  pass_at_k: [1, 2]
logging:
  groups_per_step: 2
"""


def write_rows(path: Path, count: int, first: int) -> None:
    """Rows {question, answer} in GSM8K's format; the answers 1, 2, 3 follow no rule that could be learnt."""
    rows = [
        {
            "question": f"Tom has {10 + number} pens and buys {3 * number} more. How many now?",
            "answer": f"#### {1 + (number * number + number // 3) % 3}",
        }
        for number in range(first, first + count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_experiment(folder: Path) -> Path:
    """The tiny experiment with its data and tokenizer; returns the YAML's path."""
    load_tokenizer(TokenizerSection()).save(folder / "tokenizer")
    write_rows(folder / "rows.jsonl", 10, first=1)
    write_rows(folder / "held_out.jsonl", 6, first=20)
    path = folder / "tiny.yaml"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """What a child process needs to find the package, installed or not."""
    return {**os.environ, "PYTHONPATH": str(PROJECT)}


@pytest.fixture(scope="session")
def mindgspo(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess]:
    """mindgspo("run", "x.yaml", ..., cwd=folder): the finished child process, its output as text."""

    def start(*arguments: object, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "mindgspo.cli", *map(str, arguments)],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return start


@pytest.fixture(scope="session")
def stopped_at(environment: dict[str, str]) -> Callable[[Path, Path, signal.Signals], tuple[int, str, str]]:
    """stopped_at(config, path, signal): start or resume a run, signal it as soon as `path` exists.

    Returns exit code, standard output and standard error.
    """

    def start_and_stop(config: Path, path: Path, number: signal.Signals) -> tuple[int, str, str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "mindgspo.cli", "run", config, "--set", "resume=auto"],
            cwd=config.parent,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            deadline = time.monotonic() + 300
            while not path.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.002)
            os.kill(process.pid, number)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        assert path.exists(), f"{path} never appeared:\n{output}{errors}"
        return process.returncode, output, errors

    return start_and_stop


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The tiny experiment after `mindgspo run`. folder: where it was started. root: its run folder."""

    folder: Path
    config: Path
    root: Path
    output: str


@pytest.fixture(scope="session")
def finished_run(mindgspo: Callable, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A whole run without interruption. Tests must not change anything in it."""
    folder = tmp_path_factory.mktemp("finished")
    config = write_experiment(folder)
    done = mindgspo("run", config, cwd=folder)
    assert done.returncode == 0, done.stderr + done.stdout
    return FinishedRun(folder=folder, config=config, root=folder / "runs" / "tiny", output=done.stdout)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """The tiny experiment's YAML in a folder of its own."""
    return write_experiment(tmp_path)


@pytest.fixture(scope="session")
def write_model() -> Callable[..., Path]:
    """write_model(folder, config, change): random weights of the experiment's model in Hugging Face's layout;
    change(weights) may edit the named arrays before they are written."""

    def write(folder: Path, config: Path, change: Callable[[dict[str, np.ndarray]], object]) -> Path:
        section = load_config(config).model
        random = np.random.default_rng(0)
        weights = {
            name: np.float32(0.05) * random.standard_normal(shape, dtype=np.float32)
            for name, shape in weight_shapes(section).items()
        }
        change(weights)
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", weights)
        described = huggingface_config(section, eos_ids=[378], pad_id=376)
        (folder / "config.json").write_text(json.dumps(described))
        return folder

    return write


@pytest.fixture(scope="session")
def read_lines() -> Callable[[Path], list[dict]]:
    """The records of a JSON Lines file."""
    return lambda path: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="session")
def tree() -> Callable[[Path], dict[str, bytes]]:
    """tree(folder): every file's content by its path, lock files left out (they name the last process)."""

    def read(folder: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.name != ".lock"
        }

    return read


@pytest.fixture(scope="session")
def reproducible() -> Callable[[list[dict]], list[dict]]:
    """Metric lines without what a clock or the machine decides."""
    return lambda lines: [
        {key: value for key, value in line.items() if not key.startswith(("timing_s/", "perf/"))} for line in lines
    ]
