"""Flushing while a file is written, and slices that are read into an array that is there already."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import numpy as np
import pytest

from mindgspo.io import flush_while_writing
from mindgspo.tensor_files import TensorInfo, open_tensor_file, write_tensors


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


@pytest.mark.parametrize(
    "index",
    [(slice(2, 5),), (slice(0, 6), slice(1, 3)), (slice(1, 2), slice(0, 4), slice(2, 3)), ()],
    ids=str,
)
@pytest.mark.parametrize("columns", [5, 3000])
def test_a_slice_goes_into_the_array_that_is_given(tmp_path: Path, index: tuple[slice, ...], columns: int):
    whole = np.arange(6 * 4 * columns, dtype=np.float32).reshape(6, 4, columns)
    write_tensors(tmp_path / "w.ckpt", {"w": TensorInfo(dtype="F32", shape=whole.shape)}, [("w", whole)])
    out = np.zeros_like(whole[index])
    with open_tensor_file(tmp_path / "w.ckpt") as file:
        assert file.read_slice("w", index, out) is out
        np.testing.assert_array_equal(out, whole[index])
        with pytest.raises(AssertionError):
            file.read_slice("w", index, out[..., :-1])
