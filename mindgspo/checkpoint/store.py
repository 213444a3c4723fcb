"""The checkpoints of a run: saved atomically, verified when read, the newest and best kept.

step_00000010/  parameters.safetensors  optimizer.safetensors  <stateful>.safetensors ...  state.json
                manifest.json (written last)
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo import faults
from mindgspo.checkpoint.manifest import NewerFormatError, new_digest, verify, write_manifest
from mindgspo.errors import CheckpointError, OutOfMemoryError
from mindgspo.io import (
    check_free_space,
    fsync,
    make_folder,
    publish_folder,
    read_json,
    remove_folder,
    remove_leftovers,
    temporary_path,
    write_error,
    write_json,
)
from mindgspo.metrics.files import FileRecord
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import ArraySource, TensorSource
from mindgspo.tensor_files.writer import write_tensor_file

PARAMETERS_FILE = "parameters.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"
CHECKPOINT_FILES = (PARAMETERS_FILE, OPTIMIZER_FILE, STATE_FILE)
ROLLBACK_FILE = "going_back.json"
"""While it is there, the steps beyond its "to" are given up; see `rollback`."""
_NAME = re.compile(r"step_(\d{8,})")
_STATEFUL_NAME = re.compile(r"[a-z][a-z0-9_]*")

_log = logging.getLogger(__name__)


def step_folder(checkpoints_dir: Path, step: int) -> Path:
    """Path of the checkpoint of a step."""
    return checkpoints_dir / f"step_{step:08d}"


def step_of(folder: Path) -> int | None:
    """The step that a folder's name tells; None for another name."""
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else None


def stateful_file(name: str) -> str:
    """The file with the arrays of what a run keeps under this name."""
    file = f"{name}.safetensors"
    assert _STATEFUL_NAME.fullmatch(name) and file not in CHECKPOINT_FILES, f"no name for a file of its own: {name!r}"
    return file


def steps_newest_first(checkpoints_dir: Path) -> list[Path]:
    """Folders with a checkpoint's name, most steps first; without those beyond a rollback."""
    last = _last_step(checkpoints_dir)
    steps = {path: step for path in checkpoints_dir.iterdir() if path.is_dir() and (step := step_of(path)) is not None}
    wanted = [path for path, step in steps.items() if last is None or step <= last]
    return sorted(wanted, key=steps.__getitem__, reverse=True)


def complete_steps(checkpoints_dir: Path) -> Iterator[Path]:
    """Checkpoints whose files have the recorded sizes, most steps first. Hashing all of them would cost more than a
    save."""
    for path in steps_newest_first(checkpoints_dir):
        try:
            verify(path, required=CHECKPOINT_FILES, hashes=False)
        except CheckpointError:
            continue
        yield path


def newest_checkpoint(checkpoints_dir: Path, *, clears: bool = True) -> Path | None:
    """The complete checkpoint with the most steps, its content verified; None if there is no checkpoint
    at all.

    Damaged ones are passed over with a warning that names the broken file. Raises NewerFormatError if the newest is of
    a format that this version cannot read: passing it over would lose its steps without need. Raises CheckpointError if
    checkpoints exist and none is complete: starting over would hide the loss. clears: remove files that dead processes
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
    """The JSON state of a checkpoint. Raises CheckpointError if it is none."""
    path = step / STATE_FILE
    try:
        state = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); restore the file from a copy") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: damaged (no JSON object); restore the file from a copy")
    return state


def _last_step(checkpoints_dir: Path) -> int | None:
    """The step that a run is rolling back to."""
    path = checkpoints_dir / ROLLBACK_FILE
    if not path.is_file():
        return None
    try:
        return int(read_json(path)["to"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); remove this file and try again") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which complete checkpoints stay."""

    last: int
    """So many of the newest, at least 1."""
    best: int = 0
    """Number of the best ones to keep, among those evaluated at their step."""


def evaluation_of(step: Path) -> float | None:
    """Value of the evaluation with a checkpoint's weights, higher is better; None if there was none."""
    try:
        latest = read_state(step)["progress"]["latest"]
        return float(latest["value"]) if latest["step"] == step_of(step) else None
    except (CheckpointError, KeyError, TypeError, ValueError):
        return None


def evaluation_text(step: Path) -> str:
    """The value of `evaluation_of`, with accuracy and reward if they differ; "-" if there is none."""
    value = evaluation_of(step)
    if value is None:
        return "-"
    progress = read_state(step)["progress"]
    accuracy, reward = progress.get("accuracy"), progress.get("reward")
    if accuracy is None or reward is None or math.isclose(accuracy, reward, abs_tol=1e-9):
        return f"{value:.4f}"
    both = f"accuracy {accuracy:.4f}, reward {reward:.4f}"
    return both if value in (accuracy, reward) else f"{value:.4f} ({both})"


def best_first(steps: Sequence[Path]) -> list[Path]:
    """Checkpoints that were evaluated, the best first; of equal ones the one with fewer steps."""
    values = {step: value for step in steps if (value := evaluation_of(step)) is not None}
    return sorted(values, key=lambda step: (-values[step], step_of(step)))


def remove_others(checkpoints_dir: Path, keep: Retention, *, just_written: Path) -> None:
    """Remove complete checkpoints that need not be kept. Damaged ones are not counted and not removed, so that they can
    be examined."""
    complete = list(complete_steps(checkpoints_dir))
    wanted = {*complete[: keep.last], *(best_first(complete)[: keep.best] if keep.best else ()), just_written}
    for path in complete:
        if path not in wanted:
            faults.reach("save.remove")
            remove_folder(path)
    fsync(checkpoints_dir)


