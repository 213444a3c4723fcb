"""One training step, on one page.

    prompts -> engine.generate -> responses -> reward -> groups with advantages
            -> rows of each mini-batch -> log-probs of the old policy -> one update per mini-batch
            -> weights, with a new version, to the engine -> metrics

What enters: the parts of the experiment and the number of the step. What leaves: a `StepResult`. Called by `loop`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mindgspo.algorithms import learning_rate
from mindgspo.algorithms.update import UpdateResult
from mindgspo.data.rows import lay_out, training_samples
from mindgspo.metrics import group_metrics
from mindgspo.rollout.protocol import SamplingSettings
from mindgspo.rollout.random import Purpose, RandomStream
from mindgspo.trainer.failures import saved_on_failure
from mindgspo.trainer.judge import judge
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.self_checks import check_first_ratio, refuse_unjudged
from mindgspo.trainer.step_metrics import (
    account,
    mismatch_metrics,
    perf_metrics,
    rollout_metrics,
    update_metrics,
)
from mindgspo.types import Batch, Group, StepResult


def run_step(parts: TrainingParts, step: int) -> StepResult:
    """Sample, judge, train. `step` counts from 1. Raises TrainingError on a failed self-check or a non-finite loss."""
    timers = parts.timers
    with timers("step"):
        prompts = [parts.train_set[index] for index in parts.stream.take(parts.config.rollout.prompts_per_step)]
        with timers("gen"):
            rollout = parts.engine.generate(
                prompts, sampling_settings(parts, step), weight_version=parts.weight_version
            )
        with timers("reward"):
            groups = judge(parts, prompts, rollout)
        refuse_unjudged(groups, step)
        with timers("old_log_prob"):
            mini_batches, entropy = with_old_log_probs(parts, mini_batches_of(parts, groups))
        with timers("update_actor"):
            results = update(parts, mini_batches, step)
        with timers("update_weights"):
            parts.engine.load_weights(parts.weight_version)
    num_trained = sum(batches[0].num_sequences for batches in mini_batches)
    metrics = {
        **group_metrics(groups),
        **account(groups, num_asked=len(prompts) * parts.config.rollout.num_generations, num_trained=num_trained),
        **rollout_metrics(rollout),
        **mismatch_metrics([batch for batches in mini_batches for batch in batches]),
        **update_metrics(results),
        **perf_metrics(groups, timers),
        "actor/entropy": entropy,
        "actor/lr": step_learning_rate(parts, parts.updater.updates - 1),
        "training/global_step": step,
        "training/epoch": parts.stream.epochs,
        "training/updates": parts.updater.updates,
    }
    return StepResult(step=step, metrics=metrics, groups=groups)


def sampling_settings(parts: TrainingParts, step: int) -> SamplingSettings:
    """How the training responses of a step are drawn."""
    rollout = parts.config.rollout
    return SamplingSettings(
        num_samples=rollout.num_generations,
        temperature=rollout.temperature,
        max_new_tokens=rollout.max_new_tokens,
        stream=RandomStream(seed=parts.config.seed, purpose=Purpose.TRAINING, step=step),
    )


def mini_batches_of(parts: TrainingParts, groups: Sequence[Group]) -> list[list[Batch]]:
    """Micro-batches of every mini-batch; groups stay whole. A mini-batch without a valid sample is left out."""
    trainer = parts.config.trainer
    size = trainer.prompts_per_mini_batch
    cut = [training_samples(groups[start : start + size]) for start in range(0, len(groups), size)]
    return [
        lay_out(
            samples,
            samples_per_micro_batch=trainer.samples_per_micro_batch,
            length_multiple=trainer.length_multiple,
            pad_id=parts.tokenizer.pad_id,
        )
        for samples in cut
        if samples
    ]


def with_old_log_probs(
    parts: TrainingParts, mini_batches: Sequence[Sequence[Batch]]
) -> tuple[list[list[Batch]], float]:
    """The same batches with log-probs under the present weights (the old policy of all updates to come), and the
    mean entropy per response token."""
    scores = iter(parts.old_policy.score([batch for batches in mini_batches for batch in batches]))
    scored, entropy, num_tokens = [], 0.0, 0
    for batches in mini_batches:
        scored.append([])
        for batch in batches:
            tokens = next(scores)
            scored[-1].append(replace(batch, old_logp_NK=tokens.logp_NK))
            entropy += float(tokens.entropy_NK.sum(dtype=np.float64))
        num_tokens += batches[0].num_tokens
    return scored, entropy / num_tokens


def update(parts: TrainingParts, mini_batches: Sequence[Sequence[Batch]], step: int) -> list[UpdateResult]:
    """One optimizer update per mini-batch, after a look at the ratio where it must still be 1."""
    results = []
    for batches in mini_batches:
        with saved_on_failure(parts.failures_dir, f"step_{step:08d}", batches):
            result = parts.updater.update(batches, step_learning_rate(parts, parts.updater.updates))
        parts.weight_version += 1
        if not results:
            check_first_ratio(parts, result, step)
        results.append(result)
    return results


def step_learning_rate(parts: TrainingParts, update_index: int) -> float:
    """Learning rate of the update number `update_index` (from 0) of the run."""
    total = parts.total_steps * parts.updates_per_rollout
    return learning_rate(update_index, total, parts.config.optimizer)
