"""Several runs of one experiment side by side, e.g. two algorithms with three seeds each: a table and a picture.

What enters: finished run folders as `RunRecord`s, each with the name of its variant and its seed. What leaves: a
Markdown table and PNG bytes. Called by tools/compare_algorithms.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mindgspo.config.policy_losses import POLICY_LOSSES
from mindgspo.metrics.diagnosis import accuracy_span
from mindgspo.metrics.plot_style import (
    Theme,
    entitle,
    label_x,
    label_y,
    new_figure,
    not_recorded,
    png_bytes,
    smooth,
    style,
    window_of,
)
from mindgspo.metrics.recorded import Series, overall_accuracy
from mindgspo.metrics.run_folder import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One run of the comparison; variant: what it is compared under, e.g. "gspo"."""

    variant: str
    seed: int
    run: RunRecord


@dataclass(frozen=True, slots=True)
class _Column:
    """A figure of a run: its heading, how it is found, how it and its deviation are written."""

    heading: str
    figure: Callable[[RunRecord], float | None]
    form: str
    deviation_form: str


@dataclass(frozen=True, slots=True)
class _Band:
    """Mean over the seeds, the smallest and the largest of them, by step."""

    steps: tuple[int, ...]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


# ----- the table


def _run_mean(metric: str) -> Callable[[RunRecord], float | None]:
    def mean(run: RunRecord) -> float | None:
        series = run.series(metric)
        return fmean(series.values) if series else None

    return mean


def _generated(run: RunRecord) -> float | None:
    series = run.series("samples/generated")
    return sum(series.values) if series else None


def _seconds(run: RunRecord) -> float | None:
    value = run.summary.get("seconds")
    return float(value) if isinstance(value, (int, float)) else None


_COLUMNS = (
    _Column("accuracy before", lambda run: accuracy_span(run)[0], "{:.3f}", "{:.3f}"),
    _Column("accuracy after", lambda run: accuracy_span(run)[1], "{:.3f}", "{:.3f}"),
    _Column("responses clipped", _run_mean("actor/pg_clipfrac_seq"), "{:.2g}", "{:.1g}"),
    _Column("tokens clipped", _run_mean("actor/pg_clipfrac"), "{:.2g}", "{:.1g}"),
    _Column("responses generated", _generated, "{:,.0f}", "{:,.0f}"),
    _Column("seconds", _seconds, "{:.0f}", "{:.0f}"),
)


