"""`mindgspo plan`: the expected memory of an experiment, and the smallest change where it does not fit.

What enters: the command's arguments. What leaves: lines, the last one the verdict. Called by the command line. Data and
weights need not be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.planner.expected import expected_memory
from mindgspo.planner.memory_plan import GIB, MemoryPlan
from mindgspo.planner.smallest_change import changed, set_options, smallest_change
from mindgspo.planner.table import peak_text, plan_lines

_GROUNDS = {
    "Ascend": "An estimate: weights, gradients, moments and cache follow from the plans; activations and the "
    "framework's part were not measured on a card.",
    "CPU": "For the longest prompts and responses, and one shape of each graph. One process came out within 10 % when "
    "measured (tools/bench_memory_plan.py); workers of reward functions are not in it.",
}


def plan_of_file(config: Path, overrides: Sequence[str], *, memory_gb: float | None = None) -> Iterator[str]:
    """memory_gb: GiB of a card, on CPU of the machine; None: 64, or what the machine has. Raises ConfigError."""
    experiment = load_config(config, overrides, check_files=False)
    plan = expected_memory(experiment, capacity=None if memory_gb is None else int(memory_gb * GIB))
    yield from plan_lines(plan)
    yield ""
    yield _GROUNDS[plan.device]
    yield _verdict(experiment, plan)


def _verdict(experiment: ExperimentConfig, plan: MemoryPlan) -> str:
    if plan.fits():
        return f"fits: {peak_text(plan)}"
    change = smallest_change(experiment, capacity=plan.capacity)
    if change is None:
        return f"does not fit: {peak_text(plan)}; nothing that was tried fits: take more cards or a smaller model"
    then = expected_memory(changed(experiment, change), capacity=plan.capacity)
    return f"does not fit: {peak_text(plan)}; smallest change with which {peak_text(then)}: {set_options(change)}"
