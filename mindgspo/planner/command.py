"""`mindgspo plan`: the expected memory of an experiment as tables, and the smallest change where it does not fit.

Data and weights need not exist. Where a dry run has measured graphs of this configuration, its numbers stand beside the
plan's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.config.cache import (
    BLOCK,
    block_bytes,
    cache_blocks,
    cache_columns,
    sequences_at_once,
    slots_per_replica,
)
from mindgspo.config.replica import training_config
from mindgspo.parallel.swap.states import Phase
from mindgspo.planner.ascend_memory import GRAPHS
from mindgspo.planner.cache_budget import replica_with_cache_budget, with_cache_budget
from mindgspo.planner.expected import PHASES, expected_memory, graph_memory
from mindgspo.planner.measured import MeasuredPeak, stored_peaks
from mindgspo.planner.memory_plan import GIB, MIB, Level, MemoryPlan, Part, RankMemory
from mindgspo.planner.smallest_change import changed, set_options, smallest_change
from mindgspo.text import aligned

DRY_RUNS = Path("dryrun")
"""Where `mindgspo dryrun` leaves its folders, one per experiment, by default."""
_GROUNDS = {
    "Ascend": "An estimate: weights, gradients, moments and cache follow from the plans, the rest from what "
    "MindSpore's allocator did in dry runs (docs/ascend.md); the framework's part was not measured on a card.",
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


def peak_text(plan: MemoryPlan, level: Level | None = None) -> str:
    """The most that a level needs against what there is, e.g. "update needs 51.20 of 64.00 GiB"."""
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
    unit = _Unit(max(plan.peak(level)[1] for level in Level))
    title = "fullest card" if plan.device == "Ascend" else "all processes"
    rows = [[f"{title}, {unit.name}", *(phase.value for phase in plan.phases), "", ""]]
    for level in Level:
        sizes = [unit.text(plan.needed(level, phase)) for phase in plan.phases]
        answer = "fits" if plan.fits(level) else "does not fit"
        rows.append([f"  {level.value}", *sizes, answer, "(configured)" if level is plan.level else ""])
    yield from aligned(rows, left=1)


def _title(each: RankMemory) -> str:
    first, last = each.ranks[0], each.ranks[-1]
    layers = f"layers {each.layers[0]}-{each.layers[-1]}"
    return f"rank {first}, {layers}" if first == last else f"ranks {first}-{last}, {layers}"


def plan_of_file(config: Path, overrides: Sequence[str], *, memory_gb: float | None = None) -> Iterator[str]:
    """memory_gb: GiB of a card, on CPU of the machine; None: 64, or what the machine has. Raises ConfigError."""
    capacity = None if memory_gb is None else int(memory_gb * GIB)
    experiment = with_cache_budget(load_config(config, overrides, check_files=False), capacity=capacity)
    if experiment.has_servers:
        yield from _lines_of_both_sides(experiment, capacity)
        return
    plan = expected_memory(experiment, capacity=capacity)
    yield from plan_lines(plan)
    yield ""
    yield _cache_line(experiment)
    yield ""
    if experiment.device == "Ascend":
        yield from _measured(experiment)
    yield _GROUNDS[plan.device]
    yield _conclusion(experiment, plan)


def _lines_of_both_sides(experiment: ExperimentConfig, capacity: int | None) -> Iterator[str]:
    """Where servers generate: the cards that train, and those of one of the servers that the run starts."""
    plans = experiment.plans
    training = expected_memory(
        training_config(experiment), capacity=capacity, phases=(Phase.SCORE, Phase.UPDATE, Phase.SAVE)
    )
    yield f"training, {plans.train} (data x model x pipeline); other processes generate"
    yield from plan_lines(training)
    sides = {"training": training}
    if experiment.has_own_servers:
        replica = replica_with_cache_budget(experiment, capacity=capacity)
        sides["each server"] = expected_memory(replica, capacity=capacity, phases=(Phase.ROLLOUT,))
        yield ""
        yield f"each of {plans.infer.data_parallel} servers, plans.infer {plans.infer}"
        yield from plan_lines(sides["each server"])
        yield ""
        yield _cache_line(replica)
    yield ""
    yield _GROUNDS[training.device]
    for name, plan in sides.items():
        yield f"{name} {'fits' if plan.fits() else 'does not fit'}: {peak_text(plan)}"


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


def _measured(experiment: ExperimentConfig) -> Iterator[str]:
    """What a dry run found for this configuration; nothing where there was none."""
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


def _conclusion(experiment: ExperimentConfig, plan: MemoryPlan) -> str:
    if plan.fits():
        return f"fits: {peak_text(plan)}"
    change = smallest_change(experiment, capacity=plan.capacity)
    if change is None:
        return f"does not fit: {peak_text(plan)}; nothing that was tried fits: take more cards or a smaller model"
    other = changed(experiment, change)
    then = expected_memory(other, capacity=plan.capacity)
    cards, cards_now = (each.plans.train.world_size for each in (other, experiment))
    on = "" if cards == cards_now else f", on {cards} cards instead of {cards_now},"
    return f"does not fit: {peak_text(plan)}; smallest change with which{on} {peak_text(then)}: {set_options(change)}"
