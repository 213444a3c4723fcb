"""A checkpoint that comes to be: written aside by several threads, read back, proved, and renamed.

What enters: the source as a whole, the files to write, where they go. What leaves: a complete checkpoint under its
name, or nothing there. Called by `transform`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from mindgspo.checkpoint.byte_progress import byte_progress
from mindgspo.checkpoint.manifest import write_manifest
from mindgspo.checkpoint.transform.destination import NewFile
from mindgspo.checkpoint.transform.digests import file_digest
from mindgspo.checkpoint.transform.logical_checkpoint import LogicalCheckpoint, open_logical
from mindgspo.checkpoint.transform.proof import prove_equal, work_bytes
from mindgspo.checkpoint.transform.rank_files import SUFFIXES
from mindgspo.checkpoint.transform.record import RecordedFile, ShardRecord, write_record
from mindgspo.checkpoint.transform.stored_checkpoint import find_checkpoint
from mindgspo.checkpoint.transform.writing import check_file, recorded_file, write_file
from mindgspo.errors import CheckpointError
from mindgspo.io import fsync, fsync_tree, publish_folder, remove_leftovers, temporary_path
from mindgspo.parallel.strategy.record import Strategy

Result = TypeVar("Result")

# Room for headers, state and the file system's own records.
_SPARE_BYTES = 16 << 20


class NewCheckpoint:
    """One checkpoint whose files are known. strategy: by which they are cut, None for whole ones. jobs: threads. syncs:
    it is on the disk in the end."""

    def __init__(
        self,
        source: LogicalCheckpoint,
        files: Sequence[NewFile],
        target: Path,
        *,
        strategy: Strategy | None,
        jobs: int,
        syncs: bool,
        shows_bar: bool,
    ) -> None:
        self._source = source
        self._files = files
        self._target = target
        self._strategy = strategy
        self._jobs, self._syncs = jobs, syncs
        # Where there is no terminal nobody looks at a bar, and its lock would hold threads up.
        self._shows_bar = shows_bar and sys.stderr.isatty()
        self._report: Callable[[int], None] = _unseen
        self._metadata = source.metadata
        self._has_idle_threads = len(files) < jobs
        self._filled = temporary_path(target)
        self._is_one_file = is_one_file(target, strategy)
        self._is_stopped = False

    def write(self, *, deep: bool) -> None:
        """Write aside, read back, rename. deep: before that, prove that source and destination hold the same.

        Raises CheckpointError where the file system refuses, or something else is read than was written.
        """
        target = self._target
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(target.parent, target.name)
            self._filled.mkdir()
            digests = self._write_files()
            self._add_what_belongs_to_it(digests)
            if deep:
                self._prove()
            self._put_in_place(target)
        except OSError as error:
            raise CheckpointError(
                f"{target}: could not be written ({error}); nothing is left there, the source is untouched"
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
        digests = write_file(
            self._source,
            new,
            self._filled / new.name,
            metadata=self._metadata,
            advance=self._advance,
            reads_ahead=self._has_idle_threads,
            syncs=self._syncs,
        )
        if not self._has_idle_threads:
            self._read_back(new, digests)
        return digests

    def _read_back(self, new: NewFile, digests: Mapping[str, str], part: int | None = None) -> None:
        """part: of as many parts as there are threads, which take tensors in turn; None: all."""
        names = list(new.infos) if part is None else list(new.infos)[part :: self._jobs]
        check_file(self._filled / new.name, new, digests, names, advance=self._advance)

    def _add_what_belongs_to_it(self, digests: Sequence[Mapping[str, str]]) -> None:
        """Beside ranks' files our record, beside a run's files its manifest; with both a run's state and what else it
        keeps, as they are."""
        if self._is_one_file:
            return
        stored = self._source.stored
        if stored.state is not None:
            for path in (stored.state, *stored.kept):
                shutil.copyfile(path, self._filled / path.name)
        if self._strategy is None:
            assert stored.step is not None, "only a run's step becomes a folder"
            write_manifest(self._filled, step=stored.step)
            return
        files = {
            new.name: RecordedFile(size=(self._filled / new.name).stat().st_size, digest=file_digest(new.infos, digest))
            for new, digest in zip(self._files, digests, strict=True)
        }
        for path in stored.kept:
            files[path.name] = recorded_file(self._filled / path.name)
        write_record(self._filled, ShardRecord(order=tuple(self._source.tensors), step=stored.step, files=files))

    def _prove(self) -> None:
        written = find_checkpoint(self._filled / self._files[0].name if self._is_one_file else self._filled)
        with (
            open_logical(written, self._strategy) as destination,
            self._stage("comparing", work_bytes(self._source, destination)),
        ):
            prove_equal(self._source, destination, run=self._all, advance=self._advance)

    def _put_in_place(self, target: Path) -> None:
        """Under its name at last; whatever came to stand there since the beginning stays."""
        require_absent(target)
        if self._is_one_file:
            os.rename(self._filled / self._files[0].name, target)
            if self._syncs:
                fsync(target.parent)
            return
        if self._syncs:
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
    """Whether a single file is written, and no folder."""
    return strategy is None and target.suffix in SUFFIXES


def require_absent(path: Path) -> None:
    """Raises CheckpointError where something stands that a user may want; an empty folder is none."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        raise CheckpointError(f"{path}: already there, and nothing is replaced; move it away or give another name")


def require_room(path: Path, num_bytes: int) -> None:
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    needed, free = num_bytes + _SPARE_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"{path}: needs {needed / 2**20:,.0f} MiB, and {free / 2**20:,.0f} MiB are free in {folder}; make room, or "
            "give a place on a larger disk"
        )
