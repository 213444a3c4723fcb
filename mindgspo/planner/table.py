"""A memory plan as text: one table per rank class, one of the memory levels, and the verdict.

What enters: a `MemoryPlan`. What leaves: lines. Called by `command`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mindgspo.parallel.swap.states import Phase
from mindgspo.planner.measured import MeasuredPeak
from mindgspo.planner.memory_plan import GIB, MIB, Level, MemoryPlan, Part, RankMemory


def plan_lines(plan: MemoryPlan) -> Iterator[str]:
    """Tables by rank class at the configured level, then all levels."""
    where = "card" if plan.device == "Ascend" else "process"
    yield f"memory per {where} at the peak of each phase; {plan.level.value}"
    for each in plan.classes:
        yield ""
        yield from _class_lines(plan, each)
    yield ""
    yield from _level_lines(plan)


def measured_lines(peaks: Sequence[tuple[Phase, MeasuredPeak, int]]) -> Iterator[str]:
    """Each graph's peak by MindSpore's allocator beside the plan's. peaks: phase, what was measured, and the bytes that
    the plan has for this graph alone."""
    unit = _Unit(max(peak.allocated for _, peak, _ in peaks))
    rows = [[f"graph by graph, {unit.name}", "MindSpore", "plan", "difference"]]
    for phase, peak, planned in peaks:
        more = 100 * (planned / peak.allocated - 1)
        name = f"  {phase.value}: {peak.graph}, rank {peak.rank}"
        rows.append([name, unit.text(peak.allocated), unit.text(planned), f"{more:+.1f} %"])
    yield from _aligned(rows)


def peak_text(plan: MemoryPlan, level: Level | None = None) -> str:
    """The most that a level needs against what there is, e.g. "update needs 51.20 of 64.00 GiB"."""
    phase, needed = plan.peak(level)
    processes = sum(len(each.ranks) for each in plan.classes)
    together = f" ({processes} processes together)" if plan.device == "CPU" and processes > 1 else ""
    unit = _Unit(needed)
    return f"{phase.value} needs {unit.text(needed)} of {unit.text(plan.capacity)} {unit.name}{together}"


class _Unit:
    """GiB with two decimals; whole MiB where the largest figure of a table is small."""

    def __init__(self, largest: int) -> None:
        self._is_small = largest < 4 * GIB
        self.name = "MiB" if self._is_small else "GiB"

    def text(self, size: int) -> str:
        """A size in this unit."""
        return f"{size / MIB:,.0f}" if self._is_small else f"{size / GIB:,.2f}"


def _class_lines(plan: MemoryPlan, each: RankMemory) -> Iterator[str]:
    memories = [each.at(plan.level, phase) for phase in plan.phases]
    unit = _Unit(max(memory.total for memory in memories))
    rows = [[f"{_title(each)}, {unit.name}", *(phase.value for phase in plan.phases)]]
    for part in Part:
        sizes = [memory.parts.get(part, 0) for memory in memories]
        if any(sizes):
            rows.append([f"  {part.value}", *(unit.text(size) if size else "-" for size in sizes)])
    rows.append(["  together", *(unit.text(memory.total) for memory in memories)])
    yield from _aligned(rows)


def _level_lines(plan: MemoryPlan) -> Iterator[str]:
    unit = _Unit(max(plan.peak(level)[1] for level in Level))
    title = "fullest card" if plan.device == "Ascend" else "all processes"
    rows = [[f"{title}, {unit.name}", *(phase.value for phase in plan.phases), "", ""]]
    for level in Level:
        sizes = [unit.text(plan.needed(level, phase)) for phase in plan.phases]
        verdict = "fits" if plan.fits(level) else "does not fit"
        rows.append([f"  {level.value}", *sizes, verdict, "(configured)" if level is plan.level else ""])
    yield from _aligned(rows)


def _title(each: RankMemory) -> str:
    first, last = each.ranks[0], each.ranks[-1]
    layers = f"layers {each.layers[0]}-{each.layers[-1]}"
    return f"rank {first}, {layers}" if first == last else f"ranks {first}-{last}, {layers}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """First column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
