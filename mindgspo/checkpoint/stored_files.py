"""Find the checkpoint at a path: a tensor file, a model's folder, a run's step folder, or the files of ranks.

Only names are examined here; `whole_checkpoint` opens the files. MindSpore takes the last name of a rank's folder by
spelling, so that 9 comes after 10 and ranks may come from different saves; here the newest save that all ranks have is
taken, by number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mindgspo.checkpoint.manifest import MANIFEST_FILE, records_as_json, records_from_json, verify
from mindgspo.checkpoint.store import CHECKPOINT_FILES, OPTIMIZER_FILE, PARAMETERS_FILE, STATE_FILE, steps_newest_first
from mindgspo.errors import CheckpointError
from mindgspo.io import read_json, write_json
from mindgspo.metrics.files import FileRecord
from mindgspo.tensor_files.reader import INDEX_FILE, SINGLE_FILE
from mindgspo.text import counted, listed

RECORD_FILE = "checkpoint.json"
_FORMAT_VERSION = 1
SUFFIXES = (".safetensors", ".ckpt")
_RANK_FOLDER = re.compile(r"rank_(\d+)")
_RANK_IN_NAME = re.compile(r"rank_?(\d+)")
# MindSpore's suffix of a name: <epoch>_<step>.
_SAVE = re.compile(r"-(\d+)_(\d+)$")
_LISTED = 3
# A run keeps its steps here.
_STEPS = "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """The content of `checkpoint.json`, which lies beside the ranks' folders."""

    order: tuple[str, ...]
    """Names of all tensors as the whole checkpoint had them."""
    step: int | None
    """Training step of the run; None for mere tensors."""
    files: Mapping[str, FileRecord]
    """By path within the folder; digests are those of `manifest.file_digest`."""

    @property
    def stateful(self) -> tuple[str, ...]:
        """Files of the run's other stateful parts: those that belong to no rank."""
        return tuple(name for name in self.files if "/" not in name)


def write_shard_record(folder: Path, record: ShardRecord) -> None:
    """Write `checkpoint.json`."""
    write_json(
        folder / RECORD_FILE,
        {
            "format_version": _FORMAT_VERSION,
            "step": record.step,
            "files": records_as_json(record.files),
            "order": list(record.order),
        },
    )


def read_shard_record(folder: Path) -> ShardRecord:
    """Read `checkpoint.json`. Raises CheckpointError if it is damaged or names files outside of its folder."""
    path = folder / RECORD_FILE
    try:
        content = read_json(path)
        if content["format_version"] != _FORMAT_VERSION:
            raise ValueError(f"format version {content['format_version']}, this mindgspo reads {_FORMAT_VERSION}")
        files = records_from_json(content["files"])
        outside = [name for name in files if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]
        if outside:
            raise ValueError(f"it names {outside[0]!r}")
        step = None if content["step"] is None else int(content["step"])
        return ShardRecord(order=tuple(map(str, content["order"])), step=step, files=files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: damaged ({type(error).__name__}: {error}); remove this file to go without it: tensors are then "
            "merged in the order of the ranks' files"
        ) from error


def is_sharded(folder: Path) -> bool:
    """Whether files of ranks lie here."""
    return any(_rank_of(entry) is not None for entry in folder.iterdir())


def pick_rank_files(folder: Path, *, prefix: str = "") -> tuple[dict[int, Path], list[str]]:
    """The files of all ranks, by rank from 0 up without a gap, and notes for people on what was taken and passed over.

    prefix: only files whose names begin with it. Raises CheckpointError: a rank between others is missing or has no
    file, no save that all ranks have, or several kinds of files to choose from.
    """
    by_rank = _tensor_files(folder, prefix)
    ranks = sorted(by_rank)
    missing = [rank for rank in range(ranks[-1] + 1) if not by_rank.get(rank)]
    if missing:
        raise CheckpointError(
            f"{folder}: rank(s) {listed(missing, _LISTED)} of 0 to {ranks[-1]} without a tensor file "
            f"({_kinds(prefix)}); copy the missing files into rank_{missing[0]}, ..."
        )
    keys = {rank: {key: path for path in paths for key in _keys(path, rank)} for rank, paths in by_rank.items()}
    common = sorted(set.intersection(*(set(keyed) for keyed in keys.values())), key=_by_save)
    if not common:
        example = ", ".join(f"rank {rank} has {by_rank[rank][-1].name}" for rank in ranks[:2])
        raise CheckpointError(
            f"{folder}: no file name is common to the ranks 0 to {ranks[-1]}, e.g. {example}; all ranks must "
            "come from one save: move what does not belong here away"
        )
    families = sorted({_family(key) for key in common})
    if len(families) > 1:
        raise CheckpointError(
            f"{folder}: {' and '.join(families)} are there for every rank, and nothing says which is meant; move one "
            "away, or name it with --prefix"
        )
    chosen = {rank: keyed[common[-1]] for rank, keyed in sorted(keys.items())}
    return chosen, list(_notes(folder, common[-1], chosen, by_rank))


