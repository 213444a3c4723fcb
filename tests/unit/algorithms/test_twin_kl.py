"""KL estimators against the exact divergence on a small vocabulary: expectations are sums over all tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mindgspo.algorithms.losses.definition import Aggregation, KLTerm
from mindgspo.algorithms.twins.surrogates import kl_penalty
from mindgspo.errors import DataError

pytestmark = pytest.mark.filterwarnings("error")

TOKEN_SUM = Aggregation(mode="token-sum")
VOCABULARY = 7


def term(kind, **keys):
    return KLTerm(kind=kind, aggregation=TOKEN_SUM, **keys)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum())


@pytest.fixture
def policies():
    """Log-probs of three policies over the vocabulary: the current, the reference and the sampling one."""
    rng = np.random.default_rng(5)
    return tuple(log_softmax(rng.normal(size=VOCABULARY)) for _ in range(3))


def estimates(one_term, logp, ref_logp, old_logp=None):
    """Estimate and derivative at every token of the vocabulary, as one row of tokens."""
    old_logp = None if old_logp is None else old_logp[None]
    value, slope = kl_penalty(
        one_term, logp_NK=logp[None], ref_logp_NK=ref_logp[None], mask_NK=np.ones((1, VOCABULARY)), old_logp_NK=old_logp
    )
    return value[0], slope[0]


def exact_kl(logp, ref_logp):
    return float((np.exp(logp) * (logp - ref_logp)).sum())


def gradient_by_logits(logp, sampled_from, slope):
    """E over tokens y of slope(y) d logp(y) / d logits, for logp = log_softmax(logits)."""
    by_logp = np.exp(sampled_from) * slope
    return by_logp - np.exp(logp) * by_logp.sum()


def exact_gradient(logp, ref_logp):
    """d KL / d logits, by central differences of the sum over all tokens."""
    step = 1e-6 * np.eye(VOCABULARY)
    both = [[exact_kl(log_softmax(logp + sign * one), ref_logp) for sign in (1, -1)] for one in step]
    return np.array([(up - down) / 2e-6 for up, down in both])


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_k1_and_k3_have_the_expectation_of_the_divergence(policies, kind):
    logp, ref_logp, _ = policies
    value, _ = estimates(term(kind), logp, ref_logp)
    assert (np.exp(logp) * value).sum() == pytest.approx(exact_kl(logp, ref_logp), rel=1e-12)


def test_k2_and_abs_have_not(policies):
    logp, ref_logp, _ = policies
    for kind in ("k2", "abs"):
        value, _ = estimates(term(kind), logp, ref_logp)
        assert (np.exp(logp) * value).sum() != pytest.approx(exact_kl(logp, ref_logp), rel=1e-2)


def test_k2_has_the_gradient_of_the_divergence_on_the_policy(policies):
    logp, ref_logp, _ = policies
    _, slope = estimates(term("k2"), logp, ref_logp)
    expected = exact_gradient(logp, ref_logp)
    np.testing.assert_allclose(gradient_by_logits(logp, logp, slope), expected, atol=1e-8)
    assert np.abs(expected).max() > 0.05


def test_k1_has_no_gradient_and_k3_another_one(policies):
    logp, ref_logp, _ = policies
    _, slope = estimates(term("k1"), logp, ref_logp)
    np.testing.assert_allclose(gradient_by_logits(logp, logp, slope), 0.0, atol=1e-15)
    _, slope = estimates(term("k3"), logp, ref_logp)
    # On the policy k3's gradient is that of the other divergence, KL(reference || policy).
    np.testing.assert_allclose(gradient_by_logits(logp, logp, slope), np.exp(logp) - np.exp(ref_logp), atol=1e-14)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs"])
def test_straight_through_variants_keep_the_value_and_lend_k2s_gradient(policies, kind):
    logp, ref_logp, _ = policies
    value, _ = estimates(term(kind), logp, ref_logp)
    lent_value, slope = estimates(term(kind, straight_through_k2=True), logp, ref_logp)
    np.testing.assert_array_equal(lent_value, value)
    np.testing.assert_array_equal(slope, logp - ref_logp)
    np.testing.assert_allclose(gradient_by_logits(logp, logp, slope), exact_gradient(logp, ref_logp), atol=1e-8)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_weighted_estimates_are_unbiased_off_the_policy_in_value_and_gradient(policies, kind):
    logp, ref_logp, old_logp = policies
    value, slope = estimates(term(kind, importance_weight=True), logp, ref_logp, old_logp)
    assert (np.exp(old_logp) * value).sum() == pytest.approx(exact_kl(logp, ref_logp), rel=1e-12)
    np.testing.assert_allclose(gradient_by_logits(logp, old_logp, slope), exact_gradient(logp, ref_logp), atol=1e-8)
    unweighted, _ = estimates(term(kind), logp, ref_logp)
    assert (np.exp(old_logp) * unweighted).sum() != pytest.approx(exact_kl(logp, ref_logp), rel=1e-2)


@pytest.mark.parametrize("keys", [{}, {"importance_weight": True}], ids=["plain", "weighted"])
@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs"])
def test_derivatives_are_those_of_the_values(policies, kind, keys):
    logp, ref_logp, old_logp = policies
    one = term(kind, **keys)
    _, slope = estimates(one, logp, ref_logp, old_logp)
    up, _ = estimates(one, logp + 1e-6, ref_logp, old_logp)
    down, _ = estimates(one, logp - 1e-6, ref_logp, old_logp)
    np.testing.assert_allclose(slope, (up - down) / 2e-6, rtol=1e-7, atol=1e-8)


def token(one_term, above, **keys):
    value, slope = kl_penalty(one_term, logp_NK=[[above]], ref_logp_NK=[[0.0]], mask_NK=[[1]], **keys)
    return value.item(), slope.item()


def test_by_hand():
    assert token(term("k1"), 3.0) == (3.0, 1.0)
    assert token(term("k2"), 3.0) == (4.5, 3.0)
    assert token(term("abs"), -3.0) == (3.0, -1.0)
    assert token(term("abs"), 0.0) == (0.0, 0.0)
    assert token(term("k3"), 0.0) == (0.0, 0.0)
    value, slope = token(term("k3"), -math.log(4.0))
    assert value == pytest.approx(4 - math.log(4.0) - 1) and slope == pytest.approx(1 - 4)


def test_bounds_stop_the_gradient_beyond_them_and_pass_it_on_them():
    exponent = term("k3", arg_clamp=(-2.0, 2.0))
    assert token(exponent, -2.0)[1] == pytest.approx(1 - math.exp(2.0))
    assert token(exponent, -2.5) == (pytest.approx(math.exp(2.0) - 3.0), 0.0)
    value = term("k2", value_clamp=(-10.0, 8.0))
    assert token(value, 4.0) == (8.0, 4.0)
    assert token(value, 4.5) == (8.0, 0.0)
    assert token(replace(value, straight_through_k2=True), 4.5) == (8.0, 4.5)


def test_the_value_is_bounded_after_weighting():
    weighted = term("k2", value_clamp=(-10.0, 2.0), importance_weight=True)
    # u = 2: k2 = 2; d = -log 2 halves it, d = log 2 doubles it beyond the bound.
    assert token(weighted, 2.0, old_logp_NK=[[2.0 + math.log(2.0)]]) == (pytest.approx(1.0), pytest.approx(1.0 + 1.0))
    assert token(weighted, 2.0, old_logp_NK=[[2.0 - math.log(2.0)]]) == (2.0, 0.0)


def test_the_weights_log_ratio_can_be_bounded():
    bounded = term("k1", importance_weight=True, log_ratio_max=0.0)
    assert token(bounded, 2.0, old_logp_NK=[[1.0]]) == (2.0, 1.0)
    assert token(bounded, 2.0, old_logp_NK=[[2.0]]) == (2.0, 3.0)


def test_masked_slots_are_zero_whatever_stands_in_them():
    value, slope = kl_penalty(
        term("k3"), logp_NK=[[1.0, np.nan, np.inf]], ref_logp_NK=[[0.0, 1e30, -np.inf]], mask_NK=[[True, False, False]]
    )
    np.testing.assert_allclose(value, [[math.exp(-1.0), 0.0, 0.0]])
    np.testing.assert_allclose(slope, [[1 - math.exp(-1.0), 0.0, 0.0]])


def test_a_weight_needs_the_old_policy():
    with pytest.raises(DataError, match="old_logp"):
        token(term("k3", importance_weight=True), 1.0)
