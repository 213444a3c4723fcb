"""The rows of a step's updates, and what is filled into them before the first update.

What enters: selected responses, then the scorers of the old and the reference policy, then advantages. What leaves:
`Batch`es, by mini-batch. Called by `step`, in the order of the functions here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mindgspo.algorithms.rollout_correction import correction_weights
from mindgspo.data.micro_batches import micro_batches
from mindgspo.data.rows import TrainingSample, scattered
from mindgspo.trainer.batch_layout import batch_layout
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.reference import ReferencePolicy
from mindgspo.trainer.selection import Selection
from mindgspo.types import Batch, Float32Array, Prompt, Response, ScoredGroup

MiniBatches = list[list[Batch]]


def mini_batches_of(parts: TrainingParts, groups: Sequence[ScoredGroup], selection: Selection) -> MiniBatches:
    """Micro-batches of every mini-batch; groups stay whole. A mini-batch without a trained response is left out."""
    trainer = parts.config.trainer
    size = trainer.prompts_per_mini_batch * parts.config.rollout.num_generations
    prompts = [group.prompt for group in groups for _ in group.responses]
    cut = [
        [
            _sample(number, prompts[number], selection.responses[number])
            for number in selection.trained(start, min(start + size, len(prompts)))
        ]
        for start in range(0, len(prompts), size)
    ]
    layout = batch_layout(parts.config, pad_id=parts.tokenizer.pad_id)
    return [micro_batches(samples, layout) for samples in cut if samples]


def _sample(number: int, prompt: Prompt, response: Response) -> TrainingSample:
    return TrainingSample(
        prompt_ids=prompt.ids, response_ids=response.ids, rollout_logp=response.logprobs, number=number
    )


def with_log_probs(parts: TrainingParts, mini_batches: MiniBatches) -> tuple[MiniBatches, dict[str, float]]:
    """The same batches with log-probs under the old policy of all updates to come (the present weights, or as the
    sampler found them) and, where a KL term needs them, under the reference policy; and what there is to say about
    both, if there is a token."""
    if not mini_batches:
        return [], {}
    scored, metrics = _with_old_log_probs(parts, mini_batches)
    if parts.reference is not None:
        metrics |= reference_metrics(parts.reference, parts.weight_version)
        reference = parts.reference.scorer.score(scored)
        scored = [replace(batch, ref_logp_NK=tokens.logp_NK) for batch, tokens in zip(scored, reference, strict=True)]
    return _regrouped(scored, mini_batches), metrics


def _with_old_log_probs(parts: TrainingParts, mini_batches: MiniBatches) -> tuple[list[Batch], dict[str, float]]:
    flat = flattened(mini_batches)
    if parts.config.algorithm.old_log_probs == "sampler":
        return [replace(batch, old_logp_NK=batch.rollout_logp_NK) for batch in flat], {}
    old = parts.old_policy.score(flat)
    entropy = sum(float(tokens.entropy_NK.sum(dtype=np.float64)) for tokens in old)
    num_tokens = sum(batches[0].num_tokens for batches in mini_batches)
    scored = [replace(batch, old_logp_NK=tokens.logp_NK) for batch, tokens in zip(flat, old, strict=True)]
    return scored, {"actor/entropy": entropy / num_tokens}


def reference_metrics(reference: ReferencePolicy, weight_version: int) -> dict[str, float]:
    """How far the reference lags behind the policy, in updates. weight_version: of the policy that is scored."""
    return {
        "critic/reference_version": reference.version,
        "critic/reference_age": weight_version - reference.version,
    }


def with_advantages(parts: TrainingParts, mini_batches: MiniBatches, advantages: Sequence[Float32Array]) -> MiniBatches:
    """The same batches with the advantages of their responses, by number, and the correction weights."""
    section = parts.config.algorithm.rollout_correction
    return [
        [
            replace(
                batch,
                advantages_NK=scattered(batch, advantages),
                correction_NK=correction_weights(section, batch.old_logp_NK, batch.rollout_logp_NK, batch.mask_NK),
            )
            for batch in batches
        ]
        for batches in mini_batches
    ]


def flattened(mini_batches: MiniBatches) -> list[Batch]:
    """All micro-batches of the step, in order."""
    return [batch for batches in mini_batches for batch in batches]


def _regrouped(batches: Sequence[Batch], like: MiniBatches) -> MiniBatches:
    remaining = iter(batches)
    return [[next(remaining) for _ in mini_batch] for mini_batch in like]
