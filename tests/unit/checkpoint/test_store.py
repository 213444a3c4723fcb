"""Checkpoints of a run: saved, kept, verified, opened."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damage import files_end_at, flip_bit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from planned_checkpoints import load_checkpoint, save_small

from mindgspo.checkpoint.store import (
    best_first,
    evaluation_of,
    newest_checkpoint,
    open_checkpoint,
    stateful_file,
    steps_newest_first,
)
from mindgspo.checkpoint.verify import list_lines
from mindgspo.errors import CheckpointError


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


ARRAYS = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(
        lambda name: name != "__metadata__"
    ),
    npst.arrays(
        dtype=st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.int32, np.int64, np.uint16, np.bool_]),
        shape=npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    max_size=4,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parameters=ARRAYS, optimizer=ARRAYS)
def test_any_arrays_come_back_bit_for_bit(tmp_path, parameters, optimizer):
    state = {"cursor": {"epoch": 2}, "learning_rate": 0.1 + 0.2}
    loaded = load_checkpoint(save_small(tmp_path, 7, parameters=parameters, optimizer=optimizer, state=state))
    assert (loaded.step, loaded.state) == (7, {"cursor": {"epoch": 2}, "learning_rate": 0.30000000000000004})
    for saved, found in ((parameters, loaded.parameters), (optimizer, loaded.optimizer)):
        assert found.keys() == saved.keys()
        for name, array in saved.items():
            assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
            assert found[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("state", [{"pair": (1, 2)}, {"by_number": {1: "a"}}, {"loss": float("nan")}])
def test_a_state_that_json_would_change_is_refused(tmp_path: Path, state: dict[str, object]) -> None:
    with pytest.raises((AssertionError, ValueError)):
        save_small(tmp_path, 1, state=state)
    assert names(tmp_path) == []


def test_the_newest_keep_remain(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "absent") is None and newest_checkpoint(tmp_path) is None
    for step in (1, 2, 10, 9):
        save_small(tmp_path, step)
    assert names(tmp_path) == ["step_00000009", "step_00000010"]
    assert newest_checkpoint(tmp_path) == tmp_path / "step_00000010"
    save_small(tmp_path, 8)
    assert steps(tmp_path) == [8, 9, 10], "the one just written is never removed"
    save_small(tmp_path, 99_999_999)
    save_small(tmp_path, 100_000_000, keep=1)
    assert names(tmp_path) == ["step_100000000"]


def test_a_damaged_one_does_not_push_a_good_one_out(tmp_path: Path) -> None:
    save_small(tmp_path, 10)
    cut(save_small(tmp_path, 20) / "parameters.safetensors")
    save_small(tmp_path, 15)
    assert names(tmp_path) == ["step_00000010", "step_00000015", "step_00000020"]


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    cut(save_small(tmp_path, 5) / "optimizer.safetensors")
    save_small(tmp_path, 5)
    assert names(tmp_path) == ["step_00000005"]
    renamed = load_checkpoint((tmp_path / "step_00000005").rename(tmp_path / "renamed"))
    assert (renamed.step, renamed.optimizer["count"]) == (5, 5)


# ---- damage
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated parameters": (lambda path: cut(path / "parameters.safetensors"),
                             r"parameters\.safetensors: truncated, \d+ bytes instead of \d+"),
    "changed optimizer": (lambda path: flip_bit(path / "optimizer.safetensors"),
                          r"optimizer\.safetensors: its content changed"),
    "missing state": (lambda path: (path / "state.json").unlink(), r"state\.json: missing"),
    "missing manifest": (lambda path: (path / "manifest.json").unlink(), r"no manifest\.json"),
    "truncated manifest": (lambda path: cut(path / "manifest.json"), r"manifest\.json: damaged"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_named_and_the_older_checkpoint_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str):
    inflict, message = DAMAGE[damage]
    good, bad = save_small(tmp_path, 10), save_small(tmp_path, 20)
    inflict(bad)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(bad)
    with caplog.at_level(logging.WARNING):
        assert newest_checkpoint(tmp_path) == good
    assert str(bad) in caplog.text
    assert load_checkpoint(good).step == 10
    assert bad.is_dir()


def test_checkpoints_that_are_all_damaged_are_not_the_same_as_none(tmp_path: Path) -> None:
    cut(save_small(tmp_path, 10) / "state.json")
    with pytest.raises(CheckpointError, match=r"none of the 1 checkpoints is complete\n.*state\.json.*\n.*--overwrite"):
        newest_checkpoint(tmp_path)


def test_a_later_format_is_refused_and_not_passed_over_and_no_manifest_points_outside(tmp_path: Path) -> None:
    save_small(tmp_path, 5)
    manifest = save_small(tmp_path, 10) / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "format_version": 3}))
    with pytest.raises(CheckpointError, match="format version 3, this mindgspo reads 2 and older"):
        load_checkpoint(manifest.parent)
    with pytest.raises(CheckpointError, match="format version 3"):
        newest_checkpoint(tmp_path)
    content["files"]["../secret"] = {"size": 0, "xxh3_128": ""}
    manifest.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="strange names"):
        load_checkpoint(manifest.parent)


def test_the_format_with_sha256_is_read(tmp_path: Path) -> None:
    path = save_small(tmp_path, 10)
    names_of = [file for file in path.iterdir() if file.name != "manifest.json"]
    hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in names_of}
    files = {file.name: {"size": file.stat().st_size, "sha256": hashes[file.name]} for file in names_of}
    (path / "manifest.json").write_text(json.dumps({"format_version": 1, "step": 10, "files": files}))
    assert load_checkpoint(path).optimizer["count"] == 10
    flip_bit(path / "optimizer.safetensors")
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors: its content changed .*sha256 differs"):
        load_checkpoint(path)


# ---- disk and processes
def test_too_little_space_is_told_before_anything_is_written(tmp_path: Path) -> None:
    save_small(tmp_path, 1)
    huge = np.broadcast_to(np.float32(0), (1 << 50,))  # 4 PiB that take no memory
    said = "needs 4,294,967,296.0 MiB and a reserve of 16.0 MiB, and .* MiB are free"
    with pytest.raises(CheckpointError, match=said):
        save_small(tmp_path, 2, parameters={"w": huge})
    assert names(tmp_path) == ["step_00000001"]


def test_a_failed_write_leaves_the_older_checkpoint_and_no_rest(tmp_path: Path) -> None:
    save_small(tmp_path, 1)
    with files_end_at(100_000), pytest.raises(CheckpointError, match="cannot be written"):
        save_small(tmp_path, 2, parameters={"w": np.zeros(10**6)})
    assert names(tmp_path) == ["step_00000001"]
    assert newest_checkpoint(tmp_path) == tmp_path / "step_00000001"


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        dead.wait()
    leftovers = [tmp_path / f".step_00000009.tmp-{pid}" for pid in (dead.pid, os.getpid(), os.getppid())]
    for folder in leftovers:
        folder.mkdir()
        (folder / "parameters.safetensors").write_bytes(b"half")
    assert newest_checkpoint(tmp_path) is None
    path = save_small(tmp_path, 10)
    assert names(tmp_path) == sorted([leftovers[2].name, "step_00000010"])
    path.rename(tmp_path / f".step_00000010.old-{dead.pid}")
    assert newest_checkpoint(tmp_path) == path, "moved aside by the dead, it gets its name back"


# ----- Which checkpoints stay: the newest and the best, whatever is killed or damaged in between
VALUES = {0: 0.25, 1: 0.5, 2: 0.75, 3: 0.75, 4: None, 5: 0.5, 6: 0.625}


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in steps_newest_first(folder))


@pytest.mark.parametrize(("values", "last", "best", "left"), [
    (VALUES, 1, 0, [6]),
    (VALUES, 1, 1, [2, 6]),  # of equals the first
    (VALUES, 2, 3, [2, 3, 5, 6]),  # 6 is the third best and among the newest
    (VALUES, 9, 1, [0, 1, 2, 3, 4, 5, 6]),
    ({1: 0.5, 2: 0.25, 3: 0.75, 4: 0.25}, 1, 1, [3, 4]),  # a better one takes its place
])  # fmt: skip
def test_the_newest_and_the_best_stay(tmp_path: Path, values: dict, last: int, best: int, left: list[int]) -> None:
    for step, value in values.items():
        save_small(tmp_path, step, last, best=best, value=value)
    assert steps(tmp_path) == left


def test_an_evaluation_of_an_earlier_step_does_not_count(tmp_path: Path) -> None:
    path = save_small(tmp_path, 4, state={"progress": {"latest": {"step": 2, "value": 0.9}}})
    assert evaluation_of(path) is None and best_first([path]) == []


KILLED_SAVER = """
import sys
from pathlib import Path
import numpy as np
from mindgspo import faults
from mindgspo.checkpoint.store import Retention, save_checkpoint
faults.arm(0, sys.argv[2])
state = {"progress": {"latest": {"step": 3, "value": 0.25}}}
save_checkpoint(Path(sys.argv[1]), step=3, parameters={"w": np.zeros(3)}, optimizer={}, state=state,
                keep=Retention(last=1, best=1))
