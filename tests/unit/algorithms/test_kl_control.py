"""The KL coefficient by hand-worked numbers, and the penalty in the reward against published code."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.algorithms.kl_control import KLController, reward_penalty
from mindgspo.config.algorithm import KLSection
from mindgspo.errors import CheckpointError, TrainingError

VECTORS = Path(__file__).resolve().parents[3] / "tools" / "conformance" / "conformance_public.json"


def adaptive(**changes: object) -> KLController:
    return KLController(KLSection(**{"placement": "loss", "coef": 0.1, "target": 6.0, "horizon": 1000, **changes}))


@pytest.mark.parametrize(("mean_kl", "num_responses", "coef"), [
    (6.0, 100, 0.1),  # on target
    (6.6, 100, 0.101),  # error 0.1, a tenth of the horizon: 1 + 0.1 * 0.1
    (5.4, 100, 0.099),
    (60.0, 100, 0.102),  # error 9, counted as 0.2
    (0.0, 100, 0.098),  # error -1, counted as -0.2
    (-3.0, 1000, 0.08),  # an estimate of k1 may be negative
    (60.0, 0, 0.1),
])  # fmt: skip
def test_adaptive_coefficient_follows_the_clipped_relative_error(mean_kl, num_responses, coef):
    controller = adaptive()
    controller.update(mean_kl, num_responses)
    assert controller.coef == pytest.approx(coef, rel=1e-12)


def test_updates_multiply_and_a_fixed_coefficient_stays():
    controller = adaptive(coef=1.0, horizon=10)
    for mean_kl in (100.0, 100.0, 0.0):
        controller.update(mean_kl, 10)
    assert controller.coef == pytest.approx(1.2 * 1.2 * 0.8, rel=1e-12)
    fixed = KLController(KLSection(placement="loss", coef=0.3))
    fixed.update(1e6, 10_000_000)
    assert fixed.coef == 0.3
    assert KLController(KLSection(coef=0.3)).coef == 0.0, "there is no penalty"


@given(steps=st.lists(st.tuples(st.floats(-1e30, 1e30), st.integers(0, 4999)), max_size=30), coef=st.floats(1e-12, 1e3))
def test_coefficient_is_never_negative_and_finite(steps, coef):
    controller = adaptive(coef=coef)
    for mean_kl, num_responses in steps:
        controller.update(mean_kl, num_responses)
        assert 0 < controller.coef < math.inf


@pytest.mark.parametrize("target", [None, 6.0])
@pytest.mark.parametrize("mean_kl", [math.nan, math.inf, -math.inf])
def test_a_kl_that_is_not_finite_stops_the_run(mean_kl, target):
    controller = adaptive(target=target)
    with pytest.raises(TrainingError, match="mean KL"):
        controller.update(mean_kl, 10)
    assert controller.coef == 0.1


def test_a_coefficient_beyond_every_range_stops_the_run():
    controller = adaptive(coef=9e29)
    with pytest.raises(TrainingError, match=r"grown to 9\.0e\+29.*kl\.target 6"):
        controller.update(1e3, 1000)


def test_more_responses_than_five_horizons_are_a_defect_of_the_caller():
    with pytest.raises(AssertionError, match="5000 responses at a horizon of 1000"):
        adaptive().update(0.0, 5000)


def test_state_survives_a_checkpoint():
    first, second = adaptive(), adaptive()
    first.update(100.0, 500)
    second.load_state(json.loads(json.dumps(first.state())))
    assert second.coef == first.coef != 0.1


@pytest.mark.parametrize(
    "state", [{}, {"coef": None}, {"coef": "1"}, {"coef": True}, {"coef": -1.0}, {"coef": math.nan}]
)
def test_a_broken_state_is_refused(state):
    with pytest.raises(CheckpointError, match="KL coefficient in the checkpoint"):
        adaptive().load_state(state)


@pytest.mark.parametrize(("estimator", "expected"), [
    ("k1", [math.log(2), -math.log(4)]),
    ("k2", [math.log(2) ** 2 / 2, math.log(4) ** 2 / 2]),
    ("abs", [math.log(2), math.log(4)]),
    ("k3", [0.5 + math.log(2) - 1, 4 - math.log(4) - 1]),
    ("low_var_kl", [0.5 + math.log(2) - 1, 4 - math.log(4) - 1]),
])  # fmt: skip
def test_estimates_by_hand(estimator, expected):
    """Probabilities 1/2 and 1/8 under the old policy, 1/4 and 1/2 under the reference."""
    old, ref = np.log([0.5, 0.125]), np.log([0.25, 0.5])
    penalty = reward_penalty(KLSection(estimator=estimator), old, ref, np.ones(2, bool))
    assert penalty.dtype == np.float64
    np.testing.assert_allclose(penalty, expected, rtol=1e-12)


def test_bounds_of_k3():
    old, ref, mask = np.array([-50.0, -50.0, 0.0]), np.array([0.0, -48.0, -30.0]), np.ones(3, bool)

    def penalty(**bounds: float | None) -> np.ndarray:
        return reward_penalty(KLSection(**bounds), old, ref, mask)

    small = math.exp(2) - 3
    np.testing.assert_allclose(penalty(), [10, small, 10], rtol=1e-12)
    np.testing.assert_allclose(penalty(value_clamp=None), [math.exp(20) - 21, small, 19 + math.exp(-20)], rtol=1e-12)
    np.testing.assert_allclose(
        penalty(value_clamp=None, exponent_clamp=None), [math.exp(50) - 51, small, 29], rtol=1e-12
    )
    np.testing.assert_array_equal(reward_penalty(KLSection(estimator="k1"), old, ref, mask), [-50, -2, 30])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "abs"])
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_slots_do_not_matter(estimator, garbage):
    old = np.array([[-1.0, garbage, -2.0], [garbage, -garbage, garbage]], np.float32)
    ref = np.array([[-1.5, garbage, -1.0], [garbage, garbage, 0]], np.float32)
    mask = np.array([[True, False, True], [False, False, False]])
    section = KLSection(estimator=estimator)
    penalty = reward_penalty(section, old, ref, mask)
    clean = reward_penalty(section, np.where(mask, old, -1).astype(np.float32), np.where(mask, ref, -1), mask)
    np.testing.assert_array_equal(penalty, clean)
    assert (penalty[~mask] == 0).all()


def test_a_wild_reference_stays_finite():
    extremes = np.array([-1e4, 0.0])
    penalty = reward_penalty(KLSection(), extremes, extremes[::-1].copy(), np.ones(2, bool))
    np.testing.assert_array_equal(penalty, [10, 10])


def test_shapes_and_mask_must_match():
    section, values, mask = KLSection(), np.zeros(3), np.ones(3, bool)
    with pytest.raises(AssertionError):
        reward_penalty(section, values, np.zeros(2), mask)
    with pytest.raises(AssertionError, match="dtype"):
        reward_penalty(section, values, values, np.ones(3))


def test_penalty_equals_the_peers_own():
    """Every published case that the settings of `algorithm.kl` can express."""
    checked = 0
    for case in json.loads(VECTORS.read_text()):
        if case["kind"] != "kl" or "old_logp" in case["inputs"]:
            continue
        config, inputs = case["config"], case["inputs"]
        kind = config["kl_type"]
        exponent, value = config.get("kl_arg_clamp"), config.get("kl_value_clamp")
        is_symmetric = all(bound is None or bound[0] == -bound[1] for bound in (exponent, value))
        if not is_symmetric or (kind != "k3" and value is not None):
            continue
        section = KLSection(estimator=kind, exponent_clamp=exponent and exponent[1], value_clamp=value and value[1])
        logp, ref_logp = (np.asarray(inputs[name], dtype=np.float64) for name in ("logp", "ref_logp"))
        penalty = reward_penalty(section, logp, ref_logp, np.asarray(inputs["mask"], dtype=bool))
        np.testing.assert_allclose(
            penalty, np.asarray(case["expected"]["kl_token"], dtype=np.float64), rtol=1e-9, atol=1e-12,
            err_msg=case["name"],
        )  # fmt: skip
        checked += 1
    assert checked >= 50
