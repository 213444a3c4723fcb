"""Policy losses by name. To add one: a file with a subclass of `PolicyLoss`, its twin, and a line here.

What enters: the experiment's algorithm section. What leaves: the cell that `update` differentiates. Called by
`trainer.build`.
"""

from __future__ import annotations

from mindgspo.algorithms.grpo import GRPOLoss
from mindgspo.algorithms.gspo import GSPOLoss
from mindgspo.algorithms.policy_loss import PolicyLoss
from mindgspo.config import AlgorithmSection, with_clip_range

POLICY_LOSSES: dict[str, type[PolicyLoss]] = {"gspo": GSPOLoss, "grpo": GRPOLoss}


def build_policy_loss(section: AlgorithmSection) -> PolicyLoss:
    """The cell named by `section.name`; a clip bound that is None takes the paper's value, as in a resolved config."""
    filled = with_clip_range(section)
    assert filled.clip_low is not None and filled.clip_high is not None
    return POLICY_LOSSES[filled.name](
        clip_low=filled.clip_low, clip_high=filled.clip_high, log_ratio_max=filled.log_ratio_max
    )
