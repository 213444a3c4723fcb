"""Writes, verifies, opens and shows a prepared data set.

MindSpore is imported only when a MindRecord file is written or read. The columns are those of `dataset_info.COLUMNS`.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mindgspo.data.dataset_info import COLUMNS, FILE_NAME, RECORD_NAME, DatasetInfo, read_info
from mindgspo.data.record_index import check_record_file
from mindgspo.data.rendering import FORMATS_WITH_INSTRUCTION
from mindgspo.data.sources import sha256_of
from mindgspo.errors import DataError, WriteError
from mindgspo.io import parse_json, restore_umask
from mindgspo.text import printable
from mindgspo.tokenization import RENDERING, Tokenizer
from mindgspo.types import Prompt

if TYPE_CHECKING:
    from mindgspo.config.data import DataSection

logger = logging.getLogger(__name__)

SCHEMA = {
    "index": {"type": "int64"},
    "prompt_ids": {"type": "int32", "shape": [-1]},
    "prompt_text": {"type": "string"},
    "answer": {"type": "string"},
    "data_source": {"type": "string"},
    "solution": {"type": "string"},
    "extra_info": {"type": "string"},
}
assert SCHEMA.keys() == COLUMNS.keys()
# Bytes. MindSpore's own 32 MB pages and 16 MB header make 50 MB of the smallest data set. A row must fit a
# page.
PAGE_SIZE = 4 << 20
HEADER_SIZE = 2 << 20
ROWS_PER_WRITE = 1024


def write_prompt_records(prompts: Iterable[Prompt], folder: Path) -> None:
    """Write all prompts into `folder`. The file contains its own name: rename the folder, never the file."""
    from mindspore.mindrecord import FileWriter

    restore_umask()
    writer = FileWriter(str(folder / RECORD_NAME), shard_num=1)
    writer.set_header_size(HEADER_SIZE)
    writer.set_page_size(PAGE_SIZE)
    writer.add_schema(SCHEMA, "mindgspo prompts")
    chunk: list[dict[str, object]] = []
    for prompt in prompts:
        chunk.append(_to_record(prompt))
        if len(chunk) == ROWS_PER_WRITE:
            _write(writer.write_raw_data, folder, chunk)
            chunk = []
    if chunk:
        _write(writer.write_raw_data, folder, chunk)
    _write(writer.commit, folder)


def _write(call: Callable[..., object], folder: Path, *arguments: object) -> None:
    """Raises WriteError for MindSpore's RuntimeError, which does not contain the system's message."""
    try:
        call(*arguments)
    except RuntimeError as error:
        reason = next((line for line in str(error).splitlines() if line.startswith("[ERROR]")), "no reason given")
        raise WriteError(
            f"{folder / RECORD_NAME}: cannot be written ({reason.removeprefix('[ERROR] ')}); look at the space on its "
            "disk and at the limits of this process: `ulimit -f` (size of a file), `ulimit -n` (open files)"
        ) from error


def read_prompt_records(folder: Path, num_rows: int) -> Iterator[Prompt]:
    """The prompts in the order in which they were written. Raises DataError if the file is not whole or holds
    another number of rows."""
    check_record_file(folder / RECORD_NAME, num_rows)
    try:
        yield from _read(folder)
    except RuntimeError as error:  # MindSpore's, several paragraphs
        first = next(iter(str(error).strip().splitlines()), "no reason given")
        raise DataError(f"{folder / RECORD_NAME}: cannot be read ({first}); prepare again with --force") from error
    except (ValueError, TypeError) as error:
        raise DataError(f"{folder / RECORD_NAME}: extra_info: {error}; prepare again with --force") from error


def _read(folder: Path) -> Iterator[Prompt]:
    from mindspore.dataset import MindDataset

    records = MindDataset(str(folder / RECORD_NAME), columns_list=list(SCHEMA), shuffle=False, num_parallel_workers=1)
    for record in records.create_dict_iterator(num_epochs=1, output_numpy=True):
        ids = np.ascontiguousarray(record["prompt_ids"], dtype=np.int32)
        ids.flags.writeable = False
        yield Prompt(
            index=int(record["index"]),
            ids=ids,
            text=record["prompt_text"].item(),
            answer=record["answer"].item(),
            data_source=record["data_source"].item(),
            solution=record["solution"].item(),
            extra_info=dict(parse_json(record["extra_info"].item())),
        )


def _to_record(prompt: Prompt) -> dict[str, object]:
    return {
        "index": prompt.index,
        "prompt_ids": prompt.ids,
        "prompt_text": prompt.text,
        "answer": prompt.answer,
        "data_source": prompt.data_source,
        "solution": prompt.solution,
        "extra_info": json.dumps(dict(prompt.extra_info)),
    }


def verify_files(folder: Path, info: DatasetInfo, *, hashes: bool = False) -> None:
    """Raise DataError unless every file that dataset.json names exists with its size.

    hashes: also compare each file's sha256.
    """
    for facts in info.files:
        path = folder / facts.name
        if not path.is_file():
            problem = "missing, though dataset.json names it"
        elif path.stat().st_size != facts.size:
            problem = f"{path.stat().st_size} bytes, dataset.json says {facts.size}"
        elif hashes and sha256_of(path) != facts.sha256:
            problem = "sha256 differs from dataset.json's"
        else:
            continue
        raise DataError(f"{path}: {problem}; copy it again or prepare again with --force")


def verify_records(folder: Path, written: Iterable[Prompt], num_rows: int) -> None:
    """Raise DataError unless the MindRecord file of `folder` gives back exactly the `num_rows` prompts `written`."""
    for number, (prompt, read) in enumerate(zip_longest(written, read_prompt_records(folder, num_rows))):
        if prompt is None or read is None:
            which = "fewer" if read is None else "more"
            raise DataError(f"{folder}: {which} rows are read back than the {number} that were written; try again")
        was, now = ({**_to_record(one), "prompt_ids": one.ids.tolist()} for one in (prompt, read))
        for column in SCHEMA:
            if was[column] != now[column]:
                raise DataError(
                    f"row {number} of the data set is not read back as it was written: {column} was "
                    f"{_end(was[column])}, is {_end(now[column])}. A MindRecord file cannot hold a text that ends in "
                    "NUL characters; else the disk is at fault"
                )


def _end(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"...{shown[-57:]}"


class PromptDataset:
    """The prompts of one folder; `dataset[i].index == i`."""

    def __init__(self, prompts: tuple[Prompt, ...], info: DatasetInfo) -> None:
        self._prompts = prompts
        self.info = info

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int) -> Prompt:
        return self._prompts[index]

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self._prompts)


def open_dataset(
    folder: Path, tokenizer: Tokenizer, data: DataSection | None = None, *, max_rows: int | None = None
) -> PromptDataset:
    """Load a prepared data set into memory. max_rows: at most this many of its first rows.

    Raises DataError as `check_folder`, and if the file's rows differ from those in dataset.json.
    """
    info = check_folder(folder, tokenizer, data)
    verify_files(folder, info, hashes=True)
    prompts = tuple(read_prompt_records(folder, info.counts.rows_out))
    if len(prompts) != info.counts.rows_out or any(prompt.index != i for i, prompt in enumerate(prompts)):
        raise DataError(
            f"{folder}: holds {len(prompts)} rows, dataset.json says {info.counts.rows_out}; prepare again with --force"
        )
    for prompt in prompts:
        if not prompt.ids.size or prompt.ids.min() < 0 or prompt.ids.max() >= tokenizer.vocab_size:
            raise DataError(
                f"{folder}: row {prompt.index} has no ids, or others than the {tokenizer.vocab_size} of the tokenizer; "
                "prepare again with --force"
            )
    return PromptDataset(prompts[:max_rows], info)


def check_folder(folder: Path, tokenizer: Tokenizer, data: DataSection | None = None) -> DatasetInfo:
    """dataset.json of a folder that is whole and fits this run, without MindSpore.

    data: if given, its prompt settings are checked against those the folder was made with: prompts must fit
    max_prompt_length, and a system prompt, prefix or suffix, where one is set, must be the folder's.
    Raises DataError: missing folder or file, another tokenizer, settings that contradict the folder.
    """
    info = read_info(folder)
    verify_files(folder, info)
    if info.tokenizer.fingerprint != tokenizer.fingerprint:
        raise DataError(
            f"{folder}: was made with another tokenizer, {info.tokenizer.name} ({info.tokenizer.fingerprint[:12]}), "
            f"than this run's, {tokenizer.name} ({tokenizer.fingerprint[:12]}; files and EOS/pad choice count). Use "
            "that tokenizer, or prepare the data again"
        )
    warn_of_rendering(folder, info)
    if data is not None:
        _check_settings(folder, info, data)
    return info


def warn_of_rendering(folder: Path, info: DatasetInfo) -> None:
    """Warn of prompts of an earlier release, which stay as they are."""
    if info.tokenizer.rendering < RENDERING:
        logger.warning(
            "%s: its prompts were made by an earlier release, whose templates knew fewer special tokens; runs that "
            "began with them go on so. For a new run prepare the data again with --force",
            folder,
        )


def _check_settings(folder: Path, info: DatasetInfo, data: DataSection) -> None:
    if info.lengths.max > data.max_prompt_length:
        raise DataError(
            f"{folder}: its longest prompt has {info.lengths.max} tokens, data.max_prompt_length is "
            f"{data.max_prompt_length}: raise it to {info.lengths.max}, or prepare the data again"
        )
    for key, wanted, made in (
        ("system_prompt", data.system_prompt, info.prompt.system_prompt),
        ("instruction_prefix", data.instruction_prefix or None, info.prompt.instruction_prefix or None),
        ("instruction_suffix", data.instruction_suffix or None, info.prompt.instruction_suffix or None),
    ):
        ignored = key != "system_prompt" and info.source.format in FORMATS_WITH_INSTRUCTION
        if wanted is not None and wanted != made and not ignored:
            raise DataError(
                f"{folder}: was made with data.{key} {made!r}, the configuration says {wanted!r}: remove the "
                "setting, or prepare the data again"
            )


def inspect_dataset(folder: Path, num_rows: int = 3) -> str:
    """Facts of dataset.json and the first `num_rows` rows.

    Raises DataError if the folder is not whole; every file's sha256 is compared.
    """
    info = read_info(folder)
    verify_files(folder, info, hashes=True)
    prompt = info.prompt
    lines = [
        f"{folder} (schema version {info.schema_version})",
        printable(info.account()),
        f"settings   system_prompt {prompt.system_prompt!r}, instruction_prefix {prompt.instruction_prefix!r}, "
        f"instruction_suffix {prompt.instruction_suffix!r}, truncation {prompt.truncation}, seed {info.seed}",
        f"files      {', '.join(facts.name for facts in info.files)}: sizes and sha256 as in {FILE_NAME}",
    ]
    for row in itertools.islice(read_prompt_records(folder, info.counts.rows_out), num_rows):
        lines += ["", *row_lines(row)]
    return "\n".join(lines)


def row_lines(row: Prompt) -> list[str]:
    """One row as lines of text."""
    return [
        f"--- row {row.index}: {row.ids.size} tokens, data_source {printable(row.data_source)}",
        printable(row.text),
        f"--- answer: {printable(row.answer)}",
        f"--- solution: {printable(row.solution) or '(none)'}",
        f"--- extra_info: {printable(json.dumps(dict(row.extra_info), ensure_ascii=False))}",
    ]
