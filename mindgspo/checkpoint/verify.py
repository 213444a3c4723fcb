"""Verify that checkpoints are what was written, and list what is there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mindgspo.checkpoint.manifest import check_size, file_digest, new_digest, verify
from mindgspo.checkpoint.store import CHECKPOINT_FILES, best_first, complete_steps, evaluation_text, steps_newest_first
from mindgspo.checkpoint.stored_files import (
    RECORD_FILE,
    StoredCheckpoint,
    find_checkpoint,
    is_sharded,
    read_shard_record,
    steps_folder,
)
from mindgspo.checkpoint.whole_checkpoint import WholeCheckpoint, compare_replicas, open_whole
from mindgspo.errors import CheckpointError, MindGSPOError
from mindgspo.metrics.files import FileRecord
from mindgspo.parallel.plans.layout import TensorSlice
from mindgspo.strategy.record import Strategy
from mindgspo.tensor_files.reader import OpenTensors, open_tensors
from mindgspo.text import aligned

CHUNK_BYTES = 1 << 20

Advance = Callable[[int], None]
"""Called with the number of bytes just done."""
_HEADER = ("folder", "step", "size", "saved", "evaluated", "state")


def recorded_file(path: Path) -> FileRecord:
    """Size and digest of a written file, by its tensors. Raises WeightsError if it is damaged."""
    with open_tensors(path) as file:
        digests = {name: tensor_digest(file, name, advance=lambda num_bytes: None) for name in file.tensors}
        return FileRecord(size=path.stat().st_size, digest=file_digest(file.tensors, digests))


def tensor_digest(file: OpenTensors, name: str, *, advance: Advance) -> str:
    """The digest of a stored tensor."""
    digest, size = new_digest(), file.tensors[name].num_bytes
    buffer = memoryview(bytearray(min(CHUNK_BYTES, size)))
    for start in range(0, size, CHUNK_BYTES):
        content = buffer[: size - start]
        file.read_into(name, start, content)
        digest.update(content)
        advance(content.nbytes)
    return digest.hexdigest()


def whole_digest(checkpoint: WholeCheckpoint, name: str, *, advance: Advance) -> str:
    """The digest of a whole tensor, its bytes in row-major order and preceded by dtype and shape."""
    info = checkpoint.tensors[name].info
    digest = new_digest()
    digest.update(memoryview(f"{info.dtype} {info.shape}\0".encode()))
    buffer = np.empty(CHUNK_BYTES, dtype=np.uint8)
    blocks = checkpoint.blocks(name)
    for block in TensorSlice((0,) * len(info.shape), info.shape).blocks(CHUNK_BYTES // info.bits.itemsize):
        piece = buffer[: block.size * info.bits.itemsize]
        blocks.fill(block, piece.view(info.bits).reshape(block.shape))
        digest.update(memoryview(piece))
        advance(piece.nbytes)
    return digest.hexdigest()


def check_replicas(checkpoint: WholeCheckpoint, name: str, *, advance: Advance) -> None:
    """Raises CheckpointError if ranks that should hold the same slice of a tensor do not."""
    why = "the strategy says that both hold the same part of it; one of the two is damaged"
    digest = partial(tensor_digest, advance=advance)
    compare_replicas(name, checkpoint.tensors[name].layout, checkpoint.ranks, digest, why)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """The verdict on one part of a checkpoint."""

    line: str
    """To print."""
    is_sound: bool


def verify_checkpoint(path: Path, *, strategy: Strategy | None = None, prefix: str = "") -> Iterator[FileReport]:
    """Report on one part after the other. Raises CheckpointError for what is no checkpoint at all."""
    steps = steps_folder(path)
    if steps is not None:
        for step in reversed(steps_newest_first(steps)):
            yield _report(partial(_step, step))
        return
    if path.is_dir() and (path / RECORD_FILE).is_file() and is_sharded(path):
        yield from _recorded(path)
        if strategy is not None:
            yield _report(lambda: _agreement(find_checkpoint(path, prefix=prefix), strategy))
        return
    if (path / CHECKPOINT_FILES[0]).is_file() and path.is_dir():
        yield _report(partial(_step, path))
        return
    stored = find_checkpoint(path, prefix=prefix)
    for rank, paths in stored.files.items():
        yield from (_report(partial(_header, file), where=f"rank {rank}: ") for file in paths)
    if strategy is not None:
        yield _report(partial(_agreement, stored, strategy))


def _report(check: Callable[[], str], where: str = "") -> FileReport:
    """Sound with what `check` returns, or damaged with the error that it raises."""
    try:
        return FileReport(line=f"sound    {check()}", is_sound=True)
    except MindGSPOError as error:
        return FileReport(line=f"damaged  {where}{error}", is_sound=False)


def _step(path: Path) -> str:
    manifest = verify(path, required=CHECKPOINT_FILES)
    size = sum(file.size for file in manifest.files.values())
    digest = "SHA-256" if manifest.hash_name == "sha256" else "XXH3"
    return f"{path}: {len(manifest.files)} files, {_mib(size)}, {digest} as saved"


def _recorded(path: Path) -> Iterator[FileReport]:
    """Ranks' files with the digests of their record."""
    record = read_shard_record(path)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        checks = (partial(_recorded_file, path / name, file) for name, file in record.files.items())
        yield from pool.map(_report, checks)


