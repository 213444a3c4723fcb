"""The twins' analytic gradients against central differences of their values, and GSPO against GSPO-token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo.algorithms.losses.definition import Aggregation, KLTerm, LossDefinition
from mindgspo.algorithms.twins.policy_loss import policy_loss

pytestmark = pytest.mark.filterwarnings("error")

SEQ_MEAN = Aggregation(mode="seq-mean-token-mean")
TOKEN_MEAN = Aggregation(mode="token-mean", empty_rows="include")
BATCH_MEAN = Aggregation(mode="batch-mean", seq_len_eps=1e-8)


def definition(level, surrogate, aggregation, **keys):
    return LossDefinition(ratio_level=level, surrogate=surrogate, aggregation=aggregation, **keys)


# Only losses without a stop-gradient: a difference quotient sees through one.
SMOOTH = {
    "ppo": definition("token", "clip", TOKEN_MEAN, clip_low=0.2, clip_high=0.2),
    "ppo_dual_clip": definition("token", "clip", TOKEN_MEAN, clip_low=0.2, clip_high=0.2, clip_ratio_c=1.3),
    "capped": definition("token", "clip", SEQ_MEAN, clip_high=0.2, ratio_upper_clamp=1.2, loss_upper_clamp=0.8),
    "bounded": definition("token", "clip", SEQ_MEAN, log_ratio_min=-0.2, log_ratio_max=0.2),
    "gspo": definition("sequence", "clip", SEQ_MEAN, clip_low=0.1, clip_high=0.1),
    "gspo_length_eps": definition("sequence", "clip", TOKEN_MEAN, clip_high=0.1, ratio_len_eps=0.5),
    "gspo_bounded": definition("sequence", "clip", SEQ_MEAN, clip_high=0.1, log_ratio_max=0.05),
    "sapo": definition("token", "sapo", SEQ_MEAN),
    "sapo_by_sequence": definition("sequence", "sapo", SEQ_MEAN, tau_pos=3.0, tau_neg=5.0),
    "gpg": definition("none", "gpg", TOKEN_MEAN),
    "gmpo": definition("token", "gmpo", BATCH_MEAN, clip_low=0.2, clip_high=0.2),
    "gmpo_pooled": definition("token", "gmpo", BATCH_MEAN, clip_low=0.2, clip_high=0.2, advantage_pool="masked-mean"),
    "gmpo_as_token_mean": definition("token", "gmpo", TOKEN_MEAN, clip_low=0.2, clip_high=0.2),
} | {
    f"kl_{kind}": definition(
        "token", "clip", SEQ_MEAN, kl=KLTerm(kind=kind, aggregation=TOKEN_MEAN, importance_weight=weighted)
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
    one = definition(level, "cispo", TOKEN_MEAN, clip_low=0.2, clip_high=0.2, log_ratio_max=0.3)
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


def test_gspo_token_is_not_gspo_where_they_differ():
    gspo = definition("sequence", "clip", SEQ_MEAN, clip_low=0.2, clip_high=0.2)
    arrays = random_arrays(0)
    whole = policy_loss(gspo, **arrays)
    by_token = policy_loss(replace(gspo, ratio_level="sequence_token"), **arrays)
    assert by_token.loss == whole.loss
    assert np.abs(by_token.grad_logp_NK - whole.grad_logp_NK).max() > 1e-3
    # A row's gradients add up to the same.
    np.testing.assert_allclose(by_token.grad_logp_NK.sum(axis=1), whole.grad_logp_NK.sum(axis=1), rtol=1e-12)


def test_token_weighting_multiplies_a_responses_gradient_by_its_share_of_the_tokens():
    arrays = random_arrays(1, per_token=False)
    lengths = arrays["mask_NK"].sum(axis=1)
    gspo = definition("sequence", "clip", SEQ_MEAN, clip_low=0.9, clip_high=9.0)
    by_sequence = policy_loss(gspo, **arrays).grad_logp_NK
    by_token = policy_loss(replace(gspo, aggregation=TOKEN_MEAN), **arrays).grad_logp_NK
    factor = 3 * lengths / lengths.sum()
    np.testing.assert_allclose(by_token, by_sequence * factor[:, None], rtol=1e-12)
