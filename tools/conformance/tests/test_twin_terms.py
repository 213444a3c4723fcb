"""Aggregation and KL estimates of the twins, by hand and by their properties."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo.algorithms.losses.definition import Aggregation, KLTerm, LossDefinition
from mindgspo.errors import DataError
from mindgspo_conformance.twins.aggregation import aggregate, denominators
from mindgspo_conformance.twins.policy_loss import policy_loss
from mindgspo_conformance.twins.surrogates import kl_penalty

pytestmark = pytest.mark.filterwarnings("error")

# Rows of 3, 0 and 1 real tokens, the first with a hole.
MASK = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]])
LOSS = np.array([[1.0, np.nan, 2.0, 6.0], [np.inf, np.nan, 1e30, 0.0], [5.0, np.nan, np.nan, np.nan]])
MODES = (
    "token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm",
    "batch-token-sum-norm", "batch-mean",
)  # fmt: skip
SCALED = ("seq-mean-token-sum-norm", "batch-token-sum-norm")


def aggregation_by(mode, **keys):
    return Aggregation(mode=mode, loss_scale_factor=10.0 if mode in SCALED else None, **keys)


@pytest.mark.parametrize(("mode", "expected"), [
    ("token-mean", 14 / 4),
    ("token-sum", 14.0),
    ("seq-mean-token-mean", (3 + 5) / 2),
    ("seq-mean-token-sum", 14 / 2),
    ("seq-mean-token-sum-norm", 14 / 2 / 10),
    ("batch-token-sum-norm", 14 / 10),
    ("batch-mean", (3 + 5) / 3),
])  # fmt: skip
def test_modes_by_hand(mode, expected):
    aggregation = aggregation_by(mode)
    num_sequences, num_tokens = denominators(MASK, aggregation)
    loss, weights = aggregate(aggregation, LOSS, MASK, num_sequences=num_sequences, num_tokens=num_tokens)
    assert loss == pytest.approx(expected)
    assert not weights[MASK == 0].any()
    assert (weights * np.where(MASK, LOSS, 0.0)).sum() == pytest.approx(expected)


def test_sequence_length_can_carry_an_epsilon():
    aggregation = aggregation_by("seq-mean-token-mean", seq_len_eps=1.0)
    loss, _ = aggregate(aggregation, LOSS, MASK, num_sequences=1, num_tokens=1)
    assert loss == pytest.approx(9 / 4 + 5 / 2)


@pytest.mark.parametrize(("keys", "expected"), [
    ({}, (2.0, 4.0)),
    ({"norm_seqs": 9, "norm_tokens": 37}, (9.0, 37.0)),
    ({"dp_size": 4}, (0.5, 1.0)),
    ({"norm_seqs": 8, "norm_tokens": 36, "dp_size": 2, "token_mean_eps": 4.0}, (4.0, 20.0)),
])  # fmt: skip
def test_denominators_by_hand(keys, expected):
    assert denominators(MASK, aggregation_by("token-mean"), **keys) == expected


def test_denominators_count_empty_rows_where_told_and_always_in_a_batch_mean():
    assert denominators(MASK, aggregation_by("token-mean", empty_rows="include")) == (3.0, 4.0)
    assert denominators(MASK, aggregation_by("batch-mean", empty_rows="exclude"), norm_seqs=9, dp_size=2)[0] == 3.0


def test_denominators_of_nothing_are_one():
    assert denominators(np.zeros((2, 3)), aggregation_by("token-mean")) == (1.0, 1.0)
    loss, weights = aggregate(
        aggregation_by("token-mean"), np.full((2, 3), np.nan), np.zeros((2, 3)), num_sequences=1, num_tokens=1
    )
    assert loss == 0.0 and not weights.any()


def test_a_matrix_of_another_shape_is_refused():
    with pytest.raises(DataError, match=r"loss_mat: expected the mask's shape \[3, 4\], got \[3, 3\]"):
        aggregate(aggregation_by("token-sum"), LOSS[:, :3], MASK, num_sequences=1, num_tokens=1)


def random_batch(seed, num_rows=8, width=6):
    """A batch with an empty row, a row of one token and a hole."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, width + 1, size=num_rows)
    lengths[:2] = 0, 1
    mask = np.arange(width) < lengths[:, None]
    mask[2, 0] = lengths[2] == 1
    logp = -rng.exponential(size=mask.shape)
    return {
        "logp_NK": logp,
        "old_logp_NK": logp - 0.3 * rng.normal(size=mask.shape),
        "ref_logp_NK": logp - 0.3 * rng.normal(size=mask.shape),
        "entropy_NK": rng.exponential(size=mask.shape),
        "advantages_NK": rng.normal(size=mask.shape),
        "correction_NK": rng.uniform(0.5, 2.0, size=mask.shape),
        "mask_NK": mask,
    }


