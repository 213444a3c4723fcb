"""A run with everything that the algorithm section offers at once, stopped and resumed.

GSPO-token on discounted, whitened returns; a KL penalty in the loss with an adaptive coefficient; entropy bonus;
weights against the mismatch of sampler and trainer; groups without signal filtered.
"""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from mindgspo.metrics import unknown_names
from mindgspo.tensor_files import read_safetensors

ALGORITHM = """
algorithm:
  name: gspo_token
  entropy_coef: 0.01
  filter_groups: {metric: reward}
  advantage: {estimator: reinforce_plus_plus, gamma: 0.9}
  kl: {placement: loss, coef: 0.1, target: 1e-3, horizon: 100}
  rollout_correction: {level: token}
"""


@pytest.fixture
def family(experiment: Path) -> Path:
    """The tiny experiment with this algorithm, three steps and a checkpoint after each."""
    text = experiment.read_text()
    for old, new in (("max_steps: 4\n", "max_steps: 3\n"), ("save_every: 2", "save_every: 1"), ("  every: 2\n", "")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    experiment.write_text(text + ALGORITHM)
    return experiment


@pytest.mark.slow
def test_it_runs_and_a_stopped_run_ends_as_an_uninterrupted_one(
    family: Path, mindgspo, stopped_at, read_lines, reproducible, tmp_path: Path
) -> None:
    folder = family.parent
    done = mindgspo("run", family, "--set", f"run_dir={folder / 'whole'}", cwd=folder)
    assert done.returncode == 0, done.stderr + done.stdout
    whole = folder / "whole"
    lines = read_lines(whole / "metrics.jsonl")
    assert unknown_names(key for line in lines for key in line) == []
    training = [line for line in lines if "actor/updates" in line]
    assert [line["step"] for line in training] == [1, 2, 3]
    updated = [line for line in training if line["actor/updates"]]
    assert updated, "every group of every step was filtered: nothing is shown here"
    for line in training:
        assert line["samples/generated"] == 16 == line["samples/trained"] + line["samples/filtered"]
    for line in updated:
        assert line["actor/first_ratio_error_max"] < 1e-5 and line["actor/kl"] >= 0 and line["actor/kl_loss"] >= 0
        assert line["rollout_corr/ess"] == pytest.approx(1, abs=1e-4), "sampler and trainer are one model"
        assert line["rollout_corr/clipped_share"] == 0
    coefs = [line["actor/kl_coef"] for line in training]
    assert coefs[0] == 0.1 and len(set(coefs)) > 1, "the coefficient must have moved"
    reference = read_safetensors(next((whole / "reference").rglob("parameters.safetensors")))
    export = read_safetensors(whole / "export")
    assert reference.keys() == export.keys()
    assert any((reference[name] != export[name]).any() for name in export), "the reference moved with the policy"

    root = folder / "runs" / "tiny"
    code, _, errors = stopped_at(family, root / "checkpoints" / "step_00000001", signal.SIGKILL)
    assert code == -signal.SIGKILL, errors
    assert not (root / "summary.json").exists()
    saved = read_safetensors(next((root / "reference").rglob("parameters.safetensors")))
    assert all(np.array_equal(saved[name], reference[name]) for name in reference)

    # Without the reference policy the penalty would be another one.
    shutil.move(root / "reference", tmp_path / "aside")
    done = mindgspo("run", family, "--set", "resume=auto", cwd=folder)
    assert done.returncode == 1
    assert "reference: the reference policy of this run is missing" in done.stderr and "--overwrite" in done.stderr
    shutil.move(tmp_path / "aside", root / "reference")

    done = mindgspo("run", family, "--set", "resume=auto", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "resumed at step" in done.stdout and "warm-up" not in done.stdout
    for name in ("metrics.jsonl", "samples.jsonl"):
        assert reproducible(read_lines(root / name)) == reproducible(read_lines(whole / name)), name
    weights = Path("export") / "model.safetensors"
    assert (root / weights).read_bytes() == (whole / weights).read_bytes()
    summary = json.loads((root / "summary.json").read_text())
    assert (summary["algorithm"], summary["steps"]) == ("gspo_token", 3)
