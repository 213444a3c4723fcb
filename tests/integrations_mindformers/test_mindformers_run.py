"""A whole run in which MindFormers' cells are trained, against one with ours: warm-up, KL term, updates, export."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from running import MODEL, sets, training_lines

from mindgspo.tensor_files.writer import read_safetensors

EXPERIMENT = f"""
experiment: tiny
{MODEL}
data:
  train: {{format: arithmetic, split: train, max_rows: 16}}
  eval: {{format: arithmetic, split: test, max_rows: 4}}
  max_prompt_length: 40
warmup: {{max_steps: 4, batch_size: 8, lr: 1.0e-3}}
reward: {{functions: ["reward.py:compute_score"]}}
rollout: {{prompts_per_step: 4, num_generations: 4, max_new_tokens: 16, slots: 16}}
algorithm: {{kl: {{placement: loss, coef: 0.1}}}}
optimizer: {{lr: 1.0e-4, eps: 1.0e-6}}
trainer: {{max_steps: 2, prompts_per_mini_batch: 2, samples_per_micro_batch: 8, length_multiple: 32, save_every: 1}}
"""
# Unequal within a group, whatever the policy says.
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return len(solution_str) % 3 / 2
"""


@pytest.fixture(scope="module")
def folder(run: Callable[..., CompletedProcess[str]], mindformers_python: str, tmp_path_factory) -> Path:
    """With the run folders native and mindformers."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "tiny.yaml").write_text(EXPERIMENT)
    (folder / "reward.py").write_text(REWARD)
    for backend, python in (("native", sys.executable), ("mindformers", mindformers_python)):
        settings = sets(f"run_dir={backend}", f"model.backend={backend}")
        done = run(python, "-m", "mindgspo.cli", "run", "tiny.yaml", *settings, cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


def test_metrics(folder: Path) -> None:
    theirs, ours = training_lines(folder / "mindformers"), training_lines(folder / "native")
    assert len(theirs) == len(ours) == 2
    for mine, native in zip(theirs, ours, strict=True):
        assert mine["actor/grad_norm"] > 0.01
        for name in ("actor/grad_norm", "actor/kl_loss", "actor/entropy", "critic/score/mean"):
            assert mine[name] == pytest.approx(native[name], rel=1e-3), name
        # Our sampler with their weights, and their cells that score what it sampled.
        assert mine["training/rollout_logprob_diff_max"] < 1e-4
        assert mine["actor/first_ratio_error_max"] < 1e-5


def test_exports(folder: Path) -> None:
    theirs, ours = (read_safetensors(folder / backend / "export") for backend in ("mindformers", "native"))
    assert theirs.keys() == ours.keys()
    for name, array in ours.items():
        np.testing.assert_allclose(theirs[name], array, rtol=0, atol=1e-5, err_msg=name)
