"""Weights against the mismatch of sampler and trainer: hand-worked numbers, bounds, masked slots."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from mindgspo.algorithms.rollout_correction import (
    METRIC_NAMES,
    correction_weights,
    smallest_kept,
    step_correction_metrics,
)
from mindgspo.config.algorithm import RolloutCorrectionSection as Section
from mindgspo.errors import TrainingError
from mindgspo.types import Batch

LEVELS = ["token", "sequence", "geometric"]

# Two responses of three and of one token; log w = 2, -1, 0.5 (log) and 3 (log), in units of log 2.
MASK = np.array([[True, True, True], [True, False, False], [False, False, False]])
OLD = np.array([[-1.0, -3.0, -2.0], [-1.0, 7.0, 7.0], [7.0, 7.0, 7.0]]) * math.log(2)
SAMPLER = np.array([[-3.0, -2.0, -2.5], [-4.0, 9.0, 9.0], [9.0, 9.0, 9.0]]) * math.log(2)


def correction_metrics(section: Section, old: np.ndarray, sampler: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    return step_correction_metrics(section, [_batch(old, sampler, mask)])


def weights(**settings: object) -> np.ndarray:
    return correction_weights(Section(**settings), OLD, SAMPLER, MASK)


def test_level_none_is_exactly_one_everywhere():
    result = correction_weights(Section(), OLD * np.nan, SAMPLER, MASK)
    assert result.dtype == np.float32 and (result == 1).all()


@pytest.mark.parametrize(("settings", "expected"), [
    ({"level": "token", "max": 100.0}, [[4, 0.5, 2**0.5], [8, 1, 1], [1, 1, 1]]),
    ({"level": "token"}, [[2, 0.5, 2**0.5], [2, 1, 1], [1, 1, 1]]),
    ({"level": "token", "mode": "mask"}, [[0, 0.5, 2**0.5], [0, 1, 1], [1, 1, 1]]),
    ({"level": "token", "mode": "mask", "max": 5.0, "min": 0.6}, [[4, 0, 2**0.5], [0, 1, 1], [1, 1, 1]]),
    ({"level": "sequence", "max": 100.0}, [[2**1.5] * 3, [8, 1, 1], [1, 1, 1]]),
    ({"level": "sequence", "max": 4.0}, [[2**1.5] * 3, [4, 1, 1], [1, 1, 1]]),
    ({"level": "sequence", "max": 4.0, "mode": "mask"}, [[2**1.5] * 3, [0, 1, 1], [1, 1, 1]]),
    ({"level": "geometric", "max": 100.0}, [[2**0.5] * 3, [8, 1, 1], [1, 1, 1]]),
    ({"level": "geometric", "max": 1.2}, [[1.2] * 3, [1.2, 1, 1], [1, 1, 1]]),
    ({"level": "geometric", "max": 1.2, "mode": "mask"}, [[0] * 3, [0, 1, 1], [1, 1, 1]]),
])  # fmt: skip
def test_weights_by_hand(settings, expected):
    result = weights(**settings)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_weights_on_the_bounds_are_kept(mode):
    """max 2, and its reciprocal as min unless told, hit exactly: log 2 and -log 2."""
    assert (smallest_kept(Section(max=4.0)), smallest_kept(Section(max=4.0, min=0.5))) == (0.25, 0.5)
    logp = np.array([[math.log(2), -math.log(2)]])
    result = correction_weights(Section(level="token", mode=mode), logp, np.zeros((1, 2)), np.ones((1, 2), bool))
    np.testing.assert_allclose(result, [[2, 0.5]], rtol=1e-6)


def test_metrics_by_hand():
    """Token weights 2, 1/2, sqrt 2, 2 after truncation of the first and the last."""
    metrics = correction_metrics(Section(level="token"), OLD, SAMPLER, MASK)
    assert tuple(metrics) == METRIC_NAMES
    total, squares = 4.5 + 2**0.5, 4 + 0.25 + 2 + 4
    expected = {"weight_mean": total / 4, "weight_max": 2, "weight_min": 0.5, "ess": total**2 / (4 * squares)}
    assert metrics == pytest.approx(expected | {"clipped_share": 0.5})


def test_units_of_levels_above_the_token_are_responses():
    metrics = correction_metrics(Section(level="sequence", max=4.0, mode="mask"), OLD, SAMPLER, MASK)
    expected = {"weight_mean": 2**0.5, "weight_max": 2**1.5, "weight_min": 0, "ess": 0.5, "clipped_share": 0.5}
    assert metrics == pytest.approx(expected)


def test_metrics_where_everything_is_masked_or_nothing_is_corrected():
    metrics = correction_metrics(Section(level="geometric", max=1.2, mode="mask"), OLD, SAMPLER, MASK)
    assert (metrics["ess"], metrics["clipped_share"]) == (0, 1)
    assert tuple(correction_metrics(Section(), OLD, SAMPLER, MASK).values()) == (1, 1, 1, 1, 0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", ["truncate", "mask"])
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_slots_do_not_matter(level, mode, garbage):
    section = Section(level=level, mode=mode)
    poisoned = [np.where(MASK, values, garbage) for values in (OLD, SAMPLER)]
    clean = [np.where(MASK, values, 0) for values in (OLD, SAMPLER)]
    result = correction_weights(section, *poisoned, MASK)
    np.testing.assert_array_equal(result, correction_weights(section, *clean, MASK))
    assert (result[~MASK] == 1).all()
    assert correction_metrics(section, *poisoned, MASK) == correction_metrics(section, *clean, MASK)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_log_prob_that_is_not_finite_stops_the_run(level, bad):
    broken = OLD.copy()
    broken[0, 1] = bad
    section = Section(level=level, mode="mask")
    for look, arrays in ((correction_weights, (broken, SAMPLER)), (correction_metrics, (SAMPLER, broken))):
        with pytest.raises(TrainingError, match="1 of 4 response tokens"):
            look(section, *arrays, MASK)


@pytest.mark.parametrize("level", LEVELS)
def test_wild_log_ratios_stay_finite(level):
    old = np.array([[1e4, 1e4], [-1e4, -1e4]])
    mask = np.ones((2, 2), bool)
    for largest in (2.0, 1e300):
        section = Section(level=level, max=largest)
        result = correction_weights(section, old, np.zeros((2, 2)), mask)
        assert np.isfinite(result).all() and (result >= 0).all()
        assert all(map(math.isfinite, correction_metrics(section, old, np.zeros((2, 2)), mask).values()))
    assert not correction_weights(Section(level=level, mode="mask"), old, np.zeros((2, 2)), mask).any()


log_probs = npst.arrays(np.float32, (4, 5), elements=st.floats(-30, 0, width=32))
masks = npst.arrays(np.bool_, (4, 5)).filter(lambda mask: mask.any())
sections = st.builds(
    Section, level=st.sampled_from(LEVELS), mode=st.sampled_from(["truncate", "mask"]), max=st.floats(1.001, 20)
)


@given(old=log_probs, sampler=log_probs, mask=masks, section=sections)
def test_weights_and_metrics_keep_their_ranges(old, sampler, mask, section):
    result = correction_weights(section, old, sampler, mask)
    real = result[mask]
    assert (real <= section.max * (1 + 1e-6)).all() and (real >= 0).all()
    if section.mode == "mask":
        assert ((real == 0) | (real >= smallest_kept(section) * (1 - 1e-6))).all()
    if section.level != "token":
        assert all(np.unique(row[kept]).size <= 1 for row, kept in zip(result, mask, strict=True))
    metrics = correction_metrics(section, old, sampler, mask)
    num_units = mask.sum() if section.level == "token" else mask.any(axis=1).sum()
    assert metrics["ess"] == 0 or 1 / num_units - 1e-12 <= metrics["ess"] <= 1 + 1e-12
    assert 0 <= metrics["weight_min"] <= metrics["weight_mean"] * (1 + 1e-12) <= metrics["weight_max"] * (1 + 2e-12)
    assert 0 <= metrics["clipped_share"] <= 1


@given(old=log_probs, mask=masks, section=sections)
def test_a_sampler_that_agrees_needs_no_correction(old, mask, section):
    assert (correction_weights(section, old, old.copy(), mask) == 1).all()
    assert tuple(correction_metrics(section, old, old.copy(), mask).values()) == (1, 1, 1, 1, 0)


@given(old=log_probs, sampler=log_probs, mask=masks, section=sections, order=st.permutations(range(4)))
def test_the_order_of_responses_does_not_matter(old, sampler, mask, section, order):
    order = list(order)
    whole = correction_weights(section, old, sampler, mask)
    np.testing.assert_array_equal(correction_weights(section, old[order], sampler[order], mask[order]), whole[order])
    shuffled = correction_metrics(section, old[order], sampler[order], mask[order])
    assert shuffled == pytest.approx(correction_metrics(section, old, sampler, mask), rel=1e-9)


@given(old=log_probs, sampler=log_probs, mask=masks, section=sections, cut=st.integers(1, 3))
def test_metrics_of_a_step_do_not_depend_on_its_micro_batches(old, sampler, mask, section, cut):
    batches = [_batch(*(part[rows] for part in (old, sampler, mask))) for rows in (slice(0, cut), slice(cut, 4))]
    joined = step_correction_metrics(section, batches)
    assert joined == pytest.approx(correction_metrics(section, old, sampler, mask), rel=1e-9)


def _batch(old: np.ndarray, sampler: np.ndarray, mask: np.ndarray) -> Batch:
    """Rows with two more masked slots than given, as a longer micro-batch has."""
    pad = ((0, 0), (0, 2))
    mask = np.pad(mask, pad)
    numbers = np.zeros(mask.shape, np.int32)
    zeros = np.zeros(mask.shape, np.float32)
    return Batch(
        ids_RT=numbers, positions_RT=numbers, segments_RT=numbers, predict_P=numbers.reshape(-1),
        targets_P=numbers.reshape(-1), place_NK=np.arange(mask.size, dtype=np.int32).reshape(mask.shape), mask_NK=mask,
        samples_N=np.arange(len(mask), dtype=np.int32), rollout_logp_NK=np.pad(sampler, pad, constant_values=np.nan),
        old_logp_NK=np.pad(old, pad, constant_values=np.nan), ref_logp_NK=zeros, advantages_NK=zeros,
        correction_NK=zeros, num_sequences=1, num_tokens=1,
    )  # fmt: skip
