"""The run's curves as a PNG: reward, held-out accuracy, clip fraction and response length against the step.

What enters: a run folder. What leaves: `reward.png` in it. Called by the trainer at its end, `report`, and
tools/plot_run.py. matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mindgspo.metrics.files import PLOT_FILE, replace_file
from mindgspo.metrics.names import CLIP_BAND
from mindgspo.metrics.plot_accuracy import draw_accuracy
from mindgspo.metrics.plot_style import (
    LIGHT,
    Theme,
    draw_smoothed,
    entitle,
    label_x,
    label_y,
    new_figure,
    not_recorded,
    png_bytes,
    step_limits,
    style,
)
from mindgspo.metrics.recorded import Series
from mindgspo.metrics.run_folder import RunRecord, read_run
from mindgspo.metrics.run_settings import run_settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_run(run_dir: Path) -> Path:
    """Draw `reward.png` into the run folder and return its path. RunFolderError if there are no metrics."""
    path = Path(run_dir) / PLOT_FILE
    replace_file(path, draw(read_run(run_dir), LIGHT))
    return path


def draw(run: RunRecord, theme: Theme) -> bytes:
    """The four panels as PNG bytes; a metric that was not recorded leaves its panel with a note."""
    figure = new_figure(theme, 11, 6.4)
    (reward, accuracy), (clip, length) = figure.subplots(2, 2)
    for axes in (reward, accuracy, clip, length):
        style(axes, theme)
    _draw_reward(reward, run.series("critic/score/mean"), theme)
    draw_accuracy(accuracy, run, theme)
    _draw_clip_fraction(clip, run, theme)
    _draw_length(length, run, theme)
    limits = step_limits(run)
    for axes in (reward, accuracy, clip, length):
        axes.set_xlim(*limits)
    for axes in (clip, length):
        label_x(axes, theme)
    return png_bytes(figure, theme)


def _draw_reward(axes: Axes, series: Series, theme: Theme) -> None:
    entitle(axes, theme, "Reward", "mean over the responses of each step, moving mean and its spread")
    if not series:
        return not_recorded(axes, theme)
    draw_smoothed(axes, series, theme.series[0])
    label_y(axes, theme, "reward")


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