def _recorded_file(path: Path, expected: FileRecord) -> str:
    check_size(path, expected, RECORD_FILE, "restore the file from a copy")
    if recorded_file(path) != expected:
        raise CheckpointError(f"{path}: its content changed after it was written (XXH3 differs)")
    return f"{path}: {_mib(expected.size)}, XXH3 as written"


def _header(path: Path) -> str:
    """A file whose hash is not known."""
    with open_tensors(path) as opened:
        size = sum(info.num_bytes for info in opened.tensors.values())
        return f"{path}: {len(opened.tensors)} tensors, {_mib(size)}, header and sizes (no hash known)"


def _agreement(stored: StoredCheckpoint, strategy: Strategy) -> str:
    with open_whole(stored, strategy) as checkpoint:
        return f"{len(checkpoint.tensors)} tensors lie where {strategy.source} puts them"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"


def list_lines(path: Path) -> Iterator[str]:
    """The table. Raises CheckpointError if there is no checkpoint, WeightsError for a damaged file of tensors."""
    steps = steps_folder(path)
    if steps is not None:
        yield from aligned([_HEADER, *_step_rows(steps)])
        return
    stored = find_checkpoint(path)
    yield from stored.notes
    yield from aligned([("rank", "file", "tensors", "size", "dtypes"), *_file_rows(stored)])


def _step_rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Oldest first; of the complete ones the newest and the best are marked."""
    complete = list(complete_steps(folder))
    best = best_first(complete)
    marks: dict[Path, str] = dict.fromkeys(complete[:1], ", newest")
    marks |= {step: marks.get(step, "") + ", best" for step in best[:1]}
    rows = []
    for step in steps_newest_first(folder):
        size = sum(file.stat().st_size for file in step.iterdir() if file.is_file())
        saved = time.strftime("%Y-%m-%d %H:%M", time.localtime(step.stat().st_mtime))
        number = str(int(step.name.rpartition("_")[2]))
        try:
            verify(step, required=CHECKPOINT_FILES, hashes=False)
            state = "sizes match" + marks.get(step, "")
        except CheckpointError as error:
            state = f"damaged: {str(error).partition(';')[0].replace(f'{step}/', '')}"
        rows.append((step.name, number, _mib(size), saved, evaluation_text(step), state))
    return reversed(rows)


def _file_rows(stored: StoredCheckpoint) -> Iterator[tuple[str, ...]]:
    for rank, paths in stored.files.items():
        for path in paths:
            with open_tensors(path) as opened:
                infos = opened.tensors.values()
                size = sum(info.num_bytes for info in infos)
                dtypes = ", ".join(sorted({info.dtype for info in infos}))
            name = path.name if path == stored.path else str(path.relative_to(stored.path))
            yield str(rank), name, str(len(infos)), _mib(size), dtypes
