"""Checkpoints of a run: complete or absent, verified when read.

What enters: named numpy arrays of the model and the optimizer, and a small JSON-able state. What leaves:
the folder `step_00000010` (its files: `steps`), or the same arrays bit for bit. Called by the trainer.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindgspo import faults
from mindgspo.checkpoint.manifest import FileDigest, verify, write_manifest
from mindgspo.checkpoint.retention import Keep, remove_others
from mindgspo.checkpoint.steps import (
    CHECKPOINT_FILES,
    OPTIMIZER_FILE,
    PARAMETERS_FILE,
    STATE_FILE,
    kept_file,
    read_state,
    step_folder,
)
from mindgspo.errors import CheckpointError
from mindgspo.io import publish_folder, remove_leftovers, temporary_path, write_json
from mindgspo.tensor_files import read_safetensors, write_tensor_file

# Room for headers, the state, the manifest and the file system's own records.
_SPARE_BYTES = 16 << 20


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
    keep: Keep,
    kept: Mapping[str, Mapping[str, np.ndarray]] | None = None,
) -> Path:
    """Write one checkpoint, then remove complete ones that `keep` does not name; returns its folder.

    state must come back from JSON unchanged (no tuples, no integer keys, no NaN). kept: {name: arrays} of what else a
    run keeps, each in a file of its own, which an empty one does not get.
    Raises CheckpointError: not enough space (checked first), or the write failed. Older checkpoints then
    stay.
    """
    assert step >= 0, f"step={step}"
    assert json.loads(json.dumps(state, allow_nan=False)) == state, "state does not survive JSON unchanged"
    target = step_folder(checkpoints_dir, step)
    extra = {kept_file(name): arrays for name, arrays in (kept or {}).items() if arrays}
    arrays_of = {PARAMETERS_FILE: parameters, OPTIMIZER_FILE: optimizer, **extra}
    filled = temporary_path(target)
    try:
        checkpoints_dir.mkdir(parents=True, exist_ok=True)
        remove_leftovers(checkpoints_dir)
        _require_space(checkpoints_dir, [array for arrays in arrays_of.values() for array in arrays.values()])
        filled.mkdir()
        digests = {name: FileDigest() for name in arrays_of}
        for name, arrays in arrays_of.items():
            write_tensor_file(filled / name, arrays, on_write=digests[name].update)
            faults.reach("save.inside")
        write_json(filled / STATE_FILE, state)
        faults.reach("save.inside")
        write_manifest(filled, step=step, digests={name: digest.hexdigest() for name, digest in digests.items()})
        faults.reach("save.rename")
        publish_folder(filled, target)
    except OSError as error:
        raise CheckpointError(
            f"{target}: the checkpoint could not be written ({error}); older checkpoints are untouched"
        ) from error
    finally:
        shutil.rmtree(filled, ignore_errors=True)
    remove_others(checkpoints_dir, keep, just_written=target)
    return target


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint whole. Raises CheckpointError naming the file that is absent, truncated or changed."""
    manifest = verify(path, required=CHECKPOINT_FILES)
    return Checkpoint(
        step=manifest.step,
        parameters=read_safetensors(path / PARAMETERS_FILE),
        optimizer=read_safetensors(path / OPTIMIZER_FILE),
        state=read_state(path),
    )


def _require_space(folder: Path, arrays: list[np.ndarray]) -> None:
    """Older checkpoints go only after this one has its name, so it needs room beside them."""
    needed = sum(array.nbytes for array in arrays) + _SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"{folder}: a checkpoint needs {needed / 2**20:,.0f} MiB and {free / 2**20:,.0f} MiB are free; "
            "make room, lower trainer.keep_checkpoints, or put run_dir on a larger disk"
        )
