"""Plan a reshard: from the layouts on both sides to steps of broadcasts of bounded size. Pure Python.

Every rank plans for itself, from metadata only: no rank's own number enters.

    layouts -> blocks that some rank lacks -> cut to the bucket size -> a sender for each -> steps -> buckets
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product, zip_longest
from math import prod

from mindgspo.errors import ConfigError, WeightsError
from mindgspo.parallel.plans.layout import NOT_SPLIT, Layout, Shape, SliceIndex, TensorSlice
from mindgspo.parallel.plans.placement import Ranks
from mindgspo.reshard.plan import BlockTransfer, Bucket, ReshardPlan, Step, broadcast_group, runs_within
from mindgspo.text import listed

WORD_BYTES = 4
"""Buffers travel as 32-bit words, the type that every collective of every backend takes."""
# Senders whose amounts differ by less than this part of a bucket count as equally loaded.
_GRAINS_PER_BUCKET = 8
Link = tuple[int, Ranks]
"""Sender and receivers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The common block of one source slice and one destination slice, where a holder of the latter lacks it."""

    block: TensorSlice
    """In coordinates of the full tensor."""
    holders: Ranks
    """The ranks whose source slice contains the block, ascending; any of them can send it."""
    receivers: Ranks
    """The ranks whose destination slice contains the block and whose source slice does not, ascending."""
    source_origin: tuple[int, ...]
    """Start of the holders' source slice in the full tensor."""
    destination_origin: tuple[int, ...]
    """Start of the receivers' destination slice in the full tensor."""


@lru_cache(maxsize=1024)
def missing_overlaps(source: Layout, destination: Layout) -> tuple[Overlap, ...]:
    """Every block that must travel; together, each rank's blocks are exactly what it lacks of its destination slice.

    Slices of one layout do not overlap and cover the tensor, so that a block has one source slice, and a rank holds the
    block if and only if it holds that slice. The work is linear in the answer and in the number of ranks, not in
    source slices times destination slices.
    """
    assert source.shape == destination.shape, (source, destination)
    if source.same_placement(destination):
        return ()
    return tuple(
        overlap
        for index in destination.slice_indices()
        for overlap in _of_destination_slice(source, destination, index)
    )


def _of_destination_slice(source: Layout, destination: Layout, index: SliceIndex) -> Iterator[Overlap]:
    needed = destination.slice_at(index)
    for source_index in touching_slices(source.slice_shape, needed):
        holders = source.holders(source_index)
        held = set(holders)
        receivers = tuple(rank for rank in destination.holders(index) if rank not in held)
        if not receivers:
            continue
        sent = source.slice_at(source_index)
        block = needed.intersection(sent)
        assert block is not None, (needed, sent)
        yield Overlap(
            block=block,
            holders=holders,
            receivers=receivers,
            source_origin=sent.starts,
            destination_origin=needed.starts,
        )


def whole_layout(name: str, shape: Shape, ranks: Ranks) -> Layout:
    """The layout of a tensor that each of these ranks holds whole."""
    return Layout(
        parameter=name,
        shape=shape,
        device_matrix=(len(ranks),),
        tensor_map=(NOT_SPLIT,) * len(shape),
        rank_list=ranks,
    )


