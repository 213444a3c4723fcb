"""Layouts of a plan as a strategy record, as MindSpore's compiler writes it, and back. Pure Python.

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

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import prod

from mindgspo.config.plan import ParallelPlan
from mindgspo.errors import CheckpointError, ConfigError, WeightsError
from mindgspo.parallel.plans.layout import Layout, Shape
from mindgspo.parallel.plans.ranks import RankGrid, Ranks
from mindgspo.strategy.record import (
    ALL_REPLICAS,
    NOT_SPLIT,
    DeviceMatrix,
    StoredLayout,
    Strategy,
    TensorMap,
    device_axes,
    map_entry,
    with_fields,
)

THRESHOLD = 64
"""KB; MindSpore's default, with which norms and biases stay whole."""
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HsdpCall:
    """What decides about the cuts."""

    shard_size: int = ALL_REPLICAS
    """Argument of hsdp(): parts at most; -1: as many as there are replicas."""
    threshold: int = THRESHOLD
    """Argument of hsdp(): KB from which on a tensor is cut."""
    element_bytes: int = _FLOAT_BYTES
    """Of the parameters, not of what they are cast to."""


def hsdp_call(plan: ParallelPlan) -> HsdpCall | None:
    """The call that says what files of this plan have cut; None: nothing."""
    if not plan.optimizer_shard or plan.token_parts == 1:
        return None
    return HsdpCall(shard_size=plan.token_parts)


def hsdp_shards(stored: StoredLayout, call: HsdpCall) -> StoredLayout:
    """The layout with the fields that the compiler writes for a parameter that requires a gradient.

    Example: a norm of 65536 elements on 2 x 4 ranks with shard_size 2: step 1, size 2; ranks 0 and 1 have its halves.
    """
    assert stored.shape is not None and not stored.opt_weight_shard_size, stored
    free = _free_axes(stored)
    replicas = prod(stored.device_matrix[position] for position in free)
    wanted = ALL_REPLICAS if call.shard_size == 1 else call.shard_size
    parts = replicas if wanted == ALL_REPLICAS else min(wanted, replicas)
    small = prod(stored.shape) * call.element_bytes < call.threshold * 1024
    if not stored.shape or small or parts == 1 or replicas % parts or _rows(stored) % parts:
        return stored
    return replace(
        stored,
        opt_weight_shard_step=prod(stored.device_matrix[free[-1] + 1 :]),
        opt_weight_shard_size=wanted if wanted == ALL_REPLICAS else parts,
    )


