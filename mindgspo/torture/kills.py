"""Where and when a run is killed: drawn by a seed, so that every part of a step is hit often enough.

What enters: a number of kills, a seed, a number of workers. What leaves: `Kill`s in order. Pure. Called by
`command`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

# {kind: {point: up to the how manieth time}}: within about three steps or two checkpoints of a life of the built-in
# experiment.
KINDS: Mapping[str, Mapping[str, int]] = {
    "save": {"save.before": 2, "save.inside": 6, "save.rename": 2, "save.remove": 2, "save.after": 2},
    "rollout": {"rollout.before": 3, "rollout.inside": 22},
    "reward": {"reward.before": 4, "reward.inside": 4},
    "update": {"update.before": 3, "update.batch": 6, "update.inside": 3, "update.after": 3, "weights.after": 3},
    "eval": {"eval.before": 2, "eval.inside": 14},
    "other": {"log.after": 3, "resume.after": 1},
}
REQUIRED = ("save", "rollout", "reward", "update")
"""Kinds of which each gets at least three kills of twenty."""
_RANDOM = "any time"
_FINISH = "finish"
_FINISH_POINTS = ("finish.before", "finish.inside")
_RANK_0_ONLY = ("save.inside", "save.rename", "save.remove", "finish.inside")
# Where ranks that judge and ranks that do not differ, rank 0 always does.
_NEEDS_SPEAKER = ("reward.before", "reward.inside")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """kind: of `KINDS`, "any time" or "finish". fault: for MINDGSPO_FAULT; None for a kill from outside, of all
    processes at once: after `share` of what a start takes, or, with steps, after that many steps and `share` of
    another."""

    kind: str
    fault: str | None = None
    share: float = 0.0
    steps: int = 0

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
        return Kill(kind=kind, share=choose.random(), steps=choose.choice((0, 1, 1, 2)))
    if kind == _FINISH:
        return Kill(kind=kind, fault=_fault(choose.choice(_FINISH_POINTS), 1, choose, workers))
    points = [point for point in KINDS[kind] if not (is_first and point == "resume.after")]
    point = choose.choice(points)
    return Kill(kind=kind, fault=_fault(point, choose.randint(1, KINDS[kind][point]), choose, workers))


def _fault(point: str, number: int, choose: random.Random, workers: int) -> str:
    """One rank where there are several: the launcher must end the others."""
    rank = 0 if point in (*_RANK_0_ONLY, *_NEEDS_SPEAKER) else choose.randrange(workers)
    return f"{point}:{number}=kill" + (f"@{rank}" if workers > 1 else "")
