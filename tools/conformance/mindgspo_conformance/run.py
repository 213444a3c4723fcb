"""`mindgspo conformance`: a file of cases -> a report, and whether all passed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from mindgspo.text import aligned, raw_stream, shorten
from mindgspo_conformance.cases import KINDS_OF_CELLS, Case, Filters, read_cases
from mindgspo_conformance.cells import CellRuns
from mindgspo_conformance.compare import Check, Comparison, check_twin

_WIDEST_SOURCE = 36
_GAP = "  "
LEGEND = "worst error: as a share of the allowed one (more than 1 fails), then relative to the largest expected entry"
MOST_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One case with its results. cell: None for kinds without cells, and in runs of the twins only."""

    case: Case
    twin: Check
    cell: Check | None

    @property
    def passed(self) -> bool:
        return self.twin.passed and not (self.cell is not None and self.cell.failed)

    @property
    def checks(self) -> Mapping[str, Check]:
        """By side: twin, and cell where there is one."""
        return {"twin": self.twin} if self.cell is None else {"twin": self.twin, "cell": self.cell}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of every chosen case."""

    outcomes: tuple[Outcome, ...]

    @property
    def num_failed(self) -> int:
        return sum(not outcome.passed for outcome in self.outcomes)

    def lines(self) -> Iterator[str]:
        """The report; its last line is `N passed, N failed`."""
        yield from _table(self.outcomes)
        yield ""
        yield from _worst_lines(self.outcomes)
        if skipped := _skipped_line(self.outcomes):
            yield skipped
        if self.num_failed:
            yield ""
            yield from _failure_lines(self.outcomes)
        yield f"{len(self.outcomes) - self.num_failed} passed, {self.num_failed} failed"


def run_conformance(path: Path, filters: Filters, *, twins_only: bool = False) -> Report:
    """Check every chosen case of a file: twins first, which takes seconds, then cells.

    Progress is shown on the terminal, if there is one. Raises DataError for a file or a case that is wrong in itself,
    and for filters that leave no case.
    """
    cases = filters.select(path, read_cases(path))
    twins = [check_twin(case) for case in cases]
    cells = {} if twins_only else _check_cells(cases)
    outcomes = [Outcome(case=case, twin=twins[i], cell=cells.get(i)) for i, case in enumerate(cases)]
    return Report(outcomes=tuple(outcomes))


def _check_cells(cases: Sequence[Case]) -> Mapping[int, Check]:
    """Checks by the place of the case; cases of kinds without cells are left out."""
    runs = CellRuns({i: case for i, case in enumerate(cases) if case.kind in KINDS_OF_CELLS})
    found = dict(runs.skipped)
    console = Console(file=raw_stream(sys.stderr))
    running = f"{runs.num_graphs} float32 graphs, {runs.num_processes} process" + "es" * (runs.num_processes > 1)
    for checks in track(
        runs.checks(), running, total=runs.num_graphs, console=console, transient=True, disable=not console.is_terminal
    ):
        found.update(checks)
    return found


def _table(outcomes: Sequence[Outcome]) -> list[str]:
    """Lines: headings, one line per source and kind in the order of the file, totals."""
    groups: dict[str, dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        groups.setdefault(shorten(outcome.case.peer, _WIDEST_SOURCE), {}).setdefault(outcome.case.kind, []).append(
            outcome
        )
    head = ["source", "kind", "cases", "passed", "failed", "worst error", "passed", "failed", "skipped", "worst error"]
    body = [
        [source if row == 0 else "", kind, *_cells_of_row(kinds[kind])]
        for source, kinds in groups.items()
        for row, kind in enumerate(kinds)
    ]
    total = ["all", "", *_cells_of_row(outcomes)]
    widths = [max(map(len, column)) for column in zip(head, *body, total, strict=True)]
    over = ["", "", "", "twins, float64", "cells, float32"]
    spans = [*widths[:3], *(sum(part) + len(_GAP) * (len(part) - 1) for part in (widths[3:6], widths[6:]))]
    ruler = "-" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    first, *rest, last = aligned([head, *body, total], left=2)
    groups_of_columns = _GAP.join(f"{text:^{width}}" for text, width in zip(over, spans, strict=True)).rstrip()
    return [groups_of_columns, first, ruler, *rest, ruler, last, LEGEND]


def _worst_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """The worst error of either side with the case's name, one line each; none for a side nobody was asked."""
    lines = []
    for side in ("twin", "cell"):
        asked = [outcome for outcome in outcomes if side in outcome.checks and outcome.checks[side].worst is not None]
        if asked:
            outcome = max(asked, key=lambda one: one.checks[side].worst.share)
            worst = outcome.checks[side].worst
            lines.append(
                f"worst {side}: {outcome.case.name}, {worst.place}: error {worst.error:.3g}, "
                f"relative {worst.relative:.3g}, {worst.share:.3g} of the allowed {worst.bound:.3g}"
            )
    return lines


def _skipped_line(outcomes: Sequence[Outcome]) -> str | None:
    """How many cases cells were not asked about for a reason of the case's own; None if there is none."""
    cells = [outcome.cell for outcome in outcomes if outcome.cell is not None]
    reasons = Counter(cell.skipped for cell in cells if cell.skipped)
    if not reasons:
        return None
    listed = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    return f"skipped in float32: {sum(reasons.values())} of {len(cells)} ({listed}); their twins were compared"


def _cells_of_row(outcomes: Sequence[Outcome]) -> list[str]:
    twins = [outcome.twin for outcome in outcomes]
    cells = [outcome.cell for outcome in outcomes if outcome.cell is not None]
    row = [str(len(outcomes)), _count(twins, lambda one: one.passed), _count(twins, lambda one: one.failed)]
    row.append(_worst_text(twins))
    if not cells:
        return [*row, *"----"]
    row += [_count(cells, lambda one: one.passed), _count(cells, lambda one: one.failed)]
    return [*row, _count(cells, lambda one: one.skipped is not None), _worst_text(cells)]


def _count(checks: Sequence[Check], counts: Callable[[Check], bool]) -> str:
    return str(sum(map(counts, checks)))


def _worst_text(checks: Sequence[Check]) -> str:
    found = [check.worst for check in checks if check.worst is not None]
    if not found:
        return "-"
    worst = max(found, key=lambda one: one.share)
    return f"{worst.share:.1e} ({worst.relative:.0e})"


def _failure_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Per failed case its name and every quantity that is wrong, with its worst entry; the first 20 cases."""
    failed = [outcome for outcome in outcomes if not outcome.passed]
    lines = [line for outcome in failed[:MOST_SHOWN] for line in _lines_of(outcome)]
    if len(failed) > MOST_SHOWN:
        lines.append(f"... and {len(failed) - MOST_SHOWN} more")
    return lines


def _lines_of(outcome: Outcome) -> Iterator[str]:
    yield f"FAILED {outcome.case.name} ({outcome.case.kind}; {outcome.case.source})"
    for side, check in outcome.checks.items():
        yield from (f"  {side} {problem}" for problem in check.problems)
        yield from (f"  {side} {_sentence(one)}" for one in check.comparisons if not one.passed)


def _sentence(wrong: Comparison) -> str:
    times = f"{wrong.share:.3g} times the" if wrong.bound > 0 else "more than the"
    return (
        f"{wrong.place}: expected {wrong.expected:.17g}, got {wrong.got:.17g}; "
        f"error {wrong.error:.3g} is {times} allowed {wrong.bound:.3g}"
    )
