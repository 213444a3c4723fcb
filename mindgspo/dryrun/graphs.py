"""The graphs of an experiment as a rank compiles them: the shipped cells, with inputs of the sizes it will see.

Called in the processes of the dry run, which have chosen the device and joined their simulated cluster.

    train       the gradients of a micro-batch, added to those so far; of a stage that is not the last the backward
                pass, which computes the forward one again
    forward     a micro-batch's hidden states, of a stage that is not the last
    sum         once per update: gradients added up over the ranks
    step        AdamW
    gather      whole weights from the rows that ranks have updated, with optimizer_shard
    reference   log-probs without gradients, which also scores the old policy; where it has a plan of its own,
                old_policy is the graph that does
    prefill, decode   of one model-parallel group of the infer plan

Legend: S decode slots, P blocks of the longest sequence; Q prompts of a prefill, L their columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
from mindspore import Parameter, Tensor, nn

from mindgspo.config import ExperimentConfig
from mindgspo.config.generation import generating_model, merges_adapters, reads_trained_weights
from mindgspo.config.plan import ParallelPlan
from mindgspo.models.policy import build_model
from mindgspo.models.scoring import PolicyScorer
from mindgspo.models.transformer import Transformer
from mindgspo.models.weights import held_parameters, hold_in_compute_type
from mindgspo.parallel.ops.device import attention_segments, takes_packed
from mindgspo.parallel.plans.placement import Placement
from mindgspo.planner.rank_work import RankWork
from mindgspo.rollout.cache import PagedCache
from mindgspo.rollout.graphs import DecodeStep, NextLogits, PackedWeights, Prefill
from mindgspo.rollout.protocol import SamplingFilter
from mindgspo.rollout.sizes import rollout_sizes
from mindgspo.trainer.batches import longest_batch
from mindgspo.trainer.build import build_updater


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilableGraph:
    """cell: has `compile(*inputs)`. resident: parameters that are on the device while it runs, read by it or not."""

    cell: nn.Cell
    inputs: tuple[Tensor, ...]
    resident: tuple[Parameter, ...] = ()


def build_graph(config: ExperimentConfig, graph: str, rank: int) -> CompilableGraph:
    """graph: a name of the table above that the rank has."""
    builder = _BUILDERS.get(graph)
    return builder(config, rank) if builder else _of_update(config, graph, rank)


def _of_update(config: ExperimentConfig, graph: str, rank: int) -> CompilableGraph:
    model = build_model(config.model, Placement(plan=config.plans.train, rank=rank))
    update = build_updater(config, model)
    if graph in ("train", "forward"):
        of_batch = update.graphs_for(longest_batch(config))
        cell, inputs = of_batch[0 if graph == "forward" else -1]
    else:
        cell, inputs = update.over_ranks.graphs()[graph]
    moments = (*update.optimizer.first_moments, *update.optimizer.second_moments)
    return CompilableGraph(cell=cell, inputs=inputs, resident=(*held_parameters(model), *update.scratch, *moments))


def _reference(config: ExperimentConfig, rank: int) -> CompilableGraph:
    return _scoring(config, config.plans.scoring, rank)


def _old_policy(config: ExperimentConfig, rank: int) -> CompilableGraph:
    replay, records = config.algorithm.router_replay, bool(config.rollout.record_experts)
    kinds = (replay == "rollout", records or replay == "old")
    return _scoring(config, config.plans.train, rank, *kinds)


def _scoring(
    config: ExperimentConfig, plan: ParallelPlan, rank: int, replays: bool = False, returns_routing: bool = False
) -> CompilableGraph:
    model = build_model(config.model, Placement(plan=plan, rank=rank))
    scorer = PolicyScorer(
        model,
        temperature=config.rollout.temperature,
        replays_experts=replays,
        returns_routing=returns_routing,
    )
    cell, inputs = scorer.graph_for(longest_batch(config))
    return CompilableGraph(cell=cell, inputs=inputs)


def _prefill(config: ExperimentConfig, rank: int) -> CompilableGraph:
    model = _generating_model(config, rank)
    shape = max(RankWork.of(config, rank).prefills, key=prod)  # of prompts, or of one sequence after a pre-emption
    ids_QL = np.zeros(shape, np.int32)
    positions_QL = np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
    segments = attention_segments(np.ones(shape, np.int32), is_packed=takes_packed(model))
    inputs = (ids_QL, positions_QL, segments, positions_QL.reshape(-1))
    cell = Prefill(model, _cache(model, config), records_experts=bool(config.rollout.record_experts))
    return CompilableGraph(cell=cell, inputs=tuple(Tensor(array) for array in inputs))


def _decode(config: ExperimentConfig, rank: int) -> CompilableGraph:
    model = _generating_model(config, rank)
    num_slots = rollout_sizes(config).num_slots
    cache = _cache(model, config)
    ids_S, floats_S = np.zeros(num_slots, np.int32), np.ones(num_slots, np.float32)
    table_SP, num_rows_1 = np.zeros((num_slots, cache.most_blocks), np.int32), np.array([num_slots], np.int32)
    greedy_S = np.zeros(num_slots, bool)
    inputs = (ids_S, ids_S, ids_S, table_SP, floats_S, floats_S, greedy_S, ids_S + 1, num_rows_1)
    packed = PackedWeights(model, merges=model.config.lora is not None and merges_adapters(config))
    logits = NextLogits(model, cache, packed, records_experts=bool(config.rollout.record_experts))
    cell = DecodeStep(logits, model.place, SamplingFilter(config.rollout.top_k, config.rollout.top_p))
    return CompilableGraph(cell=cell, inputs=tuple(Tensor(array) for array in inputs))


def _generating_model(config: ExperimentConfig, rank: int) -> Transformer:
    model = build_model(generating_model(config), Placement(plan=config.plans.infer, rank=rank))
    if not reads_trained_weights(config):
        hold_in_compute_type(model)
    return model


def _cache(model: Transformer, config: ExperimentConfig) -> PagedCache:
    sizes = rollout_sizes(config)
    return PagedCache(model, num_blocks=sizes.num_blocks, num_columns=sizes.cache_columns, dtype=sizes.cache_dtype)


_BUILDERS: Mapping[str, Callable[[ExperimentConfig, int], CompilableGraph]] = {
    "reference": _reference,
    "old_policy": _old_policy,
    "prefill": _prefill,
    "decode": _decode,
}