def save_checkpoint(
    checkpoints_dir: Path,
    *,
    step: int,
    parameters: Mapping[str, np.ndarray],
    optimizer: Mapping[str, np.ndarray],
    state: Mapping[str, object],
    keep: Retention,
    stateful: Mapping[str, Mapping[str, np.ndarray]] | None = None,
    logs: Mapping[Path, FileRecord] | None = None,
) -> Path:
    """Write one checkpoint, then remove complete ones that `keep` does not name; returns its folder.

    state must come back from JSON unchanged (no tuples, no integer keys, no NaN). stateful: {name: arrays} of the other
    stateful parts of a run, each in a file of its own unless empty. logs: what the run's logs hold; flushed to disk
    before the checkpoint counts.
    Raises CheckpointError: not enough space (checked first), or the write failed. Older checkpoints then
    stay.
    """
    assert step >= 0, f"step={step}"
    assert json.loads(json.dumps(state, allow_nan=False)) == state, "state does not survive JSON unchanged"
    target = step_folder(checkpoints_dir, step)
    extra = {stateful_file(name): arrays for name, arrays in (stateful or {}).items() if arrays}
    arrays_of = {PARAMETERS_FILE: parameters, OPTIMIZER_FILE: optimizer, **extra}
    filled = temporary_path(target)
    needed = sum(array.nbytes for arrays in arrays_of.values() for array in arrays.values())
    try:
        make_folder(checkpoints_dir)
        remove_leftovers(checkpoints_dir)
        fix = "make room, lower trainer.keep_checkpoints, or put run_dir on a larger disk"
        check_free_space(target, needed, CheckpointError, fix)  # older checkpoints go only after this one stands
        filled.mkdir()
        digests = {name: new_digest() for name in arrays_of}
        for name, arrays in arrays_of.items():
            write_tensor_file(filled / name, arrays, on_write=digests[name].update)
            faults.reach("save.inside")
        write_json(filled / STATE_FILE, state)
        faults.reach("save.inside")
        _flush_logs(logs or {})
        write_manifest(
            filled,
            step=step,
            digests={name: digest.hexdigest() for name, digest in digests.items()},
            logs=None if logs is None else {path.name: record for path, record in logs.items()},
        )
        faults.reach("save.rename")
        publish_folder(filled, target)
    except OSError as error:
        refused = write_error(target, error, needed)
        raise CheckpointError(f"{refused}; older checkpoints are untouched") from error
    except MemoryError as error:
        raise CheckpointError(
            f"{target}: cannot be written: {OutOfMemoryError.of(error)}; older checkpoints are untouched"
        ) from error
    finally:
        shutil.rmtree(filled, ignore_errors=True)
    remove_others(checkpoints_dir, keep, just_written=target)
    return target


def _flush_logs(paths: Iterable[Path]) -> None:
    """Flush the logs: after a power cut, no checkpoint may exist without the lines that it covers."""
    present = [path for path in paths if path.exists()]
    for path in (*present, *{path.parent for path in present}):
        fsync(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCheckpoint:
    """A checkpoint whose files are open; made by `open_checkpoint`."""

    path: Path
    step: int
    """Training steps done."""
    logs: Mapping[str, FileRecord] | None
    """See `Manifest`."""
    state: Mapping[str, Any]
    """JSON as saved."""
    parameters: TensorSource
    """What is trained, under Hugging Face names: all weights, or adapters (see `adapted`)."""
    optimizer: TensorSource
    stateful: Mapping[str, Mapping[str, Any]]
    """{name: state} of the run's other stateful parts; `arrays_of` returns their arrays."""
    _arrays: Mapping[str, TensorSource]

    def arrays_of(self, name: str) -> TensorSource:
        """Empty if none were saved."""
        return self._arrays.get(name) or ArraySource({}, path=self.path / stateful_file(name))


@contextmanager
def open_checkpoint(path: Path) -> Iterator[OpenCheckpoint]:
    """Open all files of a checkpoint for the block. Raises CheckpointError, WeightsError if sizes or headers say
    that one is damaged."""
    manifest = verify(path, required=CHECKPOINT_FILES, hashes=False)
    state = read_state(path)
    stateful = _stateful_states(state)
    with ExitStack() as files:
        yield OpenCheckpoint(
            path=path,
            step=manifest.step,
            logs=manifest.logs,
            state=state,
            parameters=files.enter_context(open_tensors(path / PARAMETERS_FILE)),
            optimizer=files.enter_context(open_tensors(path / OPTIMIZER_FILE)),
            stateful=stateful,
            _arrays={
                name: files.enter_context(open_tensors(path / stateful_file(name)))
                for name in stateful
                if stateful_file(name) in manifest.files
            },
        )


def _stateful_states(state: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """{name: state}; checkpoints of format 1 have two of them among the rest. Raises CheckpointError."""
    kept = state.get("kept", {name: state[name] for name in ("stream", "kl") if name in state})
    if not isinstance(kept, dict) or not all(_STATEFUL_NAME.fullmatch(name) for name in kept):
        raise CheckpointError(f"{STATE_FILE}: `kept` holds no states by name; restore the file from a copy")
    return kept
