"""The coefficient of the KL penalty, and the penalty itself if it belongs to the reward.

The penalty inside the loss is `losses.kl`. numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mindgspo.config.algorithm import KLSection
from mindgspo.errors import CheckpointError, TrainingError
from mindgspo.types import BoolArray

# arXiv 1909.08593, section 2.2: the relative error counts for at most this much, so that one wild step cannot turn
# the coefficient over.
LARGEST_ERROR = 0.2

# A larger one would overflow in the float32 of the loss.
_LARGEST_COEFFICIENT = 1e30


class KLController:
    """The coefficient: fixed, or steered so that the mean KL per token approaches `target`.

    Adaptive (arXiv 1909.08593, section 2.2): coef *= 1 + clip(KL / target - 1, -0.2, 0.2) * responses / horizon.
    0 if no penalty is placed anywhere.
    """

    def __init__(self, section: KLSection) -> None:
        self._target = section.target
        self._horizon = section.horizon
        self._coef = section.coef if section.placement != "none" else 0.0

    @property
    def coef(self) -> float:
        """The coefficient now in force: finite, >= 0."""
        return self._coef

    def update(self, mean_kl: float, num_responses: int) -> None:
        """Adjust to what a step has shown; a fixed coefficient stays.

        mean_kl: mean of the estimate over the response tokens of the step (nats; k1's may be negative).
        num_responses: responses it was measured on, fewer than 5 horizons.
        Raises TrainingError if mean_kl is not finite, or the coefficient has left every sensible range.
        """
        if not math.isfinite(mean_kl):
            raise TrainingError(
                f"mean KL to the reference policy is {mean_kl}: log-probs have overflowed; try a smaller optimizer.lr"
            )
        if self._target is None:
            return
        error = min(max(mean_kl / self._target - 1.0, -LARGEST_ERROR), LARGEST_ERROR)
        factor = 1.0 + error * num_responses / self._horizon
        assert num_responses >= 0 and factor > 0, f"{num_responses} responses at a horizon of {self._horizon}"
        if self._coef * factor > _LARGEST_COEFFICIENT:
            raise TrainingError(
                f"the adaptive KL coefficient has grown to {self._coef:.1e}, while the mean KL is {mean_kl:.3g} and "
                f"algorithm.kl.target {self._target:g}: the penalty does not bring the policy back; try a smaller "
                "optimizer.lr or a larger target"
            )
        self._coef *= factor

    def state(self) -> dict[str, float]:
        """State for a checkpoint."""
        return {"coef": self._coef}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Take up the coefficient of `state()`. Raises CheckpointError for one that is no finite number >= 0."""
        coef = state.get("coef")
        if isinstance(coef, bool) or not isinstance(coef, (int, float)) or not (math.isfinite(coef) and coef >= 0):
            raise CheckpointError(f"KL coefficient in the checkpoint: expected a finite number >= 0, got {coef!r}")
        self._coef = float(coef)


def reward_penalty(
    section: KLSection, old_logp: NDArray[np.floating], ref_logp: NDArray[np.floating], mask: BoolArray
) -> NDArray[np.float64]:
    """The KL estimate of every response token, not yet multiplied by the coefficient.

    With u = old_logp - ref_logp: k1 u, k2 u^2 / 2, k3 (low_var_kl) exp(-u) + u - 1, abs |u| (John Schulman,
    "Approximating KL divergence"). `exponent_clamp` bounds -u and `value_clamp` the estimate, both of k3 only.

    old_logp, ref_logp: log-probs of the sampled tokens, [L] or [N, K].
    mask: True at real tokens, of the same shape.

    Returns float64 of that shape, 0 where masked, whatever the inputs hold there.
    """
    assert old_logp.shape == ref_logp.shape == mask.shape, f"{old_logp.shape}, {ref_logp.shape}, {mask.shape}"
    assert mask.dtype == np.bool_, f"mask has dtype {mask.dtype}"
    above = np.where(mask, old_logp, 0.0).astype(np.float64) - np.where(mask, ref_logp, 0.0)
    if section.estimator == "k1":
        return above
    if section.estimator == "k2":
        return 0.5 * above * above
    if section.estimator == "abs":
        return np.abs(above)
    below = -above
    if section.exponent_clamp is not None:
        below = np.clip(below, -section.exponent_clamp, section.exponent_clamp)
    # expm1 keeps its digits where exp - 1 cancels; its overflow is the infinity that it is.
    with np.errstate(over="ignore"):
        estimate = np.expm1(below) - below
    if section.value_clamp is not None:
        estimate = np.clip(estimate, -section.value_clamp, section.value_clamp)
    return estimate
