"""Checkpoints of a run: complete or absent, verified when read.

What enters: named numpy arrays of the model and the optimizer, and a small JSON-able state. What leaves:
the folder `step_00000010`, or the same arrays bit for bit. Called by the trainer and by the `checkpoint`
command.

    step_00000010/  parameters.safetensors  optimizer.safetensors  <kept>.safetensors ...  state.json
                    manifest.json (written last)
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindgspo import faults
from mindgspo.checkpoint.durable import (
    clear_leftovers,
    put_in_place,
    remove_folder,
    temporary_name,
    write_json,
)
from mindgspo.checkpoint.manifest import verify, write_manifest
from mindgspo.errors import CheckpointError
from mindgspo.tensor_files import flush_to_disk, read_safetensors, write_tensor_file

PARAMETERS_FILE = "parameters.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
CHECKPOINT_FILES = (PARAMETERS_FILE, OPTIMIZER_FILE, STATE_FILE)
_KEPT_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NAME = re.compile(r"step_(\d{8,})")
# Room for headers, the state, the manifest and the file system's own records.
_SPARE_BYTES = 16 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a run needs to go on.

    step: training steps done. parameters, optimizer: arrays by name, dtypes and shapes as saved. state:
    JSON values (data cursor, counters, weight version, ...) as saved.
    """

    step: int
    parameters: Mapping[str, np.ndarray]
    optimizer: Mapping[str, np.ndarray]
    state: Mapping[str, object]


def save_checkpoint(
    checkpoints_dir: Path,
    *,
    step: int,
    parameters: Mapping[str, np.ndarray],
    optimizer: Mapping[str, np.ndarray],
    state: Mapping[str, object],
    keep: int,
    kept: Mapping[str, Mapping[str, np.ndarray]] | None = None,
) -> Path:
    """Write one checkpoint, then remove complete ones older than the newest `keep`; returns its folder.

    state must come back from JSON unchanged (no tuples, no integer keys, no NaN). kept: {name: arrays} of what else a
    run keeps, each in a file of its own, which an empty one does not get.
    Raises CheckpointError: not enough space (checked first), or the write failed. Older checkpoints then
    stay.
    """
    assert keep >= 1 and step >= 0, f"keep={keep}, step={step}"
    assert json.loads(json.dumps(state, allow_nan=False)) == state, "state does not survive JSON unchanged"
    target = checkpoints_dir / f"step_{step:08d}"
    extra = {kept_file(name): arrays for name, arrays in (kept or {}).items() if arrays}
    arrays_of = {PARAMETERS_FILE: parameters, OPTIMIZER_FILE: optimizer, **extra}
    filled = temporary_name(target)
    try:
        checkpoints_dir.mkdir(parents=True, exist_ok=True)
        clear_leftovers(checkpoints_dir)
        _require_space(checkpoints_dir, [array for arrays in arrays_of.values() for array in arrays.values()])
        filled.mkdir()
        for name, arrays in arrays_of.items():
            write_tensor_file(filled / name, arrays)
            faults.reach("save.inside")
        write_json(filled / STATE_FILE, state)
        faults.reach("save.inside")
        write_manifest(filled, step=step)
        faults.reach("save.rename")
        put_in_place(filled, target)
    except OSError as error:
        raise CheckpointError(
            f"{target}: the checkpoint could not be written ({error}); older checkpoints are untouched"
        ) from error
    finally:
        shutil.rmtree(filled, ignore_errors=True)
    _remove_old(checkpoints_dir, just_written=target, keep=keep)
    return target


def kept_file(name: str) -> str:
    """The file with the arrays of what a run keeps under this name."""
    file = f"{name}.safetensors"
    assert _KEPT_NAME.fullmatch(name) and file not in CHECKPOINT_FILES, f"no name for a file of its own: {name!r}"
    return file


def newest_checkpoint(checkpoints_dir: Path) -> Path | None:
    """The complete checkpoint with the most steps, its content verified; None where there is no checkpoint
    at all.

    Damaged ones are passed over with a warning that names the broken file.
    Raises CheckpointError where checkpoints exist and none is complete: starting anew would hide the loss.
    """
    if not checkpoints_dir.is_dir():
        return None
    clear_leftovers(checkpoints_dir)
    problems = []
    for path in steps_newest_first(checkpoints_dir):
        try:
            verify(path, required=CHECKPOINT_FILES)
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


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint. Raises CheckpointError naming the file that is absent, truncated or changed."""
    manifest = verify(path, required=CHECKPOINT_FILES)
    return Checkpoint(
        step=manifest.step,
        parameters=read_safetensors(path / PARAMETERS_FILE),
        optimizer=read_safetensors(path / OPTIMIZER_FILE),
        state=json.loads((path / STATE_FILE).read_text(encoding="utf-8")),
    )


def steps_newest_first(checkpoints_dir: Path) -> list[Path]:
    """Folders that bear a checkpoint's name, most steps first."""
    steps = {
        path: int(match[1])
        for path in checkpoints_dir.iterdir()
        if path.is_dir() and (match := _NAME.fullmatch(path.name))
    }
    return sorted(steps, key=steps.__getitem__, reverse=True)


def _remove_old(checkpoints_dir: Path, *, just_written: Path, keep: int) -> None:
    """Keep the newest `keep` complete checkpoints. Damaged ones neither count nor go: people may look."""
    complete = [path for path in steps_newest_first(checkpoints_dir) if _looks_complete(path)]
    for path in complete[keep:]:
        if path != just_written:
            remove_folder(path)
    flush_to_disk(checkpoints_dir)


def _looks_complete(path: Path) -> bool:
    """Judged by manifest and sizes: hashing every kept checkpoint would cost more than the save itself."""
    try:
        verify(path, required=CHECKPOINT_FILES, hashes=False)
    except CheckpointError:
        return False
    return True


def _require_space(folder: Path, arrays: list[np.ndarray]) -> None:
    needed = sum(array.nbytes for array in arrays) + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"{folder}: a checkpoint needs {needed / 2**20:,.0f} MiB and {free / 2**20:,.0f} MiB are free; "
            "make room, lower trainer.keep_checkpoints, or put run_dir on a larger disk"
        )
