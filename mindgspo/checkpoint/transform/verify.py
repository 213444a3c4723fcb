"""Whether a checkpoint is still what was written.

What enters: a path, and the strategy of ranks' files where one is at hand. What leaves: one finding per part, sound or
not. Called by `mindgspo checkpoint verify`. A run's steps are compared with the digests of their manifest, ranks' files
that were written here with those of their record; of other files no hash is known, and what can be said is
that their headers cover them exactly and that ranks agree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mindgspo.checkpoint.manifest import verify
from mindgspo.checkpoint.steps import CHECKPOINT_FILES, steps_newest_first
from mindgspo.checkpoint.transform.logical_checkpoint import open_logical
from mindgspo.checkpoint.transform.rank_files import is_sharded
from mindgspo.checkpoint.transform.record import RECORD_FILE, RecordedFile, read_record
from mindgspo.checkpoint.transform.stored_checkpoint import StoredCheckpoint, find_checkpoint, steps_folder
from mindgspo.checkpoint.transform.writing import recorded_file
from mindgspo.errors import CheckpointError, MindGSPOError
from mindgspo.parallel.strategy.record import Strategy
from mindgspo.tensor_files.reader import open_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found of one part. line: to print."""

    line: str
    is_sound: bool


def verify_checkpoint(path: Path, *, strategy: Strategy | None = None, prefix: str = "") -> Iterator[Finding]:
    """One finding after the other. Raises CheckpointError for what is no checkpoint at all."""
    steps = steps_folder(path)
    if steps is not None:
        for step in reversed(steps_newest_first(steps)):
            yield _step(step)
        return
    if path.is_dir() and (path / RECORD_FILE).is_file() and is_sharded(path):
        yield from _recorded(path)
        if strategy is not None:
            yield _agreement(find_checkpoint(path, prefix=prefix), strategy)
        return
    try:
        stored = find_checkpoint(path, prefix=prefix)
    except CheckpointError as error:
        if not (path / CHECKPOINT_FILES[0]).is_file():
            raise
        yield Finding(line=f"damaged  {error}", is_sound=False)  # a step folder whose sizes are wrong
        return
    if stored.step is not None:
        yield _step(stored.path)
        return
    yield from _headers(stored)
    if strategy is not None:
        yield _agreement(stored, strategy)


def _step(path: Path) -> Finding:
    try:
        manifest = verify(path, required=CHECKPOINT_FILES)
    except CheckpointError as error:
        return Finding(line=f"damaged  {error}", is_sound=False)
    size = sum(file.size for file in manifest.files.values())
    digest = "SHA-256" if manifest.hash_name == "sha256" else "XXH3"
    return Finding(line=f"sound    {path}: {len(manifest.files)} files, {_mib(size)}, {digest} as saved", is_sound=True)


def _recorded(path: Path) -> Iterator[Finding]:
    """Ranks' files with the digests of their record."""
    record = read_record(path)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(lambda item: _recorded_file(path / item[0], item[1]), record.files.items())


def _recorded_file(path: Path, expected: RecordedFile) -> Finding:
    try:
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise CheckpointError(f"{path}: missing, though {RECORD_FILE} names it")
        if size != expected.size:
            what = "truncated" if size < expected.size else "too long"
            raise CheckpointError(f"{path}: {what}, {size:,} bytes instead of {expected.size:,}")
        if recorded_file(path) != expected:
            raise CheckpointError(f"{path}: its content changed after it was written (XXH3 differs)")
    except MindGSPOError as error:
        return Finding(line=f"damaged  {error}", is_sound=False)
    return Finding(line=f"sound    {path}: {_mib(expected.size)}, XXH3 as written", is_sound=True)


def _headers(stored: StoredCheckpoint) -> Iterator[Finding]:
    """Files of which no hash is known."""
    for rank, paths in stored.files.items():
        for path in paths:
            try:
                with open_tensors(path) as opened:
                    size = sum(info.num_bytes for info in opened.tensors.values())
                    held = f"{len(opened.tensors)} tensors, {_mib(size)}"
                    line = f"sound    {path}: {held}, header and sizes (no hash known)"
            except MindGSPOError as error:
                yield Finding(line=f"damaged  rank {rank}: {error}", is_sound=False)
            else:
                yield Finding(line=line, is_sound=True)


def _agreement(stored: StoredCheckpoint, strategy: Strategy) -> Finding:
    try:
        with open_logical(stored, strategy) as checkpoint:
            line = f"sound    {len(checkpoint.tensors)} tensors lie where {strategy.source} puts them"
    except MindGSPOError as error:
        return Finding(line=f"damaged  {error}", is_sound=False)
    return Finding(line=line, is_sound=True)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
