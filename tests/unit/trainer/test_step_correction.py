"""Weights against the mismatch of sampler and trainer: from the step's log-probs into the batch and the metrics.

The script samples every token with log-prob -1. The old policy gives tokens of even id -0.5, of odd id -1.25: weights
exp(0.5) = 1.65 and exp(-0.25) = 0.78.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from scripted_engine import micro_batches

CORRECTION = "algorithm.rollout_correction"


def difference(ids: np.ndarray) -> np.ndarray:
    """log pi_old - log pi_sampler."""
    return np.where(ids % 2 == 0, 0.5, -0.25)


@pytest.fixture
def make(make_trainer, one_of_two_right, fakes):
    return lambda *overrides: make_trainer(
        one_of_two_right, *overrides, old_policy=fakes.scorer(lambda ids: difference(ids) - 1)
    )


def rows_of(trainer) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(ids, correction weights) of every response in the updater's rows; padding must weigh 1."""
    for batch in micro_batches(trainer):
        assert (batch.correction_NK[~batch.mask_NK] == 1).all()
        for mask, ids, weights in zip(batch.mask_NK, batch.targets_NK, batch.correction_NK, strict=True):
            if mask.any():
                yield ids[mask], weights[mask]


PACKED = ("trainer.packing=true", "trainer.max_tokens_per_micro_batch=96", "trainer.samples_per_micro_batch=null")


@pytest.mark.parametrize("rows", [(), PACKED], ids=["one per row", "packed"])
def test_token_weights_are_truncated(rows: tuple[str, ...], make) -> None:
    trainer = make(f"{CORRECTION}.level=token", f"{CORRECTION}.max=1.5", *rows)
    metrics = trainer.train_step(1).metrics
    if rows:
        assert any(batch.segments_RT.max() > 1 for batch in micro_batches(trainer)), "nothing is packed"
    found = list(rows_of(trainer))
    assert len(found) == 8
    for ids, weights in found:
        np.testing.assert_allclose(weights, np.minimum(np.exp(difference(ids)), 1.5), rtol=1e-6)
    weights = np.concatenate([weights for _, weights in found]).astype(np.float64)
    capped = float(np.mean(np.concatenate([ids for ids, _ in found]) % 2 == 0))
    assert 0 < capped < 1, "the example shows too little"
    ess = weights.sum() ** 2 / weights.size / (weights**2).sum()
    expected = {"weight_mean": weights.mean(), "weight_max": 1.5, "weight_min": math.exp(-0.25), "ess": ess,
                "clipped_share": capped}  # fmt: skip
    found = {name: value for name, value in metrics.items() if name.startswith("rollout_corr/") and "kl" not in name}
    assert found == pytest.approx({f"rollout_corr/{name}": value for name, value in expected.items()}, rel=1e-6)


def test_responses_far_off_are_masked_and_without_a_correction_weigh_one(make) -> None:
    # A response weighs the product of its tokens' weights, or 0 outside [0.5, 2]; the denominators stay.
    trainer = make(f"{CORRECTION}.level=sequence", f"{CORRECTION}.mode=mask", f"{CORRECTION}.max=2")
    metrics = trainer.train_step(1).metrics
    kept = []
    for ids, weights in rows_of(trainer):
        product = math.exp(difference(ids).sum())
        kept.append(0.5 <= product <= 2)
        np.testing.assert_allclose(weights, np.full(ids.size, product if kept[-1] else 0), rtol=1e-6)
    assert 0 < sum(kept) < 8, "the example shows too little"
    assert metrics["rollout_corr/clipped_share"] == pytest.approx(1 - sum(kept) / 8)
    assert (metrics["rollout_corr/weight_min"], metrics["samples/trained"]) == (0, 8)
    assert {batch.num_sequences for batch in micro_batches(trainer)} == {4}
    trainer = make()
    metrics = trainer.train_step(1).metrics
    assert all((weights == 1).all() for _, weights in rows_of(trainer))
    assert "rollout_corr/ess" not in metrics
    assert metrics["training/rollout_logprob_diff_max"] == pytest.approx(0.5), "the mismatch is reported all the same"
