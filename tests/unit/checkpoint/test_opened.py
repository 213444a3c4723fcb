"""Checkpoints that are read by need, with what a run keeps by name; and where one cannot be written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from mindgspo.checkpoint import Keep, open_checkpoint, save_checkpoint
from mindgspo.checkpoint.store import stateful_file
from mindgspo.errors import CheckpointError


def save(folder: Path, state: dict, kept: dict | None = None) -> Path:
    arrays = {"w": np.arange(12, dtype=np.float32).reshape(6, 2)}
    return save_checkpoint(
        folder, step=3, parameters=arrays, optimizer=arrays, state=state, stateful=kept, keep=Keep(last=1)
    )


def test_what_is_kept_comes_back_by_name_with_its_arrays(tmp_path: Path) -> None:
    kept = {"surplus": {"ids": np.array([3, 1], np.int32)}, "stream": {}}
    path = save(tmp_path, {"kept": {"surplus": {"groups": [1]}, "stream": {"epoch": 2}}}, kept)
    assert not (path / "stream.safetensors").exists(), "nothing to write"
    with open_checkpoint(path) as saved:
        assert saved.step == 3 and saved.stateful == {"surplus": {"groups": [1]}, "stream": {"epoch": 2}}
        np.testing.assert_array_equal(saved.arrays_of("surplus").read("ids"), [3, 1])
        assert saved.arrays_of("stream").tensors == {}
        np.testing.assert_array_equal(saved.parameters.read_slice("w", (slice(2, 4),)), [[4, 5], [6, 7]])


def test_the_format_that_had_two_of_them_among_the_rest_is_read(tmp_path: Path) -> None:
    path = save(tmp_path, {"stream": {"epoch": 1}, "kl": {"coef": 0.5}, "progress": {}})
    with open_checkpoint(path) as saved:
        assert saved.stateful == {"stream": {"epoch": 1}, "kl": {"coef": 0.5}}


def test_a_file_of_what_is_kept_is_verified_as_the_others_are(tmp_path: Path) -> None:
    path = save(tmp_path, {"kept": {"surplus": {}}}, {"surplus": {"ids": np.zeros(3)}})
    (path / "surplus.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"surplus\.safetensors: missing"), open_checkpoint(path):
        pass


@pytest.mark.parametrize("name", ["parameters", "optimizer", "../up", "State", ""])
def test_names_that_would_be_other_files_are_ours_to_avoid(name: str) -> None:
    with pytest.raises(AssertionError):
        stateful_file(name)


def test_a_state_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = save(tmp_path, {})
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "state.json").write_text("[")
    manifest["files"]["state.json"]["size"] = 1
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"state\.json: damaged"), open_checkpoint(path):
        pass


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    places = [tmp_path / "file" / "checkpoints", Path("/proc/checkpoints")]
    if os.geteuid() != 0:  # root may write everywhere else
        (tmp_path / "read_only").mkdir(mode=0o500)
        places.append(tmp_path / "read_only" / "checkpoints")
    for place in places:
        with pytest.raises(CheckpointError, match="could not be written.*older checkpoints are untouched"):
            save(place, {})
