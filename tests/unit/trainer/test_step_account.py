"""The account of a step's samples and the metrics that are computed from its parcels, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mindgspo.algorithms.loss_metrics import collect_telemetry
from mindgspo.algorithms.optim.updater import UpdateResult
from mindgspo.batches.rows import TrainingSample, lay_out
from mindgspo.config import AlgorithmSection, KLSection
from mindgspo.metrics import unknown_names
from mindgspo.trainer.dynamic_sampling import Selection
from mindgspo.trainer.metrics import account, step_mismatch, update_metrics


@pytest.fixture
def selection(response):
    """selection(*reasons): responses that are left out for these reasons, or None."""
    return lambda *reasons: Selection(responses=tuple(response([1], [-1.0]) for _ in reasons), reasons=reasons)


def test_the_account_has_every_sample_and_no_hole(selection) -> None:
    some = selection(None, "timeout", None, "zero_signal", "zero_signal", None)
    assert account(some, num_asked=6, num_trained=3) == {
        "samples/generated": 6, "samples/trained": 3, "samples/filtered": 3, "samples/filtered/timeout": 1,
        "samples/filtered/zero_signal": 2,
    }  # fmt: skip
    some = selection(None, None, None, "kept", "surplus", "short", "kept", "error", "zero_signal")
    assert account(some, num_earlier=2, num_asked=7, num_trained=3) == {
        "samples/generated": 7, "samples/trained": 3, "samples/filtered": 2, "samples/filtered/error": 1,
        "samples/filtered/zero_signal": 1, "samples/dropped": 2, "samples/dropped/short": 1,
        "samples/dropped/surplus": 1, "samples/kept": 2, "samples/earlier": 2,
    }  # fmt: skip
    with pytest.raises(AssertionError, match="2 responses and 0 earlier ones, but 1 trained"):
        account(selection(None, None), num_asked=2, num_trained=1)
    with pytest.raises(AssertionError, match="2 responses and 0 earlier ones, but 2 trained"):
        account(selection(None, "error"), num_asked=2, num_trained=2)
    with pytest.raises(AssertionError, match="2 responses, 3 were asked for"):
        account(selection(None, None), num_asked=3, num_trained=2)


def test_mismatch_looks_at_real_tokens_only() -> None:
    sample = TrainingSample(
        prompt_ids=np.array([1], np.int32), response_ids=np.array([2, 3], np.int32),
        rollout_logp=np.array([math.log(0.5), math.log(0.25)], np.float32), number=0,
    )  # fmt: skip
    (batch,) = lay_out([sample], samples_per_micro_batch=2, length_multiple=4, pad_id=0)
    batch.old_logp_NK[...] = 77.0  # padded slots must not count
    batch.old_logp_NK[0, :2] = np.log([0.25, 0.25])
    metrics = step_mismatch([[batch]], [], scores_old=True)
    assert metrics["training/rollout_logprob_diff_max"] == pytest.approx(math.log(2), rel=1e-6)
    assert metrics["training/rollout_logprob_diff_mean"] == pytest.approx(math.log(2) / 2, rel=1e-6)
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(0.25, rel=1e-6)
    assert metrics["training/rollout_probs_diff_std"] == pytest.approx(0.125, rel=1e-6)


def result(loss: float, norm: float, high: float, **metrics: float) -> UpdateResult:
    """One update on a response of two tokens, the second of which has all the gradient."""
    telemetry = collect_telemetry(
        log_ratio=np.array([[high]], np.float32),
        grad_logp_NK=np.array([[0.0, norm]], np.float32),
        mask_NK=np.ones((1, 2), bool),
    )
    extremes = {"log_ratio_max": high, "log_ratio_min": -high, "ratio_error_max": high}
    return UpdateResult(
        loss=loss, grad_norm=norm, entropy=None, metrics={**metrics, **extremes}, telemetry=(telemetry,), logp_NK=()
    )


def test_updates_are_averaged_and_extremes_kept() -> None:
    results = [result(1.0, 2.0, 1e-7, pg_loss=0.25, ppo_kl=0.1), result(3.0, 4.0, 0.5, pg_loss=0.75, ppo_kl=0.3)]
    metrics = update_metrics(results, AlgorithmSection(), scores_old=True)
    assert unknown_names(metrics) == []
    assert (metrics["actor/loss"], metrics["actor/grad_norm"], metrics["actor/updates"]) == (2.0, 3.0, 2)
    assert (metrics["actor/pg_loss"], metrics["actor/ppo_kl"]) == (0.5, pytest.approx(0.2))
    assert (metrics["actor/log_ratio_max"], metrics["actor/log_ratio_min"]) == (0.5, -0.5)
    assert (metrics["actor/first_ratio_error_max"], metrics["actor/ratio_error_max"]) == (1e-7, 0.5)
    # The telemetry of both updates together, one response each.
    assert metrics["actor/log_ratio_hist/within_1e-4"] == metrics["actor/log_ratio_hist/above_1e-1"] == 0.5
    assert [metrics[f"actor/grad_share_length_decile/{n}"] for n in range(1, 11)] == pytest.approx([0.1] * 10)


@pytest.mark.parametrize(("section", "reported"), [
    (AlgorithmSection(), set()), (AlgorithmSection(kl=KLSection(placement="reward")), set()),
    (AlgorithmSection(kl=KLSection(placement="loss")), {"actor/kl", "actor/kl_loss"}),
    (AlgorithmSection(clip_ratio_c=3.0), {"actor/pg_clipfrac_lower"}),
], ids=["plain", "kl in the reward", "kl in the loss", "dual clip"])  # fmt: skip
def test_what_the_algorithm_does_not_have_is_not_reported(section: AlgorithmSection, reported: set[str]) -> None:
    one = result(1.0, 2.0, 0.1, pg_loss=1.0, kl=0.0, kl_loss=0.0, pg_clipfrac_lower=0.0)
    optional = {"actor/kl", "actor/kl_loss", "actor/pg_clipfrac_lower"}
    assert update_metrics([one], section, scores_old=True).keys() & optional == reported
    assert update_metrics([], section, scores_old=True) == {"actor/updates": 0}
