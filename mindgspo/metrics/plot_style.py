"""Parts that the pictures of a run share: colours, axes, titles, smoothing, PNG output.

matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mindgspo.metrics.run_folder import RunRecord, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_SUBTITLE, _NOT_RECORDED = "subtitle", "not recorded"


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


def new_figure(theme: Theme, width: float, height: float) -> Figure:
    """An empty figure of that size in inches. Not pyplot's: no global state, no backend for the whole process."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12, wspace=0.04, hspace=0.05)
    figure = Figure(figsize=(width, height), dpi=130, facecolor=theme.surface, layout=layout)
    FigureCanvasAgg(figure)
    return figure


def png_bytes(figure: Figure, theme: Theme) -> bytes:
    """The figure as PNG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor=theme.surface, metadata={"Software": None})
    return buffer.getvalue()


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelPicture:
    """One panel as PNG without words, and its words, which a page shows in the reader's language."""

    title: str
    subtitle: str
    png: bytes


def draw_alone(panel: Callable[[Axes], object], theme: Theme) -> PanelPicture | None:
    """Picture of what `panel` draws on empty axes; None if its metric was not recorded. The legend
    stands below the axes, where no line is."""
    figure = new_figure(theme, 5.6, 3.0)
    axes = figure.subplots()
    style(axes, theme)
    panel(axes)
    if axes.get_gid() == _NOT_RECORDED:
        return None
    (subtitle,) = (text for text in axes.texts if text.get_gid() == _SUBTITLE)
    subtitle.remove()
    title = axes.get_title(loc="left").replace(r"\$", "$")
    axes.set_title("", loc="left")
    axes.set(xlabel="", ylabel="")
    add_legend(figure, axes, theme)
    return PanelPicture(title=title, subtitle=subtitle.get_text(), png=png_bytes(figure, theme))


def add_legend(figure: Figure, axes: Axes, theme: Theme) -> None:
    """The names of the lines, below everything."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        columns, words = min(len(labels), 4), {"frameon": False, "fontsize": 10, "labelcolor": theme.ink}
        figure.legend(handles, labels, loc="outside lower center", ncols=columns, **words)


def smooth(values: Sequence[float], window: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Centred moving mean and standard deviation, float64 [len(values)]; the window shrinks at both ends."""
    array = np.asarray(values, np.float64)
    half = window // 2
    windows = [array[max(0, i - half) : i + half + 1] for i in range(array.size)]
    return np.array([part.mean() for part in windows]), np.array([part.std() for part in windows])


def window_of(num_values: int) -> int:
    """An eighth of the values, odd, at least 3."""
    return max(3, num_values // 8 | 1)


def step_limits(run: RunRecord) -> tuple[float, float]:
    """Limits of the step axis, with a margin."""
    steps = [row["step"] for row in run.metrics]
    margin = max(1, max(steps) - min(steps)) * 0.03
    return min(steps) - margin, max(steps) + margin


def style(axes: Axes, theme: Theme) -> None:
    """Quiet axes: a grid of horizontal lines, no frame, a few round ticks."""
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


def entitle(axes: Axes, theme: Theme, title: str, subtitle: str) -> None:
    """A bold title with one muted line of explanation below it."""
    axes.set_title(title, loc="left", color=theme.ink, fontsize=12, fontweight="bold", pad=22)
    axes.annotate(
        subtitle,
        xy=(0, 1),
        xycoords="axes fraction",
        xytext=(0, 8),
        textcoords="offset points",
        color=theme.muted,
        fontsize=9,
        gid=_SUBTITLE,
    ).set_in_layout(False)  # a long line must not squeeze the axes


def literal(text: str) -> str:
    """Names come from data files: without this, "$" would start matplotlib's formula parser."""
    return text[:40].replace("$", r"\$")


def label_y(axes: Axes, theme: Theme, text: str) -> None:
    axes.set_ylabel(text, color=theme.muted, fontsize=9)


def label_x(axes: Axes, theme: Theme, text: str = "training step") -> None:
    axes.set_xlabel(text, color=theme.muted, fontsize=9)


def not_recorded(axes: Axes, theme: Theme) -> None:
    """Say so where a run lacks a metric."""
    axes.set_gid(_NOT_RECORDED)
    axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", color=theme.muted)
    axes.set_yticks([])


def draw_smoothed(axes: Axes, series: Series, colour: str, label: str | None = None) -> None:
    """Raw values faint, moving mean bold, moving standard deviation as a light band."""
    mean, deviation = smooth(series.values, window_of(len(series.values)))
    axes.fill_between(series.steps, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)
    axes.plot(series.steps, series.values, color=colour, alpha=0.35, linewidth=0.9)
    axes.plot(series.steps, mean, color=colour, linewidth=2.2, solid_capstyle="round", label=label)
    if len(series.steps) == 1:
        axes.plot(series.steps, mean, "o", color=colour)
