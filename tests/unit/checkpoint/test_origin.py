"""resume: PATH. Which checkpoint is meant, whose it is, and what becomes of a run that goes back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from mindgspo.checkpoint import (
    Keep,
    RunFolder,
    RunStatus,
    newest_checkpoint,
    open_run_folder,
    roll_back,
    save_checkpoint,
)
from mindgspo.errors import CheckpointError, RunFolderError
from mindgspo.io import write_json


def make_run(root: Path, steps: tuple[int, ...] = (2, 4, 6), *, finished: bool = False) -> Path:
    """A run with a line of metrics per step."""
    folder = open_run_folder(root, resume="never", overwrite=False)
    folder.config.write_text("experiment: test\n")
    lines = "".join(json.dumps({"step": step}) + "\n" for step in range(max(steps) + 1))
    folder.metrics.write_text(lines + '{"step": 7, "hal')
    for step in steps:
        arrays = {"w": np.full(2, step, np.float32)}
        save_checkpoint(
            folder.checkpoints, step=step, parameters=arrays, optimizer={}, state={"step": step}, keep=Keep(last=9)
        )
    if finished:
        folder.summary.write_text('{"finished": true}')
        folder.export.mkdir()
    folder.close()
    return root


def opened(root: Path, resume: str | Path, **options) -> RunFolder:
    folder = open_run_folder(root, resume=resume, overwrite=options.pop("overwrite", False), **options)
    folder.close()
    return folder


@pytest.mark.parametrize("named", ["", "checkpoints", "checkpoints/step_00000004"])
def test_a_new_run_begins_with_another_runs_checkpoint(tmp_path: Path, named: str) -> None:
    other = make_run(tmp_path / "other")
    folder = opened(tmp_path / "run", other / named)
    assert folder.status is RunStatus.NEW and folder.origin is not None and not folder.origin.is_same_run
    step = "step_00000004" if "step" in named else "step_00000006"
    assert folder.origin.checkpoint() == other / "checkpoints" / step
    assert folder.origin.config == other / "config.yaml"


def test_a_damaged_newest_one_of_another_run_is_passed_over_and_nothing_is_written_there(tmp_path: Path) -> None:
    other = make_run(tmp_path / "other")
    (other / "checkpoints" / "step_00000006" / "state.json").write_text("{}")
    half = other / "checkpoints" / ".step_00000008.tmp-999999999"
    half.mkdir()
    origin = opened(tmp_path / "run", other).origin
    assert origin is not None and origin.checkpoint().name == "step_00000004" and half.is_dir()


def test_a_damaged_one_that_was_named_is_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path / "other") / "checkpoints" / "step_00000004"
    with (path / "parameters.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    origin = opened(tmp_path / "run", path).origin
    assert origin is not None
    with pytest.raises(CheckpointError, match=r"parameters\.safetensors: its content changed"):
        origin.checkpoint()


def test_a_run_that_has_begun_elsewhere_remembers_where(tmp_path: Path) -> None:
    """Killed before its first checkpoint, it must not begin from nothing."""
    other = make_run(tmp_path / "other")
    first = opened(tmp_path / "run", other, restore="weights")
    first.config.write_text("experiment: test\n")
    second = opened(tmp_path / "run", "auto")
    assert second.status is RunStatus.RESUMED and second.origin == first.origin
    assert second.origin is not None and second.origin.restore == "weights"


def test_the_own_newest_is_what_auto_takes(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run")
    for path in (root, root / "checkpoints"):
        folder = opened(root, path)
        assert folder.status is RunStatus.RESUMED and folder.origin is None
    (tmp_path / "link").symlink_to(root)
    assert opened(root, tmp_path / "link").origin is None, "by whatever name"


def test_an_own_step_is_gone_back_to_even_in_a_finished_run(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", finished=True)
    folder = opened(root, root / "checkpoints" / "step_00000004")
    assert folder.status is RunStatus.RESUMED and folder.origin is not None and folder.origin.is_same_run
    assert newest_checkpoint(folder.checkpoints) == folder.checkpoints / "step_00000006", "nothing has happened yet"


def test_going_back_sets_everything_later_aside(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", finished=True)
    aside = roll_back(root, 2)
    assert newest_checkpoint(root / "checkpoints") == root / "checkpoints" / "step_00000002"
    assert {path.name for path in aside.iterdir()} == {
        "step_00000004",
        "step_00000006",
        "summary.json",
        "export",
        "metrics.jsonl",
    }
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
    cases = [
        (tmp_path / "new", Path("outo"), {}, "neither never nor auto, and there is no such folder"),
        (tmp_path / "new", tmp_path / "empty", {}, "holds no checkpoint (there is nothing)"),
        (run, other, {}, "already holds a begun run"),
        (run, step, {"overwrite": True}, "--overwrite would move"),
        (run, step, {"restore": "weights"}, "restore=weights starts another run"),
    ]
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
