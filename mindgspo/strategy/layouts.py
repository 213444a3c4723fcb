"""Layouts of a plan as a strategy record, as MindSpore's compiler writes it, and back; does a record fit a model?

Which weights the compiler cuts over their replicas under `AutoParallel(...).hsdp()`, and in how many parts:
The rule, established with MindSpore 2.10.0 by compiling small networks for Ascend (2 to 512 ranks, all three optimizer
levels) and reading files and inserted collectives:
- Weights are cut, and with them their moments and accumulated gradients, along axis 0 of the slice.
- Into `shard_size` parts, or as many as there are replicas where these are fewer or it is -1 (1 is taken for -1).
- Replicas are all ranks of the stage with the same slice: of a norm also the model_parallel ranks, of few key/value
  heads also the ranks that share one. Parts go to runs of consecutive replicas; so only where replicas are exactly the
  data_parallel x context_parallel ranks does a shard_size of their number cut over these.
- A weight is cut or left whole, never cut into fewer parts. Whole if it is smaller than the threshold (bytes of the
  whole tensor in the parameter's own type), if the parts do not divide the replicas or axis 0 of the slice, or if the
  parameter's `parallel_optimizer` is False.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from mindgspo.config.plan import ParallelPlan
from mindgspo.errors import CheckpointError, ConfigError, WeightsError
from mindgspo.parallel.plans.layout import Layout, Shape
from mindgspo.parallel.plans.placement import RankGrid, Ranks
from mindgspo.strategy.record import (
    ALL_REPLICAS,
    NOT_SPLIT,
    DeviceMatrix,
    StoredLayout,
    Strategy,
    TensorMap,
    axis_length,
    device_axes,
    free_axes,
    map_entry,
    stride,
    without_prefixes,
)
from mindgspo.text import closest, listed

THRESHOLD = 64
"""KB; MindSpore's default, with which norms and biases stay whole."""
_FLOAT_BYTES = 4
# How many names of one kind a message shows.
_LISTED = 3
_LAYER = re.compile(r"\.layers\.(\d+)\.")


def hsdp_size(plan: ParallelPlan) -> int | None:
    """The shard_size of `hsdp()` that files of this plan follow; None: nothing is cut."""
    return plan.token_parts if plan.optimizer_shard and plan.token_parts > 1 else None


def hsdp_shards(
    stored: StoredLayout, shard_size: int, *, threshold: int = THRESHOLD, element_bytes: int = _FLOAT_BYTES
) -> StoredLayout:
    """The layout with the fields that the compiler writes for a parameter that requires a gradient.

    shard_size, threshold: arguments of hsdp(), parts at most (-1: as many as there are replicas) and KB from which on a
    tensor is cut. element_bytes: of the parameters, not of what they are cast to.
    Example: a norm of 65536 elements on 2 x 4 ranks with shard_size 2: step 1, size 2; ranks 0 and 1 have its halves.
    """
    assert stored.shape is not None and not stored.opt_weight_shard_size, stored
    matrix = stored.device_matrix
    free = free_axes(matrix, stored.tensor_map)
    replicas = prod(axis_length(matrix, axis) for axis in free)
    wanted = ALL_REPLICAS if shard_size == 1 else shard_size
    parts = replicas if wanted == ALL_REPLICAS else min(wanted, replicas)
    small = prod(stored.shape) * element_bytes < threshold * 1024
    if not stored.shape or small or parts == 1 or replicas % parts or stored.shape[0] // stored.splits[0] % parts:
        return stored
    return replace(
        stored,
        opt_weight_shard_step=stride(matrix, free[0]),
        opt_weight_shard_size=wanted if wanted == ALL_REPLICAS else parts,
    )


def without_single_devices(stored: StoredLayout) -> StoredLayout:
    """Spell a layout as the compiler does: device axes of one device are left out; a stage of one rank is (1).

    Example: matrix (1, 4), map (0, -1) as (4,) and (0, -1); matrix (2, 1), map (0, -1) as (2,) and (-1, -1).
    """
    matrix = stored.device_matrix
    kept = [position for position, size in enumerate(matrix) if size > 1]
    number = {len(matrix) - 1 - position: len(kept) - 1 - new for new, position in enumerate(kept)}
    tensor_map = tuple(
        map_entry(tuple(number[axis] for axis in device_axes(entry) if axis in number)) for entry in stored.tensor_map
    )
    if not kept:
        return replace(stored, device_matrix=(1,), tensor_map=(NOT_SPLIT,) * len(tensor_map))
    return replace(stored, device_matrix=tuple(matrix[position] for position in kept), tensor_map=tensor_map)


