"""Old log-probs from the sampler: no scoring pass, the ratio carries the mismatch, and a mismatch too large stops.

The script samples every token with log-prob -1; the updater finds -1.05 in its first pass.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scripted_engine import micro_batches

from mindgspo.errors import TrainingError

SAMPLER = "algorithm.old_log_probs=sampler"
NOT_SCORED = object()


@pytest.fixture
def make(make_trainer, one_of_two_right, fakes):
    def with_updater(*overrides: str, logp: float = -1.05, **changed: object):
        fields = {"updater": fakes.updater(ratio_errors=[0.5], logp=logp), **changed}
        return make_trainer(one_of_two_right, SAMPLER, *overrides, old_policy=NOT_SCORED, **fields)

    return with_updater


def test_old_log_probs_and_mismatch_are_the_samplers(make) -> None:
    trainer = make()
    metrics = trainer.train_step(1).metrics
    for batch in micro_batches(trainer):
        np.testing.assert_array_equal(batch.old_logp_NK, np.where(batch.mask_NK, np.float32(-1), 0))
        assert (batch.correction_NK == 1).all()
    gone = {"actor/entropy", "actor/first_ratio_error_max"}
    assert not metrics.keys() & gone, "neither is known; the ratio of the first update is the mismatch"
    # The mismatch is that of the first update.
    assert metrics["training/rollout_logprob_diff_mean"] == pytest.approx(0.05, rel=1e-5)
    assert metrics["training/rollout_logprob_diff_max"] == pytest.approx(0.05, rel=1e-5)
    assert metrics["rollout_corr/kl"] == pytest.approx(0.05, rel=1e-5)
    assert metrics["rollout_corr/k3_kl"] == pytest.approx(math.exp(-0.05) - 1 + 0.05, rel=1e-4)
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(math.exp(-1) - math.exp(-1.05), rel=1e-5)


def test_a_mismatch_beyond_its_limit_or_not_finite_stops_the_run(make) -> None:
    with pytest.raises(TrainingError, match=r"step 3: .* differ by 0.5 nat .* trainer.max_rollout_mismatch = 0.1; .*"):
        make(logp=-1.5).train_step(3)
    assert make("trainer.max_rollout_mismatch=0.6", logp=-1.5).train_step(3).metrics["actor/updates"] == 2
    with pytest.raises(TrainingError, match="differ by nan"):
        make(logp=math.nan).train_step(1)


def test_skipped_updates_entropy_and_reference(make, fakes) -> None:
    updater = fakes.updater(nonfinite=[1], logp=-1.05)
    metrics = make("trainer.on_nonfinite=skip", updater=updater).train_step(1).metrics
    assert metrics["actor/updates_skipped"] == 1
    assert metrics["training/rollout_logprob_diff_mean"] == pytest.approx(0.05, rel=1e-5)
    metrics = make(updater=fakes.updater(ratio_errors=[0.5], logp=-1.05, entropy=0.25)).train_step(1).metrics
    assert metrics["actor/entropy"] == 0.25
    trainer = make("algorithm.kl.placement=reward", reference=fakes.reference(lambda ids: -0.03 * ids))
    metrics = trainer.train_step(1).metrics
    assert "critic/kl" in metrics and trainer.updater.batches[0][0].ref_logp_NK.any()
