"""The frozen reference policy, with a real two-layer model: it stays what it was while the policy moves on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mindgspo.data.rows import TrainingSample, lay_out
from mindgspo.errors import CheckpointError
from mindgspo.metrics import unknown_names
from mindgspo.parallel.placement import ALONE

IDS = np.random.default_rng(5).integers(1, 300, 14).astype(np.int32)


@pytest.fixture
def make_reference(cpu_runtime: None, load):
    from mindgspo.trainer.reference import ReferencePolicy

    return lambda: ReferencePolicy(load().model, ALONE, temperature=0.8)


@pytest.fixture(scope="module")
def batch():
    sample = TrainingSample(prompt_ids=IDS[:6], response_ids=IDS[6:], rollout_logp=np.zeros(8, np.float32), number=0)
    return lay_out([sample], samples_per_micro_batch=2, length_multiple=16, pad_id=0)[0]


def log_probs(scorer, batch) -> np.ndarray:
    (scores,) = scorer.score([batch])
    return scores.logp_NK


def redraw(model, load) -> None:
    """Other weights, in place, as an update changes them."""
    from mindgspo.models.weights import initialize_weights

    initialize_weights(model, load().model, seed=2)


def test_it_is_the_policy_of_the_moment_it_was_frozen(model, make_reference, batch, load, tmp_path: Path) -> None:
    from mindgspo.models.scoring import PolicyScorer

    policy, reference = PolicyScorer(model, temperature=0.8), make_reference()
    reference.freeze(model, tmp_path / "reference", version=0)
    frozen = log_probs(policy, batch)
    assert np.ptp(frozen[batch.mask_NK]) > 1e-3, "log-probs that are all alike would prove little"
    np.testing.assert_array_equal(log_probs(reference.scorer, batch), frozen)
    redraw(model, load)
    assert np.abs(log_probs(policy, batch) - frozen)[batch.mask_NK].max() > 1e-3
    np.testing.assert_array_equal(log_probs(reference.scorer, batch), frozen)
    # Another process: nothing but the folder is left.
    restored = make_reference()
    restored.restore(tmp_path / "reference")
    np.testing.assert_array_equal(log_probs(restored.scorer, batch), frozen)


def test_a_run_that_begins_again_freezes_again(model, make_reference, batch, load, tmp_path: Path) -> None:
    """A run stopped between freezing and its first checkpoint starts anew, in the same folder."""
    reference = make_reference()
    reference.freeze(model, tmp_path, version=0)
    first = log_probs(reference.scorer, batch)
    redraw(model, load)
    reference.freeze(model, tmp_path, version=0)
    second = log_probs(reference.scorer, batch)
    assert (first != second).any()
    restored = make_reference()
    restored.restore(tmp_path)
    np.testing.assert_array_equal(log_probs(restored.scorer, batch), second)


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated"])
def test_a_folder_that_lost_it_is_refused(damage: str, model, make_reference, tmp_path: Path) -> None:
    folder, reference = tmp_path / "reference", make_reference()
    if damage == "empty":
        folder.mkdir()
    if damage == "truncated":
        reference.freeze(model, folder, version=0)
        (weights,) = folder.rglob("parameters.safetensors")
        weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError) as caught:
        reference.restore(folder)
    assert str(folder) in str(caught.value) and "--overwrite" in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["loss", "reward"])
def test_the_kl_starts_at_zero_and_grows(placement: str, model, make_trainer, answer, tmp_path: Path, batch) -> None:
    """Three steps of real updates with a learning rate that moves this model well away from where it began."""
    from mindgspo.algorithms.losses.registry import build_policy_loss
    from mindgspo.algorithms.optim.manual import SingleUpdate
    from mindgspo.models.policy import PolicyLogProbs
    from mindgspo.models.scoring import PolicyScorer
    from mindgspo.trainer.reference import ReferencePolicy

    settings = (f"algorithm.kl.placement={placement}", "optimizer.warmup_ratio=0", "optimizer.lr=3e-3")
    trainer = make_trainer(
        lambda prompt, sample: answer(prompt.answer if sample == 0 else "9"), *settings,
        "trainer.prompts_per_mini_batch=4", model=model, old_policy=PolicyScorer(model, temperature=1.0),
    )  # fmt: skip
    policy = PolicyLogProbs(model, temperature=1.0, with_entropy=False)
    trainer.backend = SingleUpdate(policy, build_policy_loss(trainer.config.algorithm), trainer.optimizer)
    trainer.reference = ReferencePolicy(trainer.config.model, ALONE, temperature=1.0)
    trainer.reference.freeze(model, tmp_path / "reference", version=0)
    before = log_probs(trainer.reference.scorer, batch)
    name = {"loss": "actor/kl", "reward": "critic/kl"}[placement]
    found = []
    for step in (1, 2, 3):
        metrics = trainer.train_step(step).metrics
        assert unknown_names(metrics) == []
        found.append(metrics[name])
    assert 0 <= found[0] < 1e-9, "one update per step: the first one starts at the reference"
    assert found[2] > found[1] > 1e-5
    np.testing.assert_array_equal(log_probs(trainer.reference.scorer, batch), before)
    moved = log_probs(trainer.old_policy, batch)
    assert np.abs(moved - before).max() > 1e-2
