"""Algorithms: advantages, learning-rate schedule, policy losses with their twins, and the update.

The door holds what needs no MindSpore. Cells are in submodules, so that importing the room stays cheap:
`registry.build_policy_loss`, `supervised.SupervisedLoss`, `update.UpdateBackend`, `update.UpdateResult`.
"""

from mindgspo.algorithms.advantages.estimate import AdvantageInputs, estimate_advantages, has_signal
from mindgspo.algorithms.optim.learning_rate import learning_rate

__all__ = ["AdvantageInputs", "estimate_advantages", "has_signal", "learning_rate"]