def stage_strategy(layouts: Mapping[str, Layout], *, plan: ParallelPlan, rank: int) -> Strategy:
    """The record of a rank's file: the parameters of its pipeline stage, in the order of `layouts`, which are of this
    plan; weights and, under names of their own, optimizer moments."""
    grid = RankGrid(plan)
    if not 0 <= rank < grid.world_size:
        raise ConfigError(f"rank {rank}: the plan {plan} has the ranks 0 to {grid.world_size - 1}")
    stage = grid.coordinates(rank).stage
    ranks = grid.stage_ranks(stage)
    entries = {
        name: StoredLayout(device_matrix=_stage_matrix(layout, ranks), tensor_map=layout.tensor_map, shape=layout.shape)
        for name, layout in layouts.items()
        if rank in layout.rank_list
    }
    if not entries:
        raise ConfigError(f"rank {rank}: none of the {len(layouts)} layouts has a parameter on stage {stage} of {plan}")
    return Strategy(stages={stage: entries}, source=f"stage {stage} of {plan}")


def compiled_strategy(
    layouts: Mapping[str, Layout], *, plan: ParallelPlan, rank: int, uncut: Collection[str] = ()
) -> Strategy:
    """The record of the compiler's own file for a rank of a graph of this plan, letter for letter but for the order and
    the device matrices of whole norms: after a sequence split over model_parallel it has one axis for both, and that of
    key heads shared by several ranks is divided as the heads are.

    layouts: without optimizer shards, of this plan; weights and, under names of their own, what is kept beside them and
    laid out alike. Under `optimizer_shard` they are cut by the rule above. uncut: parameters whose `parallel_optimizer`
    is False.
    """
    record = stage_strategy(layouts, plan=plan, rank=rank)
    size = hsdp_size(plan)
    stages = {
        stage: {
            name: without_single_devices(stored if size is None or name in uncut else hsdp_shards(stored, size))
            for name, stored in entries.items()
        }
        for stage, entries in record.stages.items()
    }
    return replace(record, stages=stages)


def strategy_layouts(strategy: Strategy, shapes: Mapping[str, Shape] | None = None) -> dict[str, Layout]:
    """{parameter: Layout} of a record.

    shapes: full shapes by name; only these parameters are returned, in this order, those of them that the record holds
    (`check_fits` tells what is missing). Not needed for a JSON file, which holds shapes: None returns all in its order.
    Stages are equal runs of consecutive ranks. A parameter on several stages gets the stage as outermost device axis.
    Raises WeightsError if the shape is unknown, contradicts the file or does not divide, CheckpointError for what no
    Layout can say.
    """
    size = strategy.stage_size
    parameters = strategy.parameters
    layouts = {}
    for name in parameters if shapes is None else shapes:
        if name not in parameters:
            continue
        by_stage = parameters[name]
        shape = _shape(strategy, name, by_stage, None if shapes is None else shapes[name])
        matrix, tensor_map = _placement(strategy, name, by_stage)
        try:
            layouts[name] = Layout(
                parameter=name,
                shape=shape,
                device_matrix=matrix,
                tensor_map=tensor_map,
                rank_list=tuple(rank for stage in by_stage for rank in range(stage * size, (stage + 1) * size)),
            )
        except ConfigError as error:
            raise WeightsError(f"{strategy.source}: {error}") from error
    return layouts


def _stage_matrix(layout: Layout, ranks: Ranks) -> DeviceMatrix:
    """The device matrix over one stage: without the outermost axis where the parameter is on several stages."""
    if layout.rank_list == ranks:
        return layout.device_matrix
    outer, size = layout.device_matrix[0], len(ranks)
    blocks = [layout.rank_list[i * size : (i + 1) * size] for i in range(outer)]
    split = {axis for entry in layout.tensor_map for axis in device_axes(entry)}
    assert ranks in blocks and len(layout.device_matrix) - 1 not in split, (
        f"{layout.parameter}: its layout over the ranks {layout.rank_list} is not one of a plan whose stage has {ranks}"
    )
    return layout.device_matrix[1:]


def _shape(strategy: Strategy, name: str, by_stage: Mapping[int, StoredLayout], given: Shape | None) -> Shape:
    known = {stored.shape for stored in by_stage.values() if stored.shape is not None}
    if given is not None:
        known.add(tuple(given))
    if not known:
        raise WeightsError(
            f"{strategy.source}: a protobuf strategy file holds no shapes, so {name} has no layout; give the shapes of "
            "the model's parameters"
        )
    if len(known) > 1:
        raise WeightsError(f"{strategy.source}: {name} has the shapes {' and '.join(map(str, sorted(known)))}")
    return known.pop()


