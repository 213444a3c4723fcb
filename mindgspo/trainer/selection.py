"""Which responses of a step are trained on, and why the others are not.

What enters: judged groups, the algorithm's filter. What leaves: a `Selection`. Called by `collect`. Responses are
numbered through the step, group by group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mindgspo.algorithms import has_signal
from mindgspo.config import FilterGroupsSection
from mindgspo.types import Response, Score, ScoredGroup, Verdict

SURPLUS, SHORT, KEPT = "surplus", "short", "kept"
"""Whole groups with a signal that are not trained: beyond the full batch; in a step that found too few of them and is
skipped; put aside for a later step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedGroup:
    """A group as it was generated. baseline: reward of the greedy response, None where there is none. step: in which it
    was generated."""

    group: ScoredGroup
    baseline: float | None
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """responses: all of the step. reasons: why each one is left out of the update, None for those that are not."""

    responses: tuple[Response, ...]
    reasons: tuple[str | None, ...]

    def trained(self, start: int, stop: int) -> list[int]:
        """Numbers of the trained responses from `start` to `stop` (excluded)."""
        return [number for number in range(start, stop) if self.reasons[number] is None]


Marked = tuple[JudgedGroup, str | None]
"""A group with the reason why it is left out as a whole, None for one that is trained."""


def left_out_by(
    section: FilterGroupsSection, label: str | None, *, needs_baseline: bool
) -> Callable[[JudgedGroup], str | None]:
    """The rule that says why a whole group is left out: `no_baseline` where its greedy answer has no reward,
    `zero_signal` where its responses do not differ in the filter's metric, None for a group that is trained.

    label: the name of the filter's reward function in scores, None where the metric is none of them. needs_baseline:
    whether the estimator compares with the greedy answer.
    """

    def reason(judged: JudgedGroup) -> str | None:
        if needs_baseline and judged.baseline is None:
            return "no_baseline"
        if section.metric == "none":
            return None
        values = [_value(score, section.metric, label) for score in judged.group.scores]
        return None if has_signal(values) else "zero_signal"

    return reason


def _value(score: Score, metric: str, label: str | None) -> float | None:
    """What the filter compares; None for a response that has none, which then does not count."""
    if score.value is None:
        return None
    if metric == "reward":
        return score.value
    if metric == "accuracy":
        return float(score.verdict is Verdict.CORRECT)
    return score.parts.get(label)


def selection_of(groups: Sequence[Marked]) -> Selection:
    """A response without a reward is left out by its verdict, unless its group is kept: then a later step counts it."""
    reasons: list[str | None] = []
    for judged, whole in groups:
        reasons += [
            score.verdict.value if score.value is None and whole != KEPT else whole for score in judged.group.scores
        ]
    return Selection(
        responses=tuple(response for judged, _ in groups for response in judged.group.responses),
        reasons=tuple(reasons),
    )
