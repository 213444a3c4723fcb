"""The log-prob head at the vocabulary of Qwen2.5 never holds more than a few chunks of logits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
CHILD = Path(__file__).with_name("logprob_head_memory_child.py")
NUM_TOKENS, VOCAB_SIZE, HIDDEN_SIZE, CHUNK_TOKENS = 8192, 151_936, 32, 512


@pytest.mark.slow
@pytest.mark.parametrize(("head", "temperature"), [("base", 0.7), ("entropy", 1.0)])
def test_forward_and_backward_grow_by_at_most_three_chunks(head: str, temperature: float) -> None:
    sizes = map(str, (temperature, NUM_TOKENS, VOCAB_SIZE, HIDDEN_SIZE, CHUNK_TOKENS))
    command, environment = [sys.executable, str(CHILD), head, *sizes], {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["finite"]
    # All logits at once would be 16 chunks. At least one chunk must show, or the measurement saw nothing.
    assert 1 < seen["chunks"] <= 3, seen