def without_single_devices(stored: StoredLayout) -> StoredLayout:
    """The same layout in the compiler's spelling: device axes of one device are left out; a stage of one rank is (1).

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


def _free_axes(stored: StoredLayout) -> list[int]:
    """Positions in the device matrix, ascending, of the axes of more than one device that split nothing."""
    last = len(stored.device_matrix) - 1
    used = {last - axis for entry in stored.tensor_map for axis in device_axes(entry)}
    return [position for position, size in enumerate(stored.device_matrix) if size > 1 and position not in used]


def _rows(stored: StoredLayout) -> int:
    """Length of axis 0 of the slice."""
    assert stored.shape
    return stored.shape[0] // stored.splits[0]


def stage_strategy(layouts: Mapping[str, Layout], *, plan: ParallelPlan, rank: int) -> Strategy:
    """What the file of a rank says: the parameters of its pipeline stage, in the order of `layouts`.

    layouts: of this plan; weights and, under names of their own, optimizer moments. Under `optimizer_shard` a split of
    axis 0 over the replicas is written into the optimizer-shard fields where MindSpore reads the same placement from
    them, and into the tensor map where not (key/value heads shared by several ranks, norms under model_parallel).
    """
    return _stage_record(layouts, plan, rank, plan.optimizer_shard)


def compiled_strategy(
    layouts: Mapping[str, Layout], *, plan: ParallelPlan, rank: int, uncut: Collection[str] = ()
) -> Strategy:
    """What the compiler's own file for a rank of a graph of this plan says, letter for letter but for the order and the
    device matrices of whole norms: behind a sequence split over model_parallel it has one axis for both, and that of
    key heads shared by several ranks is divided as the heads are.

    layouts: without optimizer shards, of this plan; weights and, under names of their own, what is kept beside them and
    laid out alike. Under `optimizer_shard` they are cut by the rule above. uncut: parameters whose `parallel_optimizer`
    is False.
    """
    record = _stage_record(layouts, plan, rank, False)
    call = hsdp_call(plan)
    stages = {
        stage: {
            name: without_single_devices(stored if call is None or name in uncut else hsdp_shards(stored, call))
            for name, stored in entries.items()
        }
        for stage, entries in record.stages.items()
    }
    return replace(record, stages=stages)


def compiled_layouts(layouts: Mapping[str, Layout], *, plan: ParallelPlan) -> dict[str, Layout]:
    """The layouts with the cuts of `compiled_strategy` in them: what every rank of a compiled graph really holds."""
    grid = RankGrid.of(plan)
    records = [
        compiled_strategy(layouts, plan=plan, rank=grid.stage_ranks(stage)[0]) for stage in range(grid.pipeline_stage)
    ]
    merged = Strategy(stages={stage: entries for record in records for stage, entries in record.stages.items()})
    return strategy_layouts(merged, {name: layout.shape for name, layout in layouts.items()})


def strategy_layouts(
    strategy: Strategy,
    shapes: Mapping[str, Shape] | None = None,
    *,
    rank_lists: Mapping[int, Ranks] | None = None,
) -> dict[str, Layout]:
    """{parameter: Layout} of a record.

    shapes: full shapes by name; only these parameters are returned, in this order, those of them that the record holds
    (`check_fits` tells what is missing). Not needed for a JSON file, which holds shapes: None returns all in its order.
    rank_lists: {stage: its ranks}, by default MindSpore's order: stages are equal runs of consecutive ranks.
    A parameter on several stages gets the stage as outermost device axis.
    Raises WeightsError where the shape is unknown, contradicts the file or does not divide, CheckpointError for what no
    Layout can say.
    """
    ranks = rank_lists or {
        stage: tuple(range(stage * strategy.stage_size, (stage + 1) * strategy.stage_size)) for stage in strategy.stages
    }
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
                rank_list=sum((ranks[stage] for stage in by_stage), ()),
            )
        except ConfigError as error:
            raise WeightsError(f"{strategy.source}: {error}") from error
    return layouts


def _stage_record(layouts: Mapping[str, Layout], plan: ParallelPlan, rank: int, optimizer_shard: bool) -> Strategy:
    grid = RankGrid.of(plan)
    if not 0 <= rank < grid.world_size:
        raise ConfigError(f"rank {rank}: the plan {plan} has the ranks 0 to {grid.world_size - 1}")
    stage = grid.coordinates(rank).stage
    ranks = grid.stage_ranks(stage)
    entries = {
        name: _stored(layout, ranks, optimizer_shard) for name, layout in layouts.items() if rank in layout.rank_list
    }
    if not entries:
        raise ConfigError(f"rank {rank}: none of the {len(layouts)} layouts has a parameter on stage {stage} of {plan}")
    return Strategy(stages={stage: entries}, source=f"stage {stage} of {plan}")


def _stored(layout: Layout, ranks: Ranks, optimizer_shard: bool) -> StoredLayout:
    matrix = _stage_matrix(layout, ranks)
    stored = StoredLayout(device_matrix=matrix, tensor_map=layout.tensor_map, shape=layout.shape)
    fields = with_fields(matrix, stored.tensor_map) if optimizer_shard else None
    if fields is None:
        return stored
    tensor_map, step, size = fields
    return replace(stored, tensor_map=tensor_map, opt_weight_shard_step=step, opt_weight_shard_size=size)


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
