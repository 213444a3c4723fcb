"""The account of a step's samples and the metrics that are computed from its parcels, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mindgspo.algorithms.update import UpdateResult
from mindgspo.data.rows import TrainingSample, lay_out
from mindgspo.trainer.step_metrics import account, mismatch_metrics, update_metrics
from mindgspo.types import Group, Score, Verdict


@pytest.fixture
def group(prompts, response):
    """group(*values): a group whose responses have these rewards."""

    def make(*values: float | None) -> Group:
        return Group(
            prompt=prompts[0],
            responses=tuple(response([1], [-1.0]) for _ in values),
            scores=tuple(
                Score(value=value, verdict=Verdict.ERROR if value is None else Verdict.WRONG) for value in values
            ),
            advantages=np.zeros(len(values), np.float32),
        )

    return make


def test_every_sample_is_trained_or_filtered_for_a_reason(group) -> None:
    groups = [group(1.0, None, 0.0), group(None, None, 1.0)]
    assert account(groups, num_asked=6, num_trained=3) == {
        "samples/generated": 6,
        "samples/trained": 3,
        "samples/filtered": 3,
        "samples/filtered/error": 3,
    }


def test_a_hole_in_the_account_is_a_defect(group) -> None:
    with pytest.raises(AssertionError, match="2 responses, but 1 trained"):
        account([group(1.0, 0.0)], num_asked=2, num_trained=1)
    with pytest.raises(AssertionError, match="2 responses, 3 were asked for"):
        account([group(1.0, 0.0)], num_asked=3, num_trained=2)


def test_mismatch_looks_at_real_tokens_only() -> None:
    sample = TrainingSample(
        prompt_ids=np.array([1], np.int32),
        response_ids=np.array([2, 3], np.int32),
        rollout_logp=np.array([math.log(0.5), math.log(0.25)], np.float32),
        advantage=1.0,
    )
    (batch,) = lay_out([sample], samples_per_micro_batch=2, length_multiple=4, pad_id=0)
    batch.old_logp_NK[...] = 77.0  # padded slots must not count
    batch.old_logp_NK[0, :2] = np.log([0.25, 0.25])
    metrics = mismatch_metrics([batch])
    assert metrics["training/rollout_logprob_diff_max"] == pytest.approx(math.log(2), rel=1e-6)
    assert metrics["training/rollout_logprob_diff_mean"] == pytest.approx(math.log(2) / 2, rel=1e-6)
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(0.25, rel=1e-6)
    assert metrics["training/rollout_probs_diff_std"] == pytest.approx(0.125, rel=1e-6)


def test_updates_are_averaged_and_extremes_kept() -> None:
    results = [
        UpdateResult(
            loss=loss,
            grad_norm=norm,
            entropy=0.0,
            metrics={"ppo_kl": kl, "log_ratio_max": high, "log_ratio_min": -high, "ratio_error_max": high},
        )
        for loss, norm, kl, high in ((1.0, 2.0, 0.1, 1e-7), (3.0, 4.0, 0.3, 0.5))
    ]
    metrics = update_metrics(results)
    assert (metrics["actor/pg_loss"], metrics["actor/grad_norm"]) == (2.0, 3.0)
    assert metrics["actor/ppo_kl"] == pytest.approx(0.2)
    assert (metrics["actor/log_ratio_max"], metrics["actor/log_ratio_min"]) == (0.5, -0.5)
    assert (metrics["actor/first_ratio_error_max"], metrics["actor/ratio_error_max"]) == (1e-7, 0.5)
