"""The checkpoints of a run by their steps: what their folders and files are called, and which is the newest whole one.

What enters: a folder of checkpoints. What leaves: paths. Called by the store, by the trainer when a run goes on, and by
the `checkpoint` commands.

    step_00000010/  parameters.safetensors  optimizer.safetensors  <kept>.safetensors ...  state.json
                    manifest.json (written last)
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindgspo.checkpoint.manifest import NewerFormatError, verify
from mindgspo.errors import CheckpointError
from mindgspo.io import remove_leftovers

PARAMETERS_FILE = "parameters.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
CHECKPOINT_FILES = (PARAMETERS_FILE, OPTIMIZER_FILE, STATE_FILE)
GOING_BACK_FILE = "going_back.json"
"""While it is there, the steps beyond its "to" are given up; see `going_back`."""
_NAME = re.compile(r"step_(\d{8,})")
_KEPT_NAME = re.compile(r"[a-z][a-z0-9_]*")

_log = logging.getLogger(__name__)


def step_folder(checkpoints_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return checkpoints_dir / f"step_{step:08d}"


def step_of(folder: Path) -> int | None:
    """The step that a folder's name tells; None for another name."""
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else None


def kept_file(name: str) -> str:
    """The file with the arrays of what a run keeps under this name."""
    file = f"{name}.safetensors"
    assert _KEPT_NAME.fullmatch(name) and file not in CHECKPOINT_FILES, f"no name for a file of its own: {name!r}"
    return file


def steps_newest_first(checkpoints_dir: Path) -> list[Path]:
    """Folders that bear a checkpoint's name, most steps first; without those that a run has gone back from."""
    last = _last_step(checkpoints_dir)
    steps = {path: step for path in checkpoints_dir.iterdir() if path.is_dir() and (step := step_of(path)) is not None}
    wanted = [path for path, step in steps.items() if last is None or step <= last]
    return sorted(wanted, key=steps.__getitem__, reverse=True)


def complete_steps(checkpoints_dir: Path) -> Iterator[Path]:
    """Those whose files have their sizes, most steps first. Hashing all of them would cost more than a save."""
    for path in steps_newest_first(checkpoints_dir):
        try:
            verify(path, required=CHECKPOINT_FILES, hashes=False)
        except CheckpointError:
            continue
        yield path


def newest_checkpoint(checkpoints_dir: Path, *, clears: bool = True) -> Path | None:
    """The complete checkpoint with the most steps, its content verified; None where there is no checkpoint
    at all.

    Damaged ones are passed over with a warning that names the broken file. Raises NewerFormatError where the newest is
    of a format that this version cannot read: passing it over would lose its steps without need. Raises CheckpointError
    where checkpoints exist and none is complete: starting anew would hide the loss. clears: remove what dead processes
    left half written; not in another run's folder.
    """
    if not checkpoints_dir.is_dir():
        return None
    if clears:
        remove_leftovers(checkpoints_dir)
    problems = []
    for path in steps_newest_first(checkpoints_dir):
        try:
            verify(path, required=CHECKPOINT_FILES)
        except NewerFormatError:
            raise
        except CheckpointError as error:
            _log.warning("checkpoint passed over: %s", error)
            problems.append(str(error))
        else:
            return path
    if problems:
        raise CheckpointError(
            f"{checkpoints_dir}: none of the {len(problems)} checkpoints is complete\n  "
            + "\n  ".join(problems)
            + "\nRestore one, or start the run again with --overwrite (it moves this run folder aside)"
        )
    return None


def read_state(step: Path) -> dict[str, Any]:
    """The JSON state of a checkpoint. Raises CheckpointError where it is none."""
    path = step / STATE_FILE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); restore the file from a copy") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: damaged (no JSON object); restore the file from a copy")
    return state


def _last_step(checkpoints_dir: Path) -> int | None:
    """The step that a run is going back to."""
    path = checkpoints_dir / GOING_BACK_FILE
    if not path.is_file():
        return None
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["to"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); remove this file and try again") from error
