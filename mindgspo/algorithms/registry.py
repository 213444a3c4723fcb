"""Policy losses by name. To add one: a file with a subclass of `PolicyLoss`, its twin, and a line here.

What enters: the experiment's algorithm section. What leaves: the cell that `update` differentiates. Called by
`trainer.build`.
"""

from __future__ import annotations

from typing import NamedTuple

from mindgspo.algorithms.grpo import GRPOLoss
from mindgspo.algorithms.gspo import GSPOLoss
from mindgspo.algorithms.policy_loss import PolicyLoss
from mindgspo.config.schema import AlgorithmSection


class Recipe(NamedTuple):
    """A loss cell and the clip range that its paper uses."""

    cell: type[PolicyLoss]
    clip_low: float
    clip_high: float


# GSPO: arXiv 2507.18071, section 5.1, which also gives the range of its GRPO baseline.
RECIPES: dict[str, Recipe] = {
    "gspo": Recipe(GSPOLoss, 3e-4, 4e-4),
    "grpo": Recipe(GRPOLoss, 0.2, 0.27),
}


def build_policy_loss(section: AlgorithmSection) -> PolicyLoss:
    """The cell named by `section.name`; a clip bound that is None takes the paper's value."""
    recipe = RECIPES[section.name]
    return recipe.cell(
        clip_low=recipe.clip_low if section.clip_low is None else section.clip_low,
        clip_high=recipe.clip_high if section.clip_high is None else section.clip_high,
        log_ratio_max=section.log_ratio_max,
    )