def comparison_table(runs: Sequence[ComparedRun]) -> str:
    """Markdown: a line per run, then a line per variant with mean and standard deviation (ddof 1) over its seeds.

    Clip fractions are means over the steps of a run. "-" where a run did not record a figure.
    """
    lines = [["algorithm", "seed", *(column.heading for column in _COLUMNS)], ["---"] * (len(_COLUMNS) + 2)]
    for one in runs:
        lines.append([one.variant, str(one.seed), *(_cell(column, column.figure(one.run)) for column in _COLUMNS)])
    for variant, siblings in by_variant(runs).items():
        if len(siblings) > 1:
            cells = [_summary_cell(column, [column.figure(one.run) for one in siblings]) for column in _COLUMNS]
            lines.append([variant, f"mean of {len(siblings)}", *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def by_variant(runs: Sequence[ComparedRun]) -> dict[str, list[ComparedRun]]:
    """The runs of each variant, in the order in which they are given."""
    found: dict[str, list[ComparedRun]] = {}
    for one in runs:
        found.setdefault(one.variant, []).append(one)
    return found


def _cell(column: _Column, value: float | None) -> str:
    return "-" if value is None else column.form.format(value)


def _summary_cell(column: _Column, values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "-"
    return f"{column.form.format(fmean(known))} \N{PLUS-MINUS SIGN} {column.deviation_form.format(stdev(known))}"


# ----- the picture


def draw_comparison(runs: Sequence[ComparedRun], theme: Theme) -> bytes:
    """Reward, held-out accuracy and clip fraction: a line per variant for the mean over its seeds, a band from the
    smallest to the largest of them. Reward and clip fraction are moving means."""
    assert runs, "a comparison of no runs"
    figure = new_figure(theme, 13, 3.9)
    reward, accuracy, clip = figure.subplots(1, 3)
    seeds = max(len(siblings) for siblings in by_variant(runs).values())
    band = f"; mean and range of {seeds} seeds" if seeds > 1 else ""
    for axes, title, subtitle in (
        (reward, "Reward", f"smoothed{band}"),
        (accuracy, "Held-out accuracy", f"greedy answers{band}"),
        (clip, "Tokens clipped", f"smoothed{band}"),
    ):
        style(axes, theme)
        entitle(axes, theme, title, subtitle)
        label_x(axes, theme)
    _draw_lines(reward, runs, theme, lambda run: run.series("critic/score/mean"), is_smooth=True)
    _draw_lines(accuracy, runs, theme, _accuracy, is_smooth=False)
    _draw_lines(clip, runs, theme, lambda run: run.series("actor/pg_clipfrac"), is_smooth=True, is_logarithmic=True)
    label_y(reward, theme, "mean reward")
    label_y(accuracy, theme, "share of problems solved")
    label_y(clip, theme, "share of response tokens (log scale)")
    if reward.get_legend_handles_labels()[0]:
        reward.legend(frameon=False, fontsize=10, labelcolor=theme.ink, loc="lower right")
    return png_bytes(figure, theme)


def _accuracy(run: RunRecord) -> Series:
    return overall_accuracy(run)


def _draw_lines(
    axes: Axes,
    runs: Sequence[ComparedRun],
    theme: Theme,
    series_of: Callable[[RunRecord], Series],
    *,
    is_smooth: bool,
    is_logarithmic: bool = False,
) -> None:
    bands = {
        variant: _band([series_of(one.run) for one in siblings], is_smooth=is_smooth)
        for variant, siblings in by_variant(runs).items()
    }
    if not any(band.steps for band in bands.values()):
        return not_recorded(axes, theme)
    floor = _logarithmic_axis(axes, list(bands.values())) if is_logarithmic else -math.inf
    for index, (variant, band) in enumerate(bands.items()):
        colour = theme.series[index % len(theme.series)]
        marker = {"marker": "o", "markersize": 4} if not is_smooth or len(band.steps) == 1 else {}
        low, high, mean = (np.maximum(values, floor) for values in (band.low, band.high, band.mean))
        axes.fill_between(band.steps, low, high, color=colour, alpha=0.16, linewidth=0)
        axes.plot(band.steps, mean, color=colour, linewidth=2.2, label=display_name(variant), **marker)


def _logarithmic_axis(axes: Axes, bands: Sequence[_Band]) -> float:
    """Whole decades around all positive values; returns the lower end, where zeros are drawn."""
    positive = np.concatenate([band.low for band in bands] + [band.high for band in bands])
    positive = positive[positive > 0]
    if positive.size == 0:
        axes.set_ylim(0, 1)
        return -math.inf
    floor = 10.0 ** math.floor(math.log10(positive.min()))
    axes.set_yscale("log")
    axes.set_ylim(floor * 0.8, 1.0)
    axes.yaxis.set_major_formatter(lambda value, _: np.format_float_positional(value, 3, fractional=False, trim="-"))
    axes.minorticks_off()
    return floor


def _band(series: Sequence[Series], *, is_smooth: bool) -> _Band:
    """Over the steps that all seeds recorded."""
    shared = sorted(set.intersection(*(set(one.steps) for one in series)))
    rows = []
    for one in series:
        values = smooth(one.values, window_of(len(one.values)))[0] if is_smooth else np.asarray(one.values, np.float64)
        by_step = dict(zip(one.steps, values, strict=True))
        rows.append([by_step[step] for step in shared])
    table = np.array(rows, np.float64).reshape(len(series), len(shared))
    return _Band(tuple(shared), table.mean(axis=0), table.min(axis=0), table.max(axis=0))


def display_name(variant: str) -> str:
    """GSPO for gspo; names that are not an algorithm's stay as they are."""
    return variant.upper().replace("_", "-") if variant in POLICY_LOSSES else variant
