"""Algorithms: advantages, policy losses with their twins, KL control, rollout correction, and the update (`optim`).

This module exports what needs no MindSpore; cells are imported from their own modules.
"""

from mindgspo.algorithms.advantages.estimate import AdvantageInputs, estimate_advantages, has_signal
from mindgspo.algorithms.optim.learning_rate import learning_rate

__all__ = ["AdvantageInputs", "estimate_advantages", "has_signal", "learning_rate"]
