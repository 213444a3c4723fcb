"""Which entry of a plan to change when MindSpore refuses a graph, where its words tell.

What enters: a refusal's text and the plan it was compiled for. What leaves: lines such as
"plans.train.model_parallel: 4 does not divide 66". A refusal that no rule knows gets none: it may be a defect of a
cell. Called by `report`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from mindgspo.config import ParallelPlan


def plan_hints(text: str, section: str, plan: ParallelPlan) -> list[str]:
    """section: the plan's path in the configuration, e.g. "plans.train"."""
    found: dict[str, None] = {}
    for pattern, advice in _RULES:
        for match in pattern.finditer(text):
            for line in advice(match, plan):
                found[f"{section}.{line}"] = None
    return list(found)


def _does_not_divide(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    size, ways = int(match["size"]), int(match["ways"])
    return [f"{entry} does not divide {size}" for entry in _entries(ways, plan)]


def _heads(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    return [f"model_parallel: {match['ways']} does not divide {match['size']} attention heads"]


def _no_power_of_two(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    ways = int(match["ways"])
    return [f"{entry} is no power of 2, as MindSpore wants it here" for entry in _entries(ways, plan)]


def _too_many_ranks(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    here = f"{plan.data_parallel} x {plan.model_parallel}"
    return [
        f"model_parallel: data_parallel x model_parallel is {here}; an operator is split {match['ways']} ways, but a "
        f"stage has {match['size']} ranks"
    ]


def _stages(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    return [f"pipeline_stage: {match['ways']} does not divide {match['size']} ranks"]


def _micro_batches(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    return [f"micro_batch_num: {match['ways']} does not divide the {match['size']} rows of a mini-batch"]


def _few_micro_batches(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    return [f"micro_batch_num: {plan.micro_batch_num}; {plan.pipeline_stage} pipeline stages need at least as many"]


def _one_cache(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    return [f"data_parallel: {plan.data_parallel}; a KV cache belongs to one replica, its tokens cannot be split"]


def _whole_axis(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    return [f"model_parallel: {plan.model_parallel}; an operator wants an axis whole that is split over ranks"]


def _entries(ways: int, plan: ParallelPlan) -> list[str]:
    """The entries that split an axis so many ways, each with its value; none if no entry does."""
    replicas, slices = plan.data_parallel, plan.model_parallel
    fitting = []
    if slices == ways:
        fitting.append(f"model_parallel: {ways}")
    if replicas == ways:
        fitting.append(f"data_parallel: {ways}")
    if replicas * slices == ways and not fitting:
        fitting.append(f"model_parallel: data_parallel x model_parallel = {ways}")
    return fitting


_Advice = Callable[[re.Match[str], ParallelPlan], list[str]]
_RULES: tuple[tuple[re.Pattern[str], _Advice], ...] = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (r"shape value (?P<size>\d+) at .* cannot be divisible by strategy value (?P<ways>\d+)", _does_not_divide),
        (r"head_num % \S+ must be 0, but got (?P<size>\d+)\(head_num\) and (?P<ways>\d+)", _heads),
        (r"must be the power of 2, but get (?P<ways>\d+)", _no_power_of_two),
        (r"it requires (?P<ways>\d+) devices, but the device number of this stage is (?P<size>\d+)", _too_many_ranks),
        (r"the device_num : (?P<size>\d+) ?and the split_stage_num : (?P<ways>\d+)", _stages),
        (r"shape of input\((?P<size>\d+)\) must be divided by micro size\((?P<ways>\d+)\)", _micro_batches),
        (r"setting micro_batch_num > 1|MicroBatch num must be larger or equal than StageNum", _few_micro_batches),
        (r"The (?:slot_mapping|num_blocks|token num|block_size) can't be shard", _one_cache),
        (r"[Tt]he (?:axis|dim|hidden|head_dim|num_head) can(?: ?not|'t) be (?:split|shard)", _whole_axis),
    )
)
