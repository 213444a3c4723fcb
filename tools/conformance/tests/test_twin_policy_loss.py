"""The twins of the policy losses: surrogates by hand, metrics, and gradients against finite differences."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo.algorithms.losses.definition import Aggregation, KLTerm, LossDefinition
from mindgspo.errors import DataError
from mindgspo_conformance.twins.policy_loss import conformance_metrics, policy_loss

pytestmark = pytest.mark.filterwarnings("error")

SEQ_MEAN = Aggregation(mode="seq-mean-token-mean")
TOKEN_MEAN = Aggregation(mode="token-mean")
BATCH_MEAN = Aggregation(mode="batch-mean")
LOG2 = math.log(2.0)


def clip_loss(level="token", aggregation=TOKEN_MEAN, low=0.2, high=0.25, **keys):
    keys = {"ratio_level": level, "surrogate": "clip", "aggregation": aggregation} | keys
    return LossDefinition(clip_low=low, clip_high=high, **keys)


def gmpo_loss(aggregation=BATCH_MEAN, **keys):
    return LossDefinition(
        ratio_level="token", surrogate="gmpo", aggregation=aggregation, clip_low=0.4, clip_high=0.4, **keys
    )


def rows(log_ratios, advantages, logp=-1.0):
    """Arrays of a batch from the real log-ratios of every response; padded with NaN."""
    width = max(len(row) for row in log_ratios)
    difference = np.array([list(row) + [np.nan] * (width - len(row)) for row in log_ratios]).reshape(-1, width)
    return {
        "logp_NK": np.full(difference.shape, logp), "old_logp_NK": logp - difference,
        "advantages_NK": np.asarray(advantages, dtype=np.float64), "mask_NK": ~np.isnan(difference),
    }  # fmt: skip


def test_gspo_token_gives_every_token_its_own_advantage():
    # s = 1: value -A_t; the gradient of token t is -A_t / |y|, that of GSPO the mean of them for both.
    arrays = rows([[LOG2, -LOG2]], [[3.0, -1.0]])
    token = policy_loss(clip_loss("sequence_token", SEQ_MEAN), **arrays)
    sequence = policy_loss(clip_loss("sequence", SEQ_MEAN), **arrays)
    assert token.loss == sequence.loss == pytest.approx(-1.0)
    np.testing.assert_allclose(token.grad_logp_NK, [[-1.5, 0.5]])
    np.testing.assert_allclose(sequence.grad_logp_NK, [[-0.5, -0.5]])


def test_dapo_weighs_tokens_and_dr_grpo_divides_by_a_constant():
    arrays = rows([[0.0, 0.0, 0.0], [0.0]], [1.0, -1.0])
    assert policy_loss(clip_loss(), **arrays).loss == pytest.approx((-3 + 1) / 4)
    assert policy_loss(clip_loss(aggregation=SEQ_MEAN), **arrays).loss == pytest.approx(0.0)
    dr_grpo = Aggregation(mode="seq-mean-token-sum-norm", loss_scale_factor=8)
    result = policy_loss(clip_loss(aggregation=dr_grpo), **arrays)
    assert result.loss == pytest.approx((-3 + 1) / 2 / 8)
    np.testing.assert_allclose(result.grad_logp_NK, [[-1 / 16] * 3, [1 / 16, 0, 0]])


def test_sapo_has_slope_one_at_ratio_one():
    definition = LossDefinition(ratio_level="token", surrogate="sapo", aggregation=TOKEN_MEAN, tau_pos=1.0, tau_neg=2.0)
    at_one = policy_loss(definition, **rows([[0.0], [0.0]], [3.0, -3.0]))
    # sigmoid(0) 4 / tau = 2 and 1.
    assert at_one.loss == pytest.approx((-3 * 2 + 3 * 1) / 2)
    np.testing.assert_allclose(at_one.grad_logp_NK, [[-1.5], [1.5]])
    # r = 2, tau = 1: f = 4 sigmoid(1), f' = 4 sigmoid(1) sigmoid(-1), times dr/dlogp = 2.
    gate = 1 / (1 + math.exp(-1.0))
    at_two = policy_loss(definition, **rows([[LOG2]], [1.0]))
    assert at_two.loss == pytest.approx(-4 * gate)
    np.testing.assert_allclose(at_two.grad_logp_NK, [[-8 * gate * (1 - gate)]])


@pytest.mark.parametrize("bound", ["log_ratio_min", "log_ratio_max"])
def test_on_a_bound_of_the_log_ratio_the_gradient_is_whole_and_beyond_it_zero(bound):
    sign = 1.0 if bound == "log_ratio_max" else -1.0
    definition = clip_loss(low=None, high=None, **{bound: sign * 0.5})
    result = policy_loss(definition, **rows([[sign * 0.5, sign * 0.6]], [1.0]))
    ratio = math.exp(sign * 0.5)
    assert result.loss == pytest.approx(-ratio)
    np.testing.assert_allclose(result.grad_logp_NK, [[-ratio / 2, 0.0]])
    assert max(result.metrics["log_ratio_max"], -result.metrics["log_ratio_min"]) == pytest.approx(0.6)


def by_row(empty_rows):
    return Aggregation(mode="batch-mean", empty_rows=empty_rows)


E3, E01 = math.exp(-3.0), math.exp(0.1)
BY_HAND = {
    # s = exp((0 + 2 log 2) / 2) = 2 and exp(-log 2) = 1/2. A > 0: clipped from above to 1.25, and silent;
    # A = 1 at s = 1/2 is not clipped: each of its two tokens gets -s A / |y| / 2 sequences.
    "gspo has one ratio per response": (
        clip_loss("sequence", SEQ_MEAN), [[0.0, 2 * LOG2], [-LOG2, -LOG2]], [1.0, 1.0], -(1.25 + 0.5) / 2,
        [[0, 0], [-0.125, -0.125]]),
    # Ratios 2, 1/2 with A = 1: clipped, free. With A = -2: free, clipped.
    "grpo clips each token on the side that its advantage pushes it to": (
        clip_loss(aggregation=SEQ_MEAN), [[LOG2, -LOG2], [LOG2, -LOG2]], [1.0, -2.0],
        ((-1.25 - 0.5) / 2 + (4.0 + 1.6) / 2) / 2, [[0, -0.5 / 4], [4.0 / 4, 0]]),
    # A = -1: ratio 8 costs 8, capped at 3 without a gradient; A = 1 is no matter of the dual clip.
    "dual clip": (clip_loss(clip_ratio_c=3.0), [[3 * LOG2], [3 * LOG2]], [-1.0, 1.0], (3.0 - 1.25) / 2, [[0], [0]]),
    # A = 2: log-ratios 1 and -0.8 become 0.4 and -0.8, s = exp(-0.2). A = -1: 1 and -0.4, s = exp(0.3).
    "gmpo is a geometric mean of clipped ratios": (
        gmpo_loss(), [[1.0, -0.8], [1.0, -0.8]], [2.0, -1.0], (-2 * math.exp(-0.2) + math.exp(0.3)) / 2,
        [[0, -math.exp(-0.2) / 2], [math.exp(0.3) / 4, 0]]),
    # Ratios 4 -> 2 and 1/2; logp = -3.
    "cispo clips the weight and never the gradient": (
        clip_loss(low=1.0, high=1.0, surrogate="cispo"), [[2 * LOG2, -LOG2]], [2.0], (2 * 2 * 3 + 0.5 * 2 * 3) / 2,
        [[-2.0, -0.5]]),
    "gpg is the plain policy gradient": (
        LossDefinition(ratio_level="none", surrogate="gpg", aggregation=TOKEN_MEAN), [[5.0, 0.0]], [2.0], 6.0,
        [[-1.0, -1.0]]),
    "no ratio is ratio 1": (clip_loss("none"), [[5.0, 0.0]], [2.0], -2.0, [[0.0, 0.0]]),
    "half on a dual clip": (clip_loss(clip_ratio_c=1.0), [[0.0]], [-2.0], 2.0, [[1.0]]),
    "half on a cap of the loss": (clip_loss(loss_upper_clamp=2.0), [[0.0]], [-2.0], 2.0, [[1.0]]),
    # A = -1, ratio 4: the unclipped branch costs 1.5 instead of 4. A = 1, ratio 1/2: untouched.
    "a cap of the ratio": (
        clip_loss(ratio_upper_clamp=1.5), [[2 * LOG2], [-LOG2]], [-1.0, 1.0], (1.5 - 0.5) / 2, [[0.0], [-0.25]]),
    "a cap of the loss": (clip_loss(loss_upper_clamp=3.0), [[0.0], [0.0]], [-5.0, -1.0], (3 + 1) / 2, [[0.0], [0.5]]),
    "no lower bound": (clip_loss(low=None), [[-3.0]], [-1.0], E3, [[E3]]),
    "length epsilon": (
        clip_loss("sequence", low=None, high=None, ratio_len_eps=1.0), [[LOG2, 2 * LOG2]], [1.0], -2.0, [[-2 / 3] * 2]),
    "length epsilon, by token": (
        clip_loss("sequence_token", low=None, high=None, ratio_len_eps=1.0), [[LOG2, 2 * LOG2]], [1.0], -2.0,
        [[-1.0] * 2]),
    "gmpo, an empty row counts": (
        gmpo_loss(by_row("include"), advantage_pool="none"), [[0.0, 0.0], []], [1.0, 4.0], (-1 - 4) / 2,
        [[-0.25] * 2, [0.0] * 2]),
    "gmpo, an empty row is there": (
        gmpo_loss(by_row("exclude"), advantage_pool="none"), [[0.0, 0.0], []], [1.0, 4.0], -1 / 2,
        [[-0.25] * 2, [0.0] * 2]),
    "gmpo, an empty row of pooled advantages": (
        gmpo_loss(by_row("exclude"), advantage_pool="masked-mean"), [[0.0, 0.0], []], [1.0, 4.0], -1 / 2,
        [[-0.25] * 2, [0.0] * 2]),
    "gmpo skips tokens without an advantage": (
        gmpo_loss(advantage_pool="masked-mean"), [[0.1, 0.2, 0.2]], [[3.0, 0.0, -1.5]], -0.5 * E01,
        [[-0.5 * E01 / 3, 0.0, -0.5 * E01 / 3]]),
}  # fmt: skip


METRICS = {
    "gspo has": {
        "pg_clipfrac": 0.5, "pg_clipfrac_pos_seq": 0.5, "log_ratio_mean": pytest.approx(0.0, abs=1e-15),
        "ratio_error_mean": pytest.approx((1 + 0.5) / 2), "ratio_error_max": pytest.approx(1.0),
        "log_ratio_max": pytest.approx(LOG2),
    },
    "grpo clips": {"pg_clipfrac": 0.5, "pg_clipfrac_pos": 0.25, "pg_clipfrac_neg": 0.25},
    "dual clip": {"pg_clipfrac_lower": 0.5, "pg_clipfrac": 0.5},
    "gmpo is": {"pg_clipfrac_pos": 0.25, "pg_clipfrac_neg_seq": 0.25},
    "cispo": {"pg_clipfrac": 0.5},
    "gpg": {"log_ratio_max": 5.0, "pg_clipfrac": 0.0},
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_loss_and_gradient_by_hand(name):
    definition, log_ratios, advantages, loss, gradient = BY_HAND[name]
    logp = -3.0 if definition.surrogate in ("cispo", "gpg") else -1.0
    result = policy_loss(definition, **rows(log_ratios, advantages, logp))
    is_exact = name.startswith(("no ratio", "half"))
    assert result.loss == (loss if is_exact else pytest.approx(loss))
    np.testing.assert_allclose(
        result.grad_logp_NK, gradient, rtol=0 if is_exact else 1e-7, atol=0 if is_exact else 1e-16
    )
    metrics = next((metrics for beginning, metrics in METRICS.items() if name.startswith(beginning)), {})
    assert {key: result.metrics[key] for key in metrics} == metrics


def test_a_lower_bound_below_ratio_0_is_none():
    free, wide = (policy_loss(clip_loss(low=low), **rows([[-3.0]], [-1.0])) for low in (None, 5.0))
    assert wide.loss == free.loss and (wide.grad_logp_NK == free.grad_logp_NK).all()


def test_correction_multiplies_token_losses():
    result = policy_loss(clip_loss(), **rows([[0.0, 0.0]], [1.0]), correction_NK=np.array([[0.5, 2.0]]))
    assert result.loss == pytest.approx(-1.25)
    np.testing.assert_allclose(result.grad_logp_NK, [[-0.25, -1.0]])


@pytest.mark.parametrize(("correction", "mean"), [([0.5, 2.0], 1.0), ([4.0, 9.0], 6.0), ([0.0, 2.0], 0.0)])
def test_correction_of_gmpo_is_its_geometric_mean(correction, mean):
    result = policy_loss(gmpo_loss(), **rows([[0.1, 0.1]], [1.0]), correction_NK=[correction])
    assert result.loss == pytest.approx(-mean * math.exp(0.1))
    np.testing.assert_allclose(result.grad_logp_NK, [[-mean * math.exp(0.1) / 2] * 2])


def test_an_empty_response_is_left_out_and_one_of_a_single_token_counts():
    arrays = rows([[0.0, 0.0], [], [0.0]], [1.0, 100.0, 3.0])
    for level in ("token", "sequence", "sequence_token"):
        result = policy_loss(clip_loss(level, SEQ_MEAN), **arrays)
        assert result.loss == pytest.approx(-2.0)
        np.testing.assert_allclose(result.grad_logp_NK, [[-0.25, -0.25], [0, 0], [-1.5, 0]])
    counted = clip_loss(aggregation=replace(SEQ_MEAN, empty_rows="include"))
    assert policy_loss(counted, **arrays).loss == pytest.approx(-4.0 / 3)


def test_a_batch_without_a_real_token_has_loss_zero():
    arrays = rows([[0.0, 1.0], [0.0]], [1.0, 2.0]) | {"mask_NK": np.zeros((2, 2))}
    for aggregation in (SEQ_MEAN, TOKEN_MEAN):
        result = policy_loss(clip_loss(aggregation=aggregation), **arrays)
        assert result.loss == 0.0 and not result.grad_logp_NK.any()
        assert result.metrics["ratio_error_max"] == 0.0


@pytest.mark.parametrize("distance", [1e4, -1e4])
@pytest.mark.parametrize("surrogate", ["clip", "cispo", "sapo", "gpg", "gmpo"])
@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
def test_log_ratios_of_ten_thousand_stay_finite(surrogate, level, distance):
    definition = LossDefinition(
        ratio_level=level, surrogate=surrogate, aggregation=TOKEN_MEAN, clip_high=0.2,
        kl=KLTerm(kind="k3", aggregation=TOKEN_MEAN, importance_weight=True),
    )  # fmt: skip
    arrays = rows([[distance, 0.0]] * 2, [5.0, -5.0])
    result = policy_loss(definition, **arrays, ref_logp_NK=arrays["old_logp_NK"], kl_coef=0.1)
    assert np.isfinite(result.loss) and np.isfinite(result.grad_logp_NK).all()
    assert all(np.isfinite(value) for value in result.metrics.values())


def test_kl_term_has_its_own_aggregation_and_coefficient():
    kl = KLTerm(kind="k2", aggregation=TOKEN_MEAN)
    arrays = rows([[0.0, 0.0, 0.0], [0.0]], [0.0, 0.0])
    ref_logp = arrays["logp_NK"] - np.array([[1.0, 1.0, 1.0], [3.0, np.nan, np.nan]])
    result = policy_loss(clip_loss(aggregation=SEQ_MEAN, kl=kl), **arrays, ref_logp_NK=ref_logp, kl_coef=0.1)
    assert result.kl_loss == result.metrics["kl_loss"] == result.metrics["kl"] == pytest.approx((1.5 + 4.5) / 4)
    assert result.loss == pytest.approx(0.1 * 1.5)
    np.testing.assert_allclose(result.grad_logp_NK, 0.1 * np.array([[1, 1, 1], [3, 0, 0]]) / 4)
    result = policy_loss(clip_loss(kl=replace(kl, aggregation=SEQ_MEAN)), **arrays, ref_logp_NK=ref_logp, kl_coef=1.0)
    assert result.loss == pytest.approx((0.5 + 4.5) / 2)


def test_kl_beside_a_batch_mean_still_leaves_out_empty_rows():
    definition = gmpo_loss(kl=KLTerm(kind="k1", aggregation=SEQ_MEAN))
    arrays = rows([[0.0, 0.0], []], [1.0, 0.0])
    given = {**arrays, "ref_logp_NK": arrays["logp_NK"] - 2.0, "kl_coef": 1.0}
    assert policy_loss(definition, **given).loss == pytest.approx(-1 / 2 + 2)
    assert policy_loss(definition, **given, num_sequences=2, kl_num_sequences=1).loss == pytest.approx(-1 / 2 + 2)
    assert policy_loss(definition, **given, num_sequences=4).loss == pytest.approx(-1 / 4 + 2 / 4)


def test_entropy_bonus_is_aggregated_like_the_loss_and_subtracted():
    arrays = rows([[0.0, 0.0, 0.0], [0.0]], [0.0, 0.0])
    entropy = np.array([[1.0, 2.0, 3.0], [4.0, np.nan, np.inf]])
    assert policy_loss(clip_loss(entropy_coef=0.1), **arrays, entropy_NK=entropy).loss == pytest.approx(-0.25)
    by_sequence = clip_loss(aggregation=SEQ_MEAN, entropy_coef=0.1)
    assert policy_loss(by_sequence, **arrays, entropy_NK=entropy).loss == pytest.approx(-0.3)


def test_metrics_by_token_and_by_sequence():
    # 1 of 3 tokens of the first response clipped, 1 of 1 of the second.
    arrays = rows([[LOG2, 0.0, 0.1], [-LOG2]], [1.0, -1.0])
    metrics = policy_loss(clip_loss(), **arrays).metrics
    assert metrics["pg_clipfrac"] == pytest.approx(2 / 4)
    assert metrics["pg_clipfrac_seq"] == pytest.approx((1 / 3 + 1) / 2)
    assert metrics["pg_clipfrac_neg_seq"] == pytest.approx(1 / 2)
    assert metrics["ppo_kl"] == pytest.approx(-0.1 / 4)
    assert metrics["ppo_kl_seq"] == pytest.approx((-(LOG2 + 0.1) / 3 + LOG2) / 2)
    assert metrics["log_ratio_min"] == pytest.approx(-LOG2)


def test_conformance_metrics_split_the_clip_by_side_and_by_sign():
    # Ratio above with A > 0 and A < 0, ratio below with A < 0; the last token is inside.
    arrays = rows([[LOG2, LOG2], [-LOG2, 0.0]], [[1.0, -1.0], [-1.0, 1.0]])
    metrics = conformance_metrics(clip_loss(), **arrays)
    assert (metrics["clip_high_token"], metrics["clip_low_token"], metrics["clip_region_token"]) == (0.25, 0.25, 0.5)
    assert metrics["pg_clipfrac_token"] == metrics["pg_clipfrac_seq"] == 0.5
    gmpo = conformance_metrics(replace(clip_loss(), surrogate="gmpo"), **arrays)
    assert (gmpo["gmpo_clipped_Apos_token"], gmpo["gmpo_clipped_Aneg_token"]) == (0.25, 0.5)
    assert conformance_metrics(replace(clip_loss(), surrogate="cispo"), **arrays)["cispo_clipfrac_seq"] == 0.75


def test_conformance_metrics_take_the_cases_denominators():
    arrays = rows([[LOG2, 0.0], []], [1.0, 1.0])
    metrics = conformance_metrics(clip_loss(), **arrays, metric_tokens=7, metric_eps=1.0)
    assert metrics["pg_clipfrac_token"] == pytest.approx(1 / 8)
    assert metrics["pg_clipfrac_seq"] == pytest.approx(0.5 / 2)
    bounded = replace(clip_loss(), log_ratio_max=0.1)
    assert conformance_metrics(bounded, **arrays)["ppo_kl_token"] == pytest.approx(-LOG2 / 2)
    assert conformance_metrics(bounded, **arrays, ppo_kl_clamped=True)["ppo_kl_token"] == pytest.approx(-0.05)


@pytest.mark.parametrize(("name", "value", "message"), [
    ("mask_NK", np.array([[1, 2], [0, 1]]), "0 and 1 only, got 2"),
    ("mask_NK", np.array([1, 1]), "got shape"),
    ("advantages_NK", np.ones(3), "one per response"),
    ("advantages_NK", np.ones((2, 1)), "one per response"),
    ("old_logp_NK", np.ones((2, 3)), "old_logp: expected the mask's shape"),
    ("logp_NK", [[1.0], [1.0, 2.0]], "logp: expected rows of numbers"),
])  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(name, value, message):
    arrays = rows([[0.0, 0.0], [0.0, 0.0]], [1.0, 1.0])
    with pytest.raises(DataError, match=message):
        policy_loss(clip_loss(), **arrays | {name: value})


def test_missing_arrays_are_refused():
    arrays = rows([[0.0, 0.0]], [1.0])
    with pytest.raises(DataError, match="needs ref_logp"):
        policy_loss(clip_loss(kl=KLTerm(kind="k1", aggregation=TOKEN_MEAN)), **arrays)
    with pytest.raises(DataError, match="needs entropy"):
        policy_loss(clip_loss(entropy_coef=0.1), **arrays)


MEAN_OF_ALL = Aggregation(mode="token-mean", empty_rows="include")
BY_ROW = Aggregation(mode="batch-mean", seq_len_eps=1e-8)


def definition(level, surrogate, aggregation, **keys):
    return LossDefinition(ratio_level=level, surrogate=surrogate, aggregation=aggregation, **keys)


# Only losses without a stop-gradient: a difference quotient sees through one.
SMOOTH = {
    "ppo": definition("token", "clip", MEAN_OF_ALL, clip_low=0.2, clip_high=0.2),
    "ppo_dual_clip": definition("token", "clip", MEAN_OF_ALL, clip_low=0.2, clip_high=0.2, clip_ratio_c=1.3),
    "capped": definition("token", "clip", SEQ_MEAN, clip_high=0.2, ratio_upper_clamp=1.2, loss_upper_clamp=0.8),
    "bounded": definition("token", "clip", SEQ_MEAN, log_ratio_min=-0.2, log_ratio_max=0.2),
    "gspo": definition("sequence", "clip", SEQ_MEAN, clip_low=0.1, clip_high=0.1),
    "gspo_length_eps": definition("sequence", "clip", MEAN_OF_ALL, clip_high=0.1, ratio_len_eps=0.5),
    "gspo_bounded": definition("sequence", "clip", SEQ_MEAN, clip_high=0.1, log_ratio_max=0.05),
    "sapo": definition("token", "sapo", SEQ_MEAN),
    "sapo_by_sequence": definition("sequence", "sapo", SEQ_MEAN, tau_pos=3.0, tau_neg=5.0),
    "gpg": definition("none", "gpg", MEAN_OF_ALL),
    "gmpo": definition("token", "gmpo", BY_ROW, clip_low=0.2, clip_high=0.2),
    "gmpo_pooled": definition("token", "gmpo", BY_ROW, clip_low=0.2, clip_high=0.2, advantage_pool="masked-mean"),
    "gmpo_as_token_mean": definition("token", "gmpo", MEAN_OF_ALL, clip_low=0.2, clip_high=0.2),
} | {
    f"kl_{kind}": definition(
        "token", "clip", SEQ_MEAN, kl=KLTerm(kind=kind, aggregation=MEAN_OF_ALL, importance_weight=weighted)
    )
    for kind, weighted in [("k1", True), ("k2", False), ("k3", False), ("k3", True), ("abs", True)]
}


def random_arrays(seed, *, per_token=True):
    rng = np.random.default_rng(seed)
    mask = np.arange(5) < np.array([5, 1, 0, 4])[:, None]
    mask[3, 1] = False
    logp = np.where(mask, -rng.exponential(size=mask.shape), np.nan)
    return {
        "logp_NK": logp,
        "old_logp_NK": logp - 0.4 * rng.normal(size=mask.shape),
        "ref_logp_NK": logp - 0.4 * rng.normal(size=mask.shape),
        "advantages_NK": rng.normal(size=mask.shape) if per_token else rng.normal(size=4),
        "correction_NK": rng.uniform(0.5, 2.0, size=mask.shape),
        "mask_NK": mask,
    }


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", SMOOTH)
def test_gradient_is_the_slope_of_the_value(name, seed):
    one, arrays = SMOOTH[name], random_arrays(seed)
    gradient = policy_loss(one, **arrays, kl_coef=0.3).grad_logp_NK

    def loss_with(slot, step):
        logp = arrays["logp_NK"].copy()
        logp[slot] += step
        return policy_loss(one, **arrays | {"logp_NK": logp}, kl_coef=0.3).loss

    for slot in zip(*np.nonzero(arrays["mask_NK"]), strict=True):
        quotient = (loss_with(slot, 1e-6) - loss_with(slot, -1e-6)) / 2e-6
        assert gradient[slot] == pytest.approx(quotient, rel=1e-6, abs=1e-8)
    assert not gradient[~arrays["mask_NK"]].any()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("level", ["token", "sequence", "sequence_token"])
def test_cispo_has_the_gradient_of_its_frozen_weights(level, seed):
    one = definition(level, "cispo", MEAN_OF_ALL, clip_low=0.2, clip_high=0.2, log_ratio_max=0.3)
    arrays = random_arrays(seed)
    del arrays["correction_NK"]
    mask, difference = arrays["mask_NK"], np.where(arrays["mask_NK"], arrays["logp_NK"] - arrays["old_logp_NK"], 0.0)
    if level != "token":
        difference = np.repeat(difference.sum(axis=1) / np.maximum(mask.sum(axis=1), 1), 5).reshape(4, 5)
    weight = np.clip(np.exp(difference), 0.8, 1.2)
    result = policy_loss(one, **arrays)
    gradient = np.where(mask, -weight * arrays["advantages_NK"] / mask.sum(), 0.0)
    np.testing.assert_allclose(result.grad_logp_NK, gradient, rtol=1e-12)
    assert result.loss == pytest.approx((gradient * np.where(mask, arrays["logp_NK"], 0.0)).sum(), rel=1e-12)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), width=st.sampled_from([0.0, 0.01, 0.2]), dual=st.sampled_from([None, 1.1]))
def test_gspo_token_is_gspo_where_advantages_are_constant(seed, width, dual):
    gspo = definition("sequence", "clip", SEQ_MEAN, clip_low=width, clip_high=width, log_ratio_max=10.0)
    gspo = replace(gspo, clip_ratio_c=dual)
    arrays = random_arrays(seed, per_token=False)
    del arrays["correction_NK"]
    expected = policy_loss(gspo, **arrays)
    got = policy_loss(replace(gspo, ratio_level="sequence_token"), **arrays)
    assert got.loss == pytest.approx(expected.loss, rel=1e-12)
    np.testing.assert_allclose(got.grad_logp_NK, expected.grad_logp_NK, rtol=1e-12, atol=1e-15)
    assert got.metrics == expected.metrics
