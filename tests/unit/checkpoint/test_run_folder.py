"""The run folder: begun, resumed, replaced, rolled back."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from planned_checkpoints import save_small

from mindgspo.checkpoint.origin import roll_back
from mindgspo.checkpoint.run_folder import RunFolder, RunStatus, open_run_folder, seen_run_id
from mindgspo.checkpoint.store import newest_checkpoint
from mindgspo.errors import CheckpointError, RunFolderError
from mindgspo.io import write_json


def start_run(root: Path) -> RunFolder:
    """A run that has written its configuration and one step."""
    folder = opened(root, close=False)
    folder.config.write_text("experiment: test\n")
    folder.metrics.write_text('{"step": 1}\n')
    return folder


def opened(root: Path, resume: str | Path = "never", *, overwrite=False, close=True, **options) -> RunFolder:
    folder = open_run_folder(root, resume=resume, overwrite=overwrite, **options)
    if close:
        folder.close()
    return folder


def test_a_new_folder_is_made_with_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = opened(tmp_path / "runs" / "a b")
    assert folder.root.is_dir() and folder.status is RunStatus.NEW
    assert folder.checkpoints == tmp_path / "runs" / "a b" / "checkpoints"
    monkeypatch.chdir(tmp_path)
    assert opened(Path("run")).root == tmp_path / "run", "whatever the current folder becomes"


def test_what_no_run_has_filled_is_new(tmp_path: Path):
    assert opened(tmp_path / "auto", "auto").status is RunStatus.NEW
    folder = opened(tmp_path / "overwrite", overwrite=True)
    assert folder.status is RunStatus.NEW and folder.moved_aside is None
    (tmp_path / "run" / "data").mkdir(parents=True)  # prepared data
    opened(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").write_text("seed: 1\n")  # stopped before its first metrics
    for leftover in (".run.json.tmp-1", ".config.yaml.x8fk2", ".data.tmp-9b2f"):
        (tmp_path / "run" / leftover).write_text("{")
    assert opened(tmp_path / "run").status is RunStatus.NEW, "stopped before its first file"


def test_a_configuration_that_no_run_wrote_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine")
    with pytest.raises(RunFolderError, match=r"files that no run made \(config.yaml\)"):
        opened(tmp_path)


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.jsonl", "summary.json"])
def test_a_run_is_refused_with_three_ways_out(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(RunFolderError) as caught:
        opened(tmp_path)
    message = str(caught.value)
    assert str(tmp_path) in message and name in message
    for way_out in ("--set resume=auto", "--set run_dir=", "--overwrite"):
        assert way_out in message
    assert (tmp_path / name).read_text() == "{}"


def test_a_summary_says_whether_a_run_has_finished(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    summary.write_text('{"finished": true, "steps": 1}')
    assert opened(tmp_path, "auto").status is RunStatus.FINISHED
    with pytest.raises(RunFolderError, match="a finished run"):
        opened(tmp_path)
    summary.write_text('{"finished": false}')
    assert opened(tmp_path, "auto").status is RunStatus.RESUMED
    for damaged in ("{", "[]"):
        summary.write_text(damaged)
        with pytest.raises(RunFolderError, match=r"summary\.json: damaged"):
            opened(tmp_path, "auto")


def test_overwrite_moves_the_old_run_aside(tmp_path: Path) -> None:
    root = tmp_path / "run"
    first = start_run(root)
    first.close()
    second = opened(root, overwrite=True)
    assert second.status is RunStatus.NEW and second.run_id != first.run_id and not second.metrics.exists()
    assert second.moved_aside is not None and re.fullmatch(r"run\.old-\d{8}-\d{6}", second.moved_aside.name)
    assert (second.moved_aside / "metrics.jsonl").read_text() == '{"step": 1}\n'
    for _ in range(2):  # within one second
        second.metrics.write_text("another\n")
        opened(root, overwrite=True)
    assert len(list(tmp_path.glob("run.old-*"))) == 3


def test_overwrite_and_auto_contradict(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="ask for one of them"):
        opened(tmp_path / "run", "auto", overwrite=True)
    assert not (tmp_path / "run").exists()


def test_the_current_folder_is_not_moved_away_from_under_its_user(tmp_path, monkeypatch):
    start_run(tmp_path).close()
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path / "deeper")
    with pytest.raises(RunFolderError, match="the current folder lies inside it"):
        opened(tmp_path, overwrite=True)
    assert (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_files_are_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RunFolderError, match=r"holds files that no run made \(thesis\.txt\)"):
        opened(tmp_path, overwrite=overwrite)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderError, match="is a file"):
        opened(tmp_path / "run")
    with pytest.raises(RunFolderError, match="cannot be written: .*; choose another place with `--set run_dir"):
        opened(tmp_path / "run" / "below")


# ---- the lock
HOLDER = """
import sys
from pathlib import Path
from mindgspo.checkpoint.run_folder import open_run_folder

