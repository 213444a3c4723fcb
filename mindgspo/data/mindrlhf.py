"""MindRLHF's MindRecord of questions and gold answers, read and written.

Its columns are those of `write_mindrecord` in MindRLHF's examples/grpo/*/rlhf_data.py, all int64 [slots]: `prompt_ids`,
the question without a chat template, and `pretrain_ids`, the gold answer, both filled up on the right with the pad id;
and `loss_mask`, which MindRLHF's trainer does not read. A row is turned back into text here, and then treated like any
other.

MindSpore is imported only when a file is read or written.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindgspo.data.dataset_info import PromptFacts
from mindgspo.data.formats import last_box
from mindgspo.data.output_folder import is_taken, named_os_errors
from mindgspo.data.record_index import check_record_file
from mindgspo.data.rendering import CUTS
from mindgspo.data.source_rows import DroppedRow, SourceRow, asks
from mindgspo.errors import DataError
from mindgspo.tokenization import Tokenizer

_Ids = NDArray[np.int64]
SUFFIX = ".mindrecord"
SCHEMA = {name: {"type": "int64", "shape": [-1]} for name in ("prompt_ids", "pretrain_ids", "loss_mask")}
DATA_SOURCE = "math"
"""Of every row: MindRLHF compares answers as expressions, which the reward of that name does here."""
_HEADER_SIZE = 2 << 20  # bytes, as of a data set's own MindRecord file
_ROWS_PER_WRITE = 256


def read_mindrlhf(path: Path, tokenizer: Tokenizer) -> Iterator[SourceRow | DroppedRow]:
    """The rows in the order of the file.

    An answer that repeats its question, as MindRLHF writes it for unknown data sets, is taken without it, and as a
    worked solution; gold is then what follows its last '####', or in its last box.
    Raises DataError: no such file, a damaged one, other columns, ids of another tokenizer.
    """
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder, expected a file' if path.is_dir() else 'no such file'}")
    for number, (prompt_ids, answer_ids) in enumerate(_records(path)):
        where = f"{path} row {number}"
        question = _text(prompt_ids, tokenizer, f"{where}: prompt_ids")
        answer = _text(answer_ids, tokenizer, f"{where}: pretrain_ids")
        if not question.strip():
            raise DataError(f"{where}: prompt_ids: holds no question, only padding")
        yield _row(where, question, answer)


def _row(where: str, question: str, answer: str) -> SourceRow | DroppedRow:
    solution = ""
    if answer.startswith(question) and answer != question:
        solution = answer.removeprefix(question).strip()
        _, mark, gold = solution.rpartition("####")
        answer = gold if mark else last_box(solution) or ""
    if not answer.strip():
        reason = "there is no gold answer" if not solution else "the solution has no '#### <answer>' and no box"
        return DroppedRow(where=where, reason=reason, answer="")
    return SourceRow(
        where=where, messages=asks(question), answer=answer.strip(), solution=solution, data_source=DATA_SOURCE
    )


def _records(path: Path) -> Iterator[tuple[_Ids, _Ids]]:
    check_record_file(path)
    from mindspore.dataset import MindDataset

    columns = ["prompt_ids", "pretrain_ids"]
    try:
        records = MindDataset(str(path), columns_list=columns, shuffle=False, num_parallel_workers=1)
        for record in records.create_dict_iterator(num_epochs=1, output_numpy=True):
            yield record[columns[0]], record[columns[1]]
    except RuntimeError as error:  # MindSpore's, several paragraphs
        first = next(iter(str(error).strip().splitlines()), "no reason given")
        raise DataError(f"{path}: cannot be read as MindRLHF's ({first}); it has the columns {columns}") from error


def _text(ids: _Ids, tokenizer: Tokenizer, place: str) -> str:
    """Decode the ids before the padding."""
    if ids.dtype.kind != "i" or ids.ndim != 1:
        raise DataError(f"{place}: expected a row of ids, got {ids.dtype} {list(ids.shape)}")
    used = ids[: int(np.flatnonzero(ids != tokenizer.pad_id)[-1]) + 1] if np.any(ids != tokenizer.pad_id) else ids[:0]
    if used.size and (int(used.min()) < 0 or int(used.max()) >= tokenizer.vocab_size):
        beyond = int(used.max()) if int(used.min()) >= 0 else int(used.min())
        raise DataError(
            f"{place}: id {beyond} is none of the {tokenizer.vocab_size} of {tokenizer.name}; give the tokenizer that "
            "the file was made with"
        )
    last = used[-2:].tolist()
    if len(last) == 2 and last[0] == last[1] and not tokenizer.decode(last, skip_special_tokens=True):
        name = tokenizer.decode(last[:1])
        raise DataError(f"{place}: ends in {name!r} again and again; if that is its padding, give --pad-token '{name}'")
    return tokenizer.decode(used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The outcome of `write_mindrlhf`."""

    rows: int
    """Rows written."""
    dropped: int
    """Rows left out, because they lack a readable gold answer or are too long."""


