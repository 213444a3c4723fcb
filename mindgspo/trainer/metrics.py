"""The metrics of a step: groups, account of samples, mismatch, updates, performance.

Metrics:
  Importance ratio:
    actor/first_ratio_error_max:
      meaning: largest |ratio - 1| on the first mini-batch after a rollout, before any update
      healthy: below trainer.max_ratio_error; float32 about 1e-6, bfloat16 about 2e-3
      action: 'the run stops: temperature, padding, positions or weights differ between old and new log-probabilities'
    actor/updates:
      meaning: optimizer updates made from the step's rollout
      unit: updates
      healthy: 4 in the paper; 2 to 8
      action: '1: the ratio is always 1 and nothing is clipped, which is legal but plain policy gradient; more
        than 8: watch actor/pg_clipfrac_seq, lower optimizer.lr'
    actor/updates_skipped:
      meaning: updates of the step that were skipped because loss or gradient was not finite (trainer.on_nonfinite=skip)
      unit: updates
      healthy: '0'
      action: 'look at the batches in run_dir/failures; several in a row: lower optimizer.lr or optimizer.max_grad_norm'
  Gradient and learning rate:
    actor/grad_norm:
      meaning: global L2 norm of the gradient before clipping
      healthy: steady; mostly below a few times optimizer.max_grad_norm
      action: 'spikes: lower optimizer.lr, or use fewer updates per rollout; exactly 0: no group had any signal'
    actor/lr:
      meaning: learning rate of the last update
      healthy: the schedule you set; large models 1e-6, the tiny quickstart 5e-5
  Loss, KL and entropy:
    actor/loss:
      meaning: 'what is differentiated: policy loss plus KL penalty minus entropy bonus'
      healthy: close to actor/pg_loss
      action: 'far from it: algorithm.kl.coef or algorithm.entropy_coef outweighs the reward'
    actor/kl_coef:
      meaning: coefficient of the KL penalty
      healthy: constant, or settling when algorithm.kl.target is set
      action: 'still rising: algorithm.kl.target is lower than what the learning rate allows'
    critic/kl:
      meaning: mean KL estimate per response token, as subtracted from the reward before its coefficient
      unit: nat
      healthy: as actor/kl
      action: 'above: raise algorithm.kl.coef or lower optimizer.lr'
    actor/entropy:
      meaning: mean entropy of the policy at the response tokens
      unit: nat
      healthy: falls slowly
      action: 'a collapse towards 0 ends exploration: lower lr, raise clip_high; a rise without end: lower entropy_coef'
    critic/reference_version:
      meaning: version of the reference policy's weights, counted in updates; of a moving average the average
        version
      unit: updates
      healthy: constant where the reference is frozen, else rising
    critic/reference_age:
      meaning: updates by which the reference policy lags behind the policy that is scored
      unit: updates
      healthy: grows with the run where the reference is frozen; else at most algorithm.kl.reference.every times
        the updates per step, of a moving average about updates per step / (1 - decay)
      action: 'large while actor/kl presses against the reward: let the reference follow (algorithm.kl.reference.mode)'
  Routing of a mixture of experts:
    router/mismatch:
      meaning: experts that tokens are trained with and the sampler did not choose for them
      unit: share
      healthy: 0 with router_replay rollout; else below 0.05
      action: 'above: set algorithm.router_replay, use fewer updates per rollout, or lower optimizer.lr'
    router/drift:
      meaning: experts that the routers choose during the updates and did not when the response was sampled
        (or scored, with router_replay old), whether or not that is replayed; over all updates
      unit: share
      healthy: below 0.05
      action: 'growing: the routers move with every update; use fewer updates per rollout, or lower optimizer.lr'
    router/sampler_mismatch:
      meaning: experts that the trainer's routers choose before the first update and the sampler's did not,
        with the same weights
      unit: share
      healthy: 0 on CPU in float32; some percent in low precision
      action: 'growing: stale rollout weights or a numeric difference between the two graphs'
  Account of the samples:
    samples/generated:
      meaning: responses sampled
      unit: responses
      healthy: with samples/earlier = trained + filtered + dropped + kept
    samples/trained:
      meaning: responses that entered the loss
      unit: responses
      healthy: close to samples/generated
      action: see samples/filtered/<reason>
    samples/filtered:
      meaning: responses taken out on purpose
      unit: responses
      healthy: 0 without filters
      action: see samples/filtered/<reason>
    samples/filtered/<reason>:
      meaning: 'responses taken out on purpose, by reason: zero_signal (no difference in the group, with
        algorithm.filter_groups),
        no_baseline, or the verdict that left them without a reward'
      unit: responses
      healthy: zero_signal as reward/zero_signal_group_ratio; verdicts 0
      action: 'zero_signal high: choose prompts that are solved sometimes; a verdict: as reward/invalid_ratio'
    samples/dropped:
      meaning: responses with a signal that are not trained
      unit: responses
      healthy: '0'
      action: see samples/dropped/<reason>
    samples/dropped/<reason>:
      meaning: 'responses with a signal that are not trained, by reason: surplus (beyond the full batch), short
        (a step that found too few and is skipped), nonfinite (their update was skipped, trainer.on_nonfinite)'
      unit: responses
      healthy: 'surplus: less than a batch; others 0'
      action: 'surplus: draw fewer prompts at once, or set algorithm.filter_groups.keep_surplus_steps; short:
        raise algorithm.filter_groups.max_num_gen_batches; nonfinite: look at the batches in run_dir/failures'
    samples/kept:
      meaning: responses put aside for a later step
      unit: responses
      healthy: less than a batch
    samples/earlier:
      meaning: responses of the batch that an earlier step generated
      unit: responses
      healthy: what the step before kept
  Rollout engine:
    rollout/prefill_calls:
      meaning: prompts that were run, and sequences that were run again after a pre-emption
      unit: calls
      healthy: 'one per prompt: siblings share it'
    rollout/decode_steps:
      meaning: decode graph runs
      unit: calls
      healthy: about tokens / rollout.slots
      action: 'far above: few slots are busy; see rollout/busy_slot_share'
    rollout/busy_slot_share:
      meaning: decode slots that held an unfinished response
      unit: share
      healthy: above 0.9 on long runs
      action: fewer rollout.slots
    rollout/preemptions:
      meaning: sequences that had to leave the full cache and were run again later; their tokens do not change
      unit: responses
      healthy: 0, or few beside the number of responses
      action: 'many: raise rollout.cache_gb, or lower rollout.slots'
    rollout/cache_blocks:
      meaning: most blocks of the KV cache (128 tokens each) in use at once, on the replica with most
      unit: blocks
      healthy: below what `mindgspo plan` shows
      action: 'far below: raise rollout.slots, or lower rollout.cache_gb'
  Sampler against trainer:
    training/exact_logprobs_tokens:
      meaning: tokens whose log-probs of sampler and trainer were compared and are equal, bit for bit
        (trainer.require_exact_logprobs); those that the weights before the step's updates drew
      unit: tokens
      healthy: all that are trained, unless earlier weights drew some
  Progress, time and memory:
    timing_s/agent_loop/generate_sequences/min:
      meaning: time from the admission of a training response to its end, of the fastest one of the step; waiting
        for room in the cache counts
      unit: s
    timing_s/agent_loop/generate_sequences/max:
      meaning: the same of the slowest one, for which a step waits
      unit: s
      healthy: well below timing_s/gen
      action: 'close to it: few long responses hold up the step; lower rollout.max_new_tokens, or raise rollout.slots'
    timing_s/agent_loop/slowest/prompt_length:
      meaning: prompt of the slowest response
      unit: tokens
    timing_s/agent_loop/slowest/response_length:
      meaning: length of the slowest response
      unit: tokens
    perf/total_num_tokens:
      meaning: prompt and response tokens of the step
      unit: tokens
    perf/throughput:
      meaning: perf/total_num_tokens per second and card, or process on CPU
      unit: tokens/s
      healthy: steady after the first steps, which compile
      action: 'falling: longer responses, ever more compiled graphs, or a machine that is shared'
    perf/mfu/actor:
      meaning: model FLOPs utilization of the updates, their operations per second as a share of the cards'
        peak, with logging.peak_tflops set; operations per sample of n tokens are 6 n x weights + 12 n^2 x layers
        x heads x head_dim, weights being those that a token meets and both tables of the vocabulary, as verl
        counts
      unit: share
      healthy: steady after the first steps, which compile
      action: 'low: larger micro-batches while memory allows, trainer.packing, trainer.balance_batches'
    perf/time_per_step:
      meaning: wall time of the step
      unit: s
      healthy: steady after the first steps
    perf/gen_tokens_per_second:
      meaning: response tokens per second of generation
      unit: tokens/s
      healthy: grows with rollout.slots, to a limit
      action: 'low: raise rollout.slots while memory allows'
    perf/cpu_memory_used_gb:
      meaning: resident memory of this process
      unit: GB
      healthy: steady after a few steps
      action: 'steady growth is a leak: report it'
    perf/peak_rss_mb:
      meaning: largest resident memory of this process so far
      unit: MB
      healthy: below the machine's memory
    training/global_step:
      meaning: 'training steps done: one rollout with all its updates'
      unit: steps
    training/epoch:
      meaning: passes over the prompts
      unit: epochs
      healthy: a few
      action: 'many on few prompts: compare with held-out accuracy'
    training/updates:
      meaning: optimizer updates done since the start
      unit: updates
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mindgspo.algorithms.loss_metrics import batch_mismatch, telemetry_metrics
from mindgspo.algorithms.optim.updater import UpdateResult
from mindgspo.algorithms.rollout_correction import step_correction_metrics
from mindgspo.batches.micro_batches import BatchLayout, batch_metrics
from mindgspo.batches.routing import RoutingDifference, load_metrics
from mindgspo.config import AlgorithmSection, KLSection, ModelSection, ParallelPlan, RolloutSection, TrainerSection
from mindgspo.data.curriculum import Curriculum
from mindgspo.data.stream import PromptOrder
from mindgspo.metrics import Timers, group_metrics, peak_rss_mb, rss_gb
from mindgspo.models.operations import Operations
from mindgspo.models.scoring import TokenScores
from mindgspo.rollout.protocol import RolloutCounters
from mindgspo.rollout.weight_transfer import ServedWeights, WeightTransfer
from mindgspo.trainer.advantages import StepAdvantages
from mindgspo.trainer.batches import MiniBatches, flattened
from mindgspo.trainer.dynamic_sampling import (
    KEPT,
    SHORT,
    SURPLUS,
    LeftoverBuffer,
    Selection,
    StepSamples,
    sampling_metrics,
)
from mindgspo.trainer.schedules import FedEngine
from mindgspo.trainer.source_metrics import source_metrics
from mindgspo.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """Facts of one training step, from which its metrics are computed."""

    step: int
    samples: StepSamples
    estimated: StepAdvantages
    mini_batches: MiniBatches
    results: Sequence[UpdateResult | None]
    """Updates in their order, pass by pass over the mini-batches; None if one was skipped."""
    old_scores: Sequence[TokenScores]
    """Scores of the old policy, by micro-batch; empty if the sampler's log-probs are used instead."""
    version: int
    """Version of the weights that sampled and scored, as a number of updates."""
    reference_version: float | None
    expert_loads: np.ndarray | None
    """Tokens of the step's responses by layer and expert, [L, E]; None if no routing was recorded."""
    kl_coef: float
    learning_rate: float
    """Learning rate of the last update."""
    updates: int
    """Updates applied since the start of the run."""
    adapter_norms: Mapping[str, float]
    """Metrics of low-rank adapters; empty without them."""
    num_exact: int | None
    """Tokens whose log-probs were compared bit for bit; None if the step's are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Computes the metrics of a step from its record, once the step is done."""

    algorithm: AlgorithmSection
    rollout: RolloutSection
    settings: TrainerSection
    layout: BatchLayout
    speed: Speed
    timers: Timers
    fed: FedEngine | None
    """The engine, where it has a feed."""
    stream: PromptOrder
    leftovers: LeftoverBuffer
    scores_old: bool
    """Whether a scoring pass finds the old log-probs."""
    transfer: WeightTransfer | ServedWeights | None = None
    """Brings the engine its weights, where it has its own."""
    curriculum: Curriculum | None = None
    first_router: int = 0
    """Number of the first layer with a router."""

    def metrics(self, record: StepRecord) -> dict[str, float]:
        """Return all metrics of the step by name; empties the timers."""
        samples, section = record.samples, self.algorithm
        scored = scoring_metrics(record)
        metrics = {
            **self._sample_metrics(record),
            **sampling_metrics(section.filter_groups, samples, self.leftovers),
            **reward_metrics(record.estimated, section.kl, record.kl_coef),
            **record.estimated.distillation,
            **scored,
            **router_metrics(
                record.results,
                section.router_replay,
                scored,
                record.expert_loads,
                first_layer=self.first_router,
            ),
            **record.adapter_norms,
            **({} if self.curriculum is None else self.curriculum.metrics()),
            "actor/lr": record.learning_rate,
            "training/epoch": self.stream.epochs,
            "training/updates": record.updates,
            "training/global_step": record.step,
        }
        selection = samples.selection
        trained = [selection.responses[number] for number in selection.trained(0, len(selection.responses))]
        if record.num_exact is not None:
            metrics["training/exact_logprobs_tokens"] = record.num_exact
        if self.transfer is not None:
            metrics |= self.transfer.metrics()
        if self.fed is not None:
            metrics |= self.fed.metrics(trained, seconds=metrics["timing_s/step"])
        if None not in record.results:
            return metrics
        # The batch of a skipped update made some of them NaN or infinite, hence meaningless.
        return {name: value for name, value in metrics.items() if math.isfinite(value)}

    def _sample_metrics(self, record: StepRecord) -> dict[str, float]:
        """Groups, account of samples, updates, performance, mismatch of sampler and trainer."""
        samples, mini_batches, results, section = record.samples, record.mini_batches, record.results, self.algorithm
        batches = flattened(mini_batches)
        # Of this step's own rollouts; if the batch was full without any, of the trained responses.
        groups = record.estimated.groups[samples.num_earlier :] or record.estimated.groups
        num_earlier = sum(len(group.responses) for group in samples.groups[: samples.num_earlier])
        num_nonfinite = num_lost(mini_batches, results)
        applied = [result for result in results if result is not None]
        lengths = trained_lengths(samples) * self.settings.epochs_per_rollout
        metrics = {
            **group_metrics(groups),
            **source_metrics(samples.generated, self.stream.epochs_by_source),
            **account(
                samples.selection,
                num_earlier=num_earlier,
                num_asked=len(samples.generated) * self.rollout.num_generations,
                num_trained=sum(micro_batches[0].num_sequences for micro_batches in mini_batches) - num_nonfinite,
                num_nonfinite=num_nonfinite,
            ),
            **rollout_metrics(samples.counters),
            **update_metrics(applied, section, scores_old=self.scores_old),
            **({"actor/updates_skipped": results.count(None)} if self.settings.on_nonfinite == "skip" else {}),
            **perf_metrics(groups, self.timers, self.speed, lengths),
            **batch_metrics(mini_batches, self.layout),
            **step_mismatch(mini_batches, results, scores_old=self.scores_old, first_number=num_earlier),
        }
        if batches and section.rollout_correction.level != "none":
            correction = step_correction_metrics(section.rollout_correction, batches)
            metrics |= {f"rollout_corr/{name}": value for name, value in correction.items()}
        return metrics


