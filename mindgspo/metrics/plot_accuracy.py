"""Held-out accuracy against the step: a line per set or data source with its interval, the best step marked."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mindgspo.config.data import OVERALL
from mindgspo.metrics.plot_style import (
    Theme,
    entitle,
    label_y,
    literal,
    not_recorded,
    step_limits,
)
from mindgspo.metrics.run_folder import RecordedRun, RunRecord, Series, accuracies, best_evaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 6
_LABEL_HEIGHT = 0.075  # of the axis: labels closer than that are pushed apart


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """One figure over the steps. low, high: ends of its interval, empty where none was recorded."""

    label: str
    series: Series
    low: Series
    high: Series
    colour: str
    dashes: str = "-"


def draw_accuracy(axes: Axes, run: RunRecord, theme: Theme) -> None:
    """Greedy accuracy of every set or data source; of all problems together, too, where there are several."""
    entitle(axes, theme, "Held-out accuracy", "one answer per problem; shaded: 95 % interval; \N{BLACK STAR} best step")
    parts = list(accuracies(run))
    if not parts:
        return not_recorded(axes, theme)
    lines = [
        _line(run, f"val-core/{part}/acc/mean@1", part, theme.series[(number + 2) % 4], "--" if number >= 4 else "-")
        for number, part in enumerate(parts)
    ]
    if len(lines) > 1 and run.series(OVERALL):
        lines.append(_line(run, OVERALL, "all", theme.muted, ":"))
    _draw(axes, lines, theme)
    if len(lines) == 1:
        _label_first_and_last(axes, lines[0].series, theme)
    else:
        _label_ends(axes, lines, theme)
    _mark_best(axes, run, theme)


def sampled_panels(run: RunRecord, theme: Theme) -> list[Callable[[Axes], None]]:
    """A panel per set or data source with all its shares: mean@1, mean@n, pass@k, maj@k; none where that is one."""
    names = {part: _figures(run, part) for part in list(accuracies(run))[:MOST_PANELS]}
    if all(len(found) <= 1 for found in names.values()):
        return []
    return [partial(_draw_sampled, run=run, part=part, names=found, theme=theme) for part, found in names.items()]


def _draw_sampled(axes: Axes, run: RunRecord, part: str, names: Sequence[str], theme: Theme) -> None:
    entitle(axes, theme, literal(part), "one answer per problem, and samples; shaded: 95 % interval")
    lines = [
        _line(run, name, name.rpartition("/")[2], theme.series[number % 4], "--" if number >= 4 else "-")
        for number, name in enumerate(names)
    ]
    _draw(axes, lines, theme)
    _label_ends(axes, lines, theme)


def _figures(run: RecordedRun, part: str) -> list[str]:
    """The shares measured of a part, mean@1 first, then in the order of their k."""
    pattern = re.compile(re.escape(f"val-core/{part}/acc/") + r"(?P<kind>mean|pass|maj)@(?P<k>[0-9]+)")
    found = [match for name in run.names() if (match := pattern.fullmatch(name))]
    order = {"mean": 0, "maj": 1, "pass": 2}
    return [match[0] for match in sorted(found, key=lambda match: (order[match["kind"]], int(match["k"])))]


def _line(run: RecordedRun, name: str, label: str, colour: str, dashes: str) -> _Line:
    low, high = run.series(f"{name}/low"), run.series(f"{name}/high")
    return _Line(label=label, series=run.series(name), low=low, high=high, colour=colour, dashes=dashes)


def _draw(axes: Axes, lines: Sequence[_Line], theme: Theme) -> None:
    from matplotlib.ticker import PercentFormatter

    top = max(max(line.series.values) for line in lines)
    for line in lines:
        series = line.series
        if line.low.steps == series.steps == line.high.steps:
            axes.fill_between(
                series.steps, line.low.values, line.high.values, color=line.colour, alpha=0.1, linewidth=0
            )
            top = max(top, *line.high.values)
        axes.plot(
            series.steps,
            series.values,
            line.dashes,
            marker="o",
            color=line.colour,
            linewidth=1.6,
            markersize=6,
            markeredgecolor=theme.surface,
            markeredgewidth=1.2,
            clip_on=False,  # points at 0 lie on the axis
        )
    axes.set_ylim(0, min(1.1, max(0.1, top * 1.15)))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    label_y(axes, theme, "problems solved")


def _label_ends(axes: Axes, lines: Sequence[_Line], theme: Theme) -> None:
    """Name and last value of each line at its right end, pushed apart where they would overlap."""
    ends = sorted(lines, key=lambda line: line.series.values[-1])
    heights = pushed_apart([line.series.values[-1] for line in ends], axes.get_ylim()[1])
    for line, place in zip(ends, heights, strict=True):
        axes.annotate(
            f"{literal(line.label)} {line.series.values[-1]:.1%}",
            xy=(line.series.steps[-1], place),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            color=line.colour if line.colour != theme.muted else theme.ink,
            fontsize=9,
            fontweight="bold",
            annotation_clip=False,
        )


def pushed_apart(values: Sequence[float], height: float) -> list[float]:
    """Heights for labels of ascending values on an axis from 0 to `height`, far enough from each other to be read."""
    places, gap = list(values), min(_LABEL_HEIGHT, 1 / len(values)) * height
    for _ in range(100):
        for below in range(len(places) - 1):
            missing = gap - (places[below + 1] - places[below])
            if missing > 0:
                places[below] -= missing / 2
                places[below + 1] += missing / 2
    shift = max(0.0, -places[0]) - max(0.0, places[-1] - height)
    return [place + shift for place in places]


def _label_first_and_last(axes: Axes, series: Series, theme: Theme) -> None:
    """Write the values beside the two ends, on the side of the point where the line does not run."""
    last = len(series.values) - 1
    for index, neighbour in {0: min(1, last), last: max(0, last - 1)}.items():
        is_at_axis = series.values[index] < _LABEL_HEIGHT * axes.get_ylim()[1]  # below are the numbers of the axis
        is_above = is_at_axis or series.values[index] >= series.values[neighbour]
        is_left = index == 0 and last > 0
        axes.annotate(
            f"{series.values[index]:.1%}",
            xy=(series.steps[index], series.values[index]),
            xytext=(-4 if is_left else 4, 9 if is_above else -17),
            textcoords="offset points",
            ha="left" if is_left else "right",
            color=theme.ink,
            fontsize=9,
            fontweight="bold",
        )


def _mark_best(axes: Axes, run: RunRecord, theme: Theme) -> None:
    """A dotted line through the step that was best so far; none where nothing is to choose from."""
    best = best_evaluation(run)
    if best is None or best.is_only:
        return
    axes.axvline(best.step, color=theme.ink, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0.5)
    top = axes.get_ylim()[1]
    there = [
        line.get_ydata()[list(line.get_xdata()).index(best.step)]
        for line in axes.lines
        if best.step in line.get_xdata()
    ]
    is_high = bool(there) and max(there) > top / 2  # then the text stands below the line
    is_late = best.step > sum(step_limits(run)) / 2  # then the text stands on the left
    axes.annotate(
        f"\N{BLACK STAR} {best.step}",
        xy=(best.step, 0.0 if is_high else top),
        xytext=(-4 if is_late else 4, 6 if is_high else -12),
        textcoords="offset points",
        ha="right" if is_late else "left",
        color=theme.muted,
        fontsize=8,
    )
