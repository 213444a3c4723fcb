"""Whole runs as a user starts them: a tiny experiment, the command line in a child process, what a run folder holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torture_runs import TINY_MODEL
from weight_files import write_safetensors

from mindgspo.config import TokenizerSection, load_config
from mindgspo.config.huggingface_config import huggingface_config
from mindgspo.config.schema import WatchSection
from mindgspo.launch.launcher import launch
from mindgspo.models.names import weight_shapes
from mindgspo.tokenization import load_tokenizer

PROJECT = Path(__file__).resolve().parents[1]

MODEL = f"\n{TINY_MODEL}"

# The warm-up teaches "#### d" with d out of three: a policy that then guesses is right often enough for groups
# with unequal rewards, so that GSPO's updates really change the weights.
EXPERIMENT = f"""
experiment: tiny
seed: 1
{MODEL}
tokenizer:
  path: tokenizer
data:
  train: {{format: gsm8k, path: rows.jsonl}}
  eval: {{format: gsm8k, path: held_out.jsonl}}
  max_prompt_length: 32
warmup:
  max_steps: 40
  batch_size: 8
  lr: 1e-2
  stop_at_accuracy: 0.99
  check_every: 20
  check: {{format: arithmetic, split: dev, max_rows: 4}}
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


def write_model(folder: Path, config: Path, change: Callable[[dict[str, np.ndarray]], object]) -> Path:
    """Random weights of the experiment's model in Hugging Face's layout; change(weights) may edit the named arrays
    before they are written."""
    section = load_config(config).model
    random = np.random.default_rng(0)
    weights = {
        name: np.float32(0.05) * random.standard_normal(shape, dtype=np.float32)
        for name, shape in weight_shapes(section).items()
    }
    change(weights)
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", weights)
    (folder / "config.json").write_text(json.dumps(huggingface_config(section, eos_ids=[378], pad_id=376)))
    return folder


def command(*words: object) -> list[str]:
    """The command line of `mindgspo <words>` in this interpreter."""
    return [sys.executable, "-m", "mindgspo.cli", *map(str, words)]


def environment(**variables: str) -> dict[str, str]:
    """What a child process needs to find the package, installed or not."""
    return {**os.environ, "PYTHONPATH": str(PROJECT), **variables}


def python(*words: object, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """This interpreter with these words, to its end. env: further environment variables."""
    words = (sys.executable, *map(str, words))
    return subprocess.run(words, env={**os.environ, **(env or {})}, capture_output=True, text=True, **options)


def imported_by(code: str) -> set[str]:
    """The modules that this code imports, in a process of its own."""
    done = python("-c", f"{code}\nimport sys; print('\\n', *sys.modules)", check=True)
    return set(done.stdout.splitlines()[-1].split())


def mindgspo(
    *words: object, cwd: Path, timeout: float = 1500, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`mindgspo <words>` in a child process, to its end; on a busy machine it tells waits, which are left out. env:
    further environment variables."""
    done = python("-m", "mindgspo.cli", *words, cwd=cwd, timeout=timeout, env=environment(**(env or {})))
    done.stderr = "".join(line for line in done.stderr.splitlines(keepends=True) if not line.startswith("... "))
    return done


def succeeded(*words: object, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """`mindgspo` of a command that must end well."""
    done = mindgspo(*words, cwd=cwd, **options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done


def run_workers(script: Path, folder: Path, num_workers: int) -> None:
    """A worker script on so many ranks, to its end. `folder` is its argument and takes its logs; AssertionError with
    the end of one where it fails."""
    code = launch([str(script), str(folder)], num_workers=num_workers, log_dir=folder / "logs", watch=WatchSection())
    assert code == 0, (folder / "logs" / "rank_0.log").read_text()[-3000:]


def sets(*overrides: str) -> list[str]:
    """--set before each of them."""
    return [word for override in overrides for word in ("--set", override)]


def read_lines(path: Path) -> list[dict]:
    """The records of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def training_lines(run_dir: Path) -> list[dict]:
    """The lines of training steps among a run's metrics."""
    return [line for line in read_lines(run_dir / "metrics.jsonl") if "samples/generated" in line]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file's content by its path, lock files left out (they name the last process)."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


CLOCK = re.compile(r"timing_s/|perf/|env/seconds/|schedule/.*_idle_share$")
"""Metrics in which equal runs may differ, as docs/checkpoints.md says."""


def reproducible(lines: list[dict]) -> list[dict]:
    """Metric lines without what a clock or the machine decides."""
    return [{key: value for key, value in line.items() if not CLOCK.match(key)} for line in lines]
