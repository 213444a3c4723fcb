"""Mismatch of sampler and trainer: worked by hand, and where a figure does not exist."""

import math

import numpy as np
import pytest

from mindgspo.algorithms.loss_metrics import batch_mismatch, mismatch_metrics
from mindgspo.batches.rows import TrainingSample, lay_out
from mindgspo.metrics import unknown_names

CORRELATION = "training/rollout_actor_probs_pearson_corr"


def logs(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities))


def test_three_tokens_by_hand() -> None:
    """Sampler 1/2, 1/4, 1/8, trainer 1/4, 1/4, 1/2: the ratios trainer / sampler are 1/2, 1, 4."""
    found = mismatch_metrics(logs(0.5, 0.25, 0.125), logs(0.25, 0.25, 0.5))
    two = math.log(2)
    gaps = [0.25, 0.0, 0.375]
    # Deviations from the means 7/24 and 8/24: 5, -1, -4 and -2, -2, 4 (24ths).
    correlation = (5 * -2 + -1 * -2 + -4 * 4) / math.sqrt((25 + 1 + 16) * (4 + 4 + 16))
    assert found == pytest.approx(
        {
            "training/rollout_logprob_diff_max": 2 * two, "training/rollout_logprob_diff_mean": two,
            "training/rollout_probs_diff_max": 0.375, "training/rollout_probs_diff_mean": sum(gaps) / 3,
            "training/rollout_probs_diff_std": np.std(gaps), "rollout_corr/kl": (two + 0 - 2 * two) / 3,
            "rollout_corr/k3_kl": ((0.5 - 1 + two) + 0 + (4 - 1 - 2 * two)) / 3, CORRELATION: correlation,
        },
        rel=1e-12,
    )  # fmt: skip
    assert unknown_names(found) == []


def test_where_both_agree_nothing_differs() -> None:
    same = logs(0.5, 0.1, 0.9).astype(np.float32)
    found = mismatch_metrics(same, same.copy())
    assert found.pop(CORRELATION) == pytest.approx(1, abs=1e-15)
    assert set(found.values()) == {0}


@pytest.mark.parametrize(
    ("sampler", "trainer"),
    [((0.3,), (0.2,)), ((0.1, 0.1, 0.1), (0.2, 0.3, 0.1)), ((0.2, 0.3, 0.1), (0.1, 0.1, 0.1)), ((1, 1), (1, 1))],
    ids=["one token", "sampler is constant", "trainer is constant", "both are certain"],
)
def test_without_variance_there_is_no_correlation(sampler: tuple[float, ...], trainer: tuple[float, ...]) -> None:
    found = mismatch_metrics(logs(*sampler), logs(*trainer))
    assert CORRELATION not in found
    assert all(math.isfinite(value) for value in found.values())


def test_probabilities_that_are_tiny_still_correlate() -> None:
    sampler = np.array([-400.0, -401.0, -402.0])
    assert mismatch_metrics(sampler, sampler - 0.5)[CORRELATION] == pytest.approx(1)


def test_a_token_that_the_sampler_held_impossible_leaves_finite_figures() -> None:
    found = mismatch_metrics(np.array([-1000.0, -1.0]), np.array([-1.0, -2.0]))
    assert all(math.isfinite(value) for value in found.values())
    assert found["rollout_corr/k3_kl"] > 1e30 and found["training/rollout_logprob_diff_max"] == 999


def test_the_sum_is_taken_in_float64() -> None:
    """A million differences of 1e-4 beside one of 100: float32 would lose digits of the mean."""
    trainer = np.full(1_000_000, -1.0, np.float32)
    sampler = trainer.copy()
    sampler[0], sampler[1:] = -101.0, np.float32(-1.0001)
    expected = (100 + 999_999 * (float(trainer[1]) - float(sampler[1]))) / 1_000_000
    found = mismatch_metrics(sampler, trainer)["training/rollout_logprob_diff_mean"]
    assert found == pytest.approx(expected, rel=1e-12)


def test_tokens_that_other_weights_drew_are_left_out() -> None:
    samples = [
        TrainingSample(
            prompt_ids=np.array([1], np.int32), response_ids=np.array([2, 3], np.int32),
            rollout_logp=np.full(2, -1.0 - number, np.float32), number=number,
        ) for number in range(3)
    ]  # fmt: skip
    batches = lay_out(samples, samples_per_micro_batch=2, length_multiple=4, pad_id=0)
    trainer = [np.where(batch.mask_NK, np.float32(-1), np.float32(np.nan)) for batch in batches]
    for first, mean in enumerate((1, 1.5, 2)):  # 0, 1 and 2 nat per token of samples 0, 1 and 2
        found = batch_mismatch(batches, trainer, first_number=first)
        assert found["training/rollout_logprob_diff_mean"] == mean
    assert batch_mismatch(batches, trainer, first_number=3) == {}
