"""Log-probs under a model on disk: of rows of ids or text (`mindgspo logprobs`), to compare any folder with any other
implementation, and of responses to prompts (`mindgspo.score`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mindgspo.config import ModelSection
from mindgspo.config.huggingface_config import read_model_section
from mindgspo.errors import DataError, WeightsError
from mindgspo.evaluation.inputs import PromptText, encode_prompt, find_model, only_key
from mindgspo.io import parse_json
from mindgspo.parallel.platform.runtime import Device, set_up_runtime
from mindgspo.progress import activity
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import TensorSource
from mindgspo.tokenization import load_backend, load_tokenizer
from mindgspo.types import Float32Array, Int32Array

if TYPE_CHECKING:
    from mindgspo.models.scoring import RowScore

RowScorer = Callable[[ModelSection, Path, Sequence[Int32Array]], "Iterable[RowScore]"]
"""Scores rows under the model of a folder, one result per row, in order."""


def log_probs_by_native_model(section: ModelSection, folder: Path, rows: Sequence[Int32Array]) -> Iterable[RowScore]:
    """The default `RowScorer`: our own transformer. Raises WeightsError."""
    return _scored(section, open_tensors(folder), rows)


def _scored(
    section: ModelSection, weights: AbstractContextManager[TensorSource], rows: Sequence[Int32Array]
) -> Iterable[RowScore]:
    from mindgspo.models.policy import build_model
    from mindgspo.models.scoring import score_rows
    from mindgspo.models.weights import load_tensors

    model = build_model(section)
    with weights as tensors:
        load_tensors(model, section, tensors)
    with activity("scoring"):
        return score_rows(model, rows)


def log_probs_of_file(
    model_dir: Path, rows_file: Path, scorer: RowScorer = log_probs_by_native_model, *, device: Device = "CPU"
) -> Iterator[dict[str, object]]:
    """{"logprobs": [log-prob of ids[1], ids[2], ...], "next": greedy next id} per row; float32, temperature 1.

    Every row is checked before the weights are read. Raises DataError naming file and line, WeightsError,
    TokenizerError, and what the scorer raises.
    """
    section = read_model_section(model_dir)
    rows = read_id_rows(rows_file, section, model_dir)

    set_up_runtime(device)
    for number, score in enumerate(scorer(section, model_dir, rows), start=1):
        if not np.isfinite(score.logprobs).all():
            raise WeightsError(f"{model_dir}: the log-probs of row {number} are not finite; look at its weights")
        yield {"logprobs": score.logprobs.tolist(), "next": score.next_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredResponse:
    """Log-probs of a response under a model."""

    ids: Int32Array
    """int32 [L], the response's tokens."""
    logprobs: Float32Array
    """float32 [L], of each token given the prompt and the tokens before it."""


def score_responses(
    model: Path, prompts: Sequence[PromptText], responses: Sequence[str | Int32Array], *, is_raw: bool = False
) -> list[ScoredResponse]:
    """The log-probs of responses, float32, at temperature 1; one response per prompt.

    responses: text, to which no end token is added, or ids. is_raw: no chat template. Every row is checked before the
    weights are read. Raises DataError naming the row, and the errors of the model's files.
    """
    if len(prompts) != len(responses):
        raise DataError(f"{len(prompts)} prompts and {len(responses)} responses; give one response per prompt")
    found = find_model(model)
    section = found.section
    tokenizer = load_tokenizer(found.tokenizer, section.vocab_size)
    rows, answers = [], []
    for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True), start=1):
        ids = tokenizer.encode(response) if isinstance(response, str) else response
        try:
            answers.append(np.array(ids, np.int32))
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"response {number}: expected a text or a list of ids ({error})") from error
        if answers[-1].ndim != 1:
            raise DataError(f"response {number}: expected a text or a list of ids")
        _check_ids(answers[-1], f"response {number}", section)
        rows.append(np.append(encode_prompt(tokenizer, prompt, f"prompt {number}", is_raw=is_raw), answers[-1]))
        if rows[-1].size > found.positions:
            raise DataError(
                f"prompt {number}: {rows[-1].size:,} tokens with its response, the model has {found.positions:,} "
                "positions (max_position_embeddings)"
            )
    set_up_runtime("CPU")
    scored = []
    for number, (ids, row) in enumerate(zip(answers, _scored(section, found.open(), rows), strict=True), start=1):
        logprobs = row.logprobs[-ids.size :]
        if not np.isfinite(logprobs).all():
            raise WeightsError(f"{found.place}: the log-probs of response {number} are not finite; look at its weights")
        scored.append(ScoredResponse(ids=ids, logprobs=logprobs))
    return scored


def read_id_rows(path: Path, section: ModelSection, model_dir: Path) -> list[Int32Array]:
    """Read the ids of every line. Raises DataError for a missing or empty file and for the first unusable line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a JSON Lines file") from error
    if not lines:
        raise DataError(f'{path}: is empty; give one row per line, e.g. {{"ids": [1, 2, 3]}}')
    backend = cache(load_backend)  # loaded when the first text is met: rows of ids need no tokenizer
    return [
        _ids_of(line, f"{path}, line {number}", section, lambda text: backend(model_dir).encode(text))
        for number, line in enumerate(lines, start=1)
    ]


def _ids_of(line: bytes, where: str, section: ModelSection, encode: Callable[[str], list[int]]) -> Int32Array:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, got {type(row).__name__}")
    is_text = only_key(row, "ids", "text", where) == "text"
    ids = encode(_text_of(row["text"], where)) if is_text else row["ids"]
    if not isinstance(ids, list) or any(type(one) is not int for one in ids):
        raise DataError(f'{where}: "ids" must be a list of whole numbers')
    _check_ids(ids, where, section)
    return np.array(ids, dtype=np.int32)


def _text_of(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise DataError(f'{where}: "text" must be a text, got {type(value).__name__}')
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise DataError(f'{where}: "text" holds half of a surrogate pair, which is no character')
    return value


def _check_ids(ids: Sequence[int] | Int32Array, where: str, section: ModelSection) -> None:
    """Raises DataError unless the model has these ids, and positions for them."""
    if not len(ids):
        raise DataError(f"{where}: no ids; at least one is needed")
    outside = [one for one in ids if not 0 <= one < section.vocab_size]
    if outside:
        raise DataError(f"{where}: id {outside[0]} is outside the vocabulary, 0 to {section.vocab_size - 1}")
    if len(ids) > section.max_position_embeddings:
        raise DataError(
            f"{where}: {len(ids):,} ids, the model has {section.max_position_embeddings:,} positions "
            "(max_position_embeddings)"
        )
