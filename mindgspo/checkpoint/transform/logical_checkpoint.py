"""A checkpoint as if it were whole: open files of all ranks, and for every tensor where its slices lie.

What enters: files by rank and a strategy. What leaves: any block of any tensor. Called by the writer, which needs the
blocks of another plan's slices, and by the proof that two checkpoints hold the same. Only headers are read at first;
blocks may be read from several threads.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType

from mindgspo.checkpoint.transform.placement import full_shapes, is_optimizer_state, num_ranks, place
from mindgspo.checkpoint.transform.rank_agreement import RankTensors, check_ranks, held_layouts
from mindgspo.checkpoint.transform.stored_checkpoint import StoredCheckpoint
from mindgspo.checkpoint.transform.tensor_blocks import TensorBlocks
from mindgspo.errors import CheckpointError
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.strategy.record import Strategy
from mindgspo.tensor_files.reader import TensorFile, open_tensors
from mindgspo.tensor_files.tensors import TensorInfo

# Files that a process has open beside those of a checkpoint, those that are written among them.
_OTHER_FILES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalTensor:
    """info: of the whole tensor. layout: over the ranks of the checkpoint."""

    info: TensorInfo
    layout: Layout


class LogicalCheckpoint:
    """Open files; made by `open_logical`. A context manager."""

    def __init__(
        self, stored: StoredCheckpoint, ranks: Mapping[int, RankTensors], tensors: Mapping[str, LogicalTensor]
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

    def __enter__(self) -> LogicalCheckpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_logical(
    stored: StoredCheckpoint, strategy: Strategy | None, *, weights_only: bool = False
) -> LogicalCheckpoint:
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
        checkpoint = LogicalCheckpoint(stored, ranks, _tensors(stored, ranks, strategy))
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
) -> dict[str, LogicalTensor]:
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
        name: LogicalTensor(info=TensorInfo(dtype=infos[name].dtype, shape=shapes[name]), layout=layouts[name])
        for name in dict.fromkeys((*known, *infos))
    }