"""


@pytest.mark.parametrize(("fault", "newest", "left"), [
    ("save.inside:1=kill", 2, [1, 2]),
    ("save.inside:3=kill", 2, [1, 2]),
    ("save.rename=kill", 2, [1, 2]),
    ("save.remove=kill", 3, [1, 2, 3]),
])  # fmt: skip
def test_a_kill_at_any_point_of_a_save_keeps_the_best_and_the_newest(tmp_path, fault, newest, left):
    for step, value in ((1, 0.75), (2, 0.5)):
        save_small(tmp_path, step, 1, best=1, value=value)
    ended = subprocess.run([sys.executable, "-c", KILLED_SAVER, str(tmp_path), fault], check=False, timeout=60)
    assert ended.returncode == -9
    assert newest_checkpoint(tmp_path) == tmp_path / f"step_{newest:08d}"
    assert steps(tmp_path) == left
    save_small(tmp_path, 4, 1, best=1, value=0.5)
    assert steps(tmp_path) == [1, 4]


def test_the_list_shows_evaluations_and_the_best(tmp_path: Path) -> None:
    for step, value in VALUES.items():
        save_small(tmp_path, step, 9, value=value)
    lines = {line.split()[0]: line for line in list_lines(tmp_path)}
    assert "0.7500" in lines["step_00000002"] and lines["step_00000002"].endswith("sizes match, best")
    assert "best" not in lines["step_00000003"] and lines["step_00000006"].endswith("sizes match, newest")
    assert "-" in lines["step_00000004"]


# ----- Checkpoints that are read by need, with what a run keeps by name; and where one cannot be written
def test_what_is_kept_comes_back_by_name_with_its_arrays(tmp_path: Path) -> None:
    kept = {"surplus": {"ids": np.array([3, 1], np.int32)}, "stream": {}}
    state = {"kept": {"surplus": {"groups": [1]}, "stream": {"epoch": 2}}}
    weights = {"w": np.arange(12, dtype=np.float32).reshape(6, 2)}
    path = save_small(tmp_path, 3, parameters=weights, state=state, stateful=kept)
    assert not (path / "stream.safetensors").exists(), "nothing to write"
    with open_checkpoint(path) as saved:
        assert saved.step == 3 and saved.stateful == {"surplus": {"groups": [1]}, "stream": {"epoch": 2}}
        np.testing.assert_array_equal(saved.arrays_of("surplus").read("ids"), [3, 1])
        assert saved.arrays_of("stream").tensors == {}
        np.testing.assert_array_equal(saved.parameters.read_slice("w", (slice(2, 4),)), [[4, 5], [6, 7]])


def test_the_format_that_had_two_of_them_among_the_rest_is_read(tmp_path: Path) -> None:
    path = save_small(tmp_path, 3, state={"stream": {"epoch": 1}, "kl": {"coef": 0.5}, "progress": {}})
    with open_checkpoint(path) as saved:
        assert saved.stateful == {"stream": {"epoch": 1}, "kl": {"coef": 0.5}}


def test_a_file_of_what_is_kept_and_the_state_are_verified_as_the_others_are(tmp_path: Path) -> None:
    path = save_small(tmp_path, 3, state={"kept": {"surplus": {}}}, stateful={"surplus": {"ids": np.zeros(3)}})
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "surplus.safetensors").rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match=r"surplus\.safetensors: missing"), open_checkpoint(path):
        pass
    (tmp_path / "away").rename(path / "surplus.safetensors")
    (path / "state.json").write_text("[")
    manifest["files"]["state.json"]["size"] = 1
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"state\.json: damaged"), open_checkpoint(path):
        pass


@pytest.mark.parametrize("name", ["parameters", "optimizer", "../up", "State", ""])
def test_names_that_would_be_other_files_are_ours_to_avoid(name: str) -> None:
    with pytest.raises(AssertionError):
        stateful_file(name)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    places = [tmp_path / "file" / "checkpoints", Path("/proc/checkpoints")]
    if os.geteuid() != 0:  # root may write everywhere else
        (tmp_path / "read_only").mkdir(mode=0o500)
        places.append(tmp_path / "read_only" / "checkpoints")
    for place in places:
        with pytest.raises(CheckpointError, match="cannot be written.*older checkpoints are untouched"):
            save_small(place, 3)


ENDLESS_SAVER = """
import sys
from pathlib import Path
import numpy as np
from mindgspo.checkpoint.store import Retention, save_checkpoint

