"""The folder of `--out`: whole or not there, and nothing of a user's is overwritten."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from mindgspo.errors import ConfigError
from mindgspo.evaluation.output import EvalFolder


def test_it_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder"
    with EvalFolder(target) as folder:
        folder.write([{"index": 0}, {"index": 1}])
        assert not target.exists()
        folder.finish({"accuracy": 0.5})
    assert sorted(path.name for path in target.iterdir()) == ["eval.json", "generations.jsonl"]
    assert json.loads((target / "eval.json").read_text()) == {"accuracy": 0.5}
    assert (target / "generations.jsonl").read_text() == '{"index": 0}\n{"index": 1}\n'
    assert [path.name for path in target.parent.iterdir()] == ["folder"]


def test_a_failure_or_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), EvalFolder(tmp_path / "out") as folder:
        folder.write([{"index": 0}])
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    # A limit on the size of files stands for the disk's end.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    records = [{"text": "x" * 1000}] * 100
    with pytest.raises(ConfigError, match=r"--out .*out: cannot be written"), EvalFolder(tmp_path / "out") as folder:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
        try:
            folder.write(records)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_there_stays(what: str, tmp_path: Path) -> None:
    target = tmp_path / "out"
    if what == "folder":
        target.mkdir()
    kept = target / "mine.txt" if what == "folder" else target
    kept.write_text("mine")
    with pytest.raises(ConfigError, match="is not overwritten"), EvalFolder(target):
        raise AssertionError("it was entered")
    assert kept.read_text() == "mine" and list(tmp_path.iterdir()) == [target]


def test_an_empty_folder_may_be_filled_and_no_folder_stands_in_a_file(tmp_path: Path) -> None:
    with EvalFolder(tmp_path / "out") as folder:
        (tmp_path / "out").mkdir()
        folder.finish({})
    assert (tmp_path / "out" / "eval.json").is_file()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written"), EvalFolder(tmp_path / "file" / "out"):
        raise AssertionError("it was entered")


def test_whoever_comes_first_keeps_the_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not overwritten"), EvalFolder(tmp_path / "out") as folder:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").touch()
        folder.finish({})
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["theirs"]
