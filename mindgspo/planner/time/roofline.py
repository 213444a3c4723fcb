"""Seconds of each phase of a step on Ascend: operations, launches, bytes and messages, each divided by its rate.

The rates of the cards are published. What of them is reached is `FITTED`, four numbers that tools/judge_forecast.py
fits to published runs of verl; docs/planning.md lists every run with its error. Nothing was measured with this suite.
The host launches a pass over a micro-batch while the card computes, so that the longer of the two counts; all other
times are added up.

Letters: N responses of a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindgspo.config import ExperimentConfig, ParallelPlan
from mindgspo.config.cache import BLOCK, block_bytes, sequences_at_once
from mindgspo.config.distillation_rules import local_teachers, teacher_model, teacher_plan
from mindgspo.config.generation import reads_trained_weights
from mindgspo.models.operations import Operations
from mindgspo.planner.cache_budget import with_cache_budget
from mindgspo.planner.rank_work import FLOAT, RankWork, generating_bytes, held_bytes, trained_sizes
from mindgspo.swap.states import NEEDS, Holding, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRates:
    """One rank's device, as published."""

    name: str
    unit: str
    """"card" or "die"."""
    peak: float
    """Dense bfloat16 operations per second."""
    memory: float
    """Bytes per second of the device memory."""
    link: float
    """Bytes per second, one way, to cards of the same server."""
    outer: float
    """Bytes per second, one way, to cards of other servers."""
    per_server: int
    """Ranks of a server."""


# Huawei's msmodeling (tensor_cast/device.py: A2_313T, A3_752T per die, and their interconnects) has these numbers. verl
# takes 354e12 for both; arXiv 2506.12708 has 752e12 (fp16) and 3.2 TB/s for the two dies of a 910C.
CARDS: Mapping[str, CardRates] = {
    "A2": CardRates(
        name="Atlas A2 (910B3)",
        unit="card",
        peak=294.9e12,
        memory=1.6 * 2**40,
        link=196e9,
        outer=25e9,
        per_server=8,
    ),
    "A3": CardRates(
        name="Atlas A3 (910C)",
        unit="die",
        peak=353.9e12,
        memory=1.6 * 2**40,
        link=196e9,
        outer=196e9,
        per_server=16,
    ),
}

# msmodeling's, before calibration.
MEMORY_SHARE = 0.6
"""Share of the memory's rate that is reached."""
LINK_SHARE = 0.7
"""Share of a link's rate that is reached."""

RESPONSE_SECONDS = 2.44 / 1024
"""Seconds of the host per response, rewards and advantages: published for the DAPO run of docs/planning.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRates:
    """What is not published, in the order of tools/judge_forecast.py."""

    peak_share: float
    """Share of the card's peak that matrix products reach."""
    decode_layer: float
    """Seconds of a layer of a decode step beyond its work: launches, latency of collectives, the host."""
    train_layer: float
    """Seconds to launch a layer of a pass over a micro-batch; a backward pass counts as two."""
    host: float
    """Bytes per second and card between host and device memory."""


