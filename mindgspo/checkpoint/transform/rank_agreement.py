"""Whether ranks hold what a strategy says: which tensors, of which shape and dtype, and equal bytes where it calls them
replicas.

What enters: the tensors of all ranks and their layouts. What leaves: nothing, or one error. Called when a sharded
checkpoint is opened. Bytes are compared by a sample, which already tells the strategy of another plan; the deep proof
compares all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from mindgspo.checkpoint.transform.placement import whole_layout, without_entry
from mindgspo.errors import CheckpointError
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.strategy.record import Strategy
from mindgspo.tensor_files.reader import TensorFile

RankTensors = Mapping[str, TensorFile]
"""One rank's tensors: in which file each of them lies."""

_SAMPLE_BYTES = 4096
_REMEDY = "give the strategy of the run that wrote this checkpoint"


def held_layouts(
    layouts: Mapping[str, Layout], ranks: Mapping[int, RankTensors], strategy: Strategy
) -> dict[str, Layout]:
    """The layouts, those of tensors without an entry over the ranks that do hold them."""
    held = dict(layouts)
    for name in without_entry(layouts, strategy):
        holders = tuple(sorted(rank for rank, tensors in ranks.items() if name in tensors))
        held[name] = whole_layout(name, layouts[name].shape, holders)
    return held


def check_ranks(layouts: Mapping[str, Layout], ranks: Mapping[int, RankTensors], source: str) -> None:
    """Compare every rank's tensors with the layouts.

    Raises CheckpointError: a tensor is missing on a rank or does not belong there, has another shape or dtype than the
    strategy or the other ranks say, or differs between ranks that should hold the same.
    """
    for name, layout in layouts.items():
        holders = {rank for rank, tensors in ranks.items() if name in tensors}
        _check_holders(name, layout, holders, source)
        infos = {rank: ranks[rank][name].tensors[name] for rank in sorted(holders)}
        first_rank, first = next(iter(infos.items()))
        for rank, info in infos.items():
            path = ranks[rank][name].path
            if info.shape != layout.slice_shape:
                raise CheckpointError(
                    f"{path}: {name} has the shape {info.shape}, {source} says {layout.slice_shape} on rank {rank}; "
                    f"{_REMEDY}"
                )
            if info.dtype != first.dtype:
                raise CheckpointError(
                    f"{path}: {name} is {info.dtype} on rank {rank} and {first.dtype} on rank {first_rank}; "
                    "all ranks' files must come from one save"
                )
        _compare_samples(name, layout, ranks, source)


def _check_holders(name: str, layout: Layout, holders: set[int], source: str) -> None:
    lacking = sorted(set(layout.rank_list) - holders)
    foreign = sorted(holders - set(layout.rank_list))
    if lacking or foreign:
        which, verb = (lacking, "lacks") if lacking else (foreign, "has")
        says = "puts it there" if lacking else f"puts it on ranks {min(layout.rank_list)} to {max(layout.rank_list)}"
        cause = "the file may be cut short; if it is not, " if lacking else ""
        raise CheckpointError(f"rank {which[0]} {verb} {name}, and {source} {says}; {cause}{_REMEDY}")


def _compare_samples(name: str, layout: Layout, ranks: Mapping[int, RankTensors], source: str) -> None:
    """Replicas must begin alike."""
    for index in layout.slice_indices():
        first, *others = layout.holders(index)
        if not others:
            continue
        expected = _sample(ranks[first][name], name)
        for other in others:
            if _sample(ranks[other][name], name) != expected:
                raise CheckpointError(
                    f"{ranks[other][name].path}: {name} differs from that of rank {first}, and {source} says that both "
                    f"hold the same part of it; {_REMEDY}"
                )


def _sample(file: TensorFile, name: str) -> bytes:
    """The first bytes of a tensor."""
    found = bytearray(min(_SAMPLE_BYTES, file.tensors[name].num_bytes))
    file.read_into(name, 0, memoryview(found))
    return bytes(found)
