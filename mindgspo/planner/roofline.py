"""Seconds of each phase of a step on Ascend: operations, bytes and what goes over links, each by its rate.

What a card can do is published. What share of that a phase reaches is fitted to one step of Qwen3-32B with DAPO, by
verl on 64 dies of Atlas A3 (vLLM-Ascend, FSDP2, Ulysses over 4; docs/planning.md). Nothing was measured on this suite.
Phases are added up, and nothing is taken to overlap but what did so in the fitted step.

Letters: N responses of a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindgspo.config import ExperimentConfig, ParallelPlan
from mindgspo.config.cache import BLOCK, block_bytes
from mindgspo.errors import ConfigError
from mindgspo.models.operations import Operations
from mindgspo.planner.rank_work import FLOAT, generating_bytes, weight_sizes
from mindgspo.planner.simulated_replicas import Rates
from mindgspo.rollout.sizes import reads_trained_weights
from mindgspo.text import did_you_mean, listed, shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One rank's device. unit: "card", or "die". peak: dense operations per second in bfloat16. memory, link, outer:
    bytes per second of its memory, one way to cards of its server, and to others. per_server: cards of a server."""

    name: str
    unit: str
    peak: float
    memory: float
    link: float
    outer: float
    per_server: int


# Huawei's msmodeling (tensor_cast/device.py: A2_313T, A3_752T per die, and their interconnects) has these numbers. verl
# takes 354e12 for both; arXiv 2506.12708 has 752e12 (fp16) and 3.2 TB/s for the two dies of a 910C.
CARDS: Mapping[str, Card] = {
    "A2": Card(
        name="Atlas A2 (910B3)",
        unit="card",
        peak=294.9e12,
        memory=1.6 * 2**40,
        link=196e9,
        outer=25e9,
        per_server=8,
    ),
    "A3": Card(
        name="Atlas A3 (910C)",
        unit="die",
        peak=353.9e12,
        memory=1.6 * 2**40,
        link=196e9,
        outer=196e9,
        per_server=16,
    ),
}


def card_of(name: str) -> Card:
    """Raises ConfigError for a name that is none."""
    if name not in CARDS:
        known = tuple(CARDS)
        raise ConfigError(f"--card: no card {shorten(repr(name))}{did_you_mean(name, known)} ({listed(known)})")
    return CARDS[name]


# msmodeling's, before calibration.
MEMORY_SHARE = 0.6
"""Of the memory's rate."""
LINK_SHARE = 0.7
"""Of a link's rate."""

# Fitted to the step above: to its 116.2 s of old log-probs, 303.9 s of updates, 1,306.6 s of the slowest replica's
# generation, 8.7 s of weights and 2.4 s of rewards.
FORWARD_SHARE = 0.223
"""Of the peak, in a forward pass alone: log-probs and prefill."""
UPDATE_SHARE = 0.346
"""Of the peak, in forward and backward passes, recomputing included."""
LAYER_SECONDS = 4.1e-4
"""Of a layer in a decode step beyond reading its weights: launches, latency of its collectives, the host's share."""
WEIGHTS_RATE = 1.89e9
"""Bytes per second and card of weights on their way to generation, copies between host and card included."""
RESPONSE_SECONDS = 2.44 / 1024
"""Of the host, per response: rewards and advantages."""

OLD_LOG_PROBS, REFERENCE, UPDATE = "old log-probs", "reference", "update"
_BFLOAT16 = 2
_OPTIMIZER_FLOATS = 7  # gradient, weight and two moments read; the latter three written


def decode_rates(experiment: ExperimentConfig, card: Card) -> Rates:
    """Of a replica of plans.infer, and of the way of weights to it; nothing of training."""
    model, infer = experiment.model, experiment.plans.infer
    operations, parts = Operations.of(model), infer.model_parallel
    read = sum(size for name, size in generating_bytes(experiment, 0).items() if not _is_looked_up(experiment, name))
    reduced = 2 * model.num_hidden_layers * _reduced(model.hidden_size * _BFLOAT16, parts)
    sent = 0 if reads_trained_weights(experiment) else sum(generating_bytes(experiment, 0).values())
    forward = parts * card.peak * FORWARD_SHARE
    return Rates(
        decode_step=read / (card.memory * MEMORY_SHARE) + model.num_hidden_layers * LAYER_SECONDS,
        decode_sequence=(operations.trunk + operations.head) / forward + reduced / _rate(card, parts),
        decode_context=block_bytes(experiment) / BLOCK / (card.memory * MEMORY_SHARE),
        prefill_token=operations.trunk / forward + reduced / _rate(card, parts),
        push_weights=sent / WEIGHTS_RATE,
    )


def _is_looked_up(experiment: ExperimentConfig, name: str) -> bool:
    """Whether a decode step reads single rows of this matrix only."""
    return name == "model.embed_tokens.weight" and not experiment.model.tie_word_embeddings


