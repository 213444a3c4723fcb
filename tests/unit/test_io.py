"""Files: what is written in the background while more is written, and what is read from outside."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest

from mindgspo.io import flush_while_writing, parse_json, read_bytes, read_lines


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


@pytest.mark.parametrize(("content", "said"), [
    (b"[" * 100_000, "nested more than 100 deep"),
    (b'{"a":' * 900 + b"1" + b"}" * 900, "nested more than 100 deep"),
    (b"9" * 10_000, "holds an integer of more than 4,300 digits; write it as text"),
    (b"\xff{}", "not UTF-8 text .* at byte 0.; convert the file"),
    (b"{", r"not JSON \(column 2: "), (b"{\n,", r"not JSON \(line 2, column 1: "), (b"", r"not JSON \(column 1: "),
], ids=["deep", "less deep", "digits", "UTF-8", "cut", "second line", "empty"])  # fmt: skip
def test_json_from_outside_says_what_is_wrong_with_it(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_json(content)


def test_json_within_the_bounds_is_what_it_says() -> None:
    deep = b"[" * 100 + b"]" * 100
    assert json.dumps(parse_json(deep)).encode() == deep
    wide = b"[" + b"{}, " * 1_000 + b"{}]"
    assert parse_json(wide) == [{}] * 1_001


def test_a_file_from_outside_is_regular_and_not_endless(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", most=5) == b"12345"
    for name, most, said in (("pipe", 5, "is no regular file"), ("file", 4, "has 5 bytes, and at most 4 are read")):
        with pytest.raises(OSError, match=said):
            read_bytes(tmp_path / name, most=most)
    assert list(read_lines(tmp_path / "file", RuntimeError, most=5)) == [(1, b"12345")]
    (tmp_path / "file").write_bytes(b"1234\n12345\n")
    with pytest.raises(RuntimeError, match="file, line 2: more than 5 bytes"):
        list(read_lines(tmp_path / "file", RuntimeError, most=5))