def scoring_metrics(record: StepRecord) -> dict[str, float]:
    """Entropy and routing of the scoring pass, and the age of the reference policy."""
    metrics: dict[str, float] = {}
    if not record.mini_batches:
        return metrics
    if record.old_scores:
        entropy = sum(float(found.entropy_NK.sum(dtype=np.float64)) for found in record.old_scores)
        num_tokens = sum(micro_batches[0].num_tokens for micro_batches in record.mini_batches)
        metrics["actor/entropy"] = entropy / num_tokens
        differences = [score.mismatch for score in record.old_scores if score.mismatch is not None]
        if differences:
            metrics["router/sampler_mismatch"] = RoutingDifference.sum(differences).share
    if record.reference_version is not None:
        metrics["critic/reference_version"] = record.reference_version
        metrics["critic/reference_age"] = record.version - record.reference_version
    return metrics


def reward_metrics(estimated: StepAdvantages, section: KLSection, kl_coef: float) -> dict[str, float]:
    """The KL penalty, and its effect on the rewards if it is part of them."""
    metrics: dict[str, float] = {}
    if section.placement != "none":
        metrics["actor/kl_coef"] = kl_coef
    if estimated.kl is not None:
        rewards = estimated.rewards
        metrics["critic/kl"] = estimated.kl
        metrics |= {f"critic/rewards/{name}": float(getattr(rewards, name)()) for name in ("mean", "max", "min")}
    return metrics


