"""Write a new checkpoint atomically: in threads, read back, compared, then published."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TypeVar

import numpy as np

from mindgspo.checkpoint.manifest import FileDigest, file_digest, write_manifest
from mindgspo.checkpoint.placement import OPTIMIZER_PREFIX, num_ranks, place
from mindgspo.checkpoint.store import OPTIMIZER_FILE, PARAMETERS_FILE
from mindgspo.checkpoint.stored_files import SUFFIXES, RecordedFile, ShardRecord, find_checkpoint, write_shard_record
from mindgspo.checkpoint.verify import CHUNK_BYTES, Advance, check_equal, comparison_bytes, recorded_file, tensor_digest
from mindgspo.checkpoint.whole_checkpoint import WholeCheckpoint, WholeTensor, open_whole
from mindgspo.errors import CheckpointError
from mindgspo.io import fsync, fsync_tree, publish_folder, remove_leftovers, temporary_path, write_error
from mindgspo.parallel.plans.layout import Layout, TensorSlice
from mindgspo.progress import byte_progress
from mindgspo.strategy.record import Strategy
from mindgspo.tensor_files.reader import open_tensor_file
from mindgspo.tensor_files.safetensors_format import library_order
from mindgspo.tensor_files.tensors import TensorInfo
from mindgspo.tensor_files.writer import write_tensors

Result = TypeVar("Result")
Item = TypeVar("Item")
_REMEDY = "the disk or the memory is failing: write to another one"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """name: within the folder of the checkpoint. rank: whose it is. infos: of its tensors, in its order. slices: which
    part of the whole tensor each of them is."""

    name: str
    rank: int
    infos: Mapping[str, TensorInfo]
    slices: Mapping[str, TensorSlice]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(info.num_bytes for info in self.infos.values())


def rank_files_to_write(
    source: WholeCheckpoint, strategy: Strategy, *, suffix: str, prefix: str
) -> tuple[NewFile, ...]:
    """One file per rank. Raises WeightsError or CheckpointError where the strategy does not fit the checkpoint."""
    layouts = place({name: tensor.info.shape for name, tensor in source.tensors.items()}, strategy)
    return tuple(
        _new_file(f"rank_{rank}/{prefix}{rank}{suffix}", rank, source.tensors, layouts, source.tensors)
        for rank in range(num_ranks(strategy))
    )


def whole_files_to_write(source: WholeCheckpoint, path: Path) -> tuple[NewFile, ...]:
    """One file where `path` ends as one does, else the two files of a step folder.

    Raises CheckpointError for a folder where the checkpoint comes from no run.
    """
    layouts = place({name: tensor.info.shape for name, tensor in source.tensors.items()}, None)
    if path.suffix in SUFFIXES:
        return (_new_file(path.name, 0, source.tensors, layouts, source.tensors),)
    if source.stored.state is None:
        raise CheckpointError(
            f"{path}: without a strategy the checkpoint becomes one file; end its name in {' or '.join(SUFFIXES)} (a "
            "folder is made only of a run's step with its state.json and all optimizer state)"
        )
    is_state = {name: name.startswith(OPTIMIZER_PREFIX) for name in source.tensors}
    return tuple(
        _new_file(file, 0, source.tensors, layouts, [name for name in source.tensors if is_state[name] is wanted])
        for file, wanted in ((PARAMETERS_FILE, False), (OPTIMIZER_FILE, True))
    )


def _new_file(
    name: str, rank: int, tensors: Mapping[str, WholeTensor], layouts: Mapping[str, Layout], names: Iterable[str]
) -> NewFile:
    held = {one: part for one in names if (part := layouts[one].slice_of(rank)) is not None}
    infos = {one: TensorInfo(dtype=tensors[one].info.dtype, shape=part.shape) for one, part in held.items()}
    if name.endswith(".safetensors"):  # as the library orders them, so that files written by it come back as they were
        infos = library_order(infos)
    return NewFile(name=name, rank=rank, infos=infos, slices=held)


class NewCheckpoint:
    """One checkpoint whose files are known. strategy: by which they are cut, None for whole ones. jobs: threads. sync:
    it is on the disk in the end."""

    def __init__(
        self,
        source: WholeCheckpoint,
        files: Sequence[NewFile],
        target: Path,
        *,
        strategy: Strategy | None,
        jobs: int,
        sync: bool,
        shows_bar: bool,
    ) -> None:
        self._source = source
        self._files = files
        self._target = target
        self._strategy = strategy
        self._jobs, self._sync = jobs, sync
        self._shows_bar = shows_bar and sys.stderr.isatty()  # the bar's lock would hold threads up
        self._report: Callable[[int], None] = _unseen
        self._metadata = source.metadata
        self._has_idle_threads = len(files) < jobs
        self._filled = temporary_path(target)
        self._is_one_file = is_one_file(target, strategy)
        self._is_stopped = False

    def write(self, *, deep: bool) -> None:
        """Write aside, read back, rename. deep: first check that source and destination hold the same.

        Raises CheckpointError where the file system refuses, or something else is read than was written.
        """
        target = self._target
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(target.parent, target.name)
            self._filled.mkdir()
            digests = self._write_files()
            self._add_other_files(digests)
            if deep:
                self._compare()
            self._publish(target)
        except OSError as error:
            raise CheckpointError(
                f"{write_error(target, error)}; nothing is left there, the source is untouched"
            ) from error
        finally:
            shutil.rmtree(self._filled, ignore_errors=True)

    def _write_files(self) -> list[dict[str, str]]:
        """Write and read back; the digests of every file."""
        for parent in {(self._filled / new.name).parent for new in self._files}:
            parent.mkdir(exist_ok=True)
        with self._stage("writing", 2 * sum(new.num_bytes for new in self._files)):
            digests = self._all(self._write_file, [(new,) for new in self._files])
            if self._has_idle_threads:
                pairs = list(zip(self._files, digests, strict=True))
                self._all(self._read_back, [(*pair, part) for pair in pairs for part in range(self._jobs)])
        return digests

    def _write_file(self, new: NewFile) -> dict[str, str]:
        digests = write_rank_file(
            self._source,
            new,
            self._filled / new.name,
            metadata=self._metadata,
            advance=self._advance,
            reads_ahead=self._has_idle_threads,
            sync=self._sync,
        )
        if not self._has_idle_threads:
            self._read_back(new, digests)
        return digests

    def _read_back(self, new: NewFile, digests: Mapping[str, str], part: int | None = None) -> None:
        """part: of as many parts as there are threads, which take tensors in turn; None: all."""
        names = list(new.infos) if part is None else list(new.infos)[part :: self._jobs]
        read_back(self._filled / new.name, new, digests, names, advance=self._advance)

    def _add_other_files(self, digests: Sequence[Mapping[str, str]]) -> None:
        """Add the record of ranks' files or the manifest of a run's, and a run's state and other files unchanged."""
        if self._is_one_file:
            return
        stored = self._source.stored
        if stored.state is not None:
            for path in (stored.state, *stored.stateful):
                shutil.copyfile(path, self._filled / path.name)
        if self._strategy is None:
            assert stored.step is not None, "only a run's step becomes a folder"
            write_manifest(self._filled, step=stored.step)
            return
        files = {
            new.name: RecordedFile(size=(self._filled / new.name).stat().st_size, digest=file_digest(new.infos, digest))
            for new, digest in zip(self._files, digests, strict=True)
        }
        for path in stored.stateful:
            files[path.name] = recorded_file(self._filled / path.name)
        write_shard_record(self._filled, ShardRecord(order=tuple(self._source.tensors), step=stored.step, files=files))

    def _compare(self) -> None:
        written = find_checkpoint(self._filled / self._files[0].name if self._is_one_file else self._filled)
        with (
            open_whole(written, self._strategy) as destination,
            self._stage("comparing", comparison_bytes(self._source, destination)),
        ):
            check_equal(self._source, destination, run=self._all, advance=self._advance)

    def _publish(self, target: Path) -> None:
        """Rename it; what appeared there in the meantime stays."""
        require_absent(target)
        if self._is_one_file:
            os.rename(self._filled / self._files[0].name, target)
            if self._sync:
                fsync(target.parent)
            return
        if self._sync:
            fsync_tree(self._filled)
        publish_folder(self._filled, target)

    def _all(self, work: Callable[..., Result], arguments: Sequence[tuple]) -> list[Result]:
        """[work(*one) for one in arguments], several at a time; after an error, or Ctrl-C, all of them stop."""
        with ThreadPoolExecutor(self._jobs) as pool:
            futures = [pool.submit(work, *one) for one in arguments]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
            except BaseException:
                self._is_stopped = True
                pool.shutdown(cancel_futures=True)
                raise
        return [future.result() for future in futures]

    def _advance(self, num_bytes: int) -> None:
        """Called by the threads after every chunk."""
        if self._is_stopped:
            raise _Stopped
        self._report(num_bytes)

    @contextmanager
    def _stage(self, name: str, num_bytes: int) -> Iterator[None]:
        """With a bar of its own, which threads move on through `_advance`."""
        if not self._shows_bar:
            yield
            return
        with byte_progress(name, num_bytes, is_wanted=True) as self._report:
            yield
        self._report = _unseen


