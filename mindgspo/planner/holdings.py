"""Bytes of what a rank holds from phase to phase, slice by slice from the layout algebra.

What enters: a rank's work. What leaves: bytes by holding of the swap, and of the steps of a reshard. Called by
`expected`. Pure Python; what follows from model and plans alone is worked out once for all that is asked about them.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from mindgspo.planner.rank_work import FLOAT, TYPE_BYTES, RankWork
from mindgspo.rollout.sizes import reads_trained_weights

Sizes = Mapping[str, int]
"""Elements by parameter name."""


def held_bytes(work: RankWork) -> dict[Holding, int]:
    """Bytes of every holding on the rank; what two holdings share counts for the trained weights."""
    config, plans = work.config, work.config.plans
    own = FLOAT * sum(weight_sizes(config.model, plans.train, work.rank).values())
    moments = FLOAT * sum(_moment_sizes(config.model, plans.train, work.rank).values())
    rollout = 0
    if not reads_trained_weights(config):
        rollout = FLOAT * sum(weight_sizes(config.model, plans.infer, work.rank).values())
    reference = 0
    if config.algorithm.kl.placement != "none":
        reference = FLOAT * sum(weight_sizes(config.model, plans.scoring, work.rank).values())
    # Moments of rows alone are updated beside a copy of these rows (algorithms.sharded_adamw).
    row_copies = moments if moments < own and config.device == "CPU" else 0
    # Optimizer shards of the compiler cut weights and gradients with the moments (parallel.strategy.hsdp).
    trained = moments if config.device == "Ascend" else own
    cache = work.slots * work.columns * work.infer.key_value * 2 * work.infer.layers
    return {
        Holding.ACTOR_WEIGHTS: trained,
        Holding.GRADIENTS: trained,
        Holding.MOMENTS: 2 * moments + row_copies,
        Holding.REFERENCE_WEIGHTS: reference,
        Holding.ROLLOUT_WEIGHTS: rollout,
        Holding.KV_CACHE: cache * TYPE_BYTES[work.cache_dtype],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardBytes:
    """bucket: the largest buffer that the rank sends or receives. step: the most that one step's parameters take, old
    and new slices together."""

    bucket: int
    step: int


def reshard_bytes(work: RankWork) -> ReshardBytes:
    """What the way of the weights to generation needs; nothing where both plans share one set."""
    config = work.config
    if reads_trained_weights(config):
        return ReshardBytes(bucket=0, step=0)
    return _reshard(config.model, config.plans.train, config.plans.infer, config.reshard.bucket_mb << 20, work.rank)


def whole_bytes(model: ModelSection) -> int:
    """All weights of the model, float32."""
    return FLOAT * sum(prod(shape) for shape in parameter_shapes(model).values())


@lru_cache(maxsize=1024)
def weight_sizes(model: ModelSection, plan: ParallelPlan, rank: int) -> Sizes:
    """Of the rank's slices of the weights under a plan."""
    return _sizes(_weight_layouts(model, plan), rank)


@lru_cache(maxsize=1024)
def _moment_sizes(model: ModelSection, plan: ParallelPlan, rank: int) -> Sizes:
    return _sizes(moment_layouts(parameter_shapes(model), model, plan), rank)


@lru_cache(maxsize=64)
def _weight_layouts(model: ModelSection, plan: ParallelPlan) -> dict[str, Layout]:
    return parameter_layouts(parameter_shapes(model), model, plan)


def _sizes(layouts: Mapping[str, Layout], rank: int) -> Sizes:
    return {name: prod(layout.slice_shape) for name, layout in layouts.items() if rank in layout.rank_list}


@lru_cache(maxsize=1024)
def _reshard(
    model: ModelSection, train: ParallelPlan, infer: ParallelPlan, bucket_bytes: int, rank: int
) -> ReshardBytes:
    plan = _reshard_plan(model, train, infer, bucket_bytes)
    old, new = weight_sizes(model, train, rank), weight_sizes(model, infer, rank)
    steps = [FLOAT * sum(old.get(name, 0) + new.get(name, 0) for name in step.parameters) for step in plan.steps]
    buckets = [bucket.num_bytes for bucket in plan.buckets() if rank in (bucket.sender, *bucket.receivers)]
    return ReshardBytes(bucket=max(buckets, default=0), step=max(steps, default=0))


@lru_cache(maxsize=64)
def _reshard_plan(model: ModelSection, train: ParallelPlan, infer: ParallelPlan, bucket_bytes: int) -> ReshardPlan:
    return plan_reshard(_weight_layouts(model, train), _weight_layouts(model, infer), bucket_bytes=bucket_bytes)
