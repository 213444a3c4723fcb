"""A sharded checkpoint read as if it were whole: blocks of any tensor, from the files of all ranks.

A strategy and the shapes of the tensors give layouts; the ranks' files must agree with them. A tensor without an entry
is held whole by every rank: scalars, counters, tables that nothing splits. A forgotten entry would go unnoticed, so two
cases are rejected: a name that differs from an entry's only in the layer's number, and optimizer state of a parameter
that is split. Only headers are read at first; blocks may be read from several threads.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from mindgspo.checkpoint.stored_files import StoredCheckpoint
from mindgspo.errors import CheckpointError
from mindgspo.io import Closing
from mindgspo.parallel.plans.layout import Layout, Shape, SliceIndex, TensorSlice
from mindgspo.parallel.plans.placement import Ranks
from mindgspo.reshard.planner import touching_slices, whole_layout
from mindgspo.strategy.layouts import check_fits, strategy_layouts
from mindgspo.strategy.record import Strategy, without_prefixes
from mindgspo.tensor_files.reader import OpenTensors, joined, open_tensors
from mindgspo.tensor_files.tensors import TensorInfo
from mindgspo.text import listed

OPTIMIZER_PREFIX = "adamw."
"""Names of a run's optimizer state begin with it."""

# Files that a process has open beside those of a checkpoint, those that are written among them.
_OTHER_FILES = 256
_NUMBER = re.compile(r"\d+")
_LISTED = 3
_SAMPLE_BYTES = 4096  # one page: enough to tell the files of two plans apart, and as quick as reading a header
_REMEDY = "give the strategy of the run that wrote this checkpoint"


class TensorBlocks:
    """Reads blocks of one tensor.

    near: of several ranks with equal slices, this one is read; if it is none of them, one of them by this number.
    """

    def __init__(self, name: str, layout: Layout, ranks: Mapping[int, OpenTensors], near: int) -> None:
        self._name = name
        self._layout = layout
        self._slice_shape = layout.slice_shape
        self._ranks = ranks
        self._near = near
        self._scratch = np.empty(0, dtype=np.uint8)
        self._held: dict[SliceIndex, tuple[TensorSlice, OpenTensors]] = {}

    def fill(self, block: TensorSlice, out: np.ndarray) -> None:
        """Put a block into a contiguous array of its shape and dtype."""
        for index in touching_slices(self._slice_shape, block):
            held, file = self._held.get(index) or self._look_up(index)
            part = block.intersection(held)
            assert part is not None, (self._name, index, block)
            target = out[(*part.relative_to(block.starts).index, ...)]  # the dots keep a scalar an array
            self._read(file, part.relative_to(held.starts), target)

    def _read(self, file: OpenTensors, block: TensorSlice, target: np.ndarray) -> None:
        """A block of one rank's slice, through a scratch array if it is not contiguous in the target."""
        if target.flags.c_contiguous:
            file.read_slice(self._name, block.index, target)
            return
        if self._scratch.nbytes < target.nbytes:
            self._scratch = np.empty(target.nbytes, dtype=np.uint8)
        piece = self._scratch[: target.nbytes].view(target.dtype).reshape(target.shape)
        target[...] = file.read_slice(self._name, block.index, piece)

    def _look_up(self, index: SliceIndex) -> tuple[TensorSlice, OpenTensors]:
        holders = self._layout.holders(index)
        rank = self._near if self._near in holders else holders[self._near % len(holders)]
        self._held[index] = self._layout.slice_at(index), self._ranks[rank]
        return self._held[index]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTensor:
    """One tensor of all ranks."""

    info: TensorInfo
    """The whole tensor."""
    layout: Layout
    """Its slices over the ranks of the checkpoint."""


class WholeCheckpoint(Closing):
    """Open files; made by `open_whole`. A context manager."""

    def __init__(
        self, stored: StoredCheckpoint, ranks: Mapping[int, OpenTensors], tensors: Mapping[str, WholeTensor]
    ) -> None:
        """tensors: in the order of the whole checkpoint."""
        self.stored = stored
        self.ranks = ranks
        self.tensors = tensors

    @property
    def metadata(self) -> dict[str, str] | None:
        """Text that all files have beside their tensors; None if there is none."""
        return dict(sorted(set.intersection(*(set(file.metadata.items()) for file in self.ranks.values())))) or None

    def blocks(self, name: str, *, near: int = 0) -> TensorBlocks:
        """Reads blocks of a tensor, in coordinates of the whole. near: a rank, as there."""
        return TensorBlocks(name, self.tensors[name].layout, self.ranks, near)

    def close(self) -> None:
        """Close the files."""
        for file in self.ranks.values():
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
            files = [opened.enter_context(open_tensors(path)) for path in paths]
            ranks[rank] = files[0] if len(files) == 1 else _joined(stored, rank, files)
        checkpoint = WholeCheckpoint(stored, ranks, _whole_tensors(stored, ranks, strategy, weights_only))
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


