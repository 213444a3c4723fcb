"""Proof that two checkpoints hold the same, however each of them is cut.

What enters: two checkpoints as wholes. What leaves: nothing, or an error that names the tensors that differ. Called at
the end of a deep transform. Every tensor is hashed in its logical order on both sides, block by block, and every rank's
slice is compared with those of its replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mindgspo.checkpoint.transform.digests import TensorDigest
from mindgspo.checkpoint.transform.logical_checkpoint import LogicalCheckpoint
from mindgspo.checkpoint.transform.writing import CHUNK_BYTES, Advance, tensor_digest
from mindgspo.errors import CheckpointError
from mindgspo.parallel.tensor_slice import TensorSlice

_LISTED = 3


def prove_equal(
    left: LogicalCheckpoint,
    right: LogicalCheckpoint,
    *,
    run: Callable[[Callable, Sequence[tuple]], list],
    advance: Advance,
) -> None:
    """run(work, arguments): [work(*one) for one in arguments], in threads. Raises CheckpointError."""
    if left.tensors.keys() != right.tensors.keys():
        names = sorted(left.tensors.keys() ^ right.tensors.keys())
        raise CheckpointError(f"{right.stored.path}: {names[0]} is only in one of source and destination")
    names = list(left.tensors)
    for side in (left, right):
        for problems in run(lambda name, of=side: _unlike_replicas(of, name, advance), [(name,) for name in names]):
            for problem in problems:
                raise CheckpointError(problem)
    pairs = run(
        lambda name: (logical_digest(left, name, advance=advance), logical_digest(right, name, advance=advance)),
        [(name,) for name in names],
    )
    differing = [name for name, (one, other) in zip(names, pairs, strict=True) if one != other]
    if differing:
        raise CheckpointError(
            f"{right.stored.path}: {len(differing)} of {len(names)} tensors differ from the source, first "
            f"{', '.join(differing[:_LISTED])}; nothing was put in place"
        )


def work_bytes(left: LogicalCheckpoint, right: LogicalCheckpoint) -> int:
    """How many bytes `prove_equal` reads."""
    whole = sum(tensor.info.num_bytes for side in (left, right) for tensor in side.tensors.values())
    slices = sum(
        tensors[name].tensors[name].num_bytes
        for side in (left, right)
        for tensors in side.ranks.values()
        for name in tensors
        if side.tensors[name].layout.replicas > 1
    )
    return whole + slices


def logical_digest(checkpoint: LogicalCheckpoint, name: str, *, advance: Advance) -> str:
    """The digest of a whole tensor, its bytes in row-major order and preceded by dtype and shape."""
    tensor = checkpoint.tensors[name]
    info = tensor.info
    digest = TensorDigest()
    digest.update(memoryview(f"{info.dtype} {info.shape}\0".encode()))
    buffer = np.empty(CHUNK_BYTES, dtype=np.uint8)
    whole = TensorSlice((0,) * len(info.shape), info.shape)
    blocks = checkpoint.blocks(name)
    for block in whole.blocks(CHUNK_BYTES // info.bits.itemsize):
        piece = buffer[: block.size * info.bits.itemsize]
        blocks.fill(block, piece.view(info.bits).reshape(block.shape))
        digest.update(memoryview(piece))
        advance(piece.nbytes)
    return digest.hexdigest()


def _unlike_replicas(checkpoint: LogicalCheckpoint, name: str, advance: Advance) -> list[str]:
    """One line where ranks that should hold the same slice do not."""
    layout = checkpoint.tensors[name].layout
    for index in layout.slice_indices():
        holders = layout.holders(index)
        if len(holders) == 1:
            continue
        digests = {rank: tensor_digest(checkpoint.ranks[rank][name], name, advance=advance) for rank in holders}
        first = digests[holders[0]]
        for rank, digest in digests.items():
            if digest != first:
                return [
                    f"{checkpoint.ranks[rank][name].path}: {name} differs from that of rank {holders[0]}, and the "
                    "strategy says that both hold the same part of it; one of the two is damaged"
                ]
    return []