folder = open_run_folder(Path(sys.argv[1]), resume="auto", overwrite=False)
folder.metrics.write_text("{}")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_live_process_keeps_others_out_and_a_killed_one_does_not(tmp_path: Path, overwrite: bool) -> None:
    root = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True, env=environment)  # fmt: skip
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(RunFolderError, match=f"another process is writing.*process {holder.pid} on "):
            open_run_folder(root, resume="never" if overwrite else "auto", overwrite=overwrite)
        holder.kill()
    assert (root / "metrics.jsonl").exists()
    assert opened(root, "auto").status is RunStatus.RESUMED


def test_a_second_open_in_one_process_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    root = tmp_path / "run"
    first = start_run(root)
    with pytest.raises(RunFolderError, match=f"process {os.getpid()} on"):
        opened(root, "auto")
    first.close()
    second = opened(root, "auto")
    assert second.status is RunStatus.RESUMED and second.run_id == first.run_id
    assert second.metrics.read_text() == '{"step": 1}\n'
    replaced = opened(root, overwrite=True, close=False)
    with pytest.raises(RunFolderError, match="another process is writing"):
        opened(root, "auto")
    replaced.close()


# ----- resume: PATH. Which checkpoint is meant, whose it is, and what becomes of a run that goes back
def make_run(root: Path, steps: tuple[int, ...] = (2, 4, 6), *, finished: bool = False) -> Path:
    """A run with a line of metrics per step."""
    folder = opened(root, close=False)
    folder.config.write_text("experiment: test\n")
    lines = "".join(json.dumps({"step": step}) + "\n" for step in range(max(steps) + 1))
    folder.metrics.write_text(lines + '{"step": 7, "hal')
    for step in steps:
        save_small(folder.checkpoints, step, keep=9)
    if finished:
        folder.summary.write_text('{"finished": true}')
        folder.export.mkdir()
    folder.close()
    return root


@pytest.mark.parametrize("named", ["", "checkpoints", "checkpoints/step_00000004"])
def test_a_new_run_begins_with_another_runs_checkpoint(tmp_path: Path, named: str) -> None:
    other = make_run(tmp_path / "other")
    folder = opened(tmp_path / "run", other / named)
    assert folder.status is RunStatus.NEW and folder.origin is not None and not folder.origin.is_same_run
    step = "step_00000004" if "step" in named else "step_00000006"
    assert folder.origin.checkpoint() == other / "checkpoints" / step
    assert folder.origin.config == other / "config.yaml"


def test_a_damaged_newest_one_of_another_run_is_passed_over_and_a_named_one_refused(tmp_path: Path) -> None:
    other = make_run(tmp_path / "other")
    (other / "checkpoints" / "step_00000006" / "state.json").write_text("{}")
    half = other / "checkpoints" / ".step_00000008.tmp-999999999"
    half.mkdir()
    origin = opened(tmp_path / "run", other).origin
    assert origin is not None and origin.checkpoint().name == "step_00000004"
    assert half.is_dir(), "nothing is written there"
    named = opened(tmp_path / "second", other / "checkpoints" / "step_00000006").origin
    with pytest.raises(CheckpointError, match=r"step_00000006.*state\.json"):
        named.checkpoint()


def test_a_run_that_has_begun_elsewhere_remembers_where(tmp_path: Path) -> None:
    """Killed before its first checkpoint, it must not begin from nothing."""
    other = make_run(tmp_path / "other")
    first = opened(tmp_path / "run", other, restore="weights")
    first.config.write_text("experiment: test\n")
    second = opened(tmp_path / "run", "auto")
    assert second.status is RunStatus.NEW and second.origin == first.origin
    assert second.origin is not None and second.origin.restore == "weights"


