"""Convert a checkpoint of one plan to another: a new file or folder with the same tensors, sliced differently.

find files -> open headers, compare with the strategy -> check the destination and the space -> write every file to a
temporary name, in threads -> read it back -> compare with the source (deep) -> rename
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo.checkpoint.manifest import file_digest, new_digest, write_manifest
from mindgspo.checkpoint.store import OPTIMIZER_FILE, PARAMETERS_FILE, STATE_FILE
from mindgspo.checkpoint.stored_files import (
    SUFFIXES,
    ShardRecord,
    StoredCheckpoint,
    find_checkpoint,
    write_shard_record,
)
from mindgspo.checkpoint.verify import (
    CHUNK_BYTES,
    Advance,
    check_replicas,
    recorded_file,
    tensor_digest,
    verify_checkpoint,
    whole_digest,
)
from mindgspo.checkpoint.whole_checkpoint import (
    OPTIMIZER_PREFIX,
    WholeCheckpoint,
    WholeTensor,
    num_ranks,
    open_whole,
    placed_layouts,
    without_entry,
)
from mindgspo.errors import CheckpointError
from mindgspo.io import (
    check_free_space,
    fsync,
    fsync_tree,
    publish_folder,
    remove_leftovers,
    temporary_path,
    write_error,
)
from mindgspo.metrics.files import FileRecord
from mindgspo.parallel.plans.layout import Layout, TensorSlice
from mindgspo.progress import byte_progress
from mindgspo.strategy.record import Strategy
from mindgspo.tensor_files.formats import library_order
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import TensorInfo
from mindgspo.tensor_files.writer import write_tensors
from mindgspo.text import counted, listed

_REMEDY = "the disk or the memory is failing: write to another one"
_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformRequest:
    """One conversion from plan to plan."""

    source: Path
    destination: Path
    source_strategy: Strategy | None = None
    """None: the source is whole."""
    destination_strategy: Strategy | None = None
    """None: the destination is whole."""
    suffix: str | None = None
    """Format of the ranks' files, .ckpt or .safetensors; None: that of the source."""
    prefix: str = "checkpoint_"
    """Prefix of the names of the files that are written."""
    source_prefix: str = ""
    """Prefix of the names of the files that are read."""
    weights_only: bool = False
    """Leave optimizer state out."""
    jobs: int | None = None
    """Files that are written at a time; None: one per processor."""
    deep: bool = False
    """Compare the source with its known hashes, and in the end verify that both sides hold the same."""
    sync: bool = True
    """Return when everything is on the disk; otherwise, like `cp`, when the kernel has it."""


def transform(request: TransformRequest, *, note: Callable[[str], None], shows_bar: bool = True) -> None:
    """Convert a checkpoint, and report through `note` which files were chosen and what was done.

    Raises CheckpointError or WeightsError: the source is not whole or not of its strategy, the destination's strategy
    is of another model, the destination exists, there is no space, writing fails. Nothing is left at the destination
    then.
    """
    started = time.perf_counter()
    stored = find_checkpoint(request.source, prefix=request.source_prefix)
    for line in stored.notes:
        note(line)
    if request.deep:
        _require_sound(stored)
    if request.weights_only:  # a run does not go on from that
        stored = replace(stored, step=None, state=None, stateful=())
    with open_whole(stored, request.source_strategy, weights_only=request.weights_only) as source:
        files = _files_to_write(source, request)
        for line in _plan_notes(source, files, request):
            note(line)
        _write(source, files, request, shows_bar=shows_bar)
    seconds = time.perf_counter() - started
    num_bytes = sum(new.num_bytes for new in files)
    proof = "; every tensor compared with the source" if request.deep else ""
    note(
        f"done     {num_bytes / 2**20:,.1f} MiB in {seconds:.1f} s ({num_bytes / 2**20 / seconds:,.0f} MiB/s), read "
        f"back and compared by XXH3{proof}"
    )


def _require_sound(stored: StoredCheckpoint) -> None:
    """Compare the source with its known hashes, or check its headers. Raises CheckpointError."""
    for finding in verify_checkpoint(stored.path):
        if not finding.is_sound:
            raise CheckpointError(finding.line.removeprefix("damaged  "))


def _files_to_write(source: WholeCheckpoint, request: TransformRequest) -> tuple[NewFile, ...]:
    """The files to write, after checking that they fit and that none of them exists."""
    strategy = request.destination_strategy
    if strategy is None:
        files = _whole_files(source, request.destination)
    else:
        suffix = request.suffix or source.stored.suffix
        files = _rank_files(source, strategy, suffix=suffix, prefix=request.prefix)
    _require_absent(request.destination)
    needed = sum(new.num_bytes for new in files)
    check_free_space(request.destination, needed, CheckpointError, "make room, or give a place on a larger disk")
    return files


