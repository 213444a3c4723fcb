"""How the policy was updated, as a PNG: clipping by sign, the log ratio against the clip range, its histogram over the
steps, and the gradient by response length.

What enters: a `RunRecord`. What leaves: PNG bytes, None if the run recorded nothing of it. Called by `report`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from mindgspo.metrics.finding import RECENT_STEPS
from mindgspo.metrics.log_ratio_bins import EDGES
from mindgspo.metrics.log_ratio_bins import NAMES as LOG_RATIO_BINS
from mindgspo.metrics.plot_style import (
    Theme,
    draw_smoothed,
    entitle,
    label_x,
    label_y,
    new_figure,
    png_bytes,
    step_limits,
    style,
)
from mindgspo.metrics.run_folder import RunRecord
from mindgspo.metrics.run_settings import run_settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECILES = tuple(f"actor/grad_share_length_decile/{number}" for number in range(1, 11))


def draw_policy(run: RunRecord, theme: Theme) -> bytes | None:
    """Up to four panels, two to a row; a panel whose metrics the run did not record is left out.

    The gradient by length is the mean over the last RECENT_STEPS, because one step's is noisy.
    """
    panels = [panel for panel, key in _PANELS if run.series(key)]
    if not panels:
        return None
    rows = math.ceil(len(panels) / 2)
    figure = new_figure(theme, 11, 3.25 * rows)
    cells = list(figure.subplots(rows, 2, squeeze=False).flat)
    for axes, panel in zip(cells, panels, strict=False):
        style(axes, theme)
        panel(axes, run, theme)
    for axes in cells[len(panels) :]:
        axes.set_visible(False)
    return png_bytes(figure, theme)


def _draw_clip_by_sign(axes: Axes, run: RunRecord, theme: Theme) -> None:
    by_response = bool(run.series("actor/pg_clipfrac_pos_seq"))
    suffix, unit = ("_seq", "responses") if by_response else ("", "tokens")
    entitle(axes, theme, "Clip fraction by sign", f"share of all {unit}, split by the sign of their advantage")
    for sign, colour, label in (
        ("pos", theme.series[0], "advantage > 0, clipped above"),
        ("neg", theme.series[1], "advantage < 0, clipped below"),
    ):
        draw_smoothed(axes, run.series(f"actor/pg_clipfrac_{sign}{suffix}"), colour, label)
    axes.set_xlim(*step_limits(run))
    axes.set_ylim(0, axes.get_ylim()[1] or 1.0)
    axes.legend(frameon=False, fontsize=9, labelcolor=theme.ink, loc="best")
    label_y(axes, theme, "share")
    label_x(axes, theme)


def _draw_log_ratio(axes: Axes, run: RunRecord, theme: Theme) -> None:
    clip = run_settings(run).log_clip_range
    mean, low, high = (run.series(f"actor/log_ratio_{name}") for name in ("mean", "min", "max"))
    dashed = "; dashed: clip range" if clip else ""
    entitle(axes, theme, "Log of the importance ratio", f"mean; shaded: smallest to largest{dashed}")
    if low.steps == mean.steps == high.steps:
        axes.fill_between(mean.steps, low.values, high.values, color=theme.series[3], alpha=0.15, linewidth=0)
    marker = "o" if len(mean.steps) == 1 else ""
    axes.plot(mean.steps, mean.values, color=theme.series[3], linewidth=1.8, marker=marker)
    for edge in clip or ():
        axes.axhline(edge, color=theme.ink, linewidth=1, linestyle=(0, (4, 3)), alpha=0.7)
    reach = max(abs(value) for value in (*mean.values, *low.values, *high.values, *(clip or ()), EDGES[0]))
    _decade_axis(axes, reach)
    axes.set_xlim(*step_limits(run))
    label_y(axes, theme, "log ratio")
    label_x(axes, theme)


def _decade_axis(axes: Axes, reach: float) -> None:
    """Logarithmic on both sides of 0 and linear within the innermost bin, with a tick at every decade in reach."""
    axes.set_yscale("symlog", linthresh=EDGES[0], linscale=0.6)
    decades = [10.0**power for power in range(round(math.log10(EDGES[0])), math.ceil(math.log10(reach)) + 1)]
    axes.set_yticks([-decade for decade in reversed(decades)] + [0] + decades)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "\N{MINUS SIGN}"))
    axes.minorticks_off()
    axes.set_ylim(-decades[-1], decades[-1])


def _draw_histogram(axes: Axes, run: RunRecord, theme: Theme) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.ticker import MaxNLocator

    entitle(axes, theme, "Where the log ratios lie", "share in each signed decade, step by step")
    series = [run.series(f"actor/log_ratio_hist/{name}") for name in LOG_RATIO_BINS]
    steps = series[0].steps
    shares = np.array([one.values for one in series])
    colours = LinearSegmentedColormap.from_list("share", [theme.surface, theme.series[3]])
    # Each step's column reaches half way to its neighbours; bins have equal height, whatever their width.
    middles = (np.array(steps[:-1]) + np.array(steps[1:])) / 2
    borders = np.concatenate(([steps[0] - 0.5], middles, [steps[-1] + 0.5]))
    mesh = axes.pcolormesh(borders, np.arange(len(LOG_RATIO_BINS) + 1), shares, cmap=colours, vmin=0, rasterized=True)
    axes.grid(False)
    edges = [-edge for edge in reversed(EDGES)] + list(EDGES)
    axes.set_yticks(range(1, len(LOG_RATIO_BINS)), [f"{edge:g}".replace("-", "\N{MINUS SIGN}") for edge in edges])
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02, aspect=18)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=theme.muted, labelsize=8, length=0)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4))
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    label_y(axes, theme, "log ratio")
    label_x(axes, theme)


def _draw_gradient_by_length(axes: Axes, run: RunRecord, theme: Theme) -> None:
    shares = [run.series(name).recent_mean(RECENT_STEPS) for name in DECILES]
    num_steps = min(RECENT_STEPS, len(run.series(DECILES[0]).steps))
    subtitle = f"mean of the last {num_steps} steps; dashed: equal weight"
    entitle(axes, theme, "Gradient by response length", subtitle)
    axes.bar(range(1, 11), shares, width=0.72, color=theme.series[2], alpha=0.85, linewidth=0)
    axes.axhline(0.1, color=theme.ink, linewidth=1, linestyle=(0, (4, 3)), alpha=0.7)
    axes.set_xticks(range(1, 11), ["1\nshortest", *map(str, range(2, 10)), "10\nlongest"])
    axes.set_ylim(0, max(0.2, max(shares) * 1.15))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    label_y(axes, theme, "share of the gradient")
    label_x(axes, theme, "tenth of the responses by length")


_Panel = Callable[["Axes", RunRecord, Theme], None]

_PANELS: tuple[tuple[_Panel, str], ...] = (
    (_draw_clip_by_sign, "actor/pg_clipfrac_pos"),
    (_draw_log_ratio, "actor/log_ratio_mean"),
    (_draw_histogram, f"actor/log_ratio_hist/{LOG_RATIO_BINS[0]}"),
    (_draw_gradient_by_length, DECILES[0]),
)
"""Each panel with the metric without which it is left out."""
