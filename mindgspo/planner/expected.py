"""The memory that a run is expected to need, by phase and rank. No MindSpore needed.

Which holdings a phase reads is the swap's own table; their bytes follow from the layouts; the rest is estimated by
`cpu_memory` or `ascend_memory`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import psutil

from mindgspo.config import ExperimentConfig
from mindgspo.config.distillation_rules import local_teachers, teacher_plan
from mindgspo.parallel.plans.placement import Placement, Ranks
from mindgspo.planner.ascend_memory import ascend_temporary, graph_bytes, hccl_buffers
from mindgspo.planner.cpu_memory import cpu_reserve, cpu_standing, cpu_temporary
from mindgspo.planner.memory_plan import GIB, MemoryPlan, Part, PhaseMemory, RankMemory, SwapLevel
from mindgspo.planner.rank_work import RankWork, ReshardBytes, frozen_bytes, held_bytes, reshard_bytes
from mindgspo.swap.states import NEEDS, Holding, Phase

PHASES = (Phase.ROLLOUT, Phase.SCORE, Phase.UPDATE, Phase.RESHARD, Phase.SAVE)
"""In the order of a step. Evaluation needs what a rollout does."""
TRAINING_PHASES = (Phase.SCORE, Phase.UPDATE, Phase.SAVE)
"""Those of cards that train while servers generate."""

CARD_GB = 64.0
"""Memory of an Atlas 800T A2 card in GiB."""
_POOL = 15 / 16  # of a card's free memory, by MindSpore's AscendMemAdapter

_PART_OF = {
    Holding.ACTOR_WEIGHTS: Part.WEIGHTS,
    Holding.ROLLOUT_WEIGHTS: Part.ROLLOUT_WEIGHTS,
    Holding.REFERENCE_WEIGHTS: Part.REFERENCE_WEIGHTS,
    Holding.GRADIENTS: Part.GRADIENTS,
    Holding.MOMENTS: Part.MOMENTS,
    Holding.KV_CACHE: Part.KV_CACHE,
}


def expected_memory(
    config: ExperimentConfig,
    *,
    phases: Collection[Phase] = PHASES,
    levels: Sequence[SwapLevel] = tuple(SwapLevel),
) -> MemoryPlan:
    """The plan of a resolved configuration.

    phases: those that the process runs; holdings that only others need do not exist in it. levels: those to compute,
    including the configured one.
    """
    ordered = [phase for phase in PHASES if phase in phases]
    return MemoryPlan(
        device=config.device,
        capacity=capacity(config),
        level=level_of(config),
        classes=tuple(_rank_memory(config, ranks, ordered, levels) for ranks in _rank_classes(config)),
    )


def capacity(config: ExperimentConfig) -> int:
    """Bytes that a run may take: of a card those of MindSpore's pool, on CPU those of the machine."""
    memory = config.memory
    if config.device == "CPU":
        return psutil.virtual_memory().total if memory.device_gb is None else int(memory.device_gb * GIB)
    return int(_POOL * ((memory.device_gb or CARD_GB) - memory.reserve_gb) * GIB)


def buffer_room(config: ExperimentConfig) -> int:
    """Bytes of the fullest card that the plan leaves for HCCL's buffers, which are not in MindSpore's pool."""
    plan = expected_memory(config, phases=_own_phases(config), levels=(level_of(config),))
    phases = [phase for each in plan.classes for phase in each.levels[plan.level]]
    return round(plan.capacity / _POOL) - max(phase.total - phase.parts.get(Part.BUFFERS, 0) for phase in phases)


def swapped_bytes(config: ExperimentConfig) -> int:
    """Most bytes of rank 0 that the swap keeps in host memory at once: what the phase that needs least does without."""
    if not config.swap.enabled:
        return 0
    held = held_bytes(RankWork.of(config, 0))
    phases = _own_phases(config)
    every = {holding for phase in phases for holding in NEEDS[phase]}
    return sum(held[each] for each in every) - min(sum(held[each] for each in NEEDS[phase]) for phase in phases)


def _own_phases(config: ExperimentConfig) -> tuple[Phase, ...]:
    """Of the ranks that train; others may generate."""
    return TRAINING_PHASES if config.has_servers else PHASES


