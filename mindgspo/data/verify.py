"""Checks that a prepared folder is whole before anything is read from it, and that it can be read as written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path

from mindgspo.data.dataset_info import DatasetInfo
from mindgspo.data.mindrecord import read_records
from mindgspo.data.source_files import sha256_of
from mindgspo.errors import DataError
from mindgspo.types import Prompt


def verify_files(folder: Path, info: DatasetInfo, *, hashes: bool = False) -> None:
    """Raise DataError unless every file that dataset.json names is there with its size.

    hashes: also compare each file's sha256.
    """
    for facts in info.files:
        path = folder / facts.name
        if not path.is_file():
            raise DataError(
                f"{path}: missing, though dataset.json names it; copy it again or prepare again with --force"
            )
        size = path.stat().st_size
        if size != facts.size:
            raise DataError(
                f"{path}: {size} bytes, dataset.json says {facts.size}; copy it again or prepare again with --force"
            )
        if hashes and sha256_of(path) != facts.sha256:
            raise DataError(f"{path}: sha256 differs from dataset.json's; copy it again or prepare again with --force")


def verify_records(folder: Path, written: Iterable[Prompt]) -> None:
    """Raise DataError unless the MindRecord file of `folder` gives back exactly the prompts `written`."""
    for number, (prompt, read) in enumerate(zip_longest(written, read_records(folder))):
        if prompt is None or read is None:
            which = "fewer" if read is None else "more"
            raise DataError(f"{folder}: {which} rows are read back than the {number} that were written; try again")
        for field in ("index", "text", "answer", "data_source", "solution"):
            if getattr(prompt, field) != getattr(read, field):
                raise DataError(_not_as_written(number, field, getattr(prompt, field), getattr(read, field)))
        if prompt.ids.tolist() != read.ids.tolist():
            raise DataError(_not_as_written(number, "ids", prompt.ids.size, read.ids.size))
        if json.dumps(dict(prompt.extra_info)) != json.dumps(dict(read.extra_info)):
            raise DataError(_not_as_written(number, "extra_info", prompt.extra_info, read.extra_info))


def _not_as_written(number: int, field: str, written: object, read: object) -> str:
    return (
        f"row {number} of the data set is not read back as it was written: {field} was {_end(written)}, is "
        f"{_end(read)}. A MindRecord file cannot hold a text that ends in NUL characters; else the disk is at fault"
    )


def _end(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"...{shown[-57:]}"