def touching_slices(slice_shape: Shape, block: TensorSlice) -> Iterator[SliceIndex]:
    """The numbers of the slices of this shape that have elements of `block`."""
    return product(
        *(
            range(start // length, (stop - 1) // length + 1)
            for start, stop, length in zip(block.starts, block.stops, slice_shape, strict=True)
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsentBlock:
    """A block cut to size, to be sent once, without its sender."""

    piece: BlockTransfer
    holders: Ranks
    receivers: Ranks


def choose_senders(blocks: Sequence[UnsentBlock], *, grain_bytes: int) -> list[int]:
    """The sender of every block, in the order of `blocks`.

    The holder that has least to send is taken; amounts that differ by less than `grain_bytes` count as equal, and then
    a group of ranks that is in use already is preferred (groups cost memory and time to create), then the holder whose
    rank is nearest to a receiver's, then the lowest. Blocks with few holders choose first, large ones before small
    ones, so that those with a choice even out the others (the longest-processing-time rule of scheduling).
    """
    sent: Counter[int] = Counter()
    groups: set[Ranks] = set()
    senders = [-1] * len(blocks)
    for i in sorted(range(len(blocks)), key=lambda i: (len(blocks[i].holders), -blocks[i].piece.num_bytes, i)):
        block = blocks[i]
        least = min(sent[rank] // grain_bytes for rank in block.holders)
        candidates = [rank for rank in block.holders if sent[rank] // grain_bytes == least]
        senders[i] = min(candidates, key=lambda rank: _preference(rank, block.receivers, groups))
        sent[senders[i]] += block.piece.num_bytes
        groups.add(broadcast_group(senders[i], block.receivers))
    return senders


def _preference(rank: int, receivers: Ranks, groups: set[Ranks]) -> tuple[bool, int, int]:
    distance = min(abs(rank - receiver) for receiver in receivers)
    return broadcast_group(rank, receivers) not in groups, distance, rank


def plan_reshard(
    source: Mapping[str, Layout],
    destination: Mapping[str, Layout],
    *,
    bucket_bytes: int,
    item_bytes: int | Mapping[str, int] = 4,
) -> ReshardPlan:
    """The plan that gives every rank its destination slices.

    Every byte that a rank lacks arrives exactly once; one that it holds is not sent to it. A block that several ranks
    lack is broadcast to all of them at once; blocks that several ranks hold are shared out between them. No broadcast
    exceeds `bucket_bytes` (a multiple of 4). `item_bytes`: bytes per element, one number or by parameter.

    The order of the mappings does not matter. Raises WeightsError if names or full shapes differ, ConfigError for an
    impossible bucket size.
    """
    names = _common_names(source, destination)
    sizes = {name: item_bytes if isinstance(item_bytes, int) else item_bytes[name] for name in names}
    largest = max(sizes.values(), default=WORD_BYTES)
    if bucket_bytes % WORD_BYTES or bucket_bytes < largest:
        raise ConfigError(
            f"bucket_bytes: {bucket_bytes} must be a multiple of {WORD_BYTES} and hold an element of {largest} bytes; "
            f"nearest legal: {max(-(-largest // WORD_BYTES), round(bucket_bytes / WORD_BYTES)) * WORD_BYTES}"
        )
    order = _order(names, source, destination)
    blocks = [block for name in order for block in _cut_blocks(name, source, destination, bucket_bytes, sizes[name])]
    senders = choose_senders(blocks, grain_bytes=max(1, bucket_bytes // _GRAINS_PER_BUCKET))
    streams = _streams(blocks, senders)
    steps = tuple(
        Step(parameters=parameters, buckets=_buckets(parameters, streams, bucket_bytes))
        for parameters in _step_parameters(order, source, destination, sizes, bucket_bytes)
    )
    return ReshardPlan(source=source, destination=destination, item_bytes=sizes, bucket_bytes=bucket_bytes, steps=steps)


def _common_names(source: Mapping[str, Layout], destination: Mapping[str, Layout]) -> list[str]:
    missing, unexpected = sorted(destination.keys() - source.keys()), sorted(source.keys() - destination.keys())
    if missing or unexpected:
        raise WeightsError(
            f"reshard: both sides must name the same parameters; only in the destination: "
            f"{listed(missing, 4) or 'none'}; only in the source: {listed(unexpected, 4) or 'none'}"
        )
    for name in sorted(source):
        if source[name].shape != destination[name].shape:
            raise WeightsError(
                f"reshard: {name} has shape {source[name].shape} in the source and {destination[name].shape} in the "
                f"destination; both sides must describe the same model"
            )
    return sorted(source, key=_natural_key)


def _natural_key(name: str) -> list[tuple[bool, int, str]]:
    """Layer 2 before layer 10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in name.split(".")]


def _order(names: list[str], source: Mapping[str, Layout], destination: Mapping[str, Layout]) -> list[str]:
    """Return the order in which parameters are resharded: those of different pipeline stages alternate.

    All stages then send at the same time, and if old slices are freed step by step, memory does not grow first on the
    ranks whose own layers come last.
    """
    homes: dict[tuple[Ranks, Ranks], list[str]] = {}
    for name in names:
        homes.setdefault((source[name].rank_list, destination[name].rank_list), []).append(name)
    progress = {name: Fraction(2 * i + 1, 2 * len(group)) for group in homes.values() for i, name in enumerate(group)}
    return sorted(names, key=progress.__getitem__)


def _cut_blocks(
    name: str, source: Mapping[str, Layout], destination: Mapping[str, Layout], bucket_bytes: int, item_bytes: int
) -> Iterator[UnsentBlock]:
    for overlap in missing_overlaps(source[name], destination[name]):
        for block in overlap.block.blocks(bucket_bytes // item_bytes):
            piece = BlockTransfer(
                parameter=name,
                source=block.relative_to(overlap.source_origin),
                destination=block.relative_to(overlap.destination_origin),
                num_bytes=block.size * item_bytes,
            )
            yield UnsentBlock(piece=piece, holders=overlap.holders, receivers=overlap.receivers)


def _streams(blocks: Sequence[UnsentBlock], senders: Sequence[int]) -> dict[str, dict[Link, list[BlockTransfer]]]:
    """{parameter: {link: its pieces}}, in order."""
    streams: dict[str, dict[Link, list[BlockTransfer]]] = {}
    for block, sender in zip(blocks, senders, strict=True):
        links = streams.setdefault(block.piece.parameter, {})
        links.setdefault((sender, block.receivers), []).append(block.piece)
    return streams


def _step_parameters(
    order: list[str],
    source: Mapping[str, Layout],
    destination: Mapping[str, Layout],
    sizes: Mapping[str, int],
    bucket_bytes: int,
) -> Iterator[tuple[str, ...]]:
    """Runs of parameters whose new slices fit one bucket together, or single ones that do not fit."""
    run: list[str] = []
    filled = 0
    for name in order:
        unchanged = source[name].same_placement(destination[name])
        needed = 0 if unchanged else _slice_bytes(destination[name], sizes[name])
        if run and filled + needed > bucket_bytes:
            yield tuple(run)
            run, filled = [], 0
        run.append(name)
        filled += needed
    if run:
        yield tuple(run)


def _slice_bytes(layout: Layout, item_bytes: int) -> int:
    return prod(layout.slice_shape) * item_bytes


def _buckets(
    parameters: tuple[str, ...], streams: Mapping[str, Mapping[Link, list[BlockTransfer]]], bucket_bytes: int
) -> tuple[Bucket, ...]:
    """Each link's pieces packed into buckets; the links take turns, so that disjoint groups work side by side."""
    by_link: dict[Link, list[BlockTransfer]] = {}
    for name in parameters:
        for link, pieces in streams.get(name, {}).items():
            by_link.setdefault(link, []).extend(pieces)
    turns = [
        [Bucket(sender=sender, receivers=receivers, pieces=run) for run in runs_within(pieces, bucket_bytes)]
        for (sender, receivers), pieces in by_link.items()
    ]
    return tuple(bucket for turn in zip_longest(*turns) for bucket in turn if bucket is not None)