def _joined(stored: StoredCheckpoint, rank: int, files: list[OpenTensors]) -> OpenTensors:
    """The tensors of all files of a rank."""
    names: set[str] = set()
    for file in files:
        twice = sorted(names & file.tensors.keys())
        if twice:
            raise CheckpointError(f"{stored.path}: rank {rank} has {twice[0]} in two files; remove the wrong one")
        names |= file.tensors.keys()
    return joined(stored.path, files)


def _whole_tensors(
    stored: StoredCheckpoint, ranks: Mapping[int, OpenTensors], strategy: Strategy | None, weights_only: bool
) -> dict[str, WholeTensor]:
    """Every tensor as a whole, in the order of the whole checkpoint."""
    infos: dict[str, TensorInfo] = {}
    for _, file in sorted(ranks.items()):
        for name, info in file.tensors.items():
            if not (weights_only and (name.startswith(OPTIMIZER_PREFIX) or state_of(name, file.tensors) is not None)):
                infos.setdefault(name, info)
    entries = {} if strategy is None else strategy.parameters
    shapes = {name: _full_shape(info.shape, entries.get(name)) for name, info in infos.items()}
    layouts = placed_layouts(shapes, strategy)
    if strategy is not None:
        for name in without_entry(layouts, strategy):  # held by the ranks that do have it
            holders = tuple(sorted(rank for rank, file in ranks.items() if name in file.tensors))
            layouts[name] = whole_layout(name, shapes[name], holders)
        _check_ranks(layouts, ranks, strategy.source)
    order = stored.record.order if stored.record is not None else ()
    return {
        name: WholeTensor(info=TensorInfo(dtype=infos[name].dtype, shape=shapes[name]), layout=layouts[name])
        for name in dict.fromkeys((*(name for name in order if name in infos), *infos))
    }


def num_ranks(strategy: Strategy | None) -> int:
    """Ranks that a strategy arranges; 1 without one.

    Raises CheckpointError for the strategy of some stages only.
    """
    if strategy is None:
        return 1
    missing = sorted(set(range(max(strategy.stages) + 1)) - set(strategy.stages))
    if missing:
        raise CheckpointError(
            f"{strategy.source}: it is of pipeline stage {max(strategy.stages)} alone, stage {missing[0]} is missing; "
            "give the folder with the files of all stages, or merge them (`mindgspo strategy merge`)"
        )
    return len(strategy.stages) * strategy.stage_size


def placed_layouts(shapes: Mapping[str, Shape], strategy: Strategy | None) -> dict[str, Layout]:
    """{name: layout} of tensors of these full shapes, in their order.

    Raises WeightsError for a strategy of another model, CheckpointError for one without entries that it should have.
    """
    if strategy is None:
        return {name: whole_layout(name, shape, (0,)) for name, shape in shapes.items()}
    _check_fits(strategy, shapes)
    everywhere = tuple(range(num_ranks(strategy)))
    placed = strategy_layouts(strategy, shapes)
    layouts = {name: placed.get(name) or whole_layout(name, shape, everywhere) for name, shape in shapes.items()}
    _refuse_forgotten(strategy, [name for name in shapes if name not in placed], placed, everywhere)
    return layouts


def without_entry(names: Iterable[str], strategy: Strategy | None) -> list[str]:
    """Names that the strategy has no entry for."""
    named = {} if strategy is None else strategy.parameters
    return [name for name in names if strategy is not None and name not in named]


def state_of(name: str, names: Container[str]) -> str | None:
    """The parameter among `names` whose state this is: `adamw.m.<parameter>`, `adam_v.<parameter>`; None if none."""
    return next((parameter for parameter in without_prefixes(name) if parameter in names), None)


def _full_shape(shape: Shape, by_stage: Mapping | None) -> Shape:
    """The shape of the whole tensor, given the shape of a rank's slice."""
    if not by_stage:
        return shape
    splits = next(iter(by_stage.values())).splits
    if len(splits) != len(shape):  # for `check_fits` to name
        return shape
    return tuple(length * split for length, split in zip(shape, splits, strict=True))


