"""What `mindgspo eval` prints and writes: a table with remarks, eval.json and generations.jsonl."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from mindgspo.errors import ConfigError
from mindgspo.evaluation.estimates import Estimate
from mindgspo.evaluation.evaluate import single_temperature
from mindgspo.evaluation.run_tasks import TaskResult, kind_of
from mindgspo.evaluation.summary import EvaluationSummary
from mindgspo.evaluation.tasks import EvalTask
from mindgspo.io import fsync_tree, remove_leftovers, temporary_path, write_error, write_json
from mindgspo.metrics.files import json_line
from mindgspo.tokenization import Tokenizer
from mindgspo.types import ScoredGroup

NOTEWORTHY = 0.05
"""Share of answers from which on a remark is made."""

_HEADER = ("data", "problems", "answers", "figure", "value", "95 % interval", "cut", "no answer", "tokens")
_LEFT = 4  # columns of words


def table_lines(found: Sequence[TaskResult]) -> list[str]:
    """A line per figure; what holds for all answers of a kind stands in the first line of that kind."""
    rows = [_HEADER, *(row for one in found for row in _rows_of(one, _label(one, found)))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    return [
        "  ".join(
            cell.ljust(width) if column < _LEFT else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def remarks(found: Sequence[TaskResult]) -> Iterator[str]:
    """What makes the summary less than they seem, and what to do about it."""
    told = set()
    for one in found:
        label, config = _label(one, found), one.task.config
        if one.dropped and one.task.label not in told:
            told.add(one.task.label)
            reasons = ", ".join(f"{count} x {reason}" for reason, count in one.dropped.items())
            yield f"{one.task.label}: {sum(one.dropped.values())} rows were left out ({reasons})"
        for kind, summary in _kinds(one):
            if summary.cut >= NOTEWORTHY:
                yield (
                    f"{label}, {kind}: {_percent(summary.cut)} cut at {config.rollout.max_new_tokens} tokens: raise "
                    "--max-new-tokens"
                )
            if summary.no_answer >= summary.cut + NOTEWORTHY:
                yield (
                    f"{label}, {kind}: no answer was found in {_percent(summary.no_answer)}: see generations.jsonl of "
                    "--out; the prompt must ask for a form that the reward function knows"
                )
            if summary.failed:
                yield (
                    f"{label}, {kind}: {_percent(summary.failed)} could not be verified and count as not correct; "
                    "raise reward.workers.timeout_s with --set if they took too long"
                )


def report(found: Sequence[TaskResult]) -> dict[str, object]:
    """All summaries with what they were measured with. accuracy: of one answer each, over all problems."""
    config = found[0].task.config
    problems = sum(one.single.num_problems for one in found)
    return {
        "model": str(config.model.path),
        "problems": problems,
        "accuracy": sum(one.single.num_correct for one in found) / problems,
        "settings": {
            "device": config.device,
            "dtype": config.model.dtype,
            "seed": config.seed,
            "max_new_tokens": config.rollout.max_new_tokens,
            "num_samples": config.eval.num_samples,
            "do_sample": config.eval.do_sample,
            "temperature": config.eval.temperature,
            "top_p": config.eval.top_p,
            "top_k": config.eval.top_k,
            "tokenizer": None if config.tokenizer.path is None else str(config.tokenizer.path),
            "eos_tokens": list(config.tokenizer.eos_tokens),
        },
        "results": [_result(one) for one in found],
    }


def generation_records(task: EvalTask, tokenizer: Tokenizer, group: ScoredGroup) -> Iterator[dict[str, object]]:
    """One record per answer to one problem, special tokens included in its text."""
    prompt = group.prompt
    for response, score in zip(group.responses, group.scores, strict=True):
        yield {
            "data": task.label,
            "data_source": prompt.data_source,
            "index": prompt.index,
            "sample": response.sample_index,
            "temperature": response.temperature,
            "prompt": prompt.text,
            "response": tokenizer.decode(response.ids.tolist()),
            "length": response.length,
            "finish_reason": response.finish_reason.value,
            "answer": prompt.answer,
            "extracted": score.extracted,
            "verdict": score.verdict.value,
            "score": score.value,
        }


def _label(one: TaskResult, found: Sequence[TaskResult]) -> str:
    """The data set, with the data source where it has several."""
    is_mixed = sum(other.task is one.task for other in found) > 1
    return f"{one.task.label} ({one.source})" if is_mixed else one.task.label


def _kinds(one: TaskResult) -> Iterator[tuple[str, EvaluationSummary]]:
    section = one.task.config.eval
    yield kind_of(single_temperature(section), 1), one.single
    if one.sampled is not None:
        yield kind_of(section.temperature, section.num_samples), one.sampled


def _rows_of(one: TaskResult, label: str) -> Iterator[tuple[str, ...]]:
    names: tuple[str, str] = (label, f"{one.single.num_problems:,}")
    for kind, summary in _kinds(one):
        first = (kind, _percent(summary.cut), _percent(summary.no_answer), f"{summary.mean_length:.0f}")
        for name, estimate in summary.estimates.items():
            yield (*names, first[0], name, f"{estimate.value:.3f}", _interval(estimate), *first[1:])
            names, first = ("", ""), ("", "", "", "")


def _interval(estimate: Estimate) -> str:
    return "-" if estimate.low is None or estimate.high is None else f"{estimate.low:.3f} to {estimate.high:.3f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.1 else f"{100 * share:.1f} %"


def _result(one: TaskResult) -> dict[str, object]:
    config = one.task.config
    (source,) = config.data.eval_sets.values()
    return {
        "data": one.task.label,
        "data_source": one.source,
        "path": None if source.path is None else str(source.path),
        "format": source.format,
        "problems": one.single.num_problems,
        "dropped": one.dropped,
        "system_prompt": config.data.system_prompt,
        "instruction_suffix": config.data.instruction_suffix,
        "reward": list(config.reward.functions),
        kind_of(single_temperature(config.eval), 1): _summary(one.single),
        "sampled": None if one.sampled is None else _summary(one.sampled),
    }


def _summary(summary: EvaluationSummary) -> Mapping[str, object]:
    return {
        **{
            name: {"value": estimate.value, "low": estimate.low, "high": estimate.high}
            for name, estimate in summary.estimates.items()
        },
        "cut": summary.cut,
        "no_answer": summary.no_answer,
        "failed": summary.failed,
        "mean_length": summary.mean_length,
    }


REPORT = "eval.json"
GENERATIONS = "generations.jsonl"


class EvalFolder:
    """Filled aside in a `with` statement and renamed by `finish`; removed where that is never reached."""

    def __init__(self, path: Path) -> None:
        self._path, self._aside = path, temporary_path(path.absolute())
        self._generations: BinaryIO | None = None

    def __enter__(self) -> EvalFolder:
        """Raises ConfigError where the folder is there already, or cannot be made."""
        self._refuse_taken()
        with self._named_errors():
            self._aside.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self._aside.parent, self._path.name)
            self._aside.mkdir()
            self._generations = (self._aside / GENERATIONS).open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._generations is not None:
            with suppress(OSError):  # a full disk, once more; the file goes anyway
                self._generations.close()
        shutil.rmtree(self._aside, ignore_errors=True)

    def write(self, records: Iterable[Mapping[str, object]]) -> None:
        """Append lines to generations.jsonl. Raises ConfigError where the disk is full."""
        assert self._generations is not None, "written outside of the with statement"
        with self._named_errors():
            self._generations.writelines(map(json_line, records))

    def finish(self, report: Mapping[str, object]) -> None:
        """Write eval.json and give the folder its name. Raises ConfigError where somebody else took it meanwhile."""
        assert self._generations is not None, "finished outside of the with statement"
        with self._named_errors():
            self._generations.close()
            write_json(self._aside / REPORT, report)
            fsync_tree(self._aside)
        self._refuse_taken()
        with self._named_errors():
            os.rename(self._aside, self._path)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"--out {write_error(self._path, error)}") from error

    def _refuse_taken(self) -> None:
        is_empty = self._path.is_dir() and not any(self._path.iterdir())
        if self._path.is_symlink() or (self._path.exists() and not is_empty):
            raise ConfigError(f"--out {self._path}: is there already and is not overwritten; choose another folder")
