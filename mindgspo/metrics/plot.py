"""The run's curves as PNG: reward, accuracy, clip fraction and length in one picture; these and the policy updates as
one picture each.

matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mindgspo.config.data import OVERALL
from mindgspo.io import write_file
from mindgspo.metrics.diagnosis import CLIP_BAND, RECENT_STEPS
from mindgspo.metrics.files import PLOT_FILE
from mindgspo.metrics.glossary import LOG_RATIO_BINS, LOG_RATIO_EDGES
from mindgspo.metrics.plot_style import (
    LIGHT,
    PanelPicture,
    Theme,
    draw_alone,
    draw_smoothed,
    entitle,
    label_x,
    label_y,
    literal,
    new_figure,
    not_recorded,
    png_bytes,
    step_limits,
    style,
)
from mindgspo.metrics.run_folder import (
    HELD_OUT_REWARD,
    RunRecord,
    Series,
    accuracies,
    best_evaluation,
    held_out_figures,
    read_run,
    run_settings,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_PANELS = 6
"""Sets or data sources with a panel of their sampled answers."""


def plot_run(run_dir: Path) -> Path:
    """Draw `reward.png` into the run folder and return its path. RunFolderError if there are no metrics."""
    path = Path(run_dir) / PLOT_FILE
    write_file(path, draw(read_run(run_dir), LIGHT))
    return path


def draw(run: RunRecord, theme: Theme) -> bytes:
    """The four panels as PNG bytes; a metric that was not recorded leaves its panel with a note."""
    figure = new_figure(theme, 11, 6.4)
    for axes, panel in zip(figure.subplots(2, 2).flat, _CURVES, strict=True):
        style(axes, theme)
        panel(axes, run, theme)
        axes.set_xlim(*step_limits(run))
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, fontsize=9, labelcolor=theme.ink)
        label_x(axes, theme)
    return png_bytes(figure, theme)


def _draw_reward(axes: Axes, run: RunRecord, theme: Theme) -> None:
    series = run.series("critic/score/mean")
    held_out = HELD_OUT_REWARD.series(run) if HELD_OUT_REWARD in held_out_figures(run) else None
    points = "; points: held-out" if held_out else ""
    entitle(axes, theme, "Reward", f"mean of each step, moving mean and its spread{points}")
    if not series and not held_out:
        return not_recorded(axes, theme)
    if series:
        draw_smoothed(axes, series, theme.series[0])
    if held_out:
        axes.plot(held_out.steps, held_out.values, "o", color=theme.ink, markersize=6, markeredgecolor=theme.surface)
    label_y(axes, theme, "reward")


def _draw_reward_by_source(axes: Axes, run: RunRecord, theme: Theme) -> None:
    entitle(axes, theme, "Reward by source", "mean of each step, moving mean and its spread")
    for colour, (source, series) in zip(theme.series, _rewards_by_source(run).items(), strict=False):
        draw_smoothed(axes, series, colour, literal(source))
    axes.set_xlim(*step_limits(run))
    label_y(axes, theme, "reward")


def _rewards_by_source(run: RunRecord) -> dict[str, Series]:
    """Mean reward of each training source, in the order of first appearance; as many as there are colours are drawn."""
    found = {match["source"]: name for name in run.names() if (match := _BY_SOURCE.fullmatch(name))}
    return {source: run.series(name) for source, name in found.items()}


def _draw_clip_fraction(axes: Axes, run: RunRecord, theme: Theme) -> None:
    low, high = CLIP_BAND
    has_band = run_settings(run).clips_responses is not False
    note = f"; shaded: healthy for GSPO ({low:g} to {high:g})" if has_band else ""
    entitle(axes, theme, "Clip fraction", f"share of responses clipped{note}")
    series = run.series("actor/pg_clipfrac_seq") or run.series("actor/pg_clipfrac")
    if not series:
        return not_recorded(axes, theme)
    if has_band:
        axes.axhspan(low, high, color=theme.series[2], alpha=0.09, linewidth=0)
    draw_smoothed(axes, series, theme.series[1])
    axes.set_ylim(0, max(0.65 if has_band else 0.0, max(series.values) * 1.08) or 0.01)
    label_y(axes, theme, "share")


def _draw_length(axes: Axes, run: RunRecord, theme: Theme) -> None:
    entitle(axes, theme, "Response length", "tokens per response: mean; shaded: shortest to longest")
    series = run.series("response_length/mean")
    if not series:
        return not_recorded(axes, theme)
    lowest, highest = run.series("response_length/min"), run.series("response_length/max")
    if lowest.steps == series.steps == highest.steps:
        axes.fill_between(series.steps, lowest.values, highest.values, color=theme.series[3], alpha=0.12, linewidth=0)
    marker = "o" if len(series.steps) == 1 else ""
    axes.plot(series.steps, series.values, color=theme.series[3], linewidth=2, marker=marker)
    axes.set_ylim(bottom=0)
    label_y(axes, theme, "tokens")


DECILES = tuple(f"actor/grad_share_length_decile/{number}" for number in range(1, 11))


def _draw_clip_by_sign(axes: Axes, run: RunRecord, theme: Theme) -> None:
    by_response = bool(run.series("actor/pg_clipfrac_pos_seq"))
    suffix, unit = ("_seq", "responses") if by_response else ("", "tokens")
    entitle(axes, theme, "Clip fraction by sign", f"share of all {unit}, by the sign of their advantage A")
    for sign, colour, label in (("pos", theme.series[0], "A > 0"), ("neg", theme.series[1], "A < 0")):
        draw_smoothed(axes, run.series(f"actor/pg_clipfrac_{sign}{suffix}"), colour, label)
    axes.set_xlim(*step_limits(run))
    axes.set_ylim(0, axes.get_ylim()[1] or 1.0)


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
    reach = max(abs(value) for value in (*mean.values, *low.values, *high.values, *(clip or ()), LOG_RATIO_EDGES[0]))
    _decade_axis(axes, reach)
    axes.set_xlim(*step_limits(run))


def _decade_axis(axes: Axes, reach: float) -> None:
    """Logarithmic on both sides of 0 and linear within the innermost bin, with a tick at every decade in reach."""
    axes.set_yscale("symlog", linthresh=LOG_RATIO_EDGES[0], linscale=0.6)
    decades = [10.0**power for power in range(round(math.log10(LOG_RATIO_EDGES[0])), math.ceil(math.log10(reach)) + 1)]
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
    edges = [-edge for edge in reversed(LOG_RATIO_EDGES)] + list(LOG_RATIO_EDGES)
    axes.set_yticks(range(1, len(LOG_RATIO_BINS)), [f"{edge:g}".replace("-", "\N{MINUS SIGN}") for edge in edges])
    bar = axes.figure.colorbar(mesh, ax=axes, pad=0.02, aspect=18)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=theme.muted, labelsize=8, length=0)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4))
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _draw_gradient_by_length(axes: Axes, run: RunRecord, theme: Theme) -> None:
    shares = [run.series(name).recent_mean(RECENT_STEPS) for name in DECILES]
    num_steps = min(RECENT_STEPS, len(run.series(DECILES[0]).steps))
    subtitle = f"by tenths, 1 the shortest; mean of the last {num_steps} steps; dashed: equal weight"
    entitle(axes, theme, "Gradient by response length", subtitle)
    axes.bar(range(1, 11), shares, width=0.72, color=theme.series[2], alpha=0.85, linewidth=0)
    axes.axhline(0.1, color=theme.ink, linewidth=1, linestyle=(0, (4, 3)), alpha=0.7)
    axes.set_xticks(range(1, 11))
    axes.set_ylim(0, max(0.2, max(shares) * 1.15))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


# ----- held-out accuracy


def _draw_accuracy(axes: Axes, run: RunRecord, theme: Theme) -> None:
    """Accuracy of one answer to each problem, by set or data source; and of all together, if there are several."""
    entitle(axes, theme, "Held-out accuracy", "one answer per problem; shaded: 95 % interval; \N{BLACK STAR} best step")
    names = {f"val-core/{part}/acc/mean@1": part for part in accuracies(run)}
    if len(names) > 1 and run.series(OVERALL):
        names[OVERALL] = "all"
    if not names:
        return not_recorded(axes, theme)
    _draw_shares(axes, run, names, theme)
    best = best_evaluation(run)
    if best is not None and not best.is_only:
        axes.axvline(best.step, color=theme.ink, linewidth=0.9, linestyle=(0, (1, 2)), zorder=0.5)
        words = {"color": theme.muted, "fontsize": 8, "xytext": (-4, 4), "textcoords": "offset points"}
        axes.annotate(f"\N{BLACK STAR} {best.step}", xy=(best.step, 0.0), ha="right", **words)


def _draw_shares(axes: Axes, run: RunRecord, names: Mapping[str, str], theme: Theme) -> None:
    """A line per metric with its interval, its label and its last value in the legend."""
    from matplotlib.ticker import PercentFormatter

    top = 0.0
    for number, (name, label) in enumerate(names.items()):
        series, low, high = (run.series(name + end) for end in ("", "/low", "/high"))
        colour, dashes = theme.series[(number + 2) % 4], "--" if number >= 4 else "-"
        if low.steps == series.steps == high.steps:
            axes.fill_between(series.steps, low.values, high.values, color=colour, alpha=0.1, linewidth=0)
        top = max(top, *series.values, *high.values)
        shown = f"{literal(label)} {series.values[-1]:.1%}"
        points = {"marker": "o", "markersize": 6, "markeredgecolor": theme.surface, "clip_on": False}
        axes.plot(series.steps, series.values, dashes, color=colour, linewidth=1.6, label=shown, **points)
    axes.set_ylim(0, min(1.1, max(0.1, top * 1.15)))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    label_y(axes, theme, "problems solved")


def _draw_samples(axes: Axes, run: RunRecord, theme: Theme, part: str) -> None:
    """All shares of one set or data source: mean@1, mean@n, maj@k, pass@k."""
    entitle(axes, theme, literal(part), "one answer per problem, and samples; shaded: 95 % interval")
    _draw_shares(axes, run, {name: name.rpartition("/")[2] for name in _shares(run, part)}, theme)


def _shares(run: RunRecord, part: str) -> list[str]:
    """The shares measured of a part, mean@1 first, then in the order of their k."""
    pattern = re.compile(re.escape(f"val-core/{part}/acc/") + r"(?P<kind>mean|maj|pass)@(?P<k>[0-9]+)")
    found = [match for name in run.names() if (match := pattern.fullmatch(name))]
    order = ("mean", "maj", "pass")
    return [match[0] for match in sorted(found, key=lambda match: (order.index(match["kind"]), int(match["k"])))]


class _Panel(Protocol):
    def __call__(self, axes: Axes, /, run: RunRecord, theme: Theme) -> None: ...


_CURVES: tuple[_Panel, ...] = (_draw_reward, _draw_accuracy, _draw_clip_fraction, _draw_length)
_BY_SOURCE = re.compile(r"train-core/(?P<source>.+)/reward/mean")
# Each panel with the metric without which it is left out.
_POLICY: tuple[tuple[_Panel, str], ...] = (
    (_draw_clip_by_sign, "actor/pg_clipfrac_pos"),
    (_draw_log_ratio, "actor/log_ratio_mean"),
    (_draw_histogram, f"actor/log_ratio_hist/{LOG_RATIO_BINS[0]}"),
    (_draw_gradient_by_length, DECILES[0]),
)


def panel_pictures(run: RunRecord, theme: Theme) -> list[PanelPicture]:
    """The curves, the figures of sampled answers by set, and how the policy was updated, as far as they were
    recorded."""
    panels = [partial(panel, run=run, theme=theme) for panel in _CURVES]
    panels += [partial(_draw_reward_by_source, run=run, theme=theme)] if _rewards_by_source(run) else []
    parts = [part for part in accuracies(run) if len(_shares(run, part)) > 1]
    panels += [partial(_draw_samples, run=run, theme=theme, part=part) for part in parts[:MOST_PANELS]]
    panels += [partial(panel, run=run, theme=theme) for panel, key in _POLICY if run.series(key)]
    return [found for panel in panels if (found := draw_alone(panel, theme)) is not None]