FITTED = FittedRates(peak_share=0.236, decode_layer=4.2e-4, train_layer=1.41e-2, host=2.35e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Work of one card, between two points at which it waits."""

    operations: float = 0.0
    """Seconds of its matrix products at the peak."""
    moved: float = 0.0
    """Seconds of memory and links, at the rates reached."""
    decode_layers: float = 0.0
    train_layers: float = 0.0
    """Layers launched, those of `FittedRates`."""
    host_bytes: float = 0.0
    """Bytes between host and device memory."""
    fixed: float = 0.0
    """Seconds that depend on no card."""

    def seconds(self, fitted: FittedRates) -> float:
        """Training waits for the longer of work and launches, decoding for both."""
        work = max(self.operations / fitted.peak_share + self.moved, self.train_layers * fitted.train_layer)
        return work + self.decode_layers * fitted.decode_layer + self.host_bytes / fitted.host + self.fixed


GENERATION, REWARD, OLD_LOG_PROBS = "generation", "reward, advantages", "old log-probs"
REFERENCE, TEACHERS, UPDATE, WEIGHTS, SWAP = "reference", "teachers", "update", "weights", "swap"
_BFLOAT16 = 2
_OPTIMIZER_FLOATS = 7  # gradient, weight and two moments are read; the latter three written


def phase_seconds(
    experiment: ExperimentConfig, card: CardRates, lengths_N: NDArray[np.int64], prompt_tokens: int
) -> dict[str, float]:
    """Seconds of the phases of one step; arguments as those of `phase_loads`."""
    loads = phase_loads(experiment, card, lengths_N, prompt_tokens)
    return {name: sum(load.seconds(FITTED) for load in each) for name, each in loads.items()}


def phase_loads(
    experiment: ExperimentConfig, card: CardRates, lengths_N: NDArray[np.int64], prompt_tokens: int
) -> dict[str, list[Load]]:
    """The work of the phases of one step, one after the other.

    experiment: resolved. lengths_N: int64, tokens of the step's responses, in the order in which they are trained.
    """
    algorithm, plans, trainer = experiment.algorithm, experiment.plans, experiment.trainer
    size = trainer.prompts_per_mini_batch * experiment.rollout.num_generations
    parts = [lengths_N[start : start + size] for start in range(0, len(lengths_N), size)]
    work = _Work.total([_Work.of(experiment, part, prompt_tokens) for part in parts])
    found = {
        GENERATION: [_generation(experiment, card, lengths_N, prompt_tokens)],
        REWARD: [Load(fixed=RESPONSE_SECONDS * len(lengths_N))],
    }
    passes = (algorithm.old_log_probs != "sampler") + (algorithm.advantage.estimator == "optimal_token_baseline")
    if passes:
        found[OLD_LOG_PROBS] = passes * [_passes(experiment, plans.train, card, work)]
    if algorithm.kl.placement != "none":
        found[REFERENCE] = [_passes(experiment, plans.scoring, card, work)]
    if teachers := local_teachers(experiment):  # each scores all micro-batches that have a response for it
        models = [teacher_model(teacher, experiment.model) for teacher in teachers]
        found[TEACHERS] = [
            _passes(experiment.model_copy(update={"model": model}), teacher_plan(teacher, experiment), card, work)
            for teacher, model in zip(teachers, models, strict=True)
        ]
    update = [_update(experiment, card, work, len(parts)), *len(parts) * [_optimizer(experiment, card)]]
    found[UPDATE] = trainer.epochs_per_rollout * update
    if not reads_trained_weights(experiment):
        found[WEIGHTS] = [Load(host_bytes=sum(generating_bytes(experiment, 0).values()))]
    if experiment.swap.enabled:
        found[SWAP] = [Load(host_bytes=_moved_bytes(experiment))]
    return found


def _moved_bytes(experiment: ExperimentConfig) -> int:
    """Bytes that a step moves off the card and back: at the entry of each phase, what only one of the two needs."""
    held = held_bytes(RankWork.of(experiment, 0))
    needs = [set(NEEDS[phase]) for phase in (Phase.ROLLOUT, Phase.SCORE, Phase.UPDATE, Phase.RESHARD)]
    if experiment.has_servers:
        needs = needs[1:]
    elif not held[Holding.ROLLOUT_WEIGHTS]:  # generation reads the trained ones
        needs[0].add(Holding.ACTOR_WEIGHTS)
    return sum(held[each] for i, need in enumerate(needs) for each in need ^ needs[i - 1])


def num_replicas(experiment: ExperimentConfig) -> int:
    """Replicas that generate: those of plans.infer, or the servers of others."""
    return len(experiment.rollout.servers.urls) or experiment.plans.infer.data_parallel


def _generation(
    experiment: ExperimentConfig, card: CardRates, lengths_N: NDArray[np.int64], prompt_tokens: int
) -> Load:
    """Work of a replica that has the longest response and the mean of all others: it decodes as long as that one
    takes, or where responses wait for slots until those are through and the last one ends."""
    model, parts = experiment.model, experiment.plans.infer.model_parallel
    operations, layers = Operations.of(model), model.num_hidden_layers
    sums = 2 * layers + (len(model.expert_layers) if model.n_shared_experts else 0)
    # Servers have their cards to themselves; elsewhere the cache gets what training leaves.
    bounded = experiment if experiment.has_servers else with_cache_budget(experiment)
    mean, longest = float(lengths_N.mean()), float(lengths_N.max())
    slots = max(1, sequences_at_once(bounded, math.ceil(prompt_tokens + mean)))
    responses = len(lengths_N) / num_replicas(experiment)
    steps = max(longest, responses * mean / slots + longest - mean)
    contexts = float((lengths_N * (prompt_tokens + lengths_N / 2)).mean())
    prompts = responses / experiment.rollout.num_generations * prompt_tokens

    memory, peak = card.memory * MEMORY_SHARE, parts * card.peak
    read = sum(size for name, size in generating_bytes(experiment, 0).items() if not _is_looked_up(experiment, name))
    reduced = sums * _reduced(model.hidden_size * _BFLOAT16, parts) / _rate(card, parts)
    cache = responses * contexts * block_bytes(experiment) / BLOCK
    return Load(
        operations=(responses * mean * (operations.trunk + operations.head) + prompts * operations.trunk) / peak,
        moved=(steps * read + cache) / memory + (responses * mean + prompts) * reduced,
        decode_layers=steps * layers,
    )


def _is_looked_up(experiment: ExperimentConfig, name: str) -> bool:
    """Whether a decode step reads single rows of this matrix only."""
    return name == "model.embed_tokens.weight" and not experiment.model.tie_word_embeddings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """The work of all replicas, padding included."""

    tokens: float
    """Token slots."""
    scored: float
    """Token slots that reach the head."""
    pairs: float
    """Pairs of tokens in causal attention."""
    micro_batches: int

    @staticmethod
    def of(experiment: ExperimentConfig, lengths_N: NDArray[np.int64], prompt_tokens: int) -> _Work:
        """The work of one update, as `batches.micro_batches` lays its samples out on Ascend: longest first; replicas
        that share experts have micro-batches of one shape. Packed ones have hardly any padding."""
        trainer, plan = experiment.trainer, experiment.plans.train
        multiple, budget = trainer.length_multiple, trainer.max_tokens_per_micro_batch
        if trainer.packing:
            whole, each = lengths_N + prompt_tokens, plan.data_parallel * plan.micro_batch_num
            return _Work(
                tokens=float(whole.sum()),
                scored=float(lengths_N.sum()),
                pairs=float((whole**2).sum()) / 2,
                micro_batches=max(1, math.ceil(whole.sum() / ((budget or 1) * each))) * each,
            )
        widths = np.sort(-(-(lengths_N + prompt_tokens) // multiple) * multiple)[::-1]
        round_size = plan.data_parallel if plan.couples_replicas else 1
        start, found = 0, []
        while start < len(widths):
            width = int(widths[start])
            count = round_size * (trainer.samples_per_micro_batch or max(1, (budget or 0) // width))
            found.append(
                _Work(
                    tokens=count * width,
                    scored=count * max(1, width - prompt_tokens),
                    pairs=count * width**2 / 2,
                    micro_batches=round_size,
                )
            )
            start += count
        return _Work.total(found)

    @staticmethod
    def total(parts: Sequence[_Work]) -> _Work:
        return _Work(
            tokens=sum(part.tokens for part in parts),
            scored=sum(part.scored for part in parts),
            pairs=sum(part.pairs for part in parts),
            micro_batches=sum(part.micro_batches for part in parts),
        )


def _passes(
    experiment: ExperimentConfig,
    plan: ParallelPlan,
    card: CardRates,
    work: _Work,
    *,
    number: int = 1,
    updates: int = 1,
    spared: float = 0.0,
) -> Load:
    """`number` passes over all micro-batches, of which a backward one counts as two; stages idle while the pipeline
    fills and drains, once per update. spared: operations that the backward pass does without."""
    own = max(1, work.micro_batches // plan.data_parallel // updates)
    filled = own / (own + plan.pipeline_stage - 1)
    return Load(
        operations=(number * _forward(experiment, work) - spared) / (plan.world_size * card.peak) / filled,
        # What a forward pass exchanges, the backward pass exchanges once too, and recomputing once more.
        moved=max(1, number - 1) * _exchanged(experiment, plan, card, work) / filled,
        train_layers=updates * own * number * experiment.model.num_hidden_layers / plan.pipeline_stage / filled,
    )


def _update(experiment: ExperimentConfig, card: CardRates, work: _Work, updates: int) -> Load:
    """Forward and backward passes with what is recomputed, which in every stage but the last is one more forward
    pass."""
    plan, of = experiment.plans.train, Operations.of(experiment.model)
    number = (4 if plan.recompute == "full" else 3) + (plan.pipeline_stage > 1)
    spared = work.tokens * of.frozen_trunk + work.scored * of.frozen_head
    return _passes(experiment, plan, card, work, number=number, updates=updates, spared=spared)


def _forward(experiment: ExperimentConfig, work: _Work) -> float:
    operations = Operations.of(experiment.model)
    return work.tokens * operations.trunk + work.scored * operations.head + work.pairs * operations.pair


def _exchanged(experiment: ExperimentConfig, plan: ParallelPlan, card: CardRates, work: _Work) -> float:
    """Seconds in which a card sends activations in one pass: sums over model_parallel twice per layer, and once more
    beside shared experts, tokens against heads around attention over context_parallel, tokens to experts and back."""
    model = experiment.model
    assert model.head_dim is not None
    layers, sparse = (number / plan.pipeline_stage for number in (model.num_hidden_layers, len(model.expert_layers)))
    tokens = work.tokens / plan.data_parallel / plan.context_parallel
    hidden = tokens * model.hidden_size * _BFLOAT16
    reduced = 2 * _reduced(hidden, plan.model_parallel) / _rate(card, plan.model_parallel)
    heads = (model.num_attention_heads + model.num_key_value_heads) * (model.head_dim + model.value_dim)
    heads /= plan.model_parallel
    context = plan.context_parallel
    turned = tokens * heads * _BFLOAT16 * (1 - 1 / context) / _rate(card, context * plan.model_parallel)
    routed = 0.0
    if plan.expert_parallel > 1:
        chosen = model.num_experts_per_tok or 0
        share = 1 - 1 / plan.expert_parallel
        routed = 2 * chosen * hidden / plan.model_parallel * share / _rate(card, plan.expert_block)
    shared = reduced / 2 if model.n_shared_experts else 0.0
    return layers * (reduced + turned) + sparse * (routed + shared)


def _optimizer(experiment: ExperimentConfig, card: CardRates) -> Load:
    """One update: gradients summed over the replicas, and of AdamW on a card's trained weights and moments."""
    plan = experiment.plans.train
    weights = FLOAT * sum(trained_sizes(experiment.model, plan, 0).values())
    own = weights / plan.token_parts if plan.optimizer_shard else weights
    summed = _reduced(weights, plan.token_parts) / _rate(card, plan.world_size // plan.pipeline_stage)
    return Load(moved=summed + _OPTIMIZER_FLOATS * own / (card.memory * MEMORY_SHARE))


def _reduced(size: float, parts: int) -> float:
    """Bytes that each of the parts sends in a ring's sum of `size` bytes."""
    return 2 * size * (parts - 1) / parts


def _rate(card: CardRates, cards: int) -> float:
    """Bytes per second between so many neighbours."""
    return LINK_SHARE * (card.link if cards <= card.per_server else card.outer)
