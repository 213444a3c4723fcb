"""Runs a reward function over a file of responses and compares its verdicts with labels (`mindgspo reward score`).

Rows are scored in chunks, so that a file larger than memory can be graded, and written atomically.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from math_answers.findings import AnswerMode
from mindgspo.config.reward import (
    WITH_TOKENS,
    RewardSection,
    RewardWorkersSection,
    file_function,
    reward_file_problems,
    reward_problems,
)
from mindgspo.data.sources import read_file
from mindgspo.errors import ConfigError, DataError, RewardError
from mindgspo.io import atomic_file
from mindgspo.metrics.files import json_line
from mindgspo.rewards import Candidate, Scorer
from mindgspo.text import aligned
from mindgspo.types import Score, Verdict

TAIL_CHARS = 160
"""Most characters of a response that an example shows, from its end."""


@dataclass(slots=True, kw_only=True)
class Confusion:
    """Counts of verdicts against labels, with examples on which they differ."""

    max_examples: int
    """Most examples of each kind that are kept."""
    num_unscored: int = 0
    """Rows without a score."""
    first_failure: str = ""
    """Message of the first row without a score."""
    counts: Counter[tuple[bool | None, Verdict]] = field(default_factory=Counter)
    """(label, verdict) -> rows; label None if a row has none."""
    examples: dict[bool, list[str]] = field(default_factory=lambda: {False: [], True: []})
    """Label -> lines for people about rows with that label and another verdict."""

    def add(self, label: bool | None, score: Score, *, where: str, response: str, gold: str) -> None:
        """Count one row. A false positive is called correct against its label, a false negative the other way round;
        an invalid sample is neither."""
        self.counts[label, score.verdict] += 1
        if score.value is None:
            self.first_failure = self.first_failure or f"{where}: {score.message or score.verdict.value}"
            self.num_unscored += 1
        if label is None or score.value is None or label == (score.verdict is Verdict.CORRECT):
            return
        if len(self.examples[label]) < self.max_examples:
            # Escaped by repr, because the text is a model's.
            found = f"gold {gold[:TAIL_CHARS]!r}, found {score.extracted!r}"
            self.examples[label].append(f"  {where}: {found}\n    ...{response[-TAIL_CHARS:]!r}")

    def raise_if_all_failed(self) -> None:
        """Raises RewardError if there are rows and none of them has a score."""
        if self.num_unscored and self.num_unscored == self.counts.total():
            raise RewardError(f"all {self.num_unscored} rows are without a score; the first, {self.first_failure}")

    def lines(self) -> Iterator[str]:
        """Verdicts, and where there are labels: the table, the agreement and the examples."""
        verdicts = [verdict for verdict in Verdict if any(given is verdict for _, given in self.counts)]
        labels = [label for label in (True, False, None) if any(given is label for given, _ in self.counts)]
        heads = ["", *(verdict.value for verdict in verdicts), "total"]
        yield from aligned([heads, *(self._row(label, verdicts) for label in labels)], left=1)
        labelled = sum(count for (label, _), count in self.counts.items() if label is not None)
        if labelled:
            agreed = self.counts[True, Verdict.CORRECT] + sum(
                self.counts[False, verdict] for verdict in (Verdict.WRONG, Verdict.NO_ANSWER)
            )
            yield f"agreement {agreed} of {labelled} labelled rows ({agreed / labelled:.2%})"
        for label, title in (
            (False, "false positives (called correct, label false)"),
            (True, "false negatives (not called correct, label true)"),
        ):
            if self.examples[label]:
                yield f"{title}, the first {len(self.examples[label])}:"
                yield from self.examples[label]

    def _row(self, label: bool | None, verdicts: list[Verdict]) -> list[str]:
        name = {True: "label true", False: "label false", None: "no label"}[label]
        counts = [self.counts[label, verdict] for verdict in verdicts]
        return [name, *map(str, counts), str(sum(counts))]


CHUNK_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKeys:
    """Keys of a row that hold the response, the gold answer and, if there is one, the label. `data_source` and
    `extra_info` are read under these names."""

    response: str = "response"
    gold: str = "gold"
    label: str = "correct"


def score_file(scorer: Scorer, path: Path, output: Path, keys: RowKeys, *, max_examples: int = 5) -> Confusion:
    """Score every row of `path` into `output`, and count verdicts against labels.

    A row keeps its keys and gets `score` (null where the sample is invalid), `verdict`, `extracted`, and `message`
    where a function failed. Raises DataError, before `output` is touched, for a line that is no JSON object, or lacks
    response or gold.
    """
    confusion = Confusion(max_examples=max_examples)
    with atomic_file(output) as file:
        numbered = enumerate(read_file(path))
        while chunk := list(itertools.islice(numbered, CHUNK_ROWS)):
            candidates = [_candidate(row, where, index, keys) for index, (where, row) in chunk]
            for (_, (where, row)), candidate in zip(chunk, candidates, strict=True):
                scorer.check_source(where, candidate.data_source)
                _label(row.get(keys.label), where, keys.label)
            for (_, (where, row)), candidate, score in zip(chunk, candidates, scorer.score(candidates), strict=True):
                label = _label(row.get(keys.label), where, keys.label)
                confusion.add(label, score, where=where, response=candidate.text, gold=candidate.gold)
                file.write(_line({**row, **_result(score)}, where))
    return confusion


def _line(row: Mapping[str, object], where: str) -> bytes:
    try:
        return json_line(row)
    except ValueError as error:
        raise DataError(f"{where}: cannot be written as JSON ({error})") from error


def _result(score: Score) -> dict[str, object]:
    result: dict[str, object] = {"score": score.value, "verdict": score.verdict.value, "extracted": score.extracted}
    return result | ({"message": score.message} if score.message else {})


def _candidate(row: Mapping[str, object], where: str, index: int, keys: RowKeys) -> Candidate:
    extra_info = row.get("extra_info") or {}
    if not isinstance(extra_info, Mapping):
        raise DataError(f"{where}: extra_info: expected an object, got {type(extra_info).__name__}")
    return Candidate(
        text=_text(row, keys.response, where, "--response-key"),
        gold=_text(row, keys.gold, where, "--gold-key"),
        data_source=str(row.get("data_source") or ""),
        index=index,
        extra_info=extra_info,
    )


def _text(row: Mapping[str, object], key: str, where: str, option: str) -> str:
    """A text, or a number as one; a response may be empty."""
    value = row.get(key)
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    what = f"holds {type(value).__name__}, expected text" if key in row else f"missing; keys there: {', '.join(row)}"
    raise DataError(f"{where}: {key}: {what}. Another key: {option} NAME")


def _label(value: object, where: str, key: str) -> bool | None:
    """true, false, or a number that is 0 or 1."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and not math.isnan(value) and value in (0, 1):
        return bool(value)
    raise DataError(f"{where}: {key}: expected a label true or false, got {value!r}")


