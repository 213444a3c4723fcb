"""Checks that a prepared folder is whole before anything is read from it."""

from __future__ import annotations

from pathlib import Path

from mindgspo.data.dataset_info import DatasetInfo
from mindgspo.data.source_files import sha256_of
from mindgspo.errors import DataError


def verify_files(folder: Path, info: DatasetInfo, *, hashes: bool = False) -> None:
    """Raise DataError unless every file that dataset.json names is there with its size.

    hashes: also compare each file's sha256.
    """
    for facts in info.files:
        path = folder / facts.name
        if not path.is_file():
            raise DataError(f"{path}: missing, though dataset.json names it; copy it again or prepare again")
        size = path.stat().st_size
        if size != facts.size:
            raise DataError(f"{path}: {size} bytes, dataset.json says {facts.size}; copy it again or prepare again")
        if hashes and sha256_of(path) != facts.sha256:
            raise DataError(f"{path}: sha256 differs from dataset.json's; copy it again or prepare again")