def _plan_notes(source: WholeCheckpoint, files: Sequence[NewFile], request: TransformRequest) -> Iterator[str]:
    """Lines for people on what will be done."""
    strategy = request.destination_strategy
    names = "" if len(files) == 1 else f": {files[0].name} to {files[-1].name}"
    by = "" if strategy is None else f" by {strategy.source}"
    yield f"writes   {request.destination}{names}, {counted(len(source.tensors), 'tensor')}{by}"
    for side, one in (("source", request.source_strategy), ("destination", strategy)):
        whole = without_entry(source.tensors, one)
        if whole:
            names = listed(whole, _LISTED)
            yield f"whole    {counted(len(whole), 'tensor')} without an entry in the {side}'s strategy: {names}"
    if source.stored.state is not None and _is_one_file(request.destination, strategy):
        names = [STATE_FILE, *(path.name for path in source.stored.stateful)]
        yield f"left out {', '.join(names)}, for which a single file has no room"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """One file to be written."""

    name: str
    """Path within the folder of the checkpoint."""
    rank: int
    """The rank that it is for; 0 for what is whole."""
    infos: Mapping[str, TensorInfo]
    """Its tensors, in its order."""
    slices: Mapping[str, TensorSlice]
    """The part of the whole tensor that each of them is."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(info.num_bytes for info in self.infos.values())


def _rank_files(source: WholeCheckpoint, strategy: Strategy, *, suffix: str, prefix: str) -> tuple[NewFile, ...]:
    """One file per rank. Raises WeightsError or CheckpointError if the strategy does not fit the checkpoint."""
    layouts = placed_layouts({name: tensor.info.shape for name, tensor in source.tensors.items()}, strategy)
    return tuple(
        _new_file(f"rank_{rank}/{prefix}{rank}{suffix}", rank, source.tensors, layouts, source.tensors)
        for rank in range(num_ranks(strategy))
    )


def _whole_files(source: WholeCheckpoint, path: Path) -> tuple[NewFile, ...]:
    """One file if `path` has a file's suffix, else the two files of a step folder.

    Raises CheckpointError for a folder if the checkpoint does not come from a run.
    """
    layouts = placed_layouts({name: tensor.info.shape for name, tensor in source.tensors.items()}, None)
    if path.suffix in SUFFIXES:
        return (_new_file(path.name, 0, source.tensors, layouts, source.tensors),)
    if source.stored.state is None:
        raise CheckpointError(
            f"{path}: without a strategy the checkpoint becomes one file; end its name in {' or '.join(SUFFIXES)} (a "
            "folder is made only of a run's step with its state.json and all optimizer state)"
        )
    state = [name for name in source.tensors if name.startswith(OPTIMIZER_PREFIX)]
    weights = [name for name in source.tensors if not name.startswith(OPTIMIZER_PREFIX)]
    return tuple(
        _new_file(file, 0, source.tensors, layouts, names)
        for file, names in ((PARAMETERS_FILE, weights), (OPTIMIZER_FILE, state))
    )


def _new_file(
    name: str, rank: int, tensors: Mapping[str, WholeTensor], layouts: Mapping[str, Layout], names: Iterable[str]
) -> NewFile:
    held = {one: part for one in names if (part := layouts[one].slice_of(rank)) is not None}
    infos = {one: TensorInfo(dtype=tensors[one].info.dtype, shape=part.shape) for one, part in held.items()}
    if name.endswith(".safetensors"):  # as the library orders them, so that files written by it come back as they were
        infos = library_order(infos)
    return NewFile(name=name, rank=rank, infos=infos, slices=held)


def _write(source: WholeCheckpoint, files: Sequence[NewFile], request: TransformRequest, *, shows_bar: bool) -> None:
    """Write aside, read back, rename; `deep` first checks that source and destination hold the same.

    Raises CheckpointError if the file system refuses, or something else is read than was written.
    """
    target, strategy, sync = request.destination, request.destination_strategy, request.sync
    filled = temporary_path(target)
    threads = _Threads(request.jobs or os.cpu_count() or 1)
    num_bytes = 2 * sum(new.num_bytes for new in files)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent, target.name)
        for new in files:
            (filled / new.name).parent.mkdir(parents=True, exist_ok=True)
        # The bar's lock would hold threads up, so there is none unless it is displayed.
        with byte_progress("writing", num_bytes, is_wanted=shows_bar and sys.stderr.isatty()) as threads.report:
            digests = threads.map(partial(write_file_of, source, filled, sync=sync, advance=threads.advance), files)
        is_file = _is_one_file(target, strategy)
        if not is_file:
            _add_other_files(source, filled, zip(files, digests, strict=True), strategy)
        written = filled / files[0].name if is_file else filled
        if request.deep:
            with open_whole(find_checkpoint(written), strategy) as destination:
                _compare(source, destination, threads)
        _require_absent(target)  # what appeared there in the meantime stays
        if is_file:
            os.rename(written, target)
            if sync:
                fsync(target.parent)
        else:
            if sync:
                fsync_tree(filled)
            publish_folder(filled, target)
    except OSError as error:
        raise CheckpointError(
            f"{write_error(target, error)}; nothing is left there, the source is untouched"
        ) from error
    finally:
        shutil.rmtree(filled, ignore_errors=True)


def write_file_of(
    source: WholeCheckpoint, folder: Path, new: NewFile, *, sync: bool, advance: Advance
) -> dict[str, str]:
    """Write one file below `folder` and read it back; returns the digests of its tensors. sync: flush it to disk.

    Raises OSError if the file system refuses, CheckpointError where something else is read than was written.
    """
    digests: dict[str, str] = {}
    path = folder / new.name
    write_tensors(path, new.infos, _parts(source, new, digests, advance), metadata=source.metadata, sync=sync)
    read_back(path, new, digests, advance=advance)
    return digests


def _parts(
    source: WholeCheckpoint, new: NewFile, digests: dict[str, str], advance: Advance
) -> Iterator[tuple[str, memoryview]]:
    """(name, bytes) in the order of the file; a piece is gone when the next one comes."""
    buffer = np.empty(CHUNK_BYTES, dtype=np.uint8)
    for name, info in new.infos.items():
        digest, blocks = new_digest(), source.blocks(name, near=new.rank)
        for block in new.slices[name].blocks(CHUNK_BYTES // info.bits.itemsize):
            piece = buffer[: block.size * info.bits.itemsize]
            blocks.fill(block, piece.view(info.bits).reshape(block.shape))
            digest.update(memoryview(piece))
            yield name, memoryview(piece)
            advance(piece.nbytes)
        digests[name] = digest.hexdigest()


def read_back(path: Path, new: NewFile, digests: Mapping[str, str], *, advance: Advance) -> None:
    """Read a written file. Raises CheckpointError if it holds anything else than was written."""
    with open_tensors(path) as file:
        if list(file.tensors.items()) != list(new.infos.items()):
            raise CheckpointError(f"{path}: its header, read back, is not what was written; {_REMEDY}")
        for name, expected in digests.items():
            found = tensor_digest(file, name, advance=advance)
            if found != expected:
                raise CheckpointError(
                    f"{path}: {name}, read back, differs from what was written (XXH3 {found} instead of {expected}); "
                    f"{_REMEDY}"
                )


def _add_other_files(
    source: WholeCheckpoint,
    folder: Path,
    written: Iterable[tuple[NewFile, Mapping[str, str]]],
    strategy: Strategy | None,
) -> None:
    """Add the record of ranks' files or the manifest of a run's, and a run's state and other files unchanged."""
    stored = source.stored
    if stored.state is not None:
        for path in (stored.state, *stored.stateful):
            shutil.copyfile(path, folder / path.name)
    if strategy is None:
        assert stored.step is not None, "only a run's step becomes a folder"
        write_manifest(folder, step=stored.step)
        return
    files = {
        new.name: FileRecord(size=(folder / new.name).stat().st_size, digest=file_digest(new.infos, digests))
        for new, digests in written
    }
    files |= {path.name: recorded_file(folder / path.name) for path in stored.stateful}
    write_shard_record(folder, ShardRecord(order=tuple(source.tensors), step=stored.step, files=files))