def score_with_function(
    *,
    function: str,
    input: Path,
    output: Path,
    keys: RowKeys,
    answer: AnswerMode = "flexible",
    workers: int = 2,
    timeout_s: float = 10.0,
    examples: int = 5,
) -> Confusion:
    """Score `input` into `output` with one function.

    function: as an entry of `reward.functions`; the path of a file counts from the current folder. Raises ConfigError
    for an unknown name or a missing file, RewardError for a file that cannot be loaded, DataError for bad rows.
    """
    if input.resolve() == output.resolve():
        raise ConfigError(f"--output {output}: is the input; choose another file")
    if output.is_dir():
        raise ConfigError(f"--output {output}: is a folder; give the file to write, e.g. {output / 'scored.jsonl'}")
    if not output.parent.is_dir():
        raise ConfigError(f"--output {output}: there is no folder {output.parent}")
    file = file_function(function)
    name = function if file is None else f"{file.path.absolute()}:{file.name}"
    if name in WITH_TOKENS:
        raise ConfigError(f"--function {name}: scores a length in tokens, and a file of texts has none")
    section = RewardSection(
        functions=(name,),
        weights=(1.0,),
        answer=answer,
        workers=RewardWorkersSection(count=workers, timeout_s=timeout_s),
    )
    problems = reward_problems(section) + reward_file_problems(section)
    if problems:
        raise ConfigError(f"--function: {'; '.join(each.removeprefix('reward.functions: ') for each in problems)}")
    with Scorer(section) as scorer:
        scorer.start()
        return score_file(scorer, input, output, keys, max_examples=examples)
