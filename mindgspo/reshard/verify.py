"""Check that a reshard arrived: SHA-256 of whole parameters on both sides, without gathering any of them.

Both layouts together cut a parameter into a grid of blocks; every rank hashes the blocks that it holds, on either side;
all hashes of one block must agree; what the destination holds in a smaller type is rounded to it first. The hash of a
parameter is the hash of its blocks' hashes, in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product

import numpy as np

from mindgspo.errors import WeightsError
from mindgspo.parallel.collectives.host import exchange
from mindgspo.parallel.plans.layout import Layout, TensorSlice
from mindgspo.parallel.platform import runtime
from mindgspo.reshard.resharder import Residency, Types, everything_stays
from mindgspo.text import listed

SAMPLE_SIZE = 4  # parameters; few, because every rank hashes them, and later reshards take the others
_DIGEST_BYTES = hashlib.sha256().digest_size


def sampled_names(names: Sequence[str], number: int) -> list[str]:
    """A few parameters for reshard number 0, 1, 2, ...: others every time, all of them in turn."""
    first = number * SAMPLE_SIZE
    return [names[(first + i) % len(names)] for i in range(min(SAMPLE_SIZE, len(names)))]


def verify_reshard(
    names: Sequence[str],
    source: Mapping[str, Layout],
    destination: Mapping[str, Layout],
    old: Mapping[str, np.ndarray],
    new: Mapping[str, np.ndarray],
    residency: Residency = everything_stays,
    types: Types | None = None,
) -> dict[str, str]:
    """{name: SHA-256 of the whole parameter} on every rank. residency, types: as `Resharder`'s. Raises WeightsError
    where two holders of a block, on whichever side, hold different bytes."""
    messages = exchange(_own_digests(names, source, destination, old, new, residency, types))
    digests = [_digests_of(message) for message in messages]
    hashes, damaged = {}, []
    for name in names:
        whole = hashlib.sha256()
        for block in _blocks(source[name], destination[name]):
            found = {next(digests[rank]) for side in (source, destination) for rank in _holders(side[name], block)}
            whole.update(min(found))
            if len(found) > 1 and name not in damaged:
                damaged.append(name)
        hashes[name] = whole.hexdigest()
    if damaged:
        raise WeightsError(
            f"after the reshard {len(damaged)} of {len(names)} compared parameters differ between the two plans: "
            f"{listed(damaged, 5)}; the rollout would not be by the trained weights"
        )
    return hashes


def _own_digests(
    names: Sequence[str],
    source: Mapping[str, Layout],
    destination: Mapping[str, Layout],
    old: Mapping[str, np.ndarray],
    new: Mapping[str, np.ndarray],
    residency: Residency,
    types: Types | None,
) -> bytes:
    """This rank's hashes, in the order in which every rank reads them."""
    rank, digests = runtime.rank(), []
    for name in names:
        with residency((name,)):
            for block in _blocks(source[name], destination[name]):
                for side, slices in ((source, old), (destination, new)):
                    held = side[name].slice_of(rank)
                    if held is not None and held.intersection(block) is not None:
                        values = np.ascontiguousarray(slices[name][block.relative_to(held.starts).index])
                        values = values if types is None else values.astype(types[name], copy=False)
                        digests.append(hashlib.sha256(values.view(np.uint8)).digest())
    return b"".join(digests)


def _blocks(source: Layout, destination: Layout) -> Iterator[TensorSlice]:
    """The grid of both layouts' cuts, in row-major order."""
    axes = [
        sorted({*range(0, length + 1, mine), *range(0, length + 1, theirs)})
        for length, mine, theirs in zip(source.shape, source.slice_shape, destination.slice_shape, strict=True)
    ]
    for bounds in product(*(tuple(pairwise(cuts)) for cuts in axes)):
        yield TensorSlice(tuple(start for start, _ in bounds), tuple(stop for _, stop in bounds))


def _holders(layout: Layout, block: TensorSlice) -> Iterator[int]:
    for rank in sorted(layout.rank_list):
        held = layout.slice_of(rank)
        if held is not None and held.intersection(block) is not None:
            yield rank


def _digests_of(message: bytes) -> Iterator[bytes]:
    """One rank's hashes, one after the other."""
    return (message[start : start + _DIGEST_BYTES] for start in range(0, len(message), _DIGEST_BYTES))
