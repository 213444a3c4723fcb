"""Rows of a step's updates: how responses are laid out into micro-batches, and what is filled in before the updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mindgspo.batches.micro_batches import BatchLayout, largest_shape, micro_batches
from mindgspo.batches.routing import no_routing
from mindgspo.batches.rows import TrainingSample
from mindgspo.config import ExperimentConfig
from mindgspo.parallel.ops.device import has_kernels
from mindgspo.trainer.dynamic_sampling import StepSamples
from mindgspo.types import Batch, Int32Array, Response

MiniBatches = list[list[Batch]]
"""Micro-batches by mini-batch."""

# Measured on CPU: with 256 hidden units an update costs twice as much in rows of 640 slots as in short ones. Attention
# grows with their product, the rest with the square of the hidden units.
COSTLY_ROW = 2.5


def batch_layout(config: ExperimentConfig, *, pad_id: int) -> BatchLayout:
    """Layout of batches for the replicas of the training plan.

    Ascend's fused attention and our kernels take one long row of many samples; replicas that share experts compute
    rounds of micro-batches together.
    """
    trainer, plan = config.trainer, config.plans.train
    is_fused = config.device == "Ascend"
    in_rounds = plan.couples_replicas
    is_packed = config.device == "CPU" and config.model.backend == "native" and has_kernels()
    layout = BatchLayout(
        samples_per_micro_batch=trainer.samples_per_micro_batch,
        max_tokens_per_micro_batch=trainer.max_tokens_per_micro_batch,
        packing=trainer.packing,
        in_one_row=is_fused or is_packed,
        costly_row=round(COSTLY_ROW * config.model.hidden_size),
        length_multiple=trainer.length_multiple,
        pad_id=pad_id,
        replicas=plan.data_parallel,
        in_rounds=in_rounds,
        round_size=plan.micro_batch_num,
        balanced=trainer.balance_batches,
    )
    if not is_packed:
        return layout
    num_samples, slots = trainer.prompts_per_mini_batch * config.rollout.num_generations, config.rollout.max_new_tokens
    longest = config.data.max_prompt_length + slots
    return replace(layout, one_shape=largest_shape(layout, num_samples=num_samples, longest=longest, slots=slots))


def lay_out_mini_batches(
    samples: StepSamples, layout: BatchLayout, *, responses_per_mini_batch: int, with_turns: bool = False
) -> MiniBatches:
    """Micro-batches of every mini-batch; groups stay whole. A mini-batch without a trained response is left out.

    with_turns: whether the loss reads which turn sampled a token.
    """
    prompts = [group.prompt for group in samples.groups for _ in group.responses]
    selection = samples.selection
    laid_out = []
    for start in range(0, len(prompts), responses_per_mini_batch):
        numbers = selection.trained(start, min(start + responses_per_mini_batch, len(prompts)))
        training_samples = [
            TrainingSample(
                prompt_ids=prompts[number].ids,
                response_ids=response.ids,
                rollout_logp=response.logprobs,
                number=number,
                actions=response.actions,
                turns=turn_numbers(response) if with_turns else None,
            )
            for number in numbers
            for response in [selection.responses[number]]
        ]
        if training_samples:
            laid_out.append(micro_batches(training_samples, layout))
    return laid_out


def turn_numbers(response: Response) -> Int32Array:
    """Number of the turn of each sampled token, int32 [length]."""
    lengths = [response.length] if response.episode is None else [turn.length for turn in response.episode.turns]
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)


def flattened(mini_batches: MiniBatches) -> list[Batch]:
    """All micro-batches of the step, in order."""
    return [batch for batches in mini_batches for batch in batches]


def regrouped(batches: Sequence[Batch], like: MiniBatches) -> MiniBatches:
    """The inverse of `flattened`."""
    remaining = iter(batches)
    return [[next(remaining) for _ in mini_batch] for mini_batch in like]


def longest_batch(config: ExperimentConfig) -> Batch:
    """Return a micro-batch without meaning, as large as the experiment's can become, to compile graphs before the first
    rollout: rows of the longest prompt and the longest response; under a token budget as many as it holds."""
    prompt_ids = np.zeros(config.data.max_prompt_length, np.int32)
    response_ids = np.zeros(config.rollout.max_new_tokens, np.int32)
    budget, count = config.trainer.max_tokens_per_micro_batch, config.trainer.samples_per_micro_batch
    if count is None:
        assert budget is not None
        count = budget // (prompt_ids.size + response_ids.size)
    logp = np.zeros(response_ids.size, np.float32)
    turns = np.zeros(response_ids.size, np.int32) if config.algorithm.ratio_over == "turn" else None
    samples = [
        TrainingSample(prompt_ids=prompt_ids, response_ids=response_ids, rollout_logp=logp, number=number, turns=turns)
        for number in range(count)
    ]
    layout = replace(batch_layout(config, pad_id=0), replicas=1, in_rounds=False, round_size=1)
    batch = micro_batches(samples, layout)[0]
    model = config.model
    if config.algorithm.router_replay != "none":
        like = no_routing(len(model.expert_layers), model.num_experts_per_tok, model.num_experts)
        batch = replace(batch, experts_RTX=np.zeros((*batch.ids_RT.shape, like.shape[1]), like.dtype))
    if config.algorithm.name in ("clip_cov", "kl_cov"):
        batch = replace(batch, selected_NK=np.zeros_like(batch.mask_NK))
    if not (count := config.algorithm.teacher_top_k):
        return batch
    ids_NKA, logp_NKA = (np.zeros((*batch.mask_NK.shape, count), dtype) for dtype in (np.int32, np.float32))
    return replace(batch, teacher_ids_NKA=ids_NKA, teacher_logp_NKA=logp_NKA)
