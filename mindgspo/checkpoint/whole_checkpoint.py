"""A sharded checkpoint read as if it were whole: blocks of any tensor, from the files of all ranks.

Only headers are read at first; blocks may be read from several threads.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod

import numpy as np

from mindgspo.checkpoint.placement import (
    RankTensors,
    check_ranks,
    full_shapes,
    held_layouts,
    is_optimizer_state,
    num_ranks,
    place,
)
from mindgspo.checkpoint.stored_files import StoredCheckpoint
from mindgspo.errors import CheckpointError
from mindgspo.io import Closing
from mindgspo.parallel.plans.layout import Layout, Shape, SliceIndex, TensorSlice
from mindgspo.reshard.planner import touching_slices
from mindgspo.strategy.record import Strategy
from mindgspo.tensor_files.reader import TensorFile, open_tensors
from mindgspo.tensor_files.tensors import TensorInfo

# Files that a process has open beside those of a checkpoint, those that are written among them.
_OTHER_FILES = 256


class TensorBlocks:
    """Reads blocks of one tensor. near: of ranks with equal slices this one is read, or, for other neighbours, another
    one."""

    def __init__(self, name: str, layout: Layout, files: Mapping[int, Mapping[str, TensorFile]], near: int) -> None:
        self._name = name
        self._layout = layout
        self._slice_shape = layout.slice_shape
        self._files = files
        self._near = near
        self._scratch = np.empty(0, dtype=np.uint8)
        self._held: dict[SliceIndex, tuple[TensorSlice, TensorFile]] = {}

    def fill(self, block: TensorSlice, out: np.ndarray) -> None:
        """Put a block into a contiguous array of its shape and dtype."""
        for index in touching_slices(self._slice_shape, block):
            held, file = self._held.get(index) or self._look_up(index)
            part = block.intersection(held)
            assert part is not None, (self._name, index, block)
            target = out[(*part.relative_to(block.starts).index, ...)]  # the dots keep a scalar an array
            self._read(file, part.relative_to(held.starts), target)

    def _read(self, file: TensorFile, block: TensorSlice, target: np.ndarray) -> None:
        """A block of one rank's slice, by way of a scratch array where it does not lie in one piece in the target."""
        if target.flags.c_contiguous:
            read_block(file, self._name, block, target)
            return
        if self._scratch.nbytes < target.nbytes:
            self._scratch = np.empty(target.nbytes, dtype=np.uint8)
        piece = self._scratch[: target.nbytes].view(target.dtype).reshape(target.shape)
        read_block(file, self._name, block, piece)
        target[...] = piece

    def _look_up(self, index: SliceIndex) -> tuple[TensorSlice, TensorFile]:
        holders = self._layout.holders(index)
        rank = self._near if self._near in holders else holders[self._near % len(holders)]
        self._held[index] = self._layout.slice_at(index), self._files[rank][self._name]
        return self._held[index]


def read_block(file: TensorFile, name: str, block: TensorSlice, out: np.ndarray) -> None:
    """Fill a contiguous array with a block of a tensor, in the tensor's own coordinates."""
    info = file.tensors[name]
    start = first_element(block, info.shape)
    if start is None:
        file.read_slice(name, block.index, out)
    else:
        file.read_into(name, start * info.bits.itemsize, memoryview(out.reshape(-1).view(np.uint8)))


def first_element(block: TensorSlice, shape: Shape) -> int | None:
    """Number of a block's first element, row by row, where its elements follow each other in a tensor of this shape;
    None where they do not.

    Example: rows 2 to 4 of (8, 3) begin at 6; columns 0 to 1 of it do not follow each other.
    """
    lengths = block.shape
    cut = [axis for axis, length in enumerate(lengths) if length != shape[axis]]
    if cut and any(length != 1 for length in lengths[: cut[-1]]):
        return None
    return sum(start * prod(shape[axis + 1 :]) for axis, start in enumerate(block.starts))


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTensor:
    """info: of the whole tensor. layout: over the ranks of the checkpoint."""

    info: TensorInfo
    layout: Layout


