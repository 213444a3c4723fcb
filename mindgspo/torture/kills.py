"""Where and when a run is killed: drawn by a seed, so that every part of a step is hit often enough.

What enters: a number of kills, a seed, a number of workers. What leaves: `Kill`s in an order that lets each life go on
for two steps at most. Pure. Called by `command`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

# {kind: {point: up to the how manieth time}}: all within the first two steps, two evaluations or one checkpoint of a
# life of the built-in experiment.
KINDS: Mapping[str, Mapping[str, int]] = {
    "save": {"save.before": 1, "save.inside": 3, "save.rename": 1, "save.after": 1},
    "rollout": {"rollout.before": 2, "rollout.inside": 14},
    "reward": {"reward.before": 3, "reward.inside": 3},
    "update": {"update.before": 2, "update.batch": 4, "update.inside": 2, "update.after": 2, "weights.after": 2},
    "eval": {"eval.before": 1, "eval.inside": 7},
    "other": {"log.after": 2, "resume.after": 1},
}
REQUIRED = ("save", "rollout", "reward", "update")
"""Kinds of which each gets at least three kills of twenty."""
_RANDOM = "any time"
_FINISH = "finish"
_FINISH_POINTS = ("finish.before", "finish.inside")
_RANK_0_ONLY = ("save.inside", "save.rename", "finish.inside")
# Where ranks that judge and ranks that do not differ, rank 0 always does.
_NEEDS_SPEAKER = ("reward.before", "reward.inside")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """kind: of `KINDS`, "any time" or "finish". fault: for MINDGSPO_FAULT, None for a kill from outside after `share`
    of what a start and a few steps take. is_whole: all processes of the run at once; else one, and the run must end by
    itself."""

    kind: str
    fault: str | None = None
    share: float = 0.0
    is_whole: bool = False

    @property
    def point(self) -> str:
        """The point's name, or the kind."""
        return self.kind if self.fault is None else self.fault.partition(":")[0]


def planned_kills(number: int, seed: int, workers: int) -> list[Kill]:
    """`number` kills; the last, if there are enough, is between the last step and the end of the run."""
    choose = random.Random(seed)
    kinds = [kind for kind in REQUIRED for _ in range(-(-number * 3 // 20))]
    has_finish = number > len(kinds)
    while len(kinds) < number - has_finish:
        kinds.append(choose.choice([*KINDS, _RANDOM, _RANDOM, _RANDOM]))
    choose.shuffle(kinds)
    kinds = [*kinds[: number - has_finish], *[_FINISH] * has_finish]
    return [_kill(kind, choose, workers, is_first=place == 0) for place, kind in enumerate(kinds)]


def _kill(kind: str, choose: random.Random, workers: int, *, is_first: bool) -> Kill:
    if kind == _RANDOM:
        return Kill(kind=kind, share=choose.uniform(0.05, 1.0), is_whole=True)
    if kind == _FINISH:
        return Kill(kind=kind, fault=_fault(choose.choice(_FINISH_POINTS), 1, choose, workers))
    points = [point for point in KINDS[kind] if not (is_first and point == "resume.after")]
    point = choose.choice(points)
    return Kill(kind=kind, fault=_fault(point, choose.randint(1, KINDS[kind][point]), choose, workers))


def _fault(point: str, number: int, choose: random.Random, workers: int) -> str:
    """One rank where there are several: the launcher must end the others."""
    rank = 0 if point in (*_RANK_0_ONLY, *_NEEDS_SPEAKER) else choose.randrange(workers)
    return f"{point}:{number}=kill" + (f"@{rank}" if workers > 1 else "")
