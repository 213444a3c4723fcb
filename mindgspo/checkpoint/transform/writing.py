"""One file of a checkpoint: written from the blocks of another plan's slices, and read back.

What enters: a checkpoint as a whole and what the file shall hold. What leaves: the file, on disk, and the digests of
its tensors. Called by `new_checkpoint`, from several threads. A chunk is in memory at a time, never a tensor: it is
read into a buffer that fits into a processor's cache, hashed there and written from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path

import numpy as np

from mindgspo.checkpoint.transform.ahead import ahead
from mindgspo.checkpoint.transform.destination import NewFile
from mindgspo.checkpoint.transform.digests import TensorDigest, file_digest
from mindgspo.checkpoint.transform.logical_checkpoint import LogicalCheckpoint
from mindgspo.checkpoint.transform.record import RecordedFile
from mindgspo.errors import CheckpointError
from mindgspo.tensor_files.reader import TensorFile, open_tensor_file
from mindgspo.tensor_files.writer import write_tensors

CHUNK_BYTES = 1 << 20
_AHEAD = 2

Advance = Callable[[int], None]
"""Called with the number of bytes just done."""


def write_file(
    source: LogicalCheckpoint,
    new: NewFile,
    path: Path,
    *,
    metadata: Mapping[str, str] | None,
    advance: Advance,
    reads_ahead: bool,
    syncs: bool,
) -> dict[str, str]:
    """Write one file; returns the digests of its tensors. Raises OSError where the file system refuses.

    reads_ahead: read in a thread of its own while another chunk is written. syncs: wait until it is on the disk.
    """
    digests: dict[str, str] = {}
    parts = _parts(source, new, digests, advance, num_buffers=_AHEAD + 2 if reads_ahead else 1)
    with ahead(parts, depth=_AHEAD) if reads_ahead else nullcontext(parts) as ready:
        write_tensors(path, new.infos, ready, metadata=metadata, sync=syncs)
    return digests


def _parts(
    source: LogicalCheckpoint, new: NewFile, digests: dict[str, str], advance: Advance, *, num_buffers: int
) -> Iterator[tuple[str, memoryview]]:
    """(name, bytes) in the order of the file; a piece is gone `num_buffers` pieces later."""
    buffers = cycle([np.empty(CHUNK_BYTES, dtype=np.uint8) for _ in range(num_buffers)])
    for name, info in new.infos.items():
        digest, blocks = TensorDigest(), source.blocks(name, near=new.rank)
        for block in new.slices[name].blocks(CHUNK_BYTES // info.bits.itemsize):
            piece = next(buffers)[: block.size * info.bits.itemsize]
            blocks.fill(block, piece.view(info.bits).reshape(block.shape))
            content = memoryview(piece)
            digest.update(content)
            yield name, content
            advance(piece.nbytes)
        digests[name] = digest.hexdigest()


def check_file(path: Path, new: NewFile, digests: Mapping[str, str], names: Iterable[str], *, advance: Advance) -> None:
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


_REMEDY = "the disk or the memory is failing: write to another one"


def recorded_file(path: Path) -> RecordedFile:
    """Size and digest of a written file, by its tensors. Raises WeightsError where it is damaged."""
    with open_tensor_file(path) as file:
        digests = {name: tensor_digest(file, name, advance=lambda num_bytes: None) for name in file.tensors}
        return RecordedFile(size=path.stat().st_size, digest=file_digest(file.tensors, digests))


def tensor_digest(file: TensorFile, name: str, *, advance: Advance) -> str:
    """The digest of a stored tensor."""
    digest, size = TensorDigest(), file.tensors[name].num_bytes
    buffer = memoryview(bytearray(min(CHUNK_BYTES, size)))
    for start in range(0, size, CHUNK_BYTES):
        content = buffer[: size - start]
        file.read_into(name, start, content)
        digest.update(content)
        advance(content.nbytes)
    return digest.hexdigest()
