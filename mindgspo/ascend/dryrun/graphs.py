"""The graphs of an experiment as a rank would compile them: the shipped cells, with inputs of the sizes it will see.

Called in the processes of the dry run, which have chosen the device and joined their simulated cluster.

train: the GSPO update with its optimizer, a round of micro-batches. reference: log-probs without gradients, which also
scores the old policy; where it has a plan of its own, old_policy is the graph that does. prefill, decode: the
rollout's, of one model-parallel group of the infer plan.

Legend: S decode slots, P blocks of the longest sequence; Q prompts of a prefill, L their columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn

from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.optim.auto_parallel import AutoParallelUpdate
from mindgspo.config import ExperimentConfig
from mindgspo.config.plan import ParallelPlan
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.scoring import AutoParallelScorer
from mindgspo.models.weights import weight_layouts
from mindgspo.parallel.auto_parallel import set_mode
from mindgspo.parallel.device_ops import attention_segments, takes_packed
from mindgspo.parallel.placement import Placement, auto_parallel_placement
from mindgspo.rollout.cache import PagedCache
from mindgspo.rollout.graphs import DecodeStep, PackedWeights, Prefill, TokenSampler
from mindgspo.rollout.sizes import reads_trained_weights, rollout_sizes
from mindgspo.rollout.weight_transfer import hold_in_compute_type
from mindgspo.trainer.batches import longest_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilableGraph:
    """cell: has `compile(*inputs)`."""

    cell: nn.Cell
    inputs: tuple[Tensor, ...]


def build_graph(
    config: ExperimentConfig, graph: str, rank: int, *, strategy_path: Path | None = None
) -> CompilableGraph:
    """graph: a name of the table above. strategy_path: where the compiler writes its strategy file, for graphs that it
    divides: train, reference, old_policy, and rollout, which is the reference's graph under the infer plan."""
    return _BUILDERS[graph](config, rank, strategy_path)


def _train(config: ExperimentConfig, rank: int, strategy_path: Path | None) -> CompilableGraph:
    plan = config.plans.train
    place = auto_parallel_placement(plan, config.model.num_key_value_heads, rank=rank)
    policy = PolicyLogProbs(
        build_model(config.model, place),
        temperature=config.rollout.temperature,
        with_entropy=config.algorithm.entropy_coef > 0,
        replays_experts=config.algorithm.router_replay != "none",
    )
    part = AutoParallelUpdate(
        policy,
        build_policy_loss(config.algorithm),
        config.optimizer,
        num_micro_batches=plan.micro_batch_num,
        layouts=weight_layouts(config.model, place) if plan.world_size > 1 else None,
        strategy_path=strategy_path,
    )
    batch = longest_batch(config)
    inputs = part.inputs([batch] * (plan.micro_batch_num * plan.data_parallel), 0.0)
    set_mode(part.cell, policy.model, training=True)
    return CompilableGraph(cell=part.graph, inputs=inputs)


def _reference(config: ExperimentConfig, rank: int, strategy_path: Path | None) -> CompilableGraph:
    return _scoring(config, config.plans.scoring, rank, strategy_path)


def _old_policy(config: ExperimentConfig, rank: int, strategy_path: Path | None) -> CompilableGraph:
    plan = config.plans.train.model_copy(update={"optimizer_shard": False})
    replay, records = config.algorithm.router_replay, bool(config.rollout.record_experts)
    kinds = {"replays_experts": replay == "rollout", "tells_choices": records or replay == "old"}
    return _scoring(config, plan, rank, strategy_path, **kinds)


def _rollout(config: ExperimentConfig, rank: int, strategy_path: Path | None) -> CompilableGraph:
    return _scoring(config, config.plans.infer, rank, strategy_path)


def _scoring(
    config: ExperimentConfig,
    plan: ParallelPlan,
    rank: int,
    strategy_path: Path | None,
    **kinds: bool,
) -> CompilableGraph:
    place = auto_parallel_placement(plan, config.model.num_key_value_heads, rank=rank)
    model = build_model(config.model, place)
    scorer = AutoParallelScorer(model, temperature=config.rollout.temperature, strategy_path=strategy_path, **kinds)
    cell, inputs = scorer.graph_for(longest_batch(config))
    return CompilableGraph(cell=cell, inputs=inputs)


def _prefill(config: ExperimentConfig, rank: int, strategy_path: Path | None) -> CompilableGraph:
    model = _generating_model(config, rank)
    sizes = rollout_sizes(config)
    shape = (sizes.prefill_width, sizes.prompt_columns)
    ids_QL = np.zeros(shape, np.int32)
    positions_QL = np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
    segments = attention_segments(np.ones(shape, np.int32), is_packed=takes_packed(model))
    inputs = (ids_QL, positions_QL, segments, positions_QL.reshape(-1))
    cell = Prefill(model, _cache(model, config), records_experts=bool(config.rollout.record_experts))
    return CompilableGraph(cell=cell, inputs=tuple(Tensor(array) for array in inputs))


def _decode(config: ExperimentConfig, rank: int, strategy_path: Path | None) -> CompilableGraph:
    model = _generating_model(config, rank)
    num_slots = rollout_sizes(config).num_slots
    cache = _cache(model, config)
    sampler = TokenSampler(top_k=config.rollout.top_k, top_p=config.rollout.top_p)
    ids_S, floats_S = np.zeros(num_slots, np.int32), np.ones(num_slots, np.float32)
    table_SP, num_rows_1 = np.zeros((num_slots, cache.most_blocks), np.int32), np.array([num_slots], np.int32)
    greedy_S = np.zeros(num_slots, bool)
    inputs = (ids_S, ids_S, ids_S, table_SP, floats_S, floats_S, greedy_S, ids_S + 1, num_rows_1)
    records_experts = bool(config.rollout.record_experts)
    cell = DecodeStep(model, cache, sampler, PackedWeights(model), records_experts=records_experts)
    return CompilableGraph(cell=cell, inputs=tuple(Tensor(array) for array in inputs))


def _generating_model(config: ExperimentConfig, rank: int) -> nn.Cell:
    model = build_model(config.model, Placement(plan=config.plans.infer, rank=rank))
    if not reads_trained_weights(config):
        hold_in_compute_type(model)
    return model


def _cache(model: nn.Cell, config: ExperimentConfig) -> PagedCache:
    sizes = rollout_sizes(config)
    return PagedCache(model, num_blocks=sizes.num_blocks, num_columns=sizes.cache_columns, dtype=sizes.cache_dtype)


_BUILDERS: Mapping[str, Callable[[ExperimentConfig, int, Path | None], CompilableGraph]] = {
    "train": _train,
    "reference": _reference,
    "old_policy": _old_policy,
    "rollout": _rollout,
    "prefill": _prefill,
    "decode": _decode,
}