def _compare(left: WholeCheckpoint, right: WholeCheckpoint, threads: _Threads) -> None:
    """Raises CheckpointError if the two do not hold the same tensors, or replicas of a slice differ in one."""
    if left.tensors.keys() != right.tensors.keys():
        names = sorted(left.tensors.keys() ^ right.tensors.keys())
        raise CheckpointError(f"{right.stored.path}: {names[0]} is only in one of source and destination")
    names = list(left.tensors)
    for side in (left, right):
        threads.map(partial(check_replicas, side, advance=threads.advance), names)
    digests = [threads.map(partial(whole_digest, side, advance=threads.advance), names) for side in (left, right)]
    differing = [name for name, one, other in zip(names, *digests, strict=True) if one != other]
    if differing:
        raise CheckpointError(
            f"{right.stored.path}: {len(differing)} of {len(names)} tensors differ from the source, first "
            f"{', '.join(differing[:3])}; nothing was put in place"
        )


class _Threads:
    """Threads of one conversion; after an error, or Ctrl-C, all of them stop at their next chunk."""

    def __init__(self, number: int) -> None:
        self.report: Advance = lambda num_bytes: None
        self._number = number
        self._is_stopped = False

    def map(self, work: Callable[[Any], Any], arguments: Sequence[Any]) -> list[Any]:
        """[work(one) for one in arguments], several at a time."""
        with ThreadPoolExecutor(self._number) as pool:
            futures = [pool.submit(work, one) for one in arguments]
            try:
                for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                    future.result()
            except BaseException:
                self._is_stopped = True
                pool.shutdown(cancel_futures=True)
                raise
        return [future.result() for future in futures]

    def advance(self, num_bytes: int) -> None:
        """Called by the threads after every chunk."""
        if self._is_stopped:
            raise _StoppedError
        self.report(num_bytes)


class _StoppedError(Exception):
    """Ends a thread when another one has failed."""


def _is_one_file(target: Path, strategy: Strategy | None) -> bool:
    """Whether a single file is written instead of a folder."""
    return strategy is None and target.suffix in SUFFIXES


def _require_absent(path: Path) -> None:
    """Raises CheckpointError if anything but an empty folder exists."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        raise CheckpointError(f"{path}: already there, and nothing is replaced; move it away or give another name")
