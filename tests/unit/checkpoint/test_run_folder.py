"""Run folders: what is refused, what goes on, what is moved aside, and who holds the lock."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mindgspo.checkpoint import RunFolder, RunStatus, open_run_folder
from mindgspo.errors import RunFolderError


def start_run(root: Path) -> RunFolder:
    """A run that has written its configuration and one step."""
    folder = open_run_folder(root, resume="never", overwrite=False)
    folder.config.write_text("experiment: test\n")
    folder.metrics.write_text('{"step": 1}\n')
    return folder


def finish(folder: RunFolder) -> None:
    folder.summary.write_text(json.dumps({"finished": True, "steps": 1}))


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    folder = open_run_folder(tmp_path / "runs" / "a b", resume="never", overwrite=False)
    assert folder.root.is_dir() and folder.status is RunStatus.NEW and folder.moved_aside is None
    assert folder.checkpoints == tmp_path / "runs" / "a b" / "checkpoints"


def test_a_relative_path_stays_true_when_the_current_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_run_folder(Path("run"), resume="never", overwrite=False).root == tmp_path / "run"


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "samples.jsonl", "summary.json"])
def test_a_run_is_refused_with_three_ways_out(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(RunFolderError) as caught:
        open_run_folder(tmp_path, resume="never", overwrite=False)
    message = str(caught.value)
    assert str(tmp_path) in message and name in message
    for way_out in ("--set resume=auto", "--set run_dir=", "--overwrite"):
        assert way_out in message
    assert (tmp_path / name).read_text() == "{}"


def test_auto_goes_on_with_the_same_identity(tmp_path: Path) -> None:
    first = start_run(tmp_path / "run")
    first.close()
    second = open_run_folder(tmp_path / "run", resume="auto", overwrite=False)
    assert second.status is RunStatus.RESUMED and second.run_id == first.run_id
    assert second.metrics.read_text() == '{"step": 1}\n'


def test_auto_in_an_empty_place_is_new(tmp_path: Path) -> None:
    assert open_run_folder(tmp_path / "run", resume="auto", overwrite=False).status is RunStatus.NEW


def test_a_finished_run_says_so(tmp_path: Path) -> None:
    first = start_run(tmp_path)
    finish(first)
    first.close()
    second = open_run_folder(tmp_path, resume="auto", overwrite=False)
    assert second.status is RunStatus.FINISHED
    second.close()
    with pytest.raises(RunFolderError, match="a finished run"):
        open_run_folder(tmp_path, resume="never", overwrite=False)


def test_a_summary_of_an_unfinished_run_does_not(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"finished": false}')
    assert open_run_folder(tmp_path, resume="auto", overwrite=False).status is RunStatus.RESUMED


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_summary_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"summary\.json: damaged"):
        open_run_folder(tmp_path, resume="auto", overwrite=False)


def test_overwrite_moves_the_old_run_aside(tmp_path: Path) -> None:
    root = tmp_path / "run"
    first = start_run(root)
    first.close()
    second = open_run_folder(root, resume="never", overwrite=True)
    assert second.status is RunStatus.NEW and second.run_id != first.run_id
    assert not second.metrics.exists()
    assert second.moved_aside is not None
    assert re.fullmatch(r"run\.old-\d{8}-\d{6}", second.moved_aside.name)
    assert (second.moved_aside / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_overwriting_twice_in_one_second_keeps_both(tmp_path: Path) -> None:
    root = tmp_path / "run"
    start_run(root).close()
    for _ in range(3):
        folder = open_run_folder(root, resume="never", overwrite=True)
        folder.metrics.write_text("another\n")
        folder.close()
    assert len(list(tmp_path.glob("run.old-*"))) == 3


def test_overwrite_of_nothing_is_a_new_run(tmp_path: Path) -> None:
    folder = open_run_folder(tmp_path / "run", resume="never", overwrite=True)
    assert folder.status is RunStatus.NEW and folder.moved_aside is None


def test_overwrite_and_auto_contradict(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="ask for one of them"):
        open_run_folder(tmp_path / "run", resume="auto", overwrite=True)
    assert not (tmp_path / "run").exists()


def test_the_current_folder_is_not_moved_away_from_under_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_run(tmp_path).close()
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    with pytest.raises(RunFolderError, match="the current folder lies inside it"):
        open_run_folder(tmp_path, resume="never", overwrite=True)
    assert (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_files_are_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunFolderError, match=r"holds files that no run made \(thesis\.txt\)"):
        open_run_folder(tmp_path, resume="never", overwrite=overwrite)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_prepared_data_alone_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    assert open_run_folder(tmp_path, resume="never", overwrite=False).status is RunStatus.NEW


def test_a_run_that_stopped_before_its_first_file_does_not_block_the_next(tmp_path: Path) -> None:
    open_run_folder(tmp_path, resume="never", overwrite=False).close()
    for leftover in (".run.json.tmp-1", ".config.yaml.x8fk2", ".data.tmp-9b2f"):
        (tmp_path / leftover).write_text("{")
    assert open_run_folder(tmp_path, resume="never", overwrite=False).status is RunStatus.NEW


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        open_run_folder(tmp_path / "run", resume="never", overwrite=False)
    with pytest.raises(RunFolderError, match="cannot be used"):
        open_run_folder(tmp_path / "run" / "below", resume="never", overwrite=False)


# ---- the lock


HOLDER = """
import sys
from pathlib import Path
from mindgspo.checkpoint import open_run_folder

folder = open_run_folder(Path(sys.argv[1]), resume="auto", overwrite=False)
folder.metrics.write_text("{}")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_live_process_keeps_others_out_and_a_killed_one_does_not(tmp_path: Path, overwrite: bool) -> None:
    root = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=f"another process is writing.*process {holder.pid} on "):
            open_run_folder(root, resume="never" if overwrite else "auto", overwrite=overwrite)
        holder.kill()
    assert (root / "metrics.jsonl").exists()
    assert open_run_folder(root, resume="auto", overwrite=False).status is RunStatus.RESUMED


def test_a_second_open_in_one_process_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    first = start_run(tmp_path)
    with pytest.raises(RunFolderError, match=f"process {os.getpid()} on"):
        open_run_folder(tmp_path, resume="auto", overwrite=False)
    first.close()
    assert open_run_folder(tmp_path, resume="auto", overwrite=False).status is RunStatus.RESUMED


def test_after_overwrite_the_new_folder_is_locked(tmp_path: Path) -> None:
    root = tmp_path / "run"
    start_run(root).close()
    replaced = open_run_folder(root, resume="never", overwrite=True)
    with pytest.raises(RunFolderError, match="another process is writing"):
        open_run_folder(root, resume="auto", overwrite=False)
    replaced.close()