def graph_memory(config: ExperimentConfig, graph: str, rank: int) -> int:
    """Bytes that a process on an Ascend card holds at most if it has this one graph, as the dry run measures it:
    without the framework."""
    return graph_bytes(RankWork.of(config, rank), graph)


def level_of(config: ExperimentConfig) -> SwapLevel:
    """The memory level that is configured."""
    if not config.swap.enabled:
        return SwapLevel.EVERYTHING
    return SwapLevel.BY_STEP if config.swap.reshard_level == 1 else SwapLevel.BY_PHASE


def _rank_classes(config: ExperimentConfig) -> list[Ranks]:
    """Ranks of one stage hold slices of equal size; on CPU rank 0 also gathers checkpoints in the memory they share."""
    grid = Placement(plan=config.plans.train, rank=0).grid
    classes = [grid.stage_ranks(stage) for stage in range(grid.plan.pipeline_stage)]
    plans = [teacher_plan(teacher, config) for teacher in local_teachers(config)]
    if config.algorithm.kl.placement != "none":
        plans.append(config.plans.scoring)
    for plan in plans:
        scoring = Placement(plan=plan, rank=0).grid
        stages = [frozenset(scoring.stage_ranks(stage)) for stage in range(plan.pipeline_stage)]
        parts = [tuple(rank for rank in ranks if rank in stage) for ranks in classes for stage in stages]
        classes = [ranks for ranks in parts if ranks]
    if config.device == "CPU" and len(classes[0]) > 1:
        first, *rest = classes
        classes = [first[:1], first[1:], *rest]
    return classes


def _rank_memory(
    config: ExperimentConfig, ranks: Ranks, phases: list[Phase], levels: Sequence[SwapLevel]
) -> RankMemory:
    work = RankWork.of(config, ranks[0])
    place = Placement(plan=config.plans.train, rank=ranks[0])
    return RankMemory(
        ranks=ranks,
        layers=place.own_layers(config.model.num_hidden_layers),
        levels=_phases_of(work, phases, levels),
    )


def _phases_of(
    work: RankWork, phases: list[Phase], levels: Sequence[SwapLevel]
) -> dict[SwapLevel, tuple[PhaseMemory, ...]]:
    if work.config.device == "CPU":
        temporary, lasting = cpu_temporary, {**cpu_standing(work, phases), Part.RESERVE: cpu_reserve(work)}
    else:
        # HCCL's buffers have what the pool leaves of a card; if that is too little, the pool must leave more.
        left = round(capacity(work.config) * (1 - _POOL) / _POOL)
        temporary, lasting = ascend_temporary, {Part.BUFFERS: max(0, hccl_buffers(work) - left)}
    held, frozen, reshard = held_bytes(work), frozen_bytes(work), reshard_bytes(work)
    found = {}
    for level in levels:
        memories = []
        for phase in phases:
            resident = _resident(held, frozen, reshard, level, phase, phases)
            parts = {**resident, **temporary(work, phase), **lasting}
            memories.append(PhaseMemory(phase=phase, parts={part: parts[part] for part in Part if parts.get(part)}))
        found[level] = tuple(memories)
    return found


def _resident(
    held: Mapping[Holding, int],
    frozen: int,
    reshard: ReshardBytes,
    level: SwapLevel,
    phase: Phase,
    phases: list[Phase],
) -> dict[Part, int]:
    """The holdings that are in memory during a phase, and what a reshard adds to them. frozen: bytes of the policy's
    weights that are not trained."""
    if phase is Phase.RESHARD and level is SwapLevel.BY_STEP:
        return {Part.WEIGHTS: reshard.step, Part.BUCKET: reshard.bucket}
    needed = NEEDS[phase]
    if level is SwapLevel.EVERYTHING:
        needed = tuple(dict.fromkeys(holding for each in phases for holding in NEEDS[each]))
    if held[Holding.ROLLOUT_WEIGHTS] == 0 and Holding.ROLLOUT_WEIGHTS in needed:
        needed = (*needed, Holding.ACTOR_WEIGHTS)  # they are the same parameters
    parts = {_PART_OF[holding]: held[holding] for holding in needed}
    if frozen and Part.WEIGHTS in parts:
        parts |= {Part.WEIGHTS: parts[Part.WEIGHTS] - frozen, Part.FROZEN_WEIGHTS: frozen}
    if phase is Phase.RESHARD:
        parts[Part.BUCKET] = reshard.bucket
    return parts
