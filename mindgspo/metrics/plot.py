"""The run's curves as a PNG: reward, held-out accuracy, clip fraction and response length against the step.

What enters: a run folder. What leaves: `reward.png` in it. Called by the trainer at its end, `report`, and
tools/plot_run.py. matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mindgspo.metrics.files import PLOT_FILE, replace_file
from mindgspo.metrics.names import CLIP_BAND
from mindgspo.metrics.run_folder import RunRecord, Series, read_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours of one picture."""

    surface: str
    ink: str
    muted: str
    grid: str
    series: tuple[str, ...]


LIGHT = Theme(
    surface="#ffffff",
    ink="#1c2430",
    muted="#66717f",
    grid="#e6e9ee",
    series=("#1f6feb", "#d9480f", "#0f8a6a", "#8250df"),
)
DARK = Theme(
    surface="#161b22",
    ink="#e6edf3",
    muted="#93a0ae",
    grid="#2b323c",
    series=("#58a6ff", "#ff9a5c", "#3fc79a", "#bc8cff"),
)


def plot_run(run_dir: Path) -> Path:
    """Draw `reward.png` into the run folder and return its path. RunFolderError if there are no metrics."""
    path = Path(run_dir) / PLOT_FILE
    replace_file(path, draw(read_run(run_dir), LIGHT))
    return path


def draw(run: RunRecord, theme: Theme) -> bytes:
    """The four panels as PNG bytes; a metric that was not recorded leaves its panel with a note."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A Figure of its own instead of pyplot: no global state, no backend choice for the whole process.
    figure = Figure(figsize=(11, 6.4), dpi=130, facecolor=theme.surface, layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12, wspace=0.04, hspace=0.05)
    (reward, accuracy), (clip, length) = figure.subplots(2, 2)
    for axes in (reward, accuracy, clip, length):
        _style(axes, theme)
    _draw_reward(reward, run.series("critic/score/mean"), theme)
    _draw_accuracy(accuracy, run, theme)
    clip_fraction = run.series("actor/pg_clipfrac_seq") or run.series("actor/pg_clipfrac")
    _draw_clip_fraction(clip, clip_fraction, theme)
    _draw_length(length, run, theme)
    limits = _step_limits(run)
    for axes in (reward, accuracy, clip, length):
        axes.set_xlim(*limits)
    for axes in (clip, length):
        axes.set_xlabel("training step", color=theme.muted, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor=theme.surface, metadata={"Software": None})
    return buffer.getvalue()


def smooth(values: tuple[float, ...], window: int) -> tuple[np.ndarray, np.ndarray]:
    """Centred moving mean and standard deviation, float64 [len(values)]; the window shrinks at both ends."""
    array = np.asarray(values, np.float64)
    half = window // 2
    windows = [array[max(0, i - half) : i + half + 1] for i in range(array.size)]
    return np.array([part.mean() for part in windows]), np.array([part.std() for part in windows])


def _window(series: Series) -> int:
    return max(3, len(series.steps) // 8 | 1)


def _step_limits(run: RunRecord) -> tuple[float, float]:
    steps = [row["step"] for row in run.metrics]
    margin = max(1, max(steps) - min(steps)) * 0.03
    return min(steps) - margin, max(steps) + margin


def _style(axes: Axes, theme: Theme) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_facecolor(theme.surface)
    axes.grid(axis="y", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(theme.grid)
    axes.tick_params(colors=theme.muted, labelsize=9, length=0, pad=5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))


def _title(axes: Axes, theme: Theme, title: str, subtitle: str) -> None:
    axes.set_title(title, loc="left", color=theme.ink, fontsize=12, fontweight="bold", pad=22)
    axes.annotate(
        subtitle,
        xy=(0, 1),
        xycoords="axes fraction",
        xytext=(0, 8),
        textcoords="offset points",
        color=theme.muted,
        fontsize=9,
    )


def _not_recorded(axes: Axes, theme: Theme) -> None:
    axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", color=theme.muted)
    axes.set_yticks([])


def _draw_smoothed(axes: Axes, series: Series, colour: str) -> None:
    """Raw values faint, moving mean bold, moving standard deviation as a light band."""
    mean, deviation = smooth(series.values, _window(series))
    axes.fill_between(series.steps, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)
    axes.plot(series.steps, series.values, color=colour, alpha=0.35, linewidth=0.9)
    axes.plot(series.steps, mean, color=colour, linewidth=2.2, solid_capstyle="round")
    if len(series.steps) == 1:
        axes.plot(series.steps, mean, "o", color=colour)


def _draw_reward(axes: Axes, series: Series, theme: Theme) -> None:
    _title(axes, theme, "Reward", "mean over the responses of each step, moving mean and its spread")
    if not series:
        return _not_recorded(axes, theme)
    _draw_smoothed(axes, series, theme.series[0])
    axes.set_ylabel("reward", color=theme.muted, fontsize=9)


def _draw_accuracy(axes: Axes, run: RunRecord, theme: Theme) -> None:
    _title(axes, theme, "Held-out accuracy", "greedy answers, before, during and after training")
    accuracies = run.accuracies()
    if not accuracies:
        return _not_recorded(axes, theme)
    for index, (source, series) in enumerate(accuracies.items()):
        colour = theme.series[(index + 2) % len(theme.series)]
        axes.plot(
            series.steps,
            series.values,
            "o-",
            color=colour,
            linewidth=1.6,
            markersize=7,
            markeredgecolor=theme.surface,
            markeredgewidth=1.5,
            label=_literal(source),
        )
        _label_first_and_last(axes, series, theme)
    axes.set_ylim(0, 1.1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
    axes.set_ylabel("problems solved", color=theme.muted, fontsize=9)
    if len(accuracies) > 1:
        axes.legend(frameon=False, fontsize=9, labelcolor=theme.ink, loc="lower right")


def _literal(text: str) -> str:
    """Names come from data files: without this, "$" would start matplotlib's formula parser."""
    return text[:40].replace("$", r"\$")


