"""The float64 twins against the peers' published numbers, finite differences and hand-worked sequences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mindgspo.algorithms import reference
from mindgspo.algorithms.reference import Clip

PUBLIC = Path(__file__).resolve().parents[3] / ".." / "shared" / "conformance" / "public.json"

# Keys of a case's `config` that the twins implement, or that only name what they do.
UNDERSTOOD = {
    *("algorithm", "surrogate", "clip_low", "clip_high", "empty_rows", "ratio_level", "log_ratio_max"),
    *("log_ratio_min", "loss_agg_mode", "norm_seqs", "dp_size", "seq_len_eps", "metric_eps"),
    *("metric_tokens", "norm_tokens", "ppo_kl_clamped"),
}
METRIC_NAMES = {
    "pg_clipfrac_token": "pg_clipfrac",
    "clip_high_token": "pg_clipfrac_pos",
    "clip_low_token": "pg_clipfrac_neg",
    "ppo_kl_token": "ppo_kl",
}


def float64(inputs, name):
    return np.asarray(inputs[name], dtype=np.float64)


def is_plain(case) -> bool:
    """Plain GSPO or GRPO: clipped surrogate, sequence mean of token means, one advantage per response."""
    if case["kind"] != "policy_loss":
        return False
    config, inputs = case["config"], case["inputs"]
    if set(config) - UNDERSTOOD or config["surrogate"] != "clip" or config["loss_agg_mode"] != "seq-mean-token-mean":
        return False
    if {"ref_logp", "rollout_is_weights"} & set(inputs) or np.ndim(inputs["advantages"]) != 1:
        return False
    if "log_ratio_min" not in config:
        return True
    # A lower bound that is never reached changes nothing; where it is, the case is about that bound.
    mask = float64(inputs, "mask") > 0
    difference = (float64(inputs, "logp") - float64(inputs, "old_logp"))[mask]
    return bool((difference > config["log_ratio_min"]).all())


def plain_cases():
    if not PUBLIC.is_file():
        return [pytest.param(None, marks=pytest.mark.skip(reason=f"conformance vectors not found at {PUBLIC}"))]
    cases = json.loads(PUBLIC.read_text())
    return [pytest.param(case, id=case["name"]) for case in cases if is_plain(case)]


@pytest.mark.shared_data
@pytest.mark.skipif(not PUBLIC.is_file(), reason="conformance vectors not found beside the project")
def test_enough_public_cases_are_plain():
    """Guards the filter: a key it no longer knows would silently skip cases."""
    assert len(plain_cases()) >= 150


@pytest.mark.shared_data
@pytest.mark.parametrize("case", plain_cases())
def test_twin_passes_public_case(case):
    config, inputs, expected = case["config"], case["inputs"], case["expected"]
    mask = float64(inputs, "mask") > 0
    real_sequences = mask.any(axis=1).sum() if config["empty_rows"] == "exclude" else len(mask)
    twin = reference.grpo if config["ratio_level"] == "token" else reference.gspo
    result = twin(
        float64(inputs, "logp"),
        float64(inputs, "old_logp"),
        float64(inputs, "advantages"),
        mask,
        Clip(
            low=config["clip_low"],
            high=config["clip_high"],
            log_ratio_max=config.get("log_ratio_max", np.inf),
        ),
        num_sequences=config.get("norm_seqs", max(real_sequences, 1)) / config.get("dp_size", 1),
        length_eps=config.get("seq_len_eps", 0.0),
    )
    rtol, atol = 1e-9, 1e-12  # the bound of the vectors' README
    np.testing.assert_allclose(result.loss, float(expected["loss"]), rtol=rtol, atol=atol)
    np.testing.assert_allclose(result.grad_logp_NK, float64(expected, "grad_logp"), rtol=rtol, atol=atol)

    # Metrics are compared where the peer's token count and log-ratios are ours.
    tokens = mask.sum()
    if tokens and config.get("metric_tokens", tokens) == tokens and not config.get("ppo_kl_clamped"):
        for theirs, ours in METRIC_NAMES.items():
            if theirs in expected["metrics"]:
                value = float(expected["metrics"][theirs]) * (1 + config.get("metric_eps", 0.0) / tokens)
                np.testing.assert_allclose(result.metrics[ours], value, rtol=rtol, atol=atol, err_msg=theirs)


@pytest.mark.parametrize("twin", [reference.gspo, reference.grpo])
def test_analytic_gradient_equals_finite_differences(twin):
    rng = np.random.default_rng(3)
    mask = np.array([[1, 1, 1, 1], [1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]], dtype=bool)
    old_logp = -rng.exponential(size=mask.shape)
    logp = old_logp + 0.05 * rng.normal(size=mask.shape)
    advantages = np.array([1.0, -2.0, 0.5, 3.0])
    clip = Clip(low=0.02, high=0.03, log_ratio_max=10.0)
    result = twin(logp, old_logp, advantages, mask, clip)
    step = 1e-6
    for index in np.ndindex(mask.shape):
        up, down = logp.copy(), logp.copy()
        up[index] += step
        down[index] -= step
        slope = (
            twin(up, old_logp, advantages, mask, clip).loss - twin(down, old_logp, advantages, mask, clip).loss
        ) / (2 * step)
        assert result.grad_logp_NK[index] == pytest.approx(slope, abs=1e-8)


def test_gspo_by_hand():
    # Row 0: mean difference 0.1, s = e^0.1 > 1.05, A > 0: clipped. Row 1: s = 1, free.
    logp = np.array([[-0.8, -1.0], [-2.0, 99.0]])
    old_logp = np.array([[-1.0, -1.0], [-2.0, -99.0]])
    result = reference.gspo(logp, old_logp, [2.0, -1.0], [[1, 1], [1, 0]], Clip(low=0.05, high=0.05))
    assert result.loss == pytest.approx(-(2.0 * 1.05 - 1.0) / 2)
    np.testing.assert_allclose(result.grad_logp_NK, [[0, 0], [0.5, 0]], atol=1e-15)
    assert result.metrics["pg_clipfrac_seq"] == pytest.approx(1 / 2)
    assert result.metrics["pg_clipfrac"] == pytest.approx(2 / 3)
    assert result.metrics["ppo_kl"] == pytest.approx(-0.2 / 3)
    assert result.metrics["log_ratio_mean"] == pytest.approx(0.05)
    assert result.metrics["ratio_error_max"] == pytest.approx(np.exp(0.1) - 1)


def test_grpo_by_hand():
    # Token ratios e^0.2 (clipped at 1.1, A > 0) and e^0 (free).
    result = reference.grpo([[-0.8, -1.0]], [[-1.0, -1.0]], [2.0], [[1, 1]], Clip(low=0.1, high=0.1))
    assert result.loss == pytest.approx(-2.0 * (1.1 + 1.0) / 2)
    np.testing.assert_allclose(result.grad_logp_NK, [[0, -1.0]], atol=1e-15)
    assert result.metrics["pg_clipfrac"] == result.metrics["pg_clipfrac_pos_seq"] == 0.5