def router_metrics(
    results: Sequence[UpdateResult | None],
    replay: str,
    score_metrics: Mapping[str, float],
    loads_LE: np.ndarray | None,
    *,
    first_layer: int = 0,
) -> dict[str, float]:
    """Changes of the routing between sampling and the updates, and how evenly experts were used while sampling.

    results: of the updates, None if one was skipped. replay: `algorithm.router_replay`. loads_LE: see
    `expert_loads`; None if no routing was recorded. first_layer: number of the first layer with a router.
    """
    metrics = {} if loads_LE is None else load_metrics(loads_LE, first_layer=first_layer)
    drifts = [result.drift for result in results if result is not None and result.drift is not None]
    if drifts:
        metrics["router/drift"] = RoutingDifference.sum(drifts).share
    scored = score_metrics.get("router/sampler_mismatch")
    used = {"none": metrics.get("router/drift", scored), "rollout": 0.0, "old": scored}
    if loads_LE is not None and used[replay] is not None:
        metrics["router/mismatch"] = used[replay]
    return metrics


def num_lost(mini_batches: MiniBatches, results: Sequence[UpdateResult | None]) -> int:
    """Samples of the mini-batches whose updates were all skipped. results: pass by pass over the mini-batches."""
    return sum(
        batches[0].num_sequences
        for index, batches in enumerate(mini_batches)
        if all(result is None for result in results[index :: len(mini_batches)])
    )


