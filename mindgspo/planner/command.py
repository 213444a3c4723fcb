"""`mindgspo plan`: the expected memory of an experiment, and the smallest change where it does not fit.

What enters: the command's arguments. What leaves: lines, the last one the verdict. Called by the command line. Data and
weights need not be there. Where a dry run has measured graphs of this configuration, its figures stand beside the
plan's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.planner.ascend_memory import GRAPHS
from mindgspo.planner.expected import PHASES, expected_memory, graph_memory
from mindgspo.planner.measured import stored_peaks
from mindgspo.planner.memory_plan import GIB, MemoryPlan
from mindgspo.planner.smallest_change import changed, set_options, smallest_change
from mindgspo.planner.table import measured_lines, peak_text, plan_lines

DRY_RUNS = Path("dryrun")
"""Where `mindgspo dryrun` leaves its folders, one per experiment, unless it is told otherwise."""

_GROUNDS = {
    "Ascend": "An estimate: weights, gradients, moments and cache follow from the plans, the rest from what "
    "MindSpore's allocator did in dry runs (docs/ascend.md); the framework's part was not measured on a card.",
    "CPU": "For the longest prompts and responses, and one shape of each graph. One process came out within 10 % when "
    "measured (tools/bench_memory_plan.py); workers of reward functions are not in it.",
}


def plan_of_file(config: Path, overrides: Sequence[str], *, memory_gb: float | None = None) -> Iterator[str]:
    """memory_gb: GiB of a card, on CPU of the machine; None: 64, or what the machine has. Raises ConfigError."""
    experiment = load_config(config, overrides, check_files=False)
    plan = expected_memory(experiment, capacity=None if memory_gb is None else int(memory_gb * GIB))
    yield from plan_lines(plan)
    yield ""
    if experiment.device == "Ascend":
        yield from _measured(experiment)
    yield _GROUNDS[plan.device]
    yield _verdict(experiment, plan)


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


def _verdict(experiment: ExperimentConfig, plan: MemoryPlan) -> str:
    if plan.fits():
        return f"fits: {peak_text(plan)}"
    change = smallest_change(experiment, capacity=plan.capacity)
    if change is None:
        return f"does not fit: {peak_text(plan)}; nothing that was tried fits: take more cards or a smaller model"
    then = expected_memory(changed(experiment, change), capacity=plan.capacity)
    return f"does not fit: {peak_text(plan)}; smallest change with which {peak_text(then)}: {set_options(change)}"
