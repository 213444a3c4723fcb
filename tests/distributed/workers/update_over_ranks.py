"""One of four workers of what follows the accumulation of gradients, without a model.

usage: update_over_ranks.py FOLDER. Each rank writes FOLDER/<case> <bucket bytes> <rank>.npz: norms, and its weights and
moments after the updates. Also imported for the numbers drawn.
"""

from __future__ import annotations

import zlib
from functools import partial
from pathlib import Path

import numpy as np
from joined_ranks import run_joined
from plan_cases import MODELS

from mindgspo.config import ModelSection, OptimizerSection, ParallelPlan
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.placement import Ranks
from mindgspo.parallel.platform import runtime

ROUNDED = "rounded"
SHARD = {"optimizer_shard": True}
CASES = {
    "2x2x1 unsharded": ("dense", {"data_parallel": 2, "model_parallel": 2}),
    # Tied tables on both stages.
    "2x1x2": ("dense", {"data_parallel": 2, "pipeline_stage": 2, "micro_batch_num": 2} | SHARD),
    f"4x1x1 {ROUNDED}": ("dense", {"data_parallel": 4} | SHARD),
    # Tables of 66 rows.
    "4x1x1 padded": ("padded", {"data_parallel": 4} | SHARD),
    # Whole experts, on both ranks of each replica, and on all four.
    "2x2x1 experts": ("experts", {"data_parallel": 2, "model_parallel": 2, "expert_tensor_parallel": 1} | SHARD),
}
BUCKETS = (9000, 1 << 26)
"""Bytes: of a few tensors, of all."""
NUM_UPDATES = 3
LEARNING_RATE = 1e-2
SECTION = OptimizerSection(lr=LEARNING_RATE, weight_decay=0.1, max_grad_norm=1.0)


def model_of(case: str) -> ModelSection:
    model, plan = CASES[case]
    dtype = "bfloat16" if ROUNDED in case else "float32"
    return ModelSection(**MODELS[model] | {"num_hidden_layers": plan.get("pipeline_stage", 1), "dtype": dtype})


def whole_weight(name: str, shape: tuple[int, ...], number: int) -> np.ndarray:
    """As somebody loads it before update `number`: the first and the third one."""
    return np.random.default_rng([1, number, zlib.crc32(name.encode())]).standard_normal(shape, np.float32)


def gradient_part(layout: Layout, summed_over: Ranks, rank: int, number: int) -> np.ndarray:
    """What `rank` finds for its slice in update `number`; ranks that find the same are not among those summed over."""
    held = layout.slice_of(rank)
    key = [2, number, zlib.crc32(layout.parameter.encode()), summed_over.index(rank), *held.starts]
    return np.random.default_rng(key).standard_normal(held.shape, np.float32)


def body(folder: Path, device: runtime.Device) -> None:
    for case in CASES:
        if ROUNDED in case and device == "CPU":
            continue  # masters' copies are float32 there: MindSpore has no operators for bfloat16
        for bucket_bytes in BUCKETS:
            arrays = updated(case, bucket_bytes, runtime.rank())
            np.savez(folder / f"{case} {bucket_bytes} {runtime.rank()}.npz", **arrays)


def updated(case: str, bucket_bytes: int, rank: int) -> dict[str, np.ndarray]:
    from mindspore import ParameterTuple

    from mindgspo.algorithms.optim.gradients import gradients_of
    from mindgspo.algorithms.optim.over_ranks import StepOverRanks
    from mindgspo.models.names import parameter_shapes, trained_type
    from mindgspo.models.transformer import DTYPES
    from mindgspo.parallel.plans.parameter_layouts import gradient_ranks, moment_layouts, parameter_layouts
    from mindgspo.parallel.plans.placement import Placement
    from mindgspo.parallel.platform.parameter_memory import set_values, zero_parameter

    section, plan = model_of(case), ParallelPlan(**CASES[case][1])
    layouts, rows = (make(parameter_shapes(section), section, plan) for make in (parameter_layouts, moment_layouts))
    ranks = gradient_ranks(layouts, section, plan, rank)
    # Not in the order of the layouts.
    types = {name: DTYPES[trained_type(name, layouts[name].shape, section.dtype)] for name in ranks}
    weights = ParameterTuple(
        [zero_parameter(layouts[name].slice_of(rank).shape, name, types[name]) for name in sorted(ranks)]
    )
    masters = {
        name: zero_parameter(rows[name].slice_shape, f"master.{name}", requires_grad=False)
        for name in ranks
        if rows[name].slice_shape != layouts[name].slice_shape
    }
    gradients = gradients_of(weights)
    place = Placement(plan=plan, rank=rank)
    step = StepOverRanks(weights, gradients, SECTION, place, section, masters, bucket_bytes=bucket_bytes)
    norms = []

    def accumulate(number: int) -> None:
        for name, gradient in zip(sorted(ranks), gradients, strict=True):
            set_values(gradient, gradient_part(layouts[name], ranks[name], rank, number))

    for number in range(1, NUM_UPDATES + 1):
        if number != 2:
            for weight in weights:
                whole = whole_weight(weight.name, layouts[weight.name].shape, number)
                set_values(weight, whole[layouts[weight.name].slice_of(rank).index])
                if weight.name in masters:
                    set_values(masters[weight.name], whole[rows[weight.name].slice_of(rank).index])
        accumulate(number)
        if number == 2:  # first a norm that is not finite, by one tensor of one rank
            if rank == 3:
                set_values(gradients[-1], np.full(gradients[-1].shape, np.nan, np.float32))
            norms.append(step.norm())
            accumulate(number)
        norms.append(step.norm())
        step.step(number, LEARNING_RATE, norms[-1])
    found = {f"weight/{weight.name}": weight.asnumpy().astype(np.float32) for weight in weights}
    found |= {f"master/{name}": master.asnumpy() for name, master in masters.items()}
    moments = (*step.optimizer.first_moments, *step.optimizer.second_moments)
    found |= {f"moment/{moment.name}": moment.asnumpy() for moment in moments}
    return {key: array.copy() for key, array in found.items()} | {"norm": np.array(norms)}


if __name__ == "__main__":
    run_joined(partial(body, device="CPU"))
