"""One line per step for the reader at the terminal, below it a progress bar. Called by `sinks`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_COLUMNS = (  # (label, keys of which the first that is present is shown, format)
    ("score", ("critic/score/mean",), "{:.3f}"),
    ("length", ("response_length/mean",), "{:.1f}"),
    ("clip", ("actor/pg_clipfrac_seq", "actor/pg_clipfrac"), "{:.3f}"),
    ("grad", ("actor/grad_norm",), "{:.3g}"),
    ("tok/s", ("perf/throughput",), "{:,.0f}"),
    ("s", ("timing_s/step", "perf/time_per_step"), "{:.2f}"),
    ("sft loss", ("sft/loss",), "{:.4f}"),
    ("sft accuracy", ("sft/accuracy",), "{:.3f}"),
)

_SHOWN_FIGURE = re.compile(r"val-core/.+/acc/[a-z]+@[0-9]+")


def step_line(step: int, total_steps: int | None, metrics: Mapping[str, float]) -> str | None:
    """The console line of a step; None where `metrics` holds nothing that it shows."""
    cells = []
    for label, keys, form in _COLUMNS:
        key = next((key for key in keys if key in metrics), None)
        if key is not None:
            cells.append(f"{label} {form.format(metrics[key])}")
    cells += [f"{key} {value:.4f}" for key, value in metrics.items() if _SHOWN_FIGURE.fullmatch(key)]
    if not cells:
        return None
    position = f"{step}/{total_steps}" if total_steps else f"{step}"
    return f"step {position:>7}  " + "  ".join(cells)


class StepPrinter:
    """Prints step lines; owns the progress bar, which only a terminal with a known number of steps gets."""

    def __init__(self, console: Console, *, progress: bool, total_steps: int | None) -> None:
        self._console = console
        self._total_steps = total_steps
        self._progress: Progress | None = None
        if progress and total_steps and console.is_terminal:
            self._progress = Progress(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task("training", total=total_steps)
            self._progress.start()

    def start_at(self, step: int) -> None:
        """Show `step` as already done."""
        if self._progress is not None:
            self._progress.update(self._task, completed=step)

    def print_step(self, step: int, metrics: Mapping[str, float]) -> None:
        line = step_line(step, self._total_steps, metrics)
        if line is not None:
            self.print_text(line)
        self.start_at(step)

    def print_text(self, text: str) -> None:
        """Print above the bar; the text is taken literally, without rich's markup."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