def _placement(strategy: Strategy, name: str, by_stage: Mapping[int, StoredLayout]) -> tuple[DeviceMatrix, TensorMap]:
    first, *others = by_stage.values()
    if first.uneven:
        raise CheckpointError(
            f"{strategy.source}: {name} is split unevenly (field {first.field}, indices_offset "
            f"{first.indices_offset}); layouts here have equal slices"
        )
    if any(other.placement != first.placement for other in others):
        raise CheckpointError(
            f"{strategy.source}: {name} is on the stages {', '.join(map(str, by_stage))} and split differently there: "
            f"device matrix {first.device_matrix}, tensor map {first.tensor_map} on the first"
        )
    matrix, tensor_map = first.placement
    return ((len(by_stage), *matrix) if others else matrix), tensor_map


def check_fits(strategy: Strategy, layouts: Mapping[str, Layout]) -> None:
    """Refuse a strategy of another model: names and shapes, not placement.

    layouts: of the whole model under any plan. Where the record's stages are as large as the plan's, only what lives on
    the stages of the record is expected, else all of it. Scalars and, under a prefix such as `adam_m.`, the optimizer
    state of the model's parameters may stand in the file as well.
    Raises WeightsError with counts, the first names and the nearest fix.
    """
    found = strategy.parameters
    expected = _expected(strategy, layouts)
    missing = [name for name in expected if name not in found]
    extra = [name for name in found if not _is_known(name, found, layouts)]
    other = [
        f"{name} ({problem})"
        for name, by_stage in found.items()
        if name in layouts
        for problem in _shape_problems(layouts[name], by_stage)
    ]
    if not missing and not extra and not other:
        return
    counts = [
        f"{len(names)} of {total} {kind}: {listed(names, _LISTED)}"
        for names, total, kind in (
            (missing, len(expected), "parameters of the model are not in it"),
            (extra, len(found), "names in it are not the model's"),
            (other, len(expected), "have another shape"),
        )
        if names
    ]
    raise WeightsError(
        f"{strategy.source}: the strategy does not fit the model; {'; '.join(counts)}; "
        f"{_fix(strategy, expected, missing, extra)}"
    )


def _expected(strategy: Strategy, layouts: Mapping[str, Layout]) -> list[str]:
    """The parameters that must be there."""
    size = strategy.stage_size
    if min((len(layout.rank_list) for layout in layouts.values()), default=0) != size:
        return list(layouts)
    return [
        name for name, layout in layouts.items() if any(rank // size in strategy.stages for rank in layout.rank_list)
    ]


def _is_known(name: str, found: Mapping[str, Mapping[int, StoredLayout]], layouts: Mapping[str, Layout]) -> bool:
    """Whether the model has it: a parameter, a scalar (step, learning rate), or state of a parameter beside it."""
    if name in layouts or not any(stored.tensor_map for stored in found[name].values()):
        return True
    return any(parameter in layouts and parameter in found for parameter in without_prefixes(name))


def _shape_problems(layout: Layout, by_stage: Mapping[int, StoredLayout]) -> Iterator[str]:
    """The first reason why the stored layout is not one of this parameter."""
    for stored in by_stage.values():
        if stored.shape is not None and stored.shape != layout.shape:
            yield f"{stored.shape} in the file, {layout.shape} in the model"
            return
        if len(stored.tensor_map) != len(layout.shape):
            yield f"{len(stored.tensor_map)} axes in the file, {len(layout.shape)} in the model"
            return
        splits = stored.splits
        if any(length % split for length, split in zip(layout.shape, splits, strict=True)):
            yield f"{layout.shape} in the model does not divide into {splits} slices"
            return


def _fix(strategy: Strategy, expected: Sequence[str], missing: Sequence[str], extra: Sequence[str]) -> str:
    prefix = _common_prefix(missing, extra)
    if prefix:
        return f"its names begin with {prefix!r}: give the file of the network without that wrapper"
    here, wanted = _num_layers(strategy.parameters), _num_layers(expected)
    if here < wanted and missing and not extra:
        stages = ", ".join(map(str, strategy.stages))
        return (
            f"it has {here} of {wanted} layers: if it is of one pipeline stage (it says {stages}), merge the files of "
            "all stages first; if not, it is of a smaller model"
        )
    if here != wanted:
        return f"it has {here} layers, the model {wanted}: give the file of the model in use"
    close = closest(extra[0], missing) if extra else None
    if close:
        return f"{extra[0]} is nearest to {close}: give the file of the model in use"
    return "give the file of the model in use, or write one from its plan"


def _common_prefix(missing: Sequence[str], extra: Sequence[str]) -> str:
    """The prefix that all unknown names have before a missing name; empty if it is not the same for all."""
    lacking = set(missing)
    prefixes = {next((name[: -len(rest)] for rest in without_prefixes(name) if rest in lacking), "") for name in extra}
    return prefixes.pop() if len(prefixes) == 1 else ""


def _num_layers(names: Iterable[str]) -> int:
    return len({match[1] for match in map(_LAYER.search, names) if match})
