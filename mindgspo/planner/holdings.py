"""Bytes of what a rank holds from phase to phase, slice by slice from the layout algebra.

What enters: a rank's work. What leaves: bytes by holding of the swap, and of the steps of a reshard. Called by
`expected`. Pure Python; layouts are worked out once per model and plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.names import parameter_shapes
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.parameter_layouts import moment_layouts, parameter_layouts
from mindgspo.parallel.reshard.plan import ReshardPlan
from mindgspo.parallel.reshard.planner import plan_reshard
from mindgspo.parallel.swap.states import Holding
from mindgspo.planner.rank_work import FLOAT, TYPE_BYTES, RankWork, holds_one_set_of_weights

Layouts = Mapping[str, Layout]


def held_bytes(work: RankWork) -> dict[Holding, int]:
    """Bytes of every holding on the rank; what two holdings share counts for the trained weights."""
    config, plan = work.config, work.plan
    weights = weight_layouts(config.model, plan)
    own = _held(weights, work.rank)
    moments = _held(_moment_layouts(config.model, plan), work.rank)
    # Moments of rows alone are updated beside a copy of these rows (algorithms.sharded_adamw).
    row_copies = moments if moments < own and config.device == "CPU" else 0
    # Optimizer shards of the compiler cut weights and gradients with the moments (`parallel.strategy.hsdp`).
    trained = moments if config.device == "Ascend" else own
    cache = work.slots * work.columns * work.infer.key_value * 2 * work.infer.layers
    return {
        Holding.ACTOR_WEIGHTS: trained,
        Holding.GRADIENTS: trained,
        Holding.MOMENTS: 2 * moments + row_copies,
        Holding.REFERENCE_WEIGHTS: own * (work.policies - 1),
        Holding.ROLLOUT_WEIGHTS: _rollout_bytes(work),
        Holding.KV_CACHE: cache * TYPE_BYTES[config.model.dtype],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardBytes:
    """bucket: the largest buffer that the rank sends or receives. step: the most that one step's parameters take, old
    and new slices together."""

    bucket: int
    step: int


def reshard_bytes(work: RankWork) -> ReshardBytes:
    """What the way of the weights to generation needs; nothing where both plans share one set."""
    plans = work.config.plans
    if holds_one_set_of_weights(plans.train, plans.infer):
        return ReshardBytes(bucket=0, step=0)
    plan = _reshard(work.config.model, plans.train, plans.infer, work.config.reshard.bucket_mb << 20)
    buckets = [bucket.num_bytes for bucket in plan.buckets() if work.rank in bucket.group]
    steps = [
        _held({name: plan.source[name] for name in step.parameters}, work.rank)
        + _held({name: plan.destination[name] for name in step.parameters}, work.rank)
        for step in plan.steps
    ]
    return ReshardBytes(bucket=max(buckets, default=0), step=max(steps, default=0))


def whole_bytes(model: ModelSection) -> int:
    """All weights of the model, float32."""
    return FLOAT * sum(prod(shape) for shape in parameter_shapes(model).values())


@lru_cache(maxsize=256)
def weight_layouts(model: ModelSection, plan: ParallelPlan) -> Layouts:
    """By parameter name."""
    return parameter_layouts(parameter_shapes(model), model, plan)


def weight_sizes(work: RankWork, plan: ParallelPlan) -> dict[str, int]:
    """{name: elements} of the rank's slices of the weights under a plan."""
    return {name: prod(shape) for name, shape in _slices(weight_layouts(work.config.model, plan), work.rank)}


@lru_cache(maxsize=256)
def _moment_layouts(model: ModelSection, plan: ParallelPlan) -> Layouts:
    return moment_layouts(parameter_shapes(model), model, plan)


@lru_cache(maxsize=64)
def _reshard(model: ModelSection, train: ParallelPlan, infer: ParallelPlan, bucket_bytes: int) -> ReshardPlan:
    return plan_reshard(weight_layouts(model, train), weight_layouts(model, infer), bucket_bytes=bucket_bytes)


def _rollout_bytes(work: RankWork) -> int:
    plans = work.config.plans
    if holds_one_set_of_weights(plans.train, plans.infer):
        return 0
    return _held(weight_layouts(work.config.model, plans.infer), work.rank)


def _held(layouts: Layouts, rank: int) -> int:
    return FLOAT * sum(prod(shape) for _, shape in _slices(layouts, rank))


def _slices(layouts: Layouts, rank: int) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Name and shape of each slice that the rank holds."""
    return ((name, layout.slice_shape) for name, layout in layouts.items() if rank in layout.rank_list)