def account(
    selection: Selection, *, num_earlier: int = 0, num_asked: int, num_trained: int, num_nonfinite: int = 0
) -> dict[str, float]:
    """Account of all samples: generated + earlier = trained + filtered + dropped + kept, filtered and dropped by
    reason. An account that does not balance is a bug.

    num_earlier: responses that earlier steps generated. num_asked: responses requested from the engine. num_trained:
    sequences that the updates counted. num_nonfinite: sequences of skipped updates.
    """
    generated = len(selection.responses) - num_earlier
    left_out = Counter(reason for reason in selection.reasons if reason is not None)
    kept = left_out.pop(KEPT, 0)
    dropped = {reason: left_out.pop(reason) for reason in (SHORT, SURPLUS) if reason in left_out}
    dropped |= {"nonfinite": num_nonfinite} if num_nonfinite else {}
    assert generated == num_asked, f"{generated} responses, {num_asked} were asked for"
    assert generated + num_earlier == num_trained + left_out.total() + sum(dropped.values()) + kept, (
        f"{generated} responses and {num_earlier} earlier ones, but {num_trained} trained + {left_out.total()} "
        f"filtered {dict(left_out)} + dropped {dropped} + {kept} kept"
    )
    metrics: dict[str, float] = {
        "samples/generated": generated,
        "samples/trained": num_trained,
        "samples/filtered": left_out.total(),
        **{f"samples/filtered/{reason}": count for reason, count in sorted(left_out.items())},
    }
    if dropped:
        metrics["samples/dropped"] = sum(dropped.values())
        metrics |= {f"samples/dropped/{reason}": count for reason, count in sorted(dropped.items())}
    moved = {"samples/kept": kept, "samples/earlier": num_earlier}
    return metrics | {name: count for name, count in moved.items() if count}


