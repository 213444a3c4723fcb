"""Atomic files: what is written in the background while more is written."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from mindgspo.io import flush_while_writing


def test_an_error_of_the_disk_is_told_at_the_end(tmp_path: Path):
    """A pipe cannot be flushed, so every flush fails, as on a disk that is broken."""
    reader, writer = os.pipe()
    try:
        with pytest.raises(OSError) as raised, flush_while_writing(writer):
            time.sleep(0.2)
        assert raised.value.errno == errno.EINVAL
    finally:
        os.close(reader)
        os.close(writer)


def test_an_error_of_the_block_comes_first(tmp_path: Path):
    with (
        (tmp_path / "f").open("wb") as file,
        pytest.raises(ValueError, match="mine"),
        flush_while_writing(file.fileno()),
    ):
        raise ValueError("mine")
