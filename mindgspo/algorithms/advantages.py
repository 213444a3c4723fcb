"""Group-relative advantages: how good each response is beside its siblings.

What enters: the rewards of one prompt's G responses. What leaves: one float32 advantage per response. Called
by the trainer when it makes a `Group`. numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindgspo.config.schema import AdvantageSection
from mindgspo.types import Float32Array


def group_advantages(rewards: Sequence[float | None], section: AdvantageSection) -> Float32Array:
    """(r - mean) / (std + eps) over the group, computed in float64 (arXiv 2402.03300, section 4.1.2).

    rewards: G values; None abstains, is left out of mean and deviation, and gets advantage 0.
    Returns float32 [G]. Exactly 0 for every response of a group of equal rewards and for a group with fewer
    than two rewards: neither says anything about which response was better.
    """
    counted_G = np.array([reward is not None for reward in rewards], dtype=bool)
    values = np.array([reward for reward in rewards if reward is not None], dtype=np.float64)
    advantages_G = np.zeros(len(rewards), dtype=np.float32)
    # Comparing min and max, not std with 0: equal rewards such as 0.1 leave a rounding error in std.
    if values.size < 2 or values.min() == values.max():
        return advantages_G

    centred = values - values.mean()
    if section.normalize_by_std:
        centred /= values.std(ddof=section.ddof) + section.eps
    assert np.isfinite(centred).all(), f"rewards too large to normalise: {values}"
    advantages_G[counted_G] = centred
    return advantages_G


def has_signal(advantages_G: Float32Array) -> bool:
    """Whether a group moves the policy at all: false if every advantage is 0."""
    return bool(np.any(advantages_G != 0))
