"""Everything a run writes while it trains: metrics.jsonl, samples.jsonl, validation.jsonl, console lines, trackers.

The trainer decides what is logged; nothing here reads a configuration.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from rich.console import Console

from mindgspo.metrics.files import (
    CONFIG_FILE,
    METRICS_FILE,
    SAMPLES_FILE,
    VALIDATION_FILE,
    FileRecord,
    LogFile,
    plain_number,
    read_records,
)
from mindgspo.metrics.run_folder import RunHistory
from mindgspo.metrics.tracking import Tracker
from mindgspo.progress import RunBar, console_of
from mindgspo.text import printable, shorten
from mindgspo.types import Group, Int32Array, Prompt, Response, Score, ScoredGroup


class RunLog:
    """The log of one run; a context manager that closes the progress bar and the trackers.

    run_dir: existing folder; files in it are appended to.
    trackers: started trackers; they receive every metric and are closed with the log.
    progress: whether to show a bar when the console is a terminal and `total_steps` is known.
    console: where lines go; standard output by default.

    `history` holds the metrics logged so far, including those before a resume.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        progress: bool,
        trackers: Sequence[Tracker] = (),
        total_steps: int | None = None,
        console: Console | None = None,
    ) -> None:
        self._metrics, self._samples, self._validation = (
            LogFile(Path(run_dir) / name) for name in (METRICS_FILE, SAMPLES_FILE, VALIDATION_FILE)
        )
        config = Path(run_dir) / CONFIG_FILE
        self.history = RunHistory(config.read_text(encoding="utf-8") if config.is_file() else "")
        self._trackers = list(trackers)
        self._printer = StepPrinter(console or console_of(sys.stdout), progress=progress, total_steps=total_steps)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)

    def close(self, *, failed: bool = False) -> None:
        """Stop the progress bar, end the trackers. failed: the run ends with an error."""
        self._printer.close()
        self._tell(lambda tracker: tracker.close(failed=failed))
        self._trackers.clear()

    def _tell(self, call: Callable[[Tracker], None]) -> None:
        """Send to a tracker; one that fails receives nothing more, and the run continues."""
        for tracker in tuple(self._trackers):
            try:
                call(tracker)
            except Exception as error:
                self._trackers.remove(tracker)
                said = shorten(" ".join(str(error).split()), 200)
                self.note(
                    f"warning: logging.trackers: {tracker.name} failed and gets nothing more "
                    f"({type(error).__name__}: {said}); the run goes on, and metrics.jsonl has everything"
                )

    def records(self) -> dict[Path, FileRecord]:
        """Size and digest of the logs, as a checkpoint taken now records them."""
        return {log.path: log.record() for log in (self._metrics, self._samples, self._validation)}

    def truncate_after(self, step: int, sizes: Mapping[str, int] | None = None) -> None:
        """Forget what was logged beyond `step`: called once on resume, before anything is logged.

        sizes: {file name: bytes until then}, of the logs for which that is known.
        """
        for log in (self._metrics, self._samples, self._validation):
            log.cut(step, (sizes or {}).get(log.path.name))
        for record in read_records(self._metrics.path):
            self.history.add(record["step"], record)
        self._tell(lambda tracker: tracker.resume_at(step))
        self._printer.start_at(step)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line {"step": ..., metrics by name in sorted order} and print the step's line.

        Several lines may share a step (training and evaluation). A value that is not finite is an assertion
        error naming its key: the trainer stops on non-finite losses before they come here.
        """
        numbers = {key: plain_number(key, metrics[key]) for key in sorted(metrics)}
        assert "step" not in numbers, "the step is an argument, not a metric"
        self._metrics.append([{"step": int(step), **numbers}])
        self.history.add(int(step), numbers)
        self._tell(lambda tracker: tracker.write(int(step), numbers))
        self._printer.print_step(step, numbers)

    def log_samples(self, step: int, groups: Sequence[Group], decode: Decode) -> None:
        """Append one line per response of `groups`."""
        self._samples.append(record for group in groups for record in training_records(int(step), group, decode))

    def log_validation(self, step: int, set_name: str, groups: Sequence[ScoredGroup], decode: Decode) -> None:
        """Append one line per answer to problems of a held-out set."""
        self._validation.append(
            record for group in groups for record in validation_records(int(step), set_name, group, decode)
        )

    def note(self, text: str) -> None:
        """Print a line of text above the progress bar; it is not written to any file."""
        self._printer.print_text(text)

    def show_warm_up(self, done: int, total: int) -> None:
        """Updates of the warm-up, on the progress bar."""
        self._printer.show("warm-up", done, total)


class SilentLog(RunLog):
    """The log of a rank that is not the first: nothing is written, nothing is printed."""

    def __init__(self) -> None:
        self.history = RunHistory()

    def records(self) -> dict[Path, FileRecord]:
        return {}

    def _ignore(self, *arguments: object, **options: object) -> None:
        pass

    close = truncate_after = log_metrics = log_samples = log_validation = note = show_warm_up = _ignore


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

_SHOWN_FIGURE = re.compile(r"(?P<part>val-core/.+)/(?P<kind>acc|reward)/(?P<of>(?:mean|pass|maj)@[0-9]+)")


def step_line(step: int, total_steps: int | None, metrics: Mapping[str, float]) -> str | None:
    """The console line of a step; None if `metrics` holds nothing that it shows."""
    cells = []
    for label, keys, form in _COLUMNS:
        key = next((key for key in keys if key in metrics), None)
        if key is not None:
            cells.append(f"{label} {form.format(metrics[key])}")
    cells += [f"{key} {value:.4f}" for key, value in metrics.items() if _is_shown(key, metrics)]
    if not cells:
        return None
    position = f"{step}/{total_steps}" if total_steps else f"{step}"
    return f"step {position:>7}  " + "  ".join(cells)


def _is_shown(key: str, metrics: Mapping[str, float]) -> bool:
    """Accuracies, and rewards that are another number."""
    found = _SHOWN_FIGURE.fullmatch(key)
    if found is None or found["kind"] == "acc":
        return found is not None
    return not math.isclose(metrics[key], metrics.get(f"{found['part']}/acc/{found['of']}", math.inf), abs_tol=1e-9)


class StepPrinter:
    """Prints step lines; owns the progress bar, which only a terminal with a known number of steps gets."""

    def __init__(self, console: Console, *, progress: bool, total_steps: int | None) -> None:
        self._console = console
        self._total_steps = total_steps
        self._bar = RunBar(console) if progress and total_steps is not None and console.is_terminal else None

    def show(self, stage: str, done: int, total: int) -> None:
        """Show the steps of a stage on the bar."""
        if self._bar is not None:
            self._bar.show(stage, done, total)

    def start_at(self, step: int) -> None:
        """Show `step` as already done."""
        if self._total_steps:
            self.show("training", max(0, step), self._total_steps)

    def print_step(self, step: int, metrics: Mapping[str, float]) -> None:
        line = step_line(step, self._total_steps, metrics)
        if line is not None:
            self.print_text(line)
        self.start_at(step)

    def print_text(self, text: str) -> None:
        """Print above the bar; the text is taken literally, without rich's markup."""
        self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


