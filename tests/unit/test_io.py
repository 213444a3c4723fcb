"""Files: what is written in the background while more is written, and what is read from outside."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mindgspo.io import (
    atomic_file,
    parse_json,
    read_bytes,
    read_lines,
    scratch_folder,
    temporary_path,
    unique_keys,
    write_file,
)


def test_what_is_written_goes_to_the_disk_before_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, seen = [], []
    advise = os.posix_fadvise
    monkeypatch.setattr(os, "posix_fadvise", lambda *call: (begun.append(call[1:3]), advise(*call)))
    with atomic_file(tmp_path / "f", on_write=lambda part: seen.append(len(part))) as file:
        for _ in range(5):
            file.write(bytes(3 << 20))
        file.seek(0)
        file.write(b"1")
    assert begun == [(0, 9 << 20)] and seen == [3 << 20] * 5 + [1]
    assert (tmp_path / "f").read_bytes() == b"1" + bytes((15 << 20) - 1)


def test_a_link_in_the_place_of_a_new_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("other")
    temporary_path(tmp_path / "f").symlink_to(tmp_path / "other")
    write_file(tmp_path / "f", b"new", mode=0o600)
    assert ((tmp_path / "other").read_text(), (tmp_path / "f").read_text()) == ("other", "new")
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600 and not (tmp_path / "f").is_symlink()


@pytest.mark.parametrize(("content", "said"), [
    (b"[" * 100_000, "nested more than 100 deep"),
    (b'{"a":' * 900 + b"1" + b"}" * 900, "nested more than 100 deep"),
    (b"9" * 10_000, "holds an integer of more than 4,300 digits; write it as text"),
    (b"\xff{}", "not UTF-8 text .* at byte 0.; convert the file"),
    ('{"a": 1}'.encode("utf-16"), "not UTF-8 text .*; convert the file, e.g. by `iconv -f UTF-16 -t UTF-8`"),
    ('{"a": 1}'.encode("utf-16-le"), "not UTF-8 text but UTF-16LE; convert the file, e.g. by `iconv -f UTF-16LE -t"),
    ('{"a": 1}'.encode("utf-16-be"), "not UTF-8 text but UTF-16BE; "),
    ('{"a": "\u4e2d"}'.encode("gbk"), "`iconv -f GBK -t UTF-8`"),
    (b"\xef\xbb\xbf{}", "begins with a byte order mark; save it as UTF-8 without one"),
    (b"{", r"not JSON \(column 2: "), (b"{\n,", r"not JSON \(line 2, column 1: "), (b"", r"not JSON \(column 1: "),
], ids=["deep", "less", "digits", "UTF-8", "UTF-16", "LE", "BE", "GBK", "BOM", "cut", "2nd line", "empty"])  # fmt: skip
def test_json_from_outside_says_what_is_wrong_with_it(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_json(content)


@pytest.mark.parametrize(("content", "said"), [
    (b'{"a": 1, "a": 1}', None),
    (b'{"a": {"b": [1, 1.5]}, "c": 2, "a": {"b": [1, 1.5]}}', None),
    (b'{"a": 1, "b": 2, "a": 3}', "'a' is given twice, as 1 and as 3"),
    (b'{"x": [{"a": 1, "a": null}]}', "'a' is given twice"),
    (b'{"a": 1, "a": true}', "as 1 and as True"),
    (b'{"a": 1, "a": 1.0}', "'a' is given twice"),
])  # fmt: skip
def test_equal_keys_must_agree(content: bytes, said: str | None) -> None:
    if said is None:
        assert parse_json(content, object_pairs_hook=unique_keys) == json.loads(content)
        return
    with pytest.raises(ValueError, match=said):
        parse_json(content, object_pairs_hook=unique_keys)


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


# ----- folders that last as long as their process, and rights
KILLED = """
import os, signal, sys
from mindgspo.io import scratch_folder
with scratch_folder("test") as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_scratch_folders_of_killed_processes_are_removed_and_those_of_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
    with process:
        left = Path(process.stdout.readline().strip())
        assert left.name.startswith(f"mindgspo-test-{os.getuid()}-")
        with scratch_folder("test") as own:
            assert sorted(tmp_path.iterdir()) == sorted([left, own]), "its owner lives"
        process.stdin.close()
    assert process.returncode == -signal.SIGKILL and left.is_dir()
    with scratch_folder("other"):
        assert left.is_dir()
    with pytest.raises(FileNotFoundError), scratch_folder("test") as own:
        assert list(tmp_path.iterdir()) == [own]
        raise FileNotFoundError("of the block")
    assert list(tmp_path.iterdir()) == []


LOGS_TO_FILES = """
import os, sys
from pathlib import Path
from mindgspo.parallel.platform.runtime import set_up_runtime
import mindspore
set_up_runtime("CPU")
Path(sys.argv[1]).mkdir()
"""


def test_mindspores_import_does_not_change_the_rights_of_what_is_written(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOG_logtostderr": "0",
                   "GLOG_log_dir": str(tmp_path / "glog")}  # fmt: skip
    made = tmp_path / "made"
    subprocess.run([sys.executable, "-c", LOGS_TO_FILES, made], env=environment, check=True, umask=0o022)
    assert (tmp_path / "glog").is_dir(), "MindSpore has made its folder, under another umask"
    assert stat.S_IMODE(made.stat().st_mode) == 0o755