def _tensor_files(folder: Path, prefix: str) -> dict[int, list[Path]]:
    """Tensor files by rank; a rank's folder without any has an empty list."""
    found: dict[int, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        rank = _rank_of(entry)
        if rank is None:
            continue
        within = sorted(entry.iterdir()) if entry.is_dir() else [entry]
        files = [path for path in within if path.suffix in SUFFIXES and path.is_file()]
        found.setdefault(rank, []).extend(path for path in files if path.name.startswith(prefix))
    if not any(found.values()):
        raise CheckpointError(f"{folder}: its ranks have no tensor files ({_kinds(prefix)})")
    return found


def _rank_of(entry: Path) -> int | None:
    if entry.is_dir():
        match = _RANK_FOLDER.fullmatch(entry.name)
    else:
        match = _RANK_IN_NAME.search(entry.stem) if entry.suffix in SUFFIXES else None
    return int(match[1]) if match else None


def _keys(path: Path, rank: int) -> set[str]:
    """The names under which a file may be the same save as other ranks' files: as it is, and with the rank as `*`."""
    keys = {path.name, re.sub(rf"rank_?{rank}(?!\d)", "rank_*", path.name)}
    own_number = re.fullmatch(rf"(.*?[^\d]|){rank}", path.stem)
    if own_number and not _SAVE.search(path.stem):
        keys.add(f"{own_number[1]}*{path.suffix}")
    return keys


def _by_save(key: str) -> tuple[object, ...]:
    """Order of saves of one family: by epoch and step, as numbers; those with neither first."""
    save = _SAVE.search(Path(key).stem)
    return (_family(key), *((int(save[1]), int(save[2])) if save else (-1, -1)), key)


def _family(key: str) -> str:
    """A key without epoch and step. `a_*` and `a_0` of a single rank are one family."""
    path = Path(key)
    return re.sub(r"(\*|\d+)$", "*", _SAVE.sub("", path.stem)) + path.suffix


def _notes(folder: Path, key: str, chosen: Mapping[int, Path], by_rank: Mapping[int, list[Path]]) -> Iterator[str]:
    where = "rank_*/" if any(path.parent != folder for path in chosen.values()) else ""
    yield f"source   {folder}: {counted(len(chosen), 'rank')}, {where}{key}"
    others = [path.relative_to(folder) for rank, paths in by_rank.items() for path in paths if path != chosen[rank]]
    if others:
        yield f"ignored  {counted(len(others), 'older or incomplete save file')}: {listed(others, _LISTED)}"


def _kinds(prefix: str) -> str:
    return ", ".join(f"{prefix}*{suffix}" for suffix in SUFFIXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """A checkpoint found at a path, by names alone."""

    path: Path
    """The checkpoint itself, e.g. the step folder of a run that was named."""
    files: Mapping[int, tuple[Path, ...]]
    """Paths for `open_tensors`, by rank; several files of one rank are read as one. A whole checkpoint has only rank
    0."""
    notes: tuple[str, ...]
    """How they were picked, for people."""
    step: int | None = None
    """Of a training run; None for mere tensors."""
    state: Path | None = None
    """The run's `state.json`."""
    stateful: tuple[Path, ...] = ()
    """Files of the run's other stateful parts, whole whatever the plan."""
    record: ShardRecord | None = None
    """`checkpoint.json` of folders written here."""

    @property
    def num_ranks(self) -> int:
        """Ranks that have files."""
        return len(self.files)

    @property
    def suffix(self) -> str:
        """The format of the files."""
        return ".ckpt" if self.files[0][0].suffix == ".ckpt" else ".safetensors"


def find_checkpoint(path: Path, *, prefix: str = "") -> StoredCheckpoint:
    """Find the checkpoint at a path. prefix: of the names of ranks' files, if several kinds lie side by side.

    Raises CheckpointError if it is no checkpoint, and says what would be one.
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
    """The folder that holds the steps of a run, given the run's folder or that folder itself; None if it has no
    steps."""
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
        stateful=tuple(path / name for name in sorted(manifest.files.keys() - set(CHECKPOINT_FILES))),
    )


def _sharded(path: Path, prefix: str) -> StoredCheckpoint:
    record = read_shard_record(path) if (path / RECORD_FILE).is_file() else None
    has_state = record is not None and record.step is not None and (path / STATE_FILE).is_file()
    stateful = record.stateful if record is not None and has_state else ()
    used = (() if record is None else (RECORD_FILE,)) + ((STATE_FILE, *stateful) if has_state else ())
    files, notes = pick_rank_files(path, prefix=prefix)
    return StoredCheckpoint(
        path=path,
        files={rank: (file,) for rank, file in files.items()},
        notes=(*notes, *(f"with     {path / name}" for name in used)),
        step=record.step if record is not None and has_state else None,
        state=path / STATE_FILE if has_state else None,
        stateful=tuple(path / name for name in stateful),
        record=record,
    )


def _newest_step(path: Path) -> Path:
    """The newest step of a run whose files have their sizes."""
    folder = steps_folder(path)
    if folder is None:
        files = sorted(entry.name for entry in path.iterdir() if entry.suffix in SUFFIXES)
        there = listed(sorted(entry.name for entry in path.iterdir()), 5) or "nothing"
        hint = f"give the file, e.g. {path / files[0]}" if files else f"there is {there}"
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
