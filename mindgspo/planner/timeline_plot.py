"""Who works and who waits: the trainer and the replicas of one layout per schedule, over the same seconds, as PNG.

matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mindgspo.metrics.plot_style import LIGHT, Theme, entitle, label_x, new_figure, png_bytes, style
from mindgspo.planner.forecast import Forecast, Forecasts
from mindgspo.planner.simulated_replicas import Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SYNC_STEPS = 3.2
_MOST_REPLICAS = 16
_HEIGHT = 0.82


def shown_rows(found: Forecasts) -> list[Forecast]:
    """Sync, and the fastest split of one_step_off and of bounded; where one is configured, that one."""
    rows = []
    for schedule in ("sync", "one_step_off", "bounded"):
        of_schedule = [row for row in found.rows if row.layout.schedule == schedule]
        configured = [row for row in of_schedule if row.layout.is_configured]
        rows += configured or [min(of_schedule, key=lambda row: row.mean)]
    return rows


def draw_timelines(found: Forecasts, theme: Theme = LIGHT) -> bytes:
    """A panel per schedule as PNG bytes, from the beginning of a counted step on."""
    rows = shown_rows(found)
    lanes = [1 + min(row.layout.replicas, _MOST_REPLICAS) for row in rows]
    horizon = _SYNC_STEPS * rows[0].mean
    lane = 0.25 if max(lanes) <= 9 else 0.18  # inches
    figure = new_figure(theme, 11, sum(0.8 + lane * each for each in lanes) + 0.4)
    panels = figure.subplots(len(rows), 1, sharex=True, height_ratios=[each + 1 for each in lanes])
    for axes, row in zip(panels, rows, strict=True):
        style(axes, theme)
        axes.grid(False)
        _draw(axes, row, horizon, theme)
    in_hours = horizon >= 7200
    panels[-1].xaxis.set_major_formatter(lambda value, _: f"{value / 3600:g}" if in_hours else f"{value:g}")
    if in_hours:
        panels[-1].set_xticks([1800 * number for number in range(int(horizon / 1800) + 1)])
    label_x(panels[-1], theme, "hours" if in_hours else "seconds")
    return png_bytes(figure, theme)


def _draw(axes: Axes, row: Forecast, horizon: float, theme: Theme) -> None:
    layout, steps = row.layout, row.timeline.steps[row.first_step - 1 :]
    origin = steps[0].begin
    names = ["trainer"]
    for step in steps:
        if step.begin - origin > horizon:
            break
        colour = theme.series[step.step % len(theme.series)]
        axes.broken_barh([(step.drawn - origin, step.trained - step.drawn)], (-_HEIGHT / 2, _HEIGHT), color=colour)
        axes.broken_barh([(step.stopped - origin, step.end - step.stopped)], (-_HEIGHT / 2, _HEIGHT), color=theme.ink)
        middle = (step.drawn + step.trained) / 2 - origin
        if middle < horizon and step.trained - step.drawn > horizon / 30:
            label = f"step {step.step}"
            axes.text(middle, 0, label, color=theme.surface, fontsize=7, ha="center", va="center")
    replicas = row.timeline.replicas
    shown = replicas[:_MOST_REPLICAS]
    most = max(span.active for spans in replicas for span in spans)
    for number, spans in enumerate(shown, start=1):
        _draw_replica(axes, number, spans, origin, horizon, most, theme)
        names.append(f"replica {number}")
    axes.set_xlim(0, horizon)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    hidden = len(replicas) - len(shown)
    entitle(axes, theme, f"{layout.name}: {row.mean:,.0f} s per step", _subtitle(row, hidden))


def _subtitle(row: Forecast, hidden: int) -> str:
    layout = row.layout
    cards = f"{layout.train_cards} cards train, {layout.infer_cards or 'servers'} generate"
    if layout.is_shared:
        cards = f"the same {layout.train_cards} cards in turns"
    first = "; height: busy slots; colour: the step, or the one that made the weights; black: hand-over"
    more = f"; {hidden} more replicas" if hidden else ""
    return cards + more + (first if layout.schedule == "sync" else "")


def _draw_replica(
    axes: Axes, lane: int, spans: Sequence[Span], origin: float, horizon: float, most: int, theme: Theme
) -> None:
    """A replica's busy slots as a band that stands on its lane, one colour per version of the weights."""
    inside = [span for span in spans if span.end > origin and span.begin < origin + horizon]
    for version in sorted({span.version for span in inside}):
        begins: list[float] = []
        heights: list[float] = []
        for span in (each for each in inside if each.version == version):
            begins += [span.begin - origin, span.end - origin]
            heights += [lane + _HEIGHT / 2 - _HEIGHT * span.active / most] * 2
        colour = theme.series[version % len(theme.series)]
        axes.fill_between(begins, lane + _HEIGHT / 2, heights, color=colour, alpha=0.75, linewidth=0)