Decode = Callable[[Int32Array], str]
"""Response ids int32 [L] -> text."""


def training_records(step: int, group: Group, decode: Decode) -> Iterator[dict[str, object]]:
    """Lines of samples.jsonl: trained responses with their advantages."""
    for response, score, advantages in zip(group.responses, group.scores, group.advantages, strict=True):
        yield {
            "step": step,
            "prompt_index": group.prompt.index,
            "sample_index": response.sample_index,
            **_judged_text(group.prompt, response, score, decode),
            "parts": dict(score.parts),
            **({"extras": dict(score.extras)} if score.extras else {}),
            **({"message": score.message} if score.message else {}),
            "advantage": plain_number("advantage", advantages.mean(dtype=np.float64)),
            **ending(response, decode),
        }


def validation_records(step: int, set_name: str, group: ScoredGroup, decode: Decode) -> Iterator[dict[str, object]]:
    """Answers to a held-out problem. sample: "greedy", or the number of the sample."""
    for response, score in zip(group.responses, group.scores, strict=True):
        yield {
            "step": step,
            "set": set_name,
            "prompt_index": group.prompt.index,
            "sample": "greedy" if response.temperature == 0 else response.sample_index,
            **_judged_text(group.prompt, response, score, decode),
            **({"message": score.message} if score.message else {}),
            **ending(response, decode),
        }


def _judged_text(prompt: Prompt, response: Response, score: Score, decode: Decode) -> dict[str, object]:
    return {
        "data_source": prompt.data_source,
        **({"source": prompt.source} if prompt.source else {}),
        "prompt": prompt.text,
        "response": decode(response.ids),
        "extracted": score.extracted,
        "answer": prompt.answer,
        "verdict": score.verdict.value,
        "score": score.value,
    }


def ending(response: Response, decode: Decode) -> dict[str, object]:
    """Length, reason and, with an environment, the fields of the episode. Each turn has what was said and observed as
    text, the mean log-prob of its tokens and the number of observed ones, too."""
    fields: dict[str, object] = {"length": response.length, "finish_reason": response.finish_reason.value}
    if response.episode is not None:
        fields["episode"] = {**response.episode.to_json(), "turns": list(turn_records(response, decode))}
    return fields


def turn_records(response: Response, decode: Decode) -> Iterator[dict[str, Any]]:
    """The turns of an episode as `ending` has them."""
    assert response.episode is not None
    turns, place = response.episode.turns, 0
    nexts = [*(turn.start for turn in turns[1:]), response.ids.size]
    for turn, following in zip(turns, nexts, strict=True):
        logprob = response.logprobs[place : place + turn.length].mean(dtype=np.float64)
        place += turn.length
        yield {
            **turn.to_json(),
            "text": decode(response.ids[turn.start : turn.stop]),
            "mean_logprob": plain_number("mean_logprob", logprob),
            "observation": decode(response.ids[turn.stop : following]),
            "num_observed": following - turn.stop,
        }