class WholeCheckpoint(Closing):
    """Open files; made by `open_whole`. A context manager."""

    def __init__(
        self, stored: StoredCheckpoint, ranks: Mapping[int, RankTensors], tensors: Mapping[str, WholeTensor]
    ) -> None:
        """tensors: in the order of the whole checkpoint."""
        self.stored = stored
        self.ranks = ranks
        self.tensors = tensors

    @property
    def metadata(self) -> dict[str, str] | None:
        """Text that all files have beside their tensors; None where there is none."""
        files = {id(file): file for tensors in self.ranks.values() for file in tensors.values()}
        pairs = [set(file.metadata.items()) for file in files.values()]
        return dict(sorted(set.intersection(*pairs))) or None if pairs else None

    def blocks(self, name: str, *, near: int = 0) -> TensorBlocks:
        """Reads blocks of a tensor, in coordinates of the whole. near: a rank, as there."""
        return TensorBlocks(name, self.tensors[name].layout, self.ranks, near)

    def close(self) -> None:
        """Let the files go."""
        for tensors in self.ranks.values():
            for file in tensors.values():
                file.close()


def open_whole(stored: StoredCheckpoint, strategy: Strategy | None, *, weights_only: bool = False) -> WholeCheckpoint:
    """Open all files and compare what they hold with the strategy.

    weights_only: leave optimizer state out. Raises WeightsError: a file is damaged, or the strategy is another
    model's; CheckpointError: another number of ranks, tensors that are missing or have another shape on some rank.
    """
    _check_number(stored, strategy)
    _allow_open_files(sum(len(paths) for paths in stored.files.values()))
    with ExitStack() as opened:
        ranks = {}
        for rank, paths in stored.files.items():
            folders = [opened.enter_context(open_tensors(path)) for path in paths]
            ranks[rank] = _joined(stored, rank, [folder.file_of for folder in folders])
        if weights_only:
            ranks = {rank: _weights(tensors) for rank, tensors in ranks.items()}
        checkpoint = WholeCheckpoint(stored, ranks, _tensors(stored, ranks, strategy))
        opened.pop_all()
        return checkpoint


def _check_number(stored: StoredCheckpoint, strategy: Strategy | None) -> None:
    expected = num_ranks(strategy)
    if stored.num_ranks == expected:
        return
    found = f"{stored.path}: holds files of {stored.num_ranks} rank{'' if stored.num_ranks == 1 else 's'}"
    if strategy is None:
        raise CheckpointError(
            f"{found}, and no strategy says how they were cut; give the one of the run that wrote them"
        )
    stages = f"{len(strategy.stages)} stage(s) of {strategy.stage_size} ranks"
    raise CheckpointError(
        f"{found}, and {strategy.source} arranges {expected} ({stages}); give the folder with all of them, or the "
        "strategy of the run that wrote it"
    )


def _allow_open_files(number: int) -> None:
    """Raise this process's limit, which is often 1,024, as far as it may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


def _joined(stored: StoredCheckpoint, rank: int, files: Sequence[RankTensors]) -> RankTensors:
    """The tensors of all files of a rank."""
    joined: dict[str, TensorFile] = {}
    for tensors in files:
        twice = sorted(joined.keys() & tensors.keys())
        if twice:
            raise CheckpointError(f"{stored.path}: rank {rank} has {twice[0]} in two files; remove the wrong one")
        joined.update(tensors)
    return joined


def _weights(tensors: RankTensors) -> RankTensors:
    return {name: file for name, file in tensors.items() if not is_optimizer_state(name, tensors)}


def _tensors(
    stored: StoredCheckpoint, ranks: Mapping[int, RankTensors], strategy: Strategy | None
) -> dict[str, WholeTensor]:
    """Every tensor as a whole, in the order of the whole checkpoint."""
    infos: dict[str, TensorInfo] = {}
    for _, tensors in sorted(ranks.items()):
        for name, file in tensors.items():
            infos.setdefault(name, file.tensors[name])
    shapes = full_shapes({name: info.shape for name, info in infos.items()}, strategy)
    layouts = place(shapes, strategy)
    if strategy is not None:
        layouts = held_layouts(layouts, ranks, strategy)
        check_ranks(layouts, ranks, strategy.source)
    order = stored.record.order if stored.record is not None else ()
    known = [name for name in order if name in infos]
    return {
        name: WholeTensor(info=TensorInfo(dtype=infos[name].dtype, shape=shapes[name]), layout=layouts[name])
        for name in dict.fromkeys((*known, *infos))
    }
