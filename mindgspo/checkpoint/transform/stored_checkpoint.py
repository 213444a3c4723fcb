"""What a path holds: one file of tensors, a model's folder, a run's step folder, or the files of ranks.

What enters: a path as a user names it. What leaves: which files belong to which rank, and how they were found. Called
by every command on checkpoints. Nothing but names is looked at here; `logical_checkpoint` opens the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mindgspo.checkpoint.manifest import MANIFEST_FILE, verify
from mindgspo.checkpoint.steps import CHECKPOINT_FILES, OPTIMIZER_FILE, PARAMETERS_FILE, STATE_FILE, steps_newest_first
from mindgspo.checkpoint.transform.rank_files import SUFFIXES, is_sharded, pick_rank_files
from mindgspo.checkpoint.transform.record import RECORD_FILE, ShardRecord, read_record
from mindgspo.errors import CheckpointError
from mindgspo.tensor_files.reader import INDEX_FILE, SINGLE_FILE

# A run keeps its steps here.
_STEPS = "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """Files by rank; what is whole has rank 0 alone.

    path: what was found, e.g. the step folder of a run that was named. files: what `open_tensors` takes, by rank; names
    in several files of one rank are read as one. notes: how they were picked, for people. step, state: of a training
    run, with its `state.json`; None for mere tensors. kept: what else that run keeps, whole, whatever the plan. record:
    what our own sharded folders say of themselves.
    """

    path: Path
    files: Mapping[int, tuple[Path, ...]]
    notes: tuple[str, ...]
    step: int | None = None
    state: Path | None = None
    kept: tuple[Path, ...] = ()
    record: ShardRecord | None = None

    @property
    def num_ranks(self) -> int:
        """Ranks that have files."""
        return len(self.files)

    @property
    def suffix(self) -> str:
        """The format of the files."""
        return ".ckpt" if self.files[0][0].suffix == ".ckpt" else ".safetensors"


def find_checkpoint(path: Path, *, prefix: str = "") -> StoredCheckpoint:
    """What is there. prefix: of the names of ranks' files, where several kinds lie side by side.

    Raises CheckpointError for what is no checkpoint, with what would be one.
    """
    if path.is_file():
        return _whole(path, (path,), "one file")
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or folder; give a tensor file or the folder of a checkpoint")
    if (path / MANIFEST_FILE).is_file() and (path / PARAMETERS_FILE).is_file():
        return _step_folder(path)
    if (path / SINGLE_FILE).is_file() or (path / INDEX_FILE).is_file():
        return _whole(path, (path,), SINGLE_FILE if (path / SINGLE_FILE).is_file() else INDEX_FILE)
    if is_sharded(path):
        return _sharded(path, prefix)
    return _step_folder(_newest_step(path))


def steps_folder(path: Path) -> Path | None:
    """Where the steps of a run lie, of its folder or of that folder itself; None where there are none."""
    for folder in (path / _STEPS, path):
        if folder.is_dir() and steps_newest_first(folder):
            return folder
    return None


def _whole(path: Path, files: tuple[Path, ...], what: str) -> StoredCheckpoint:
    return StoredCheckpoint(path=path, files={0: files}, notes=(f"source   {path}: whole, {what}",))


def _step_folder(path: Path) -> StoredCheckpoint:
    """A step of a run; sizes are compared with its manifest, contents by `verify`."""
    manifest = verify(path, required=CHECKPOINT_FILES, hashes=False)
    return StoredCheckpoint(
        path=path,
        files={0: (path / PARAMETERS_FILE, path / OPTIMIZER_FILE)},
        notes=(f"source   {path}: whole, step {manifest.step} of a run, {PARAMETERS_FILE} and {OPTIMIZER_FILE}",),
        step=manifest.step,
        state=path / STATE_FILE,
        kept=tuple(path / name for name in sorted(manifest.files.keys() - set(CHECKPOINT_FILES))),
    )


def _sharded(path: Path, prefix: str) -> StoredCheckpoint:
    record = read_record(path) if (path / RECORD_FILE).is_file() else None
    has_state = record is not None and record.step is not None and (path / STATE_FILE).is_file()
    kept = record.kept if record is not None and has_state else ()
    used = (() if record is None else (RECORD_FILE,)) + ((STATE_FILE, *kept) if has_state else ())
    picked = pick_rank_files(path, prefix=prefix, used=used)
    return StoredCheckpoint(
        path=path,
        files={rank: (file,) for rank, file in picked.files.items()},
        notes=(*picked.notes, *(f"with     {path / name}" for name in used)),
        step=record.step if record is not None and has_state else None,
        state=path / STATE_FILE if has_state else None,
        kept=tuple(path / name for name in kept),
        record=record,
    )


def _newest_step(path: Path) -> Path:
    """The newest step of a run whose files have their sizes."""
    folder = steps_folder(path)
    if folder is None:
        files = sorted(entry.name for entry in path.iterdir() if entry.suffix in SUFFIXES)
        hint = f"give the file, e.g. {path / files[0]}" if files else f"there is {_names(path)}"
        raise CheckpointError(
            f"{path}: no checkpoint: neither rank_0, rank_1, ... nor files *rank_0*, no {SINGLE_FILE} and no step of a "
            f"run; {hint}"
        )
    for step in steps_newest_first(folder):
        try:
            verify(step, required=CHECKPOINT_FILES, hashes=False)
        except CheckpointError:
            continue
        return step
    raise CheckpointError(f"{folder}: none of its steps is complete; `mindgspo checkpoint list {path}` says why")


def _names(path: Path) -> str:
    return ", ".join(sorted(entry.name for entry in path.iterdir())[:5]) or "nothing"