def write_mindrlhf(
    rows: Iterable[SourceRow | DroppedRow], path: Path, tokenizer: Tokenizer, facts: PromptFacts, *, seq_length: int
) -> Written:
    """Write the rows as MindRLHF's `path`, with the index that MindSpore keeps beside it.

    facts: prefix, suffix, longest prompt and what becomes of a longer one. seq_length: slots of an answer (MindRLHF:
    --seq_length). Both files appear at once, or neither. MindRLHF puts its own chat template around a question, so a
    conversation of several messages is rejected. Raises DataError: `path` is taken, such a conversation, a prompt or
    answer that is too long.
    """
    from mindspore.mindrecord import FileWriter

    index = path.with_name(f"{path.name}.db")
    for taken in (path, index):
        if is_taken(taken):
            raise DataError(f"{taken}: is there already; choose another name, or move it away")
    if facts.system_prompt is not None:
        raise DataError(f"{path}: MindRLHF writes the system message itself; leave --system-prompt out")
    with named_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        with named_os_errors(path):
            # The file contains its own name, so it is written under that name, in another folder.
            writer = FileWriter(str(folder / path.name), shard_num=1)
            writer.set_header_size(_HEADER_SIZE)
            writer.add_schema(SCHEMA, "questions and gold answers")
            made = _write(writer, rows, path, tokenizer, facts, seq_length)
            writer.commit()
            usual = folder / "usual"
            usual.touch()
            for source, target in ((folder / index.name, index), (folder / path.name, path)):
                shutil.copymode(usual, source)  # MindSpore writes files for their owner only
                source.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return made


def _write(
    writer: Any,
    rows: Iterable[SourceRow | DroppedRow],
    path: Path,
    tokenizer: Tokenizer,
    facts: PromptFacts,
    seq_length: int,
) -> Written:
    chunk: list[dict[str, _Ids]] = []
    count = dropped = 0
    for row in rows:
        record = None if isinstance(row, DroppedRow) else _record(row, tokenizer, facts, seq_length)
        if record is None:
            dropped += 1
            continue
        count += 1
        chunk.append(record)
        if len(chunk) == _ROWS_PER_WRITE:
            writer.write_raw_data(chunk)
            chunk = []
    if not count:
        raise DataError(f"{path}: no row is left to write; {dropped} were left out")
    if chunk:
        writer.write_raw_data(chunk)
    return Written(rows=count, dropped=dropped)


def _record(row: SourceRow, tokenizer: Tokenizer, facts: PromptFacts, seq_length: int) -> dict[str, _Ids] | None:
    if len(row.messages) != 1:
        raise DataError(f"{row.where}: a conversation of {len(row.messages)} messages; MindRLHF takes one question")
    question = f"{facts.instruction_prefix}{row.messages[0]['content']}{facts.instruction_suffix}"
    prompt, limit = tokenizer.encode(question), facts.max_prompt_length
    if len(prompt) > limit and facts.truncation == "drop":
        return None
    if len(prompt) > limit and facts.truncation == "error":
        raise DataError(
            f"{row.where}: the question has {len(prompt)} tokens, --max-prompt-length is {limit}; raise it, or set "
            "--truncation to left, right, middle or drop"
        )
    if len(prompt) > limit:
        prompt = CUTS[facts.truncation](prompt, limit)
    answer = tokenizer.encode(row.answer)
    if len(answer) > seq_length:
        raise DataError(f"{row.where}: the answer has {len(answer)} tokens, --seq-length is {seq_length}; raise it")
    for ids, what in ((prompt, "question"), (answer, "answer")):
        if ids and ids[-1] == tokenizer.pad_id:
            raise DataError(f"{row.where}: the {what} ends in the pad token, which would be lost; choose another")
    return {
        "prompt_ids": _padded(prompt, limit, tokenizer.pad_id),
        "pretrain_ids": _padded(answer, seq_length, tokenizer.pad_id),
        "loss_mask": _padded([1] * len(answer), seq_length, 0),
    }


def _padded(ids: Sequence[int], slots: int, pad: int) -> _Ids:
    return np.array([*ids, *[pad] * (slots - len(ids))], dtype=np.int64)
