"""How far two computations of a step are apart: tensor by tensor, in the order in which they are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from mindgspo.text import aligned, counted

_MOST_SHOWN = 10


class Verdict(str, Enum):
    """Of a comparison."""

    EQUAL = "bit-equal"
    WITHIN = "within tolerance"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Of one tensor. stage: of the step. operator: what computed it on Ascend, "" where that is not one. max_abs: the
    largest absolute difference, inf where one side alone is not finite or shapes differ. largest: of the recorded
    numbers. tolerance: for max_abs / largest. is_equal: bit for bit."""

    stage: str
    name: str
    operator: str
    max_abs: float
    largest: float
    tolerance: float
    is_equal: bool

    @property
    def relative(self) -> float:
        """To the largest recorded number."""
        return 0.0 if self.max_abs == 0 else self.max_abs / max(self.largest, np.finfo(np.float32).tiny)

    @property
    def is_within(self) -> bool:
        """The tolerance."""
        return self.relative <= self.tolerance

    def __str__(self) -> str:
        by = f" ({self.operator})" if self.operator else ""
        return (
            f"{self.stage}: {self.name}{by} is off by {self.max_abs:.3g} where numbers reach {self.largest:.3g}, "
            f"{self.relative:.2g} of them; {self.tolerance:g} is allowed"
        )


def difference(
    stage: str, name: str, found: np.ndarray, recorded: np.ndarray, *, tolerance: float, operator: str = ""
) -> Difference:
    """Between what was computed now and what was recorded."""
    found, recorded = np.asarray(found), np.asarray(recorded)
    if found.shape != recorded.shape:
        apart, is_equal = np.inf, False
    else:
        is_equal = bool(np.array_equal(found, recorded, equal_nan=True))
        both = np.isfinite(found) & np.isfinite(recorded)
        same = (found == recorded) | (np.isnan(found) & np.isnan(recorded))
        apart = np.inf if (~both & ~same).any() else _largest(found[both].astype(np.float64) - recorded[both])
    return Difference(
        stage=stage,
        name=name,
        operator=operator,
        max_abs=float(apart),
        largest=_largest(recorded[np.isfinite(recorded)]),
        tolerance=tolerance,
        is_equal=is_equal,
    )


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values).max(initial=0.0))


@dataclass(slots=True)
class Comparison:
    """All differences, in the order of execution. where: on what it was run again."""

    title: str
    where: str
    differences: list[Difference] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """Of all tensors together."""
        if all(one.is_equal for one in self.differences):
            return Verdict.EQUAL
        return Verdict.WITHIN if all(one.is_within for one in self.differences) else Verdict.DIFFERENT

    def first_beyond(self) -> Difference | None:
        """The first tensor that is further off than allowed; each module has been given what was recorded before it."""
        return next((one for one in self.differences if not one.is_within), None)

    def lines(self) -> list[str]:
        """By stage how many tensors there are and how far off the worst is; then what is beyond its tolerance."""
        stages = list(dict.fromkeys(one.stage for one in self.differences))
        rows = [("stage", "tensors", "bit-equal", "largest difference, relative", "allowed")]
        rows += [self._row(stage, [one for one in self.differences if one.stage == stage]) for stage in stages]
        lines = [self.title, f"run again on {self.where}", "", *aligned(rows, left=1), ""]
        first = self.first_beyond()
        if first is None:
            return [*lines, f"{self.verdict.value}: {counted(len(self.differences), 'tensor')}"]
        beyond = [one for one in self.differences if not one.is_within]
        lines += [f"first difference: {first}"]
        before = self.differences[self.differences.index(first) - 1]
        if first is not self.differences[0] and before.stage == first.stage:
            lines.append(f"right in front of it is {before.name}, which agrees")
        lines += [f"then {one}" for one in beyond[1:_MOST_SHOWN]]
        if beyond[_MOST_SHOWN:]:
            lines.append(f"and {len(beyond) - _MOST_SHOWN} more")
        return [*lines, "", f"{self.verdict.value}: {len(beyond)} of {counted(len(self.differences), 'tensor')}"]

    def _row(self, stage: str, own: Sequence[Difference]) -> tuple[str, ...]:
        worst = max(own, key=lambda one: one.relative)
        equal = sum(one.is_equal for one in own)
        return stage, str(len(own)), str(equal), f"{worst.relative:.2g}", f"{worst.tolerance:g}"