def _unseen(num_bytes: int) -> None:
    """In place of a bar."""


class _Stopped(Exception):  # noqa: N818 (nothing went wrong in the thread that it ends)
    """Another thread has failed."""


def is_one_file(target: Path, strategy: Strategy | None) -> bool:
    """Whether a single file is written instead of a folder."""
    return strategy is None and target.suffix in SUFFIXES


def require_absent(path: Path) -> None:
    """Raises CheckpointError where anything but an empty folder exists."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        raise CheckpointError(f"{path}: already there, and nothing is replaced; move it away or give another name")


def write_rank_file(
    source: WholeCheckpoint,
    new: NewFile,
    path: Path,
    *,
    metadata: Mapping[str, str] | None,
    advance: Advance,
    reads_ahead: bool,
    sync: bool,
) -> dict[str, str]:
    """Write one file; returns the digests of its tensors. Raises OSError where the file system refuses.

    reads_ahead: read in another thread while a chunk is written. sync: flush it to disk.
    """
    digests: dict[str, str] = {}
    parts = _parts(source, new, digests, advance, num_buffers=3 if reads_ahead else 1)
    write_tensors(path, new.infos, _prefetched(parts) if reads_ahead else parts, metadata=metadata, sync=sync)
    return digests


def _prefetched(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, each made in another thread while the one before it is used."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, items, None)
        while (item := following.result()) is not None:
            following = pool.submit(next, items, None)
            yield item


def _parts(
    source: WholeCheckpoint, new: NewFile, digests: dict[str, str], advance: Advance, *, num_buffers: int
) -> Iterator[tuple[str, memoryview]]:
    """(name, bytes) in the order of the file; a piece is gone `num_buffers` pieces later."""
    buffers = cycle([np.empty(CHUNK_BYTES, dtype=np.uint8) for _ in range(num_buffers)])
    for name, info in new.infos.items():
        digest, blocks = FileDigest(), source.blocks(name, near=new.rank)
        for block in new.slices[name].blocks(CHUNK_BYTES // info.bits.itemsize):
            piece = next(buffers)[: block.size * info.bits.itemsize]
            blocks.fill(block, piece.view(info.bits).reshape(block.shape))
            content = memoryview(piece)
            digest.update(content)
            yield name, content
            advance(piece.nbytes)
        digests[name] = digest.hexdigest()


def read_back(path: Path, new: NewFile, digests: Mapping[str, str], names: Iterable[str], *, advance: Advance) -> None:
    """Read tensors of a written file back. Raises CheckpointError where it holds anything else than was written."""
    with open_tensor_file(path) as file:
        if list(file.tensors.items()) != list(new.infos.items()):
            raise CheckpointError(f"{path}: its header, read back, is not what was written; {_REMEDY}")
        for name in names:
            found = tensor_digest(file, name, advance=advance)
            if found != digests[name]:
                raise CheckpointError(
                    f"{path}: {name}, read back, differs from what was written (XXH3 {found} instead of "
                    f"{digests[name]}); {_REMEDY}"
                )