def training_seconds(
    experiment: ExperimentConfig, card: Card, lengths_N: NDArray[np.int64], prompt_tokens: int
) -> dict[str, float]:
    """Of one step on the cards of plans.train, by the timer of a run. lengths_N: of its responses."""
    algorithm, plans, trainer = experiment.algorithm, experiment.plans, experiment.trainer
    size = trainer.prompts_per_mini_batch * experiment.rollout.num_generations
    parts = [lengths_N[start : start + size] for start in range(0, len(lengths_N), size)]
    work = _Work.total([_Work.of(experiment, part, prompt_tokens) for part in parts])
    found = {"reward, advantages": RESPONSE_SECONDS * len(lengths_N)}
    if algorithm.old_log_probs != "sampler":
        found[OLD_LOG_PROBS] = _pass_seconds(experiment, plans.train, card, work)
    if algorithm.kl.placement != "none":
        found[REFERENCE] = _pass_seconds(experiment, plans.scoring, card, work)
    found[UPDATE] = trainer.epochs_per_rollout * (
        _update_seconds(experiment, card, work, len(parts)) + len(parts) * _optimizer_seconds(experiment, card)
    )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Of all replicas, padding included: token slots, those that reach the head, pairs of tokens in attention (causal),
    micro-batches."""

    tokens: float
    scored: float
    pairs: float
    micro_batches: int

    @staticmethod
    def of(experiment: ExperimentConfig, lengths_N: NDArray[np.int64], prompt_tokens: int) -> _Work:
        """Of one update, as `batches.micro_batches` lays its samples out on Ascend: longest first; of replicas
        that have experts together one micro-batch each has one shape. Packed ones have hardly any padding."""
        trainer, plan = experiment.trainer, experiment.plans.train
        multiple, budget = trainer.length_multiple, trainer.max_tokens_per_micro_batch
        widths = np.sort(-(-(lengths_N + prompt_tokens) // multiple) * multiple)[::-1]
        round_size = plan.data_parallel if plan.couples_replicas else 1
        if trainer.packing:
            whole, each = lengths_N + prompt_tokens, plan.data_parallel * plan.micro_batch_num
            return _Work(
                tokens=float(whole.sum()),
                scored=float(lengths_N.sum()),
                pairs=float((whole**2).sum()) / 2,
                micro_batches=_rounds(float(whole.sum()), budget or 1, each) * each,
            )
        start, found = 0, []
        while start < len(widths):
            width = int(widths[start])
            rows = trainer.samples_per_micro_batch or max(1, (budget or 0) // width)
            count = rows * round_size
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
    def total(parts: list[_Work]) -> _Work:
        return _Work(
            tokens=sum(part.tokens for part in parts),
            scored=sum(part.scored for part in parts),
            pairs=sum(part.pairs for part in parts),
            micro_batches=sum(part.micro_batches for part in parts),
        )


def _rounds(tokens: float, budget: int, round_size: int) -> int:
    return max(1, int(-(-tokens // (budget * round_size))))


def _pass_seconds(experiment: ExperimentConfig, plan: ParallelPlan, card: Card, work: _Work) -> float:
    """A forward pass over all; micro-batches follow each other through the stages without a drain."""
    own = max(1, work.micro_batches // plan.data_parallel)
    filled = own / (own + plan.pipeline_stage - 1)
    seconds = _forward(experiment, work) / (plan.world_size * card.peak * FORWARD_SHARE)
    return (seconds + _exchanged(experiment, plan, card, work)) / filled


def _update_seconds(experiment: ExperimentConfig, card: Card, work: _Work, updates: int) -> float:
    """Forward and backward, and what is recomputed: by every stage but the last one more forward pass. Stages stand
    idle while the pipeline of an update fills and drains."""
    plan = experiment.plans.train
    passes = (4 if plan.recompute == "full" else 3) + (plan.pipeline_stage > 1)
    own = max(1, work.micro_batches // plan.data_parallel // updates)
    filled = own / (own + plan.pipeline_stage - 1)
    seconds = passes * _forward(experiment, work) / (plan.world_size * card.peak * UPDATE_SHARE)
    # What a forward pass exchanges, the backward pass does once, too, and recomputing once more.
    return (seconds + (passes - 1) * _exchanged(experiment, plan, card, work)) / filled


def _forward(experiment: ExperimentConfig, work: _Work) -> float:
    operations = Operations.of(experiment.model)
    return work.tokens * operations.trunk + work.scored * operations.head + work.pairs * operations.pair


def _exchanged(experiment: ExperimentConfig, plan: ParallelPlan, card: Card, work: _Work) -> float:
    """Seconds in which a card sends activations in one pass: sums over model_parallel twice per layer, tokens against
    heads around attention over context_parallel, tokens to experts and back."""
    model = experiment.model
    assert model.head_dim is not None
    layers = model.num_hidden_layers / plan.pipeline_stage
    tokens = work.tokens / plan.data_parallel / plan.context_parallel
    hidden = tokens * model.hidden_size * _BFLOAT16
    reduced = 2 * _reduced(hidden, plan.model_parallel) / _rate(card, plan.model_parallel)
    heads = 2 * (model.num_attention_heads + model.num_key_value_heads) * model.head_dim / plan.model_parallel
    context = plan.context_parallel
    turned = tokens * heads * _BFLOAT16 * (1 - 1 / context) / _rate(card, context * plan.model_parallel)
    routed = 0.0
    if plan.expert_parallel > 1:
        chosen = model.num_experts_per_tok or 0
        share = 1 - 1 / plan.expert_parallel
        routed = 2 * chosen * hidden / plan.model_parallel * share / _rate(card, plan.expert_block)
    return layers * (reduced + turned + routed)


def _optimizer_seconds(experiment: ExperimentConfig, card: Card) -> float:
    """Gradients summed over the replicas, and AdamW on what a card has of weights and moments."""
    plan = experiment.plans.train
    weights = FLOAT * sum(weight_sizes(experiment.model, plan, 0).values())
    own = weights / plan.token_parts if plan.optimizer_shard else weights
    summed = _reduced(weights, plan.token_parts) / _rate(card, plan.world_size // plan.pipeline_stage)
    return summed + _OPTIMIZER_FLOATS * own / (card.memory * MEMORY_SHARE)


def _reduced(size: float, parts: int) -> float:
    """Bytes that each of the parts sends in a ring's sum of `size` bytes."""
    return 2 * size * (parts - 1) / parts


def _rate(card: Card, cards: int) -> float:
    """Bytes per second between so many neighbours."""
    return LINK_SHARE * (card.link if cards <= card.per_server else card.outer)