def rollout_metrics(counters: RolloutCounters) -> dict[str, float]:
    """Work of the engine; empty if a server generates, which does not report it."""
    if counters.generated_tokens and not counters.slot_steps:
        return {}
    timed = {}
    if counters.slowest_us:
        timed = {
            "timing_s/agent_loop/generate_sequences/min": counters.fastest_us / 1e6,
            "timing_s/agent_loop/generate_sequences/max": counters.slowest_us / 1e6,
            "timing_s/agent_loop/slowest/prompt_length": counters.slowest_prompt,
            "timing_s/agent_loop/slowest/response_length": counters.slowest_response,
        }
    return timed | {
        "rollout/prefill_calls": counters.prefilled_prompts,
        "rollout/decode_steps": counters.decode_steps,
        "rollout/busy_slot_share": counters.busy_share,
        "rollout/preemptions": counters.preemptions,
        "rollout/cache_blocks": counters.most_blocks,
    }


def step_mismatch(
    mini_batches: MiniBatches,
    results: Sequence[UpdateResult | None],
    *,
    scores_old: bool,
    first_number: int = 0,
) -> dict[str, float]:
    """Mismatch of the sampler's and the trainer's log-probs over all response tokens of the step's own rollouts; if
    nothing was scored, over those of the first update, which still has the policy that sampled. first_number: number of
    the first response that this step sampled."""
    if scores_old:
        batches = flattened(mini_batches)
        return batch_mismatch(batches, [batch.old_logp_NK for batch in batches], first_number=first_number)
    for index, result in enumerate(results):
        if result is not None:
            batches = mini_batches[index % len(mini_batches)]
            return batch_mismatch(batches, result.logp_NK, first_number=first_number)
    return {}