def test_the_own_newest_is_what_auto_takes_and_an_own_step_is_gone_back_to_even_if_finished(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", finished=True)
    (tmp_path / "link").symlink_to(root)
    folder = opened(root, root / "checkpoints" / "step_00000004")
    assert folder.status is RunStatus.RESUMED and folder.origin is not None and folder.origin.is_same_run
    assert newest_checkpoint(folder.checkpoints) == folder.checkpoints / "step_00000006", "nothing has happened yet"
    (root / "summary.json").unlink()
    for path in (root, root / "checkpoints", tmp_path / "link"):
        folder = opened(root, path)
        assert folder.status is RunStatus.RESUMED and folder.origin is None


def test_going_back_sets_everything_later_aside(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", finished=True)
    aside = roll_back(root, 2)
    assert newest_checkpoint(root / "checkpoints") == root / "checkpoints" / "step_00000002"
    moved = {"step_00000004", "step_00000006", "summary.json", "export", "metrics.jsonl"}
    assert {path.name for path in aside.iterdir()} == moved
    assert [json.loads(line)["step"] for line in (root / "metrics.jsonl").read_text().splitlines()] == [0, 1, 2]
    assert [json.loads(line)["step"] for line in (aside / "metrics.jsonl").read_text().splitlines()] == [3, 4, 5, 6]
    assert opened(root, "auto").status is RunStatus.RESUMED, "it is not finished any more"
    assert roll_back(root, 2) != aside and newest_checkpoint(aside) == aside / "step_00000006", "nothing is lost"


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_from_the_moment_it_is_decided_the_later_steps_do_not_count(tmp_path: Path, moved: int) -> None:
    """Killed before, between or behind the moves."""
    root = make_run(tmp_path / "run", finished=True)
    checkpoints = root / "checkpoints"
    write_json(checkpoints / "going_back.json", {"to": 2, "aside": "abandoned-1"})
    (checkpoints / "abandoned-1").mkdir()
    for step in (4, 6)[:moved]:
        (checkpoints / f"step_{step:08d}").rename(checkpoints / "abandoned-1" / f"step_{step:08d}")
    assert newest_checkpoint(checkpoints) == checkpoints / "step_00000002"
    folder = opened(root, "auto")
    assert folder.status is RunStatus.RESUMED and not folder.summary.exists()
    assert not (checkpoints / "going_back.json").exists() and newest_checkpoint(checkpoints).name == "step_00000002"
    assert {path.name for path in checkpoints.iterdir()} == {"step_00000002", "abandoned-1"}


def test_a_marker_that_points_outside_is_refused(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run")
    write_json(root / "checkpoints" / "going_back.json", {"to": 2, "aside": "../elsewhere"})
    with pytest.raises(RunFolderError, match=r"going_back\.json: damaged"):
        opened(root, "auto")


def test_what_cannot_be_meant_is_refused_with_what_can(tmp_path: Path) -> None:
    run, other = make_run(tmp_path / "run"), make_run(tmp_path / "other")
    (tmp_path / "empty").mkdir()
    step = run / "checkpoints" / "step_00000002"
    cases = [(tmp_path / "new", Path("outo"), {}, "neither never nor auto, and there is no such folder"),
             (tmp_path / "new", tmp_path / "empty", {}, "holds no checkpoint (there is nothing)"),
             (run, other, {}, "already holds a begun run"), (run, step, {"overwrite": True}, "--overwrite would move"),
             (run, step, {"restore": "weights"}, "restore=weights starts another run")]  # fmt: skip
    for root, resume, options, said in cases:
        with pytest.raises(RunFolderError) as caught:
            opened(root, resume, **options)
        assert said in str(caught.value)
        assert not (root / "summary.json").exists()
    assert opened(run, other, overwrite=True).origin is not None, "the former run is moved aside"


def test_a_step_outside_of_any_run_can_be_begun_with(tmp_path: Path) -> None:
    step = make_run(tmp_path / "other") / "checkpoints" / "step_00000004"
    copy = tmp_path / "far" / "away" / "step_00000004"
    shutil.copytree(step, copy)
    origin = opened(tmp_path / "run", copy).origin
    assert origin is not None and origin.config is None and origin.checkpoint() == copy


def test_a_machine_that_does_not_see_the_run_says_what_it_sees(tmp_path: Path) -> None:
    assert seen_run_id(tmp_path, "abc", wait_s=0).startswith(f"no run at {tmp_path} on ")
    (tmp_path / "run.json").write_text('{"run_id": "older"}')
    assert seen_run_id(tmp_path, "abc", wait_s=0) == "older"
    (tmp_path / "run.json").write_text("[]")
    assert seen_run_id(tmp_path, "abc", wait_s=0).startswith("no run at ")
    folder = opened(tmp_path / "run")
    assert seen_run_id(folder.root, folder.run_id, wait_s=0) == folder.run_id
