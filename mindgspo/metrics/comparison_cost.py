"""What runs of a comparison paid for their accuracy: the same curves over updates and over generated responses.

What enters: finished runs as `ComparedRun`s. What leaves: PNG bytes. Called by tools/compare_algorithms.py, where it
tells variants apart that sample differently, such as DAPO's dynamic sampling, which generates more per update.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mindgspo.metrics.comparison import ComparedRun, by_variant, display_name
from mindgspo.metrics.plot_style import Theme, entitle, label_x, label_y, new_figure, not_recorded, png_bytes, style
from mindgspo.metrics.recorded import overall_accuracy
from mindgspo.metrics.run_folder import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COSTS = (
    ("actor/updates", "Accuracy by updates", "optimizer updates"),
    ("samples/generated", "Accuracy by generated responses", "responses generated for training"),
)


def spent(run: RunRecord, metric: str, steps: Sequence[int]) -> list[float]:
    """The sum of a metric over all steps up to each of `steps`; 0 where it was never recorded."""
    series = run.series(metric)
    return [sum(value for at, value in zip(series.steps, series.values, strict=True) if at <= step) for step in steps]


def draw_costs(runs: Sequence[ComparedRun], theme: Theme) -> bytes:
    """Held-out accuracy of every variant, mean and range over its seeds, against what was spent: updates on the left,
    generated responses on the right (their mean over the seeds)."""
    assert runs, "a comparison of no runs"
    figure = new_figure(theme, 11, 4.2)
    seeds = max(len(siblings) for siblings in by_variant(runs).values())
    band = f"; mean and range of {seeds} seeds" if seeds > 1 else ""
    for axes, (metric, title, unit) in zip(figure.subplots(1, 2, sharey=True), _COSTS, strict=True):
        style(axes, theme)
        entitle(axes, theme, title, f"greedy answers{band}")
        label_x(axes, theme, unit)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        _draw(axes, runs, theme, metric)
        label_y(axes, theme, "share of problems solved")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=10, labelcolor=theme.ink, loc="lower right")
    return png_bytes(figure, theme)


def _draw(axes: Axes, runs: Sequence[ComparedRun], theme: Theme, metric: str) -> None:
    is_empty = True
    for index, (variant, siblings) in enumerate(by_variant(runs).items()):
        accuracies = [overall_accuracy(one.run) for one in siblings]
        shared = sorted(set.intersection(*(set(series.steps) for series in accuracies)))
        if not shared:
            continue
        is_empty = False
        rows = np.array(
            [[dict(zip(one.steps, one.values, strict=True))[step] for step in shared] for one in accuracies]
        )
        cost = np.mean([spent(one.run, metric, shared) for one in siblings], axis=0)
        colour = theme.series[index % len(theme.series)]
        axes.fill_between(cost, rows.min(axis=0), rows.max(axis=0), color=colour, alpha=0.16, linewidth=0)
        axes.plot(
            cost, rows.mean(axis=0), color=colour, linewidth=2.2, marker="o", markersize=4, label=display_name(variant)
        )
    if is_empty:
        not_recorded(axes, theme)
