"""Outcomes -> the table by source, and the worst errors. Called by `command`.

A row is one kind of one peer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from mindgspo.conformance.judging import Comparison, Judgement
from mindgspo.conformance.outcome import SIDES, Outcome
from mindgspo.text import shorten

_WIDEST_SOURCE = 36
_GAP = "  "
LEGEND = "worst error: as a share of the allowed one (more than 1 fails), then relative to the largest expected entry"


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Lines: headings, one line per source and kind in the order of the file, totals."""
    groups: dict[str, dict[str, list[Outcome]]] = {}
    for outcome in outcomes:
        groups.setdefault(shorten(outcome.case.peer, _WIDEST_SOURCE), {}).setdefault(outcome.case.kind, []).append(
            outcome
        )
    head = ["source", "kind", "cases", "passed", "failed", "worst error", "passed", "failed", "skipped", "worst error"]
    body = [
        [source if row == 0 else "", kind, *_figures(kinds[kind])]
        for source, kinds in groups.items()
        for row, kind in enumerate(kinds)
    ]
    total = ["all", "", *_figures(outcomes)]
    widths = [max(map(len, column)) for column in zip(head, *body, total, strict=True)]
    over = ["", "", "", "twins, float64", "cells, float32"]
    spans = [*widths[:3], *(sum(part) + len(_GAP) * (len(part) - 1) for part in (widths[3:6], widths[6:]))]
    ruler = "-" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    return [
        _GAP.join(f"{text:^{width}}" for text, width in zip(over, spans, strict=True)).rstrip(),
        _line(head, widths),
        ruler,
        *(_line(row, widths) for row in body),
        ruler,
        _line(total, widths),
        LEGEND,
    ]


def worst_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """The worst error of either side with the case's name, one line each; none for a side nobody was asked."""
    lines = []
    for side, judgement_of in SIDES.items():
        found = [(outcome, worst) for outcome in outcomes if (worst := _worst_of(judgement_of(outcome))) is not None]
        if found:
            outcome, worst = max(found, key=lambda pair: pair[1].share)
            lines.append(
                f"worst {side}: {outcome.case.name}, {worst.place}: error {worst.error:.3g}, "
                f"relative {worst.relative:.3g}, {worst.share:.3g} of the allowed {worst.bound:.3g}"
            )
    return lines


def skipped_line(outcomes: Sequence[Outcome]) -> str | None:
    """How many cases cells were not asked about for a reason of the case's own; None if there is none."""
    cells = [outcome.cell for outcome in outcomes if outcome.cell is not None]
    reasons = Counter(cell.skipped for cell in cells if cell.skipped)
    if not reasons:
        return None
    listed = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    return f"skipped in float32: {sum(reasons.values())} of {len(cells)} ({listed}); their twins were judged"


def _figures(outcomes: Sequence[Outcome]) -> list[str]:
    twins = [outcome.twin for outcome in outcomes]
    cells = [outcome.cell for outcome in outcomes if outcome.cell is not None]
    figures = [str(len(outcomes)), _count(twins, lambda one: one.passed), _count(twins, lambda one: one.failed)]
    figures.append(_worst_text(twins))
    if not cells:
        return [*figures, *"----"]
    figures += [_count(cells, lambda one: one.passed), _count(cells, lambda one: one.failed)]
    return [*figures, _count(cells, lambda one: one.skipped is not None), _worst_text(cells)]


def _count(judgements: Sequence[Judgement], counts: Callable[[Judgement], bool]) -> str:
    return str(sum(map(counts, judgements)))


def _worst_text(judgements: Sequence[Judgement]) -> str:
    found = [worst for one in judgements if (worst := _worst_of(one)) is not None]
    if not found:
        return "-"
    worst = max(found, key=lambda one: one.share)
    return f"{worst.share:.1e} ({worst.relative:.0e})"


def _worst_of(judgement: Judgement | None) -> Comparison | None:
    return None if judgement is None else judgement.worst


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    """The first two columns are texts, the others figures."""
    sides = ["<", "<", *">" * (len(row) - 2)]
    return _GAP.join(f"{text:{side}{width}}" for text, side, width in zip(row, sides, widths, strict=True)).rstrip()
