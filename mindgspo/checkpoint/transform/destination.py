"""What will be written: which files, and which slices of which tensors stand in each of them.

What enters: a checkpoint as a whole, the strategy to cut it by or none, and where it goes. What leaves: files in the
order of ranks. Called by `transform`; nothing is read or written here.

With a strategy: rank_<r>/<prefix><r>.<suffix>, named as MindSpore's transform_checkpoints does. Without one: a single
file, or the step folder of a run where the checkpoint comes from one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mindgspo.checkpoint.steps import OPTIMIZER_FILE, PARAMETERS_FILE
from mindgspo.checkpoint.transform.logical_checkpoint import LogicalCheckpoint, LogicalTensor
from mindgspo.checkpoint.transform.placement import OPTIMIZER_PREFIX, num_ranks, place
from mindgspo.checkpoint.transform.rank_files import SUFFIXES
from mindgspo.errors import CheckpointError
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.strategy.record import Strategy
from mindgspo.parallel.tensor_slice import TensorSlice
from mindgspo.tensor_files.safetensors_format import library_order
from mindgspo.tensor_files.tensors import TensorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """name: within the folder of the checkpoint. rank: whose it is. infos: of its tensors, in its order. slices: which
    part of the whole tensor each of them is."""

    name: str
    rank: int
    infos: Mapping[str, TensorInfo]
    slices: Mapping[str, TensorSlice]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors."""
        return sum(info.num_bytes for info in self.infos.values())


def rank_files_to_write(
    source: LogicalCheckpoint, strategy: Strategy, *, suffix: str, prefix: str
) -> tuple[NewFile, ...]:
    """One file per rank. Raises WeightsError or CheckpointError where the strategy does not fit the checkpoint."""
    layouts = place({name: tensor.info.shape for name, tensor in source.tensors.items()}, strategy)
    return tuple(
        _new_file(f"rank_{rank}/{prefix}{rank}{suffix}", rank, source.tensors, layouts, source.tensors)
        for rank in range(num_ranks(strategy))
    )


def whole_files_to_write(source: LogicalCheckpoint, path: Path) -> tuple[NewFile, ...]:
    """One file where `path` ends as one does, else the two files of a step folder.

    Raises CheckpointError for a folder where the checkpoint comes from no run.
    """
    layouts = place({name: tensor.info.shape for name, tensor in source.tensors.items()}, None)
    if path.suffix in SUFFIXES:
        return (_new_file(path.name, 0, source.tensors, layouts, source.tensors),)
    if source.stored.state is None:
        raise CheckpointError(
            f"{path}: without a strategy the checkpoint becomes one file; end its name in {' or '.join(SUFFIXES)} (a "
            "folder is made only of a run's step with its state.json and all optimizer state)"
        )
    is_state = {name: name.startswith(OPTIMIZER_PREFIX) for name in source.tensors}
    return tuple(
        _new_file(file, 0, source.tensors, layouts, [name for name in source.tensors if is_state[name] is wanted])
        for file, wanted in ((PARAMETERS_FILE, False), (OPTIMIZER_FILE, True))
    )


def _new_file(
    name: str, rank: int, tensors: Mapping[str, LogicalTensor], layouts: Mapping[str, Layout], names: Iterable[str]
) -> NewFile:
    held = {one: part for one in names if (part := layouts[one].slice_of(rank)) is not None}
    infos = {one: TensorInfo(dtype=tensors[one].info.dtype, shape=part.shape) for one, part in held.items()}
    if name.endswith(".safetensors"):  # as the library orders them, so that files written by it come back as they were
        infos = library_order(infos)
    return NewFile(name=name, rank=rank, infos=infos, slices=held)