folder, step = Path(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
while True:
    step += 1
    arrays = {f"w{number}": np.full(400_000, step, np.float32) for number in range(4)}
    keep = Retention(last=2)
    save_checkpoint(folder, step=step, parameters=arrays, optimizer=arrays, state={"step": step}, keep=keep)
    print(step, flush=True)
"""


def test_kill_9_at_any_moment_leaves_a_loadable_newest_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    moments = random.Random(3)
    interrupted, reached = 0, 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for _ in range(6):
        child = subprocess.Popen([sys.executable, "-c", ENDLESS_SAVER, str(folder), str(reached)],
                                 stdout=subprocess.PIPE, text=True, env=environment)  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert int(child.stdout.readline()) == reached + 1  # a first save is through; kill during a later one
        time.sleep(moments.uniform(0, 0.2))
        child.kill()
        acknowledged = [reached + 1, *(int(line) for line in child.stdout.read().split())]
        assert child.wait() == -signal.SIGKILL
        child.stdout.close()
        interrupted += any(name.startswith(".") for name in names(folder))
        newest = newest_checkpoint(folder)
        assert newest is not None
        loaded = load_checkpoint(newest)
        assert loaded.step >= max(acknowledged)
        assert loaded.state == {"step": loaded.step}
        for array in (*loaded.parameters.values(), *loaded.optimizer.values()):
            assert (array == loaded.step).all()
        reached = loaded.step
    assert interrupted > 0, "no kill hit a save; the test proved nothing"