def random_definition(seed):
    rng = np.random.default_rng(seed)
    surrogate = str(rng.choice(["clip", "cispo", "sapo", "gpg", "gmpo"]))
    mode = "batch-mean" if surrogate == "gmpo" else str(rng.choice(MODES[:-1]))
    return LossDefinition(
        ratio_level="none" if surrogate == "gpg" else str(rng.choice(["token", "sequence", "sequence_token"])),
        surrogate=surrogate, aggregation=aggregation_by(mode), clip_low=0.2, clip_high=0.2, clip_ratio_c=1.5,
        loss_upper_clamp=3.0, advantage_pool=str(rng.choice(["none", "masked-mean"])),
        kl=KLTerm(kind="k3", aggregation=aggregation_by(str(rng.choice(MODES[:-1]))), importance_weight=True),
        entropy_coef=0.1,
    )  # fmt: skip


def taken(batch, rows):
    return {name: values[rows] for name, values in batch.items()}


SUMS = ("loss", "pg_loss", "kl_loss")
AVERAGES = ("pg_clipfrac", "pg_clipfrac_seq", "pg_clipfrac_neg", "ppo_kl", "ppo_kl_seq", "log_ratio_mean", "kl")


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), parts=st.sampled_from([1, 2, 4, 8]))
def test_micro_batches_and_ranks_add_up(seed, parts):
    definition, batch = random_definition(seed), random_batch(seed)
    num_sequences, num_tokens = denominators(batch["mask_NK"], replace(definition.aggregation, mode="token-mean"))
    per = {"num_sequences": num_sequences, "num_tokens": num_tokens, "kl_coef": 0.1}
    whole = policy_loss(definition, **batch, **per)
    split = [policy_loss(definition, **taken(batch, rows), **per) for rows in np.split(np.arange(8), parts)]
    for name in SUMS:
        assert sum(getattr(one, name) for one in split) == pytest.approx(getattr(whole, name), rel=1e-12, abs=1e-12)
    for name in AVERAGES:
        assert sum(one.metrics[name] for one in split) == pytest.approx(whole.metrics[name], rel=1e-12, abs=1e-12)
    assert max(one.metrics["log_ratio_max"] for one in split) == whole.metrics["log_ratio_max"]
    gradient = np.concatenate([one.grad_logp_NK for one in split])
    np.testing.assert_allclose(gradient, whole.grad_logp_NK, rtol=1e-12, atol=1e-12)


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), garbage=st.sampled_from([0.0, np.nan, np.inf, 1e30]))
def test_padding_and_the_order_of_rows_change_nothing(seed, garbage):
    definition, batch = random_definition(seed), random_batch(seed)
    per = {"num_sequences": 7.0, "num_tokens": 30.0, "kl_coef": 0.1}
    whole = policy_loss(definition, **batch, **per)
    order = np.random.default_rng(seed).permutation(8)
    padded = {
        name: np.pad(values[order], ((0, 2), (0, 3)), constant_values=False if name == "mask_NK" else garbage)
        for name, values in batch.items()
    }
    other = policy_loss(definition, **padded, **per)
    for name in SUMS:
        assert getattr(other, name) == pytest.approx(getattr(whole, name), rel=1e-12, abs=1e-12)
    for name, value in whole.metrics.items():
        assert other.metrics[name] == pytest.approx(value, rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(other.grad_logp_NK[:8, :6], whole.grad_logp_NK[order], rtol=1e-12, atol=1e-12)
    assert not other.grad_logp_NK[8:].any() and not other.grad_logp_NK[:, 6:].any()


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


def test_a_weight_needs_the_old_policy():
    with pytest.raises(DataError, match="old_logp"):
        token(term("k3", importance_weight=True), 1.0)