_EXTREMES = {"log_ratio_max": max, "log_ratio_min": min, "ratio_error_max": max}


def update_metrics(
    results: Sequence[UpdateResult], algorithm: AlgorithmSection, *, scores_old: bool
) -> dict[str, float]:
    """Means over the step's updates; extremes where a mean would hide them; telemetry over all of them. Parts that the
    algorithm lacks (KL term, dual clip) are not reported. If nothing was scored, the entropy is that of the updates,
    each over its own mini-batch, if they compute it."""
    metrics: dict[str, float] = {"actor/updates": len(results)}
    if not results:
        return metrics
    metrics["actor/loss"] = float(np.mean([result.loss for result in results]))
    metrics["actor/grad_norm"] = float(np.mean([result.grad_norm for result in results]))
    if algorithm.old_log_probs != "sampler":
        metrics["actor/first_ratio_error_max"] = results[0].metrics["ratio_error_max"]
    entropies = [result.entropy for result in results if result.entropy is not None]
    if entropies and not scores_old:
        metrics["actor/entropy"] = float(np.mean(entropies))
    absent = set() if algorithm.kl.placement == "loss" else {"kl", "kl_loss"}
    absent |= set() if algorithm.clip_ratio_c is not None else {"pg_clipfrac_lower"}
    for name in results[0].metrics.keys() - absent:
        values = [result.metrics[name] for result in results]
        metrics[f"actor/{name}"] = float(_EXTREMES[name](values) if name in _EXTREMES else np.mean(values))
    telemetry = telemetry_metrics([micro for result in results for micro in result.telemetry])
    return metrics | {f"actor/{name}": value for name, value in telemetry.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Figures that the speed of training is compared with."""

    cards: int = 1
    """Cards of the train plan."""
    peak: float | None = None
    """Operations per second of one card; None if unknown."""
    per_token: float = 0.0
    """Operations of an update per token of a sample."""
    per_square: float = 0.0
    """Operations of an update per token of a sample's squared length."""

    @staticmethod
    def of(model: ModelSection, train: ParallelPlan, peak_tflops: float | None) -> Speed:
        """Speed as verl counts it: without recomputation and without the optimizer."""
        operations = Operations.of(model)
        return Speed(
            cards=train.world_size,
            peak=None if peak_tflops is None else 1e12 * peak_tflops,
            per_token=operations.trained_token,
            per_square=operations.trained_pair,
        )

    def utilization(self, lengths: Sequence[int], seconds: float) -> float | None:
        """Share of the cards' peak that updates on samples of these lengths reached; None if it is not known."""
        if self.peak is None or seconds == 0:
            return None
        operations = self.per_token * sum(lengths) + self.per_square * sum(length * length for length in lengths)
        return operations / seconds / (self.cards * self.peak)


def trained_lengths(samples: StepSamples) -> list[int]:
    """Tokens of each trained sample, prompt and response."""
    prompts = [group.prompt.ids.size for group in samples.groups for _ in group.responses]
    selection = samples.selection
    return [
        prompt + response.ids.size
        for prompt, response, reason in zip(prompts, selection.responses, selection.reasons, strict=True)
        if reason is None
    ]


def perf_metrics(groups: Sequence[Group], timers: Timers, speed: Speed, lengths: Sequence[int]) -> dict[str, float]:
    """Throughput by the step's own timers, memory, and the timings themselves. lengths: of the samples that updates
    processed, each as often as it was processed."""
    sampled = sum(response.length for group in groups for response in group.responses)
    tokens = sum(group.prompt.ids.size + response.ids.size for group in groups for response in group.responses)
    timings = timers.collect()
    generation = {}
    if "timing_s/gen" in timings:
        generation["perf/gen_tokens_per_second"] = sampled / timings["timing_s/gen"]
    utilization = speed.utilization(lengths, timings.get("timing_s/update_actor", 0.0))
    return {
        **timings,
        **({} if utilization is None else {"perf/mfu/actor": utilization}),
        "perf/total_num_tokens": tokens,
        "perf/throughput": tokens / timings["timing_s/step"] / speed.cards,
        "perf/time_per_step": timings["timing_s/step"],
        **generation,
        "perf/cpu_memory_used_gb": rss_gb(),
        "perf/peak_rss_mb": peak_rss_mb(),
    }