def _check_fits(strategy: Strategy, shapes: Mapping[str, Shape]) -> None:
    """Reject a strategy whose names do not exist, or whose axes do not fit or divide."""
    entries = strategy.parameters
    common = [name for name in shapes if name in entries]
    foreign = [name for name in entries if name not in shapes and not _is_known(name, entries, shapes)]
    # Where names are foreign, those that no entry has help to say of what the strategy is.
    others = [name for name in shapes if name not in entries and state_of(name, shapes) is None]
    compared = common if common and not foreign else [*common, *others]
    check_fits(strategy, {name: whole_layout(name, shapes[name], (0,)) for name in compared})


def _is_known(name: str, entries: Mapping[str, Mapping], shapes: Mapping[str, Shape]) -> bool:
    """Whether a strategy may name what the checkpoint lacks: a scalar, or state of a parameter that is there."""
    is_scalar = not any(stored.tensor_map for stored in entries[name].values())
    return is_scalar or state_of(name, shapes) is not None


def _refuse_forgotten(strategy: Strategy, names: list[str], placed: Mapping[str, Layout], everywhere: Ranks) -> None:
    patterns = {_NUMBER.sub("{}", name) for name in placed}
    alike = [name for name in names if _NUMBER.sub("{}", name) in patterns]
    if alike:
        raise CheckpointError(
            f"{strategy.source}: no entry for {listed(alike, _LISTED)}, though others of that kind have one; it "
            "is of a smaller model or of one pipeline stage: give the strategy of the model in use, all stages merged"
        )
    split = {
        name
        for name, layout in placed.items()
        if layout.slice_shape != layout.shape or set(layout.rank_list) != set(everywhere)
    }
    state = [name for name in names if state_of(name, placed) in split]
    if state:
        raise CheckpointError(
            f"{strategy.source}: no entry for {listed(state, _LISTED)}, though the parameters are split, so where to "
            "put this optimizer state is not known; give the strategy of the training graph, which names it, or leave "
            "it out with --weights-only"
        )


def _check_ranks(layouts: Mapping[str, Layout], ranks: Mapping[int, OpenTensors], source: str) -> None:
    """Compare every rank's tensors with the layouts.

    Raises CheckpointError: a tensor is missing on a rank or does not belong there, has another shape or dtype than the
    strategy or the other ranks say, or begins otherwise than on a rank that should hold the same.
    """
    for name, layout in layouts.items():
        holders = {rank for rank, file in ranks.items() if name in file.tensors}
        _check_holders(name, layout, holders, source)
        first = min(holders)
        dtype = ranks[first].tensors[name].dtype
        for rank in sorted(holders):
            path, info = ranks[rank].path, ranks[rank].tensors[name]
            if info.shape != layout.slice_shape:
                raise CheckpointError(
                    f"{path}: {name} has the shape {info.shape}, {source} says {layout.slice_shape} on rank {rank}; "
                    f"{_REMEDY}"
                )
            if info.dtype != dtype:
                raise CheckpointError(
                    f"{path}: {name} is {info.dtype} on rank {rank} and {dtype} on rank {first}; "
                    "all ranks' files must come from one save"
                )
        compare_replicas(name, layout, ranks, _sample, f"{source} says that both hold the same part of it; {_REMEDY}")


def _check_holders(name: str, layout: Layout, holders: set[int], source: str) -> None:
    lacking = sorted(set(layout.rank_list) - holders)
    foreign = sorted(holders - set(layout.rank_list))
    if lacking:
        raise CheckpointError(
            f"rank {lacking[0]} lacks {name}, and {source} puts it there; the file may be cut short; if it is not, "
            f"{_REMEDY}"
        )
    if foreign:
        where = f"ranks {min(layout.rank_list)} to {max(layout.rank_list)}"
        raise CheckpointError(f"rank {foreign[0]} has {name}, and {source} puts it on {where}; {_REMEDY}")


def compare_replicas(
    name: str, layout: Layout, ranks: Mapping[int, OpenTensors], content: Callable[[OpenTensors, str], object], why: str
) -> None:
    """Raises CheckpointError if `content` differs between ranks that hold the same slice. why: ends the message."""
    for index in layout.slice_indices():
        first, *others = layout.holders(index)
        expected = content(ranks[first], name) if others else None
        for rank in others:
            if content(ranks[rank], name) != expected:
                raise CheckpointError(f"{ranks[rank].path}: {name} differs from that of rank {first}, and {why}")


def _sample(file: OpenTensors, name: str) -> bytes:
    """The first bytes of a tensor."""
    found = bytearray(min(_SAMPLE_BYTES, file.tensors[name].num_bytes))
    file.read_into(name, 0, memoryview(found))
    return bytes(found)
