"""What a rule of the diagnosis says, and the means that rules share. Called by the files of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from mindgspo.metrics.recorded import Recorded

RECENT_STEPS = 20
"""Rules judge the mean over this many last steps."""


class Level(str, Enum):
    """ALARM: the run cannot learn like this. WARN: worth a look. GOOD: checked and healthy."""

    ALARM = "alarm"
    WARN = "warn"
    GOOD = "good"


@dataclass(frozen=True, slots=True)
class Finding:
    """level; text: what was seen, with its number; advice: what to do, "" where nothing needs doing."""

    level: Level
    text: str
    advice: str = ""


Rule = Callable[[Recorded], "Finding | None"]
"""Looks at a run; None where it has nothing to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRule:
    """A share that must not be high. Above `alarm` or `warn` (shares in [0, 1]) it becomes a finding."""

    keys: tuple[str, ...]
    text: str
    warn: float
    alarm: float
    advice: str

    def __call__(self, run: Recorded) -> Finding | None:
        share = recent(run, *self.keys)
        if share is None:
            return None
        level = Level.ALARM if share > self.alarm else Level.WARN if share > self.warn else Level.GOOD
        return Finding(level, f"{share:.1%} {self.text}", "" if level is Level.GOOD else self.advice)


def recent(run: Recorded, *keys: str, count: int = RECENT_STEPS) -> float | None:
    """Mean over the last `count` values of the first of `keys` that was recorded."""
    return next((series.recent_mean(count) for key in keys if (series := run.series(key))), None)
