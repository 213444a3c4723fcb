"""Everything a run writes while it trains: metrics, samples, console lines, TensorBoard events.

What enters: one flat mapping of metrics per step, and the groups worth keeping. What leaves:
`metrics.jsonl` and `samples.jsonl` in the run folder, one line per step on the console. Called by the
trainer's loop, which decides what is logged; nothing here reads a configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from rich.console import Console

from mindgspo.metrics.console import StepPrinter
from mindgspo.metrics.files import (
    METRICS_FILE,
    SAMPLES_FILE,
    append_records,
    drop_records_after,
    plain_number,
)
from mindgspo.metrics.tensorboard import TensorBoardSink
from mindgspo.types import Group, Int32Array


class RunLog:
    """The log of one run; a context manager that closes the progress bar and the event file.

    run_dir: existing folder; files in it are appended to. tensorboard: also write event files below
    run_dir/tensorboard (ConfigError if tensorboardX is missing). progress: show a bar when the console is a
    terminal and `total_steps` is known. console: where lines go; standard output by default.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        tensorboard: bool,
        progress: bool,
        total_steps: int | None = None,
        console: Console | None = None,
    ) -> None:
        self._metrics_path = Path(run_dir) / METRICS_FILE
        self._samples_path = Path(run_dir) / SAMPLES_FILE
        self._tensorboard = TensorBoardSink(Path(run_dir) / "tensorboard") if tensorboard else None
        self._printer = StepPrinter(console or Console(), progress=progress, total_steps=total_steps)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the progress bar, flush and close the event file."""
        self._printer.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def truncate_after(self, step: int) -> None:
        """Forget what was logged beyond `step`: called once on resume, before anything is logged."""
        drop_records_after(self._metrics_path, step)
        drop_records_after(self._samples_path, step)
        if self._tensorboard is not None:
            self._tensorboard.purge_after(step)
        self._printer.start_at(step)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line {"step": ..., metrics by name in sorted order} and print the step's line.

        Several lines may share a step (training and evaluation). A value that is not finite is an assertion
        error naming its key: the trainer stops on non-finite losses before they come here.
        """
        numbers = {key: plain_number(key, metrics[key]) for key in sorted(metrics)}
        assert "step" not in numbers, "the step is an argument, not a metric"
        append_records(self._metrics_path, [{"step": int(step), **numbers}])
        if self._tensorboard is not None:
            self._tensorboard.write(step, numbers)
        self._printer.print_step(step, numbers)

    def log_samples(self, step: int, groups: Sequence[Group], decode: Callable[[Int32Array], str]) -> None:
        """Append one line per response of `groups`; decode: response ids int32 [L] -> text."""
        append_records(
            self._samples_path,
            (record for group in groups for record in _sample_records(int(step), group, decode)),
        )

    def note(self, text: str) -> None:
        """Print a line of text above the progress bar; it is not written to any file."""
        self._printer.print_text(text)


class SilentLog(RunLog):
    """The log of a rank that is not the first: nothing is written, nothing is printed."""

    def __init__(self) -> None:
        pass

    def close(self) -> None:
        pass

    def truncate_after(self, step: int) -> None:
        pass

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        pass

    def log_samples(self, step: int, groups: Sequence[Group], decode: Callable[[Int32Array], str]) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def _sample_records(step: int, group: Group, decode: Callable[[Int32Array], str]) -> Iterator[dict[str, object]]:
    prompt = group.prompt
    for response, score, advantages in zip(group.responses, group.scores, group.advantages, strict=True):
        yield {
            "step": step,
            "prompt_index": prompt.index,
            "sample_index": response.sample_index,
            "data_source": prompt.data_source,
            "prompt": prompt.text,
            "response": decode(response.ids),
            "extracted": score.extracted,
            "answer": prompt.answer,
            "verdict": score.verdict.value,
            "score": score.value,
            "parts": dict(score.parts),
            **({"extras": dict(score.extras)} if score.extras else {}),
            **({"message": score.message} if score.message else {}),
            "advantage": plain_number("advantage", advantages.mean(dtype=np.float64)),
            "length": response.length,
            "finish_reason": response.finish_reason.value,
        }
