"""Which groups are worth writing down. Called by `loop` and `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from mindgspo.types import Group, ScoredGroup

AnyGroup = TypeVar("AnyGroup", Group, ScoredGroup)


def logged_groups(groups: Sequence[AnyGroup], count: int | None) -> tuple[AnyGroup, ...]:
    """The first `count` groups, and as many of the others in which a reward function failed: its message must be found
    somewhere. None: all."""
    if count is None:
        return tuple(groups)
    failed = [group for group in groups[count:] if any(score.message for score in group.scores)]
    return (*groups[:count], *failed[:count])