def _label_first_and_last(axes: Axes, series: Series, theme: Theme) -> None:
    """Write the values beside the two ends, on the side of the point where the line does not run."""
    last = len(series.values) - 1
    for index, neighbour in {0: min(1, last), last: max(0, last - 1)}.items():
        is_above = series.values[index] >= series.values[neighbour]
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


def _draw_clip_fraction(axes: Axes, series: Series, theme: Theme) -> None:
    low, high = CLIP_BAND
    subtitle = f"share of responses clipped; shaded: healthy for GSPO ({low:g} to {high:g})"
    _title(axes, theme, "Clip fraction", subtitle)
    if not series:
        return _not_recorded(axes, theme)
    axes.axhspan(low, high, color=theme.series[2], alpha=0.09, linewidth=0)
    _draw_smoothed(axes, series, theme.series[1])
    axes.set_ylim(0, max(0.65, max(series.values) * 1.08))
    axes.set_ylabel("share", color=theme.muted, fontsize=9)


def _draw_length(axes: Axes, run: RunRecord, theme: Theme) -> None:
    _title(axes, theme, "Response length", "tokens per response: mean; shaded: shortest to longest")
    series = run.series("response_length/mean")
    if not series:
        return _not_recorded(axes, theme)
    lowest, highest = run.series("response_length/min"), run.series("response_length/max")
    if lowest.steps == series.steps == highest.steps:
        axes.fill_between(series.steps, lowest.values, highest.values, color=theme.series[3], alpha=0.12, linewidth=0)
    marker = "o" if len(series.steps) == 1 else ""
    axes.plot(series.steps, series.values, color=theme.series[3], linewidth=2, marker=marker)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens", color=theme.muted, fontsize=9)
