"""Everything a run writes while it trains: metrics, samples, console lines, TensorBoard events.

What enters: one flat mapping of metrics per step, and the groups worth keeping. What leaves:
`metrics.jsonl`, `samples.jsonl` and `validation.jsonl` in the run folder, one line per step on the console. Called by
the trainer, which decides what is logged; nothing here reads a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console

from mindgspo.metrics.console import StepPrinter
from mindgspo.metrics.files import (
    CONFIG_FILE,
    METRICS_FILE,
    SAMPLES_FILE,
    VALIDATION_FILE,
    append_records,
    drop_records_after,
    plain_number,
    read_records,
)
from mindgspo.metrics.recorded import RunHistory
from mindgspo.metrics.sample_records import Decode, training_records, validation_records
from mindgspo.metrics.tensorboard import TensorBoardSink
from mindgspo.types import Group, ScoredGroup


class RunLog:
    """The log of one run; a context manager that closes the progress bar and the event file.

    run_dir: existing folder; files in it are appended to. tensorboard: also write event files below
    run_dir/tensorboard (ConfigError if tensorboardX is missing). progress: show a bar when the console is a
    terminal and `total_steps` is known. console: where lines go; standard output by default. history: the metrics
    logged so far, those before a resume included.
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
        self._validation_path = Path(run_dir) / VALIDATION_FILE
        config = Path(run_dir) / CONFIG_FILE
        self.history = RunHistory(config.read_text(encoding="utf-8") if config.is_file() else "")
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
        drop_records_after(self._validation_path, step)
        for record in read_records(self._metrics_path):
            self.history.add(record["step"], record)
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
        self.history.add(int(step), numbers)
        if self._tensorboard is not None:
            self._tensorboard.write(step, numbers)
        self._printer.print_step(step, numbers)

    def log_samples(self, step: int, groups: Sequence[Group], decode: Decode) -> None:
        """Append one line per response of `groups`."""
        append_records(
            self._samples_path,
            (record for group in groups for record in training_records(int(step), group, decode)),
        )

    def log_validation(self, step: int, set_name: str, groups: Sequence[ScoredGroup], decode: Decode) -> None:
        """Append one line per answer to problems of a held-out set."""
        append_records(
            self._validation_path,
            (record for group in groups for record in validation_records(int(step), set_name, group, decode)),
        )

    def note(self, text: str) -> None:
        """Print a line of text above the progress bar; it is not written to any file."""
        self._printer.print_text(text)


class SilentLog(RunLog):
    """The log of a rank that is not the first: nothing is written, nothing is printed."""

    def __init__(self) -> None:
        self.history = RunHistory()

    def close(self) -> None:
        pass

    def truncate_after(self, step: int) -> None:
        pass

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        pass

    def log_samples(self, step: int, groups: Sequence[Group], decode: Decode) -> None:
        pass

    def log_validation(self, step: int, set_name: str, groups: Sequence[ScoredGroup], decode: Decode) -> None:
        pass

    def note(self, text: str) -> None:
        pass
