"""Curves of several runs over one another: a line per variant, the mean over its runs, and a band around it.

A variant is what is compared: a run of its own, or the runs of one recipe with several seeds. The band of several runs
goes from the smallest to the largest of them; that of one run is its 95 % interval where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mindgspo.config.algorithm import POLICY_LOSSES
from mindgspo.metrics.plot_style import (
    Theme,
    add_legend,
    entitle,
    label_x,
    literal,
    new_figure,
    not_recorded,
    png_bytes,
    smooth,
    style,
    window_of,
)
from mindgspo.metrics.run_folder import HELD_OUT_ACCURACY, HELD_OUT_REWARD, HeldOut, RunRecord, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SeriesOf = Callable[[RunRecord], Series]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One run of the comparison; variant: what it is compared under, e.g. "gspo"."""

    variant: str
    seed: int
    run: RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One metric. unit: of its axis. interval: of a single run. is_smooth: a moving mean is drawn."""

    title: str
    unit: str
    series: SeriesOf
    interval: tuple[SeriesOf, SeriesOf] | None = None
    is_smooth: bool = True
    is_logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class _Band:
    """By step: the mean over a variant's runs, and what is shaded around it."""

    steps: tuple[int, ...]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def metric(name: str, *others: str) -> SeriesOf:
    """The series of a metric, or of the first of the others that a run has."""
    return lambda run: next(filter(None, map(run.series, (name, *others))), run.series(name))


REWARD = Panel(title="Reward", unit="mean reward", series=metric("critic/score/mean"))


def _held_out(figure: HeldOut, unit: str) -> Panel:
    return Panel(
        title=f"Held-out {figure.name}",
        unit=unit,
        series=figure.series,
        interval=(lambda run: figure.series(run, "/low"), lambda run: figure.series(run, "/high")),
        is_smooth=False,
    )


ACCURACY = _held_out(HELD_OUT_ACCURACY, "share of problems solved")
HELD_OUT = _held_out(HELD_OUT_REWARD, "mean reward")
CLIP_FRACTION = Panel(
    title="Tokens clipped",
    unit="share of response tokens (log scale)",
    series=metric("actor/pg_clipfrac"),
    is_logarithmic=True,
)
ENTROPY = Panel(title="Entropy", unit="nats per token", series=metric("actor/entropy"))
LENGTH = Panel(title="Response length", unit="tokens, mean", series=metric("response_length/mean"))
GRADIENT = Panel(title="Gradient norm", unit="L2 norm before clipping", series=metric("actor/grad_norm"))
ROUTING = Panel(title="Routing drift", unit="share of routers' choices", series=metric("router/drift"))


def by_variant(runs: Sequence[ComparedRun]) -> dict[str, list[ComparedRun]]:
    """The runs of each variant, in the order in which they are given."""
    found: dict[str, list[ComparedRun]] = {}
    for one in runs:
        found.setdefault(one.variant, []).append(one)
    return found


def display_name(variant: str) -> str:
    """GSPO for gspo; names that are not an algorithm's stay as they are."""
    return variant.upper().replace("_", "-") if variant in POLICY_LOSSES else variant


def band_text(runs: Sequence[ComparedRun]) -> str:
    """What the bands show, behind a semicolon; "" where every variant is one run."""
    seeds = max(len(siblings) for siblings in by_variant(runs).values())
    return f"; mean and range of {seeds} seeds" if seeds > 1 else ""


def draw_curves(runs: Sequence[ComparedRun], theme: Theme, panels: Sequence[Panel], *, columns: int) -> bytes:
    """PNG with a panel per metric, so many in a row."""
    assert runs, "a comparison of no runs"
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(theme, 13 * columns / 3, 3.9 * rows)
    cells = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, panel in zip(cells, panels, strict=False):
        style(axes, theme)
        draw_panel(axes, runs, theme, panel)
        label_x(axes, theme)
    for axes in cells[len(panels) :]:
        axes.set_visible(False)
    add_legend(figure, max(cells[: len(panels)], key=lambda axes: len(axes.get_legend_handles_labels()[1])), theme)
    return png_bytes(figure, theme)


def draw_panel(axes: Axes, runs: Sequence[ComparedRun], theme: Theme, panel: Panel) -> None:
    """One metric of all runs."""
    subtitle = "smoothed" if panel.is_smooth else "greedy answers"
    shaded = band_text(runs) or ("; shaded: 95 % interval" if panel.interval else "")
    entitle(axes, theme, panel.title, f"{panel.unit}; {subtitle}{shaded}")
    bands = {variant: _band_of(panel, siblings) for variant, siblings in by_variant(runs).items()}
    if not any(band.steps for band in bands.values()):
        return not_recorded(axes, theme)
    floor = _logarithmic_axis(axes, list(bands.values())) if panel.is_logarithmic else -math.inf
    for index, (variant, band) in enumerate(bands.items()):
        if not band.steps:
            continue
        colour, line = line_style(theme, index)
        marker = {"marker": "o", "markersize": 4} if not panel.is_smooth or len(band.steps) == 1 else {}
        low, high, mean = (np.maximum(values, floor) for values in (band.low, band.high, band.mean))
        axes.fill_between(band.steps, low, high, color=colour, alpha=0.16, linewidth=0)
        label = literal(display_name(variant))
        axes.plot(band.steps, mean, color=colour, linestyle=line, linewidth=2.2, label=label, **marker)


def line_style(theme: Theme, index: int) -> tuple[str, str]:
    """Colour and dashes of the variant number `index`."""
    turn, place = divmod(index, len(theme.series))
    return theme.series[place], ("-", "--", ":")[turn % 3]


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


def _band_of(panel: Panel, siblings: Sequence[ComparedRun]) -> _Band:
    band = _band([panel.series(one.run) for one in siblings], is_smooth=panel.is_smooth)
    if panel.interval is None or len(siblings) > 1:
        return band
    low, high = (end(siblings[0].run) for end in panel.interval)
    if not low.steps == high.steps == panel.series(siblings[0].run).steps:
        return band
    ends = _band([low, low], is_smooth=False).mean, _band([high, high], is_smooth=False).mean
    return _Band(band.steps, band.mean, *ends)


def _band(series: Sequence[Series], *, is_smooth: bool) -> _Band:
    """Over the steps that all runs recorded."""
    shared = sorted(set.intersection(*(set(one.steps) for one in series)))
    rows = []
    for one in series:
        values = smooth(one.values, window_of(len(one.values)))[0] if is_smooth else np.asarray(one.values, np.float64)
        by_step = dict(zip(one.steps, values, strict=True))
        rows.append([by_step[step] for step in shared])
    table = np.array(rows, np.float64).reshape(len(series), len(shared))
    return _Band(tuple(shared), table.mean(axis=0), table.min(axis=0), table.max(axis=0))
