"""Plans a reshard: from the layouts on both sides to steps of broadcasts of bounded size.

What enters: {parameter: layout} of source and destination over the same processes. What leaves: a `ReshardPlan`. Called
once per pair of plans, by every rank for itself, from metadata only: no rank's own number enters. Pure Python.

    layouts -> blocks that someone lacks -> cut to the bucket size -> a sender for each -> steps -> buckets
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from math import prod

from mindgspo.errors import ConfigError, WeightsError
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.ranks import Ranks
from mindgspo.parallel.reshard.overlaps import Overlap, missing_overlaps
from mindgspo.parallel.reshard.plan import Bucket, Piece, ReshardPlan, Step
from mindgspo.parallel.reshard.senders import Load, choose_senders
from mindgspo.text import listed

WORD_BYTES = 4
"""Buffers travel as 32-bit words, the type that every collective of every backend takes."""

# Senders whose amounts differ by less than this part of a bucket count as equally loaded.
_GRAINS_PER_BUCKET = 8


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

    The order of the mappings does not matter. Raises WeightsError where names or full shapes differ, ConfigError for an
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
    parcels = [parcel for name in order for parcel in _parcels(name, source, destination, bucket_bytes, sizes[name])]
    loads = [
        Load(holders=p.overlap.holders, receivers=p.overlap.receivers, num_bytes=p.piece.num_bytes) for p in parcels
    ]
    senders = choose_senders(loads, grain_bytes=max(1, bucket_bytes // _GRAINS_PER_BUCKET))
    streams = _streams(parcels, senders)
    steps = tuple(
        Step(parameters=parameters, buckets=_buckets(parameters, streams, bucket_bytes))
        for parameters in _step_parameters(order, source, destination, sizes, bucket_bytes)
    )
    return ReshardPlan(source=source, destination=destination, item_bytes=sizes, bucket_bytes=bucket_bytes, steps=steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parcel:
    """A block cut to size, without its sender."""

    overlap: Overlap
    piece: Piece


Link = tuple[int, Ranks]
"""Sender and receivers."""


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
    """The order in which parameters are brought over: those of different pipeline stages alternate.

    So all stages send at the same time, and, where old slices are freed step by step, memory does not first grow on the
    ranks whose own layers come last.
    """
    homes: dict[tuple[Ranks, Ranks], list[str]] = {}
    for name in names:
        homes.setdefault((source[name].rank_list, destination[name].rank_list), []).append(name)
    progress = {name: Fraction(2 * i + 1, 2 * len(group)) for group in homes.values() for i, name in enumerate(group)}
    return sorted(names, key=progress.__getitem__)


def _parcels(
    name: str, source: Mapping[str, Layout], destination: Mapping[str, Layout], bucket_bytes: int, item_bytes: int
) -> Iterator[_Parcel]:
    for overlap in missing_overlaps(source[name], destination[name]):
        for block in overlap.block.blocks(bucket_bytes // item_bytes):
            piece = Piece(
                parameter=name,
                source=block.relative_to(overlap.source_origin),
                destination=block.relative_to(overlap.destination_origin),
                num_bytes=block.size * item_bytes,
            )
            yield _Parcel(overlap=overlap, piece=piece)


def _streams(parcels: Sequence[_Parcel], senders: Sequence[int]) -> dict[str, dict[Link, list[Piece]]]:
    """{parameter: {link: its pieces}}, in order."""
    streams: dict[str, dict[Link, list[Piece]]] = {}
    for parcel, sender in zip(parcels, senders, strict=True):
        links = streams.setdefault(parcel.piece.parameter, {})
        links.setdefault((sender, parcel.overlap.receivers), []).append(parcel.piece)
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
    parameters: tuple[str, ...], streams: Mapping[str, Mapping[Link, list[Piece]]], bucket_bytes: int
) -> tuple[Bucket, ...]:
    """Each link's pieces packed into buckets; the links take turns, so that disjoint groups work side by side."""
    by_link: dict[Link, list[Piece]] = {}
    for name in parameters:
        for link, pieces in streams.get(name, {}).items():
            by_link.setdefault(link, []).extend(pieces)
    packed = [
        [Bucket(sender=sender, receivers=receivers, pieces=run) for run in _packed(pieces, bucket_bytes)]
        for (sender, receivers), pieces in by_link.items()
    ]
    return tuple(bucket for turn in zip_longest(*packed) for bucket in turn if bucket is not None)


def _packed(pieces: list[Piece], bucket_bytes: int) -> Iterator[tuple[Piece, ...]]:
    run: list[Piece] = []
    filled = 0
    for piece in pieces:
        if run and filled + piece.num_bytes > bucket_bytes:
            yield tuple(run)
            run, filled = [], 0
        run.append(piece)
        filled += piece.num_bytes
    if run:
        yield tuple(run)
