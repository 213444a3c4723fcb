"""`mindgspo plan`: the memory and time of an experiment as tables, and the smallest change if it does not fit.

Data and weights need not exist. If a dry run has measured graphs of this configuration, its numbers are shown beside
the plan's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor
from pathlib import Path
from typing import Any

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.config.cache import (
    BLOCK,
    block_bytes,
    cache_blocks,
    cache_columns,
    sequences_at_once,
    slots_per_replica,
    training_config,
)
from mindgspo.config.generation import generating_model, merges_adapters
from mindgspo.planner.ascend_memory import GRAPHS, hccl_buffers
from mindgspo.planner.cache_budget import BARELY, replica_with_cache_budget, with_cache_budget
from mindgspo.planner.expected import CARD_GB, PHASES, TRAINING_PHASES, capacity, expected_memory, graph_memory
from mindgspo.planner.measured import MeasuredPeak, stored_peaks
from mindgspo.planner.memory_plan import GIB, MIB, MemoryPlan, Part, RankMemory, SwapLevel
from mindgspo.planner.rank_work import RankWork, largest_tensors, trained_bytes, whole_bytes
from mindgspo.planner.smallest_change import changed, set_options, smallest_change
from mindgspo.planner.time.estimate import NO_RATES, estimate_json, estimate_lines, estimate_step
from mindgspo.swap.states import Phase
from mindgspo.text import aligned

DRY_RUNS = Path("dryrun")
"""Where `mindgspo dryrun` leaves its folders, one per experiment, by default."""
_INDEXED = 1 << 31
_GROUNDS = {
    "Ascend": "An estimate: weights, gradients, moments and cache follow from the plans, the rest from what "
    "MindSpore's allocator did in dry runs, and workspaces from kernels' own answers (docs/ascend.md); none of it was "
    "measured on a card.",
    "CPU": "An estimate for the longest prompts and responses: weights, gradients, moments and cache follow from the "
    "plans, the rest from what our kernels keep. Workers of reward functions are not in it.",
}


def plan_lines(plan: MemoryPlan) -> Iterator[str]:
    """Tables by rank class at the configured level, then all levels."""
    where = "card" if plan.device == "Ascend" else "process"
    yield f"memory per {where} at the peak of each phase; {plan.level.value}"
    for each in plan.classes:
        yield ""
        yield from _class_lines(plan, each)
    yield ""
    yield from _level_lines(plan)


def measured_lines(peaks: Sequence[tuple[Phase, MeasuredPeak, int]]) -> Iterator[str]:
    """Each graph's peak by MindSpore's allocator beside the plan's. peaks: phase, what was measured, and the bytes that
    the plan has for this graph alone."""
    unit = _Unit(max(peak.allocated for _, peak, _ in peaks))
    rows = [[f"graph by graph, {unit.name}", "MindSpore", "plan", "difference"]]
    for phase, peak, planned in peaks:
        more = 100 * (planned / peak.allocated - 1)
        name = f"  {phase.value}: {peak.graph}, rank {peak.rank}"
        rows.append([name, unit.text(peak.allocated), unit.text(planned), f"{more:+.1f} %"])
    yield from aligned(rows, left=1)


def peak_text(plan: MemoryPlan, level: SwapLevel | None = None) -> str:
    """The peak of a level and the capacity, e.g. "update needs 51.20 of 64.00 GiB"."""
    phase, needed = plan.peak(level)
    processes = sum(len(each.ranks) for each in plan.classes)
    together = f" ({processes} processes together)" if plan.device == "CPU" and processes > 1 else ""
    unit = _Unit(needed)
    return f"{phase.value} needs {unit.text(needed)} of {unit.text(plan.capacity)} {unit.name}{together}"


class _Unit:
    """GiB with two decimals; whole MiB where the largest number of a table is small."""

    def __init__(self, largest: int) -> None:
        self._is_small = largest < 4 * GIB
        self.name = "MiB" if self._is_small else "GiB"

    def text(self, size: int) -> str:
        """A size in this unit."""
        return f"{size / MIB:,.0f}" if self._is_small else f"{size / GIB:,.2f}"


def _class_lines(plan: MemoryPlan, each: RankMemory) -> Iterator[str]:
    memories = [each.at(plan.level, phase) for phase in plan.phases]
    unit = _Unit(max(memory.total for memory in memories))
    rows = [[f"{_title(each)}, {unit.name}", *(phase.value for phase in plan.phases)]]
    for part in Part:
        sizes = [memory.parts.get(part, 0) for memory in memories]
        if any(sizes):
            rows.append([f"  {part.value}", *(unit.text(size) if size else "-" for size in sizes)])
    rows.append(["  together", *(unit.text(memory.total) for memory in memories)])
    yield from aligned(rows, left=1)


def _level_lines(plan: MemoryPlan) -> Iterator[str]:
    unit = _Unit(max(plan.peak(level)[1] for level in SwapLevel))
    title = "fullest card" if plan.device == "Ascend" else "all processes"
    rows = [[f"{title}, {unit.name}", *(phase.value for phase in plan.phases), "", ""]]
    for level in SwapLevel:
        sizes = [unit.text(plan.needed(level, phase)) for phase in plan.phases]
        answer = "fits" if plan.fits(level) else "does not fit"
        rows.append([f"  {level.value}", *sizes, answer, "(configured)" if level is plan.level else ""])
    yield from aligned(rows, left=1)


def _title(each: RankMemory) -> str:
    first, last = each.ranks[0], each.ranks[-1]
    layers = f"layers {each.layers[0]}-{each.layers[-1]}"
    return f"rank {first}, {layers}" if first == last else f"ranks {first}-{last}, {layers}"


def plan_of_file(
    config: Path,
    overrides: Sequence[str],
    *,
    memory_gb: float | None = None,
    card: str = "A2",
    rates: Path | None = None,
) -> Iterator[str]:
    """Lines on memory and time; the last one says whether it fits.

    memory_gb: in the place of memory.device_gb. card, rates: as in `estimate_step`. Raises ConfigError, RunFolderError.
    """
    experiment = _loaded(config, overrides, memory_gb)
    sides = _sides(experiment)
    if experiment.model.lora is not None:
        whole, trained = whole_bytes(experiment.model), trained_bytes(experiment.model)
        yield (
            f"model.lora: the base is frozen, without gradients and moments; adapters are trained, "
            f"{_percent(trained / whole)} of the weights"
        )
        yield _adapters_line(experiment)
        yield ""
    for side in sides:
        if side.title:
            yield side.title
        yield from plan_lines(side.plan)
        yield ""
        if side.generates:
            yield _cache_line(side.experiment)
            yield ""
    if experiment.device == "Ascend" and not experiment.has_servers:
        yield from _measured(experiment)
    estimate = estimate_step(experiment, card=card, rates=rates)
    yield from [NO_RATES] if estimate is None else estimate_lines(experiment, estimate)
    yield ""
    if experiment.device == "Ascend":
        yield _pool_line(experiment)
        yield from _index_warnings(experiment)
    yield _GROUNDS[experiment.device]
    for side in sides:
        yield f"{side.name} {_verdict(side.plan)}" if side.name else _conclusion(experiment, side.plan)


def plan_json(
    config: Path,
    overrides: Sequence[str],
    *,
    memory_gb: float | None = None,
    card: str = "A2",
    rates: Path | None = None,
) -> dict[str, Any]:
    """The plan as numbers: memory of each side (one, or those that train and each server), in bytes, and time."""
    experiment = _loaded(config, overrides, memory_gb)
    estimate = estimate_step(experiment, card=card, rates=rates)
    memory = []
    for side in _sides(experiment):
        settings = {} if side.plan.fits() or side.name else smallest_change(experiment)
        memory.append({"side": side.name or "all", **_memory_json(side.plan), "smallest_change": settings})
    return {
        "experiment": experiment.experiment,
        "device": experiment.device,
        "memory": memory,
        "time": None if estimate is None else estimate_json(estimate),
    }


def _memory_json(plan: MemoryPlan) -> dict[str, Any]:
    phase, needed = plan.peak()
    return {
        "capacity": plan.capacity,
        "needed": needed,
        "phase": phase.value,
        "fits": plan.fits(),
        "level": plan.level.value,
        "levels": {
            level.value: {phase.value: plan.needed(level, phase) for phase in plan.phases} for level in SwapLevel
        },
        "ranks": [
            {
                "ranks": list(each.ranks),
                "layers": list(each.layers),
                "phases": {
                    memory.phase.value: {part.value: size for part, size in memory.parts.items()}
                    for memory in each.levels[plan.level]
                },
            }
            for each in plan.classes
        ],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Cards that hold the same things."""

    experiment: ExperimentConfig
    plan: MemoryPlan
    generates: bool
    """Whether these cards hold the cache."""
    name: str = ""
    """"" if there is only one side."""
    title: str = ""
    """"" if there is only one side."""


