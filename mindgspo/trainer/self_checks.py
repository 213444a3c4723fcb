"""What a step refuses to go on with: no reward at all, or a ratio that is not 1 where it must be.

What enters: a step's groups, or the result of its first update. What leaves: nothing, or a TrainingError that says
where to look. Called by `step`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mindgspo.algorithms.loss_metrics import batch_mismatch
from mindgspo.algorithms.optim.backend import UpdateResult
from mindgspo.errors import TrainingError
from mindgspo.trainer.parts import TrainingParts
from mindgspo.types import Batch, ScoredGroup


def refuse_unjudged(groups: Sequence[ScoredGroup], step: int) -> None:
    """Raises TrainingError if not one response has a reward: there is nothing to train on."""
    verdicts = Counter(score.verdict.value for group in groups for score in group.scores if score.value is None)
    if verdicts.total() == sum(len(group.scores) for group in groups):
        counted = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
        raise TrainingError(
            f"step {step}: none of the {verdicts.total()} responses has a reward ({counted}), so nothing can be "
            "trained; the first error of a reward function is logged above with its traceback"
        )


def check_first_update(parts: TrainingParts, batches: Sequence[Batch], result: UpdateResult, step: int) -> None:
    """Before the first update after a rollout the policy is the old one: its log-probs must be the old ones, as far as
    rounding, or sampler and trainer, allow. batches: of that update. Raises TrainingError."""
    if parts.config.algorithm.old_log_probs == "sampler":
        _check_mismatch(parts, batches, result, step)
    else:
        _check_ratio(parts, result, step)


def _check_ratio(parts: TrainingParts, result: UpdateResult, step: int) -> None:
    """Every importance ratio must be 1."""
    error, limit = result.metrics["ratio_error_max"], parts.config.trainer.max_ratio_error
    if not np.isfinite(error) or error > limit:
        raise TrainingError(
            f"step {step}: the importance ratio on the first mini-batch is off 1 by {error:.3g}, allowed is "
            f"trainer.max_ratio_error = {limit:g}. The old log-probs were not made by the weights that are trained: "
            f"look at temperature (rollout.temperature = {parts.config.rollout.temperature:g}), padding, positions "
            "and weight versions; in bfloat16 set trainer.max_ratio_error to about 2e-3"
        )


def _check_mismatch(parts: TrainingParts, batches: Sequence[Batch], result: UpdateResult, step: int) -> None:
    found = batch_mismatch(batches, result.logp_NK)
    error, limit = found["training/rollout_logprob_diff_mean"], parts.config.trainer.max_rollout_mismatch
    if not np.isfinite(error) or error > limit:
        raise TrainingError(
            f"step {step}: on the first mini-batch the log-probs of sampler and trainer differ by {error:.3g} nat per "
            f"token, allowed is trainer.max_rollout_mismatch = {limit:g}; at most by "
            f"{found['training/rollout_logprob_diff_max']:.3g}. algorithm.old_log_probs=sampler takes the sampler's "
            "for those of the old policy, and these are not: look at temperature "
            f"(rollout.temperature = {parts.config.rollout.temperature:g}), positions and weight versions, or set "
            "algorithm.old_log_probs=recompute"
        )
