"""A file of responses through one reward function.

What enters: JSON Lines (or parquet) rows. What leaves: each row with its score and verdict, in order, written aside and
renamed when complete, and a `Confusion`. Called by `mindgspo reward score`. Rows are scored in chunks, so that a file
larger than memory can be graded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mindgspo.data.sources import read_file
from mindgspo.errors import DataError
from mindgspo.grading.confusion import Confusion
from mindgspo.io import atomic_file
from mindgspo.metrics.files import json_line
from mindgspo.rewards import Candidate, Scorer
from mindgspo.types import Score

CHUNK_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKeys:
    """The keys of a row that hold the response, the gold answer and, where there is one, the label. `data_source`
    and `extra_info` are read under these names."""

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
        for chunk in _chunks(read_file(path), CHUNK_ROWS):
            candidates = [_candidate(row, where, index, keys) for index, (where, row) in chunk]
            for (_, (where, _)), candidate in zip(chunk, candidates, strict=True):
                scorer.check_source(where, candidate.data_source)
            labels = [_label(row.get(keys.label), where, keys.label) for _, (where, row) in chunk]
            scores = scorer.score(candidates)
            for (_, (where, row)), candidate, label, score in zip(chunk, candidates, labels, scores, strict=True):
                confusion.add(label, score, where=where, response=candidate.text, gold=candidate.gold)
                file.write(_line({**row, **_result(score)}, where))
    return confusion


def _chunks(rows: Iterable[tuple[str, dict[str, object]]], size: int) -> Iterator[list]:
    numbered = enumerate(rows)
    while chunk := list(itertools.islice(numbered, size)):
        yield chunk


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