def _loaded(config: Path, overrides: Sequence[str], memory_gb: float | None) -> ExperimentConfig:
    card = [] if memory_gb is None else [f"memory.device_gb={memory_gb}"]
    return with_cache_budget(load_config(config, [*overrides, *card], check_files=False))


def _sides(experiment: ExperimentConfig) -> list[_Side]:
    """One side; where servers generate, the cards that train and those of one of the run's own servers."""
    if not experiment.has_servers:
        plan = expected_memory(experiment)
        return [_Side(experiment=experiment, plan=plan, generates=True)]
    plans, trained = experiment.plans, training_config(experiment)
    sides = [
        _Side(
            experiment=trained,
            plan=expected_memory(trained, phases=TRAINING_PHASES),
            generates=False,
            name="training",
            title=f"training, {plans.train} (data x model x pipeline); other processes generate",
        )
    ]
    if experiment.has_own_servers:
        replica = replica_with_cache_budget(experiment)
        sides.append(
            _Side(
                experiment=replica,
                plan=expected_memory(replica, phases=(Phase.ROLLOUT,)),
                generates=True,
                name="each server",
                title=f"each of {plans.infer.data_parallel} servers, plans.infer {plans.infer}",
            )
        )
    return sides


def _cache_line(experiment: ExperimentConfig) -> str:
    """The cache's size, and how many sequences it holds."""
    blocks, columns = cache_blocks(experiment), cache_columns(experiment)
    size = blocks * block_bytes(experiment)
    unit, half = _Unit(size), -(-columns // 2)
    return (
        f"key/value cache of a rank: {blocks:,} blocks of {BLOCK} tokens, {unit.text(size)} {unit.name}; a replica "
        f"decodes {sequences_at_once(experiment, columns):,} sequences at once at the longest, {columns:,} columns, "
        f"and {sequences_at_once(experiment, half):,} at half of that (its slots: {slots_per_replica(experiment):,})"
    )


def _pool_line(experiment: ExperimentConfig) -> str:
    """What a card has to give, and HCCL's share."""
    memory, pool = experiment.memory, capacity(experiment) / GIB
    buffers = hccl_buffers(RankWork.of(experiment, 0)) / GIB
    return (
        f"MindSpore's pool has {pool:.2f} GiB: 15/16 of memory.device_gb {memory.device_gb or CARD_GB:g} less "
        f"memory.reserve_gb {memory.reserve_gb:g}; HCCL's buffers, {buffers:.2f} GiB, have the other {pool / 15:.2f}"
    )


def _index_warnings(experiment: ExperimentConfig) -> Iterator[str]:
    """Tensors that CANN's prebuilt kernels, which count elements in 32 bits, may not be able to index."""
    for what, elements in largest_tensors(RankWork.of(experiment, 0)).items():
        if elements >= _INDEXED:
            yield (
                f"warning: {what} have {elements:,} elements on a rank, and prebuilt kernels of CANN index less than "
                f"{_INDEXED:,}; divide them by model_parallel or context_parallel, or take fewer at once"
            )


def _adapters_line(experiment: ExperimentConfig) -> str:
    """How generation applies the adapters, what that holds, and what servers get."""
    what = "adapters alone" if experiment.sends_adapters else "whole merged weights"
    travels = f"; servers get {what}" if experiment.has_servers else ""
    if not merges_adapters(experiment):
        return f"generation computes with the adapters beside the frozen weights (rollout.lora: separate){travels}"
    is_beside = generating_model(experiment) is experiment.model and not travels
    where = "packed a second time" if is_beside else "in the place of the base"
    return f"generation computes with merged weights, {where} (rollout.lora: merged){travels}"


def _measured(experiment: ExperimentConfig) -> Iterator[str]:
    """Peaks that a dry run measured for this configuration; empty if there was none."""
    folder = DRY_RUNS / experiment.experiment
    peaks = stored_peaks(folder, experiment)
    rows = [
        (phase, peak, graph_memory(experiment, graph, peak.rank))
        for phase in PHASES
        for graph in GRAPHS.get(phase, ())
        for peak in peaks
        if peak.graph == graph
    ]
    if not rows:
        return
    yield from measured_lines(rows)
    versions = ", ".join(sorted({peak.mindspore for _, peak, _ in rows}))
    yield (
        f"MindSpore: what the allocator of {versions} gave out in a dry run ({folder}); plan: the same graph, without "
        "what others hold. Neither has workspaces and HCCL buffers, for which the framework's part leaves room."
    )
    yield ""


def _verdict(plan: MemoryPlan) -> str:
    """Whether it fits, and how much is left if that is less than the error of the estimate."""
    if not plan.fits():
        return f"does not fit: {peak_text(plan)}"
    share = plan.peak()[1] / plan.capacity
    if share < BARELY:
        return f"fits: {peak_text(plan)}"
    unmeasured = "unmeasured on cards" if plan.device == "Ascend" else "an estimate"
    return f"fits barely: {peak_text(plan)}, {_percent(share)}; {unmeasured}"


def _percent(share: float) -> str:
    """Rounded down, so that what fits is not called full."""
    return f"{floor(1000 * share) / 10:.1f} %"


def _conclusion(experiment: ExperimentConfig, plan: MemoryPlan) -> str:
    verdict = _verdict(plan)
    if plan.fits():
        return verdict
    change = smallest_change(experiment)
    if change is None:
        return f"{verdict}; nothing that was tried fits: take more cards or a smaller model"
    other = changed(experiment, change)
    then = expected_memory(other)
    cards, cards_now = (each.plans.train.world_size for each in (other, experiment))
    unit = "cards" if plan.device == "Ascend" else "processes"
    more = "" if cards == cards_now else f", which takes {cards} {unit} instead of {cards_now}"
    share = then.peak()[1] / plan.capacity
    barely = f" ({_percent(share)})" if share >= BARELY else ""
    return f"{verdict}; smallest change{more}, with which {peak_text(then)}{barely}: {set_options(change)}"
