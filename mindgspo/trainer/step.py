"""One training step, on one page: `Trainer.train_step` names every verb in order.

    prompts -> engine -> responses -> rewards -> scored groups (filtered, drawn again) -> rows of each mini-batch
            -> log-probs of the old and the reference policy -> advantages -> one update per mini-batch
            -> weights, with a new version, to the engine -> metrics

All ranks call every verb at once: engine, scorers and update backend divide their work and give all ranks all results,
so that this page is the same on one process and on many.

Metrics:
  Gradient and learning rate:
    actor/lr:
      meaning: learning rate of the last update
      healthy: the schedule you set; large models 1e-6, the tiny quickstart 5e-5
  Loss, KL and entropy:
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
  Progress, time and memory:
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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from mindspore import nn

from mindgspo import progress
from mindgspo.algorithms.kl_control import KLController
from mindgspo.algorithms.optim.learning_rate import learning_rate
from mindgspo.algorithms.optim.updater import Updater, UpdateResult
from mindgspo.algorithms.rollout_correction import correction_weights
from mindgspo.batches.micro_batches import BatchLayout
from mindgspo.batches.rows import scattered
from mindgspo.config import AlgorithmSection, OptimizerSection, RolloutSection, TrainerSection
from mindgspo.config.schema import SwapSection
from mindgspo.data.dataset import PromptDataset
from mindgspo.data.stream import PromptStream
from mindgspo.evaluation.evaluator import ResponseScorer
from mindgspo.metrics import Timers
from mindgspo.models.scoring import PolicyScorer, TokenScores
from mindgspo.rollout.protocol import Rollout, RolloutCounters, RolloutEngine, training_sampling
from mindgspo.swap.states import Phase
from mindgspo.swap.swap import Swap
from mindgspo.trainer.advantages import step_advantages
from mindgspo.trainer.batches import MiniBatches, flattened, lay_out_mini_batches, regrouped
from mindgspo.trainer.dump import StepDump
from mindgspo.trainer.dynamic_sampling import (
    LeftoverBuffer,
    SampledGroup,
    StepSamples,
    draw_samples,
    left_out_rule,
    sampling_metrics,
)
from mindgspo.trainer.metrics import (
    Speed,
    finite_metrics,
    reward_metrics,
    router_metrics,
    sampler_mismatch,
    step_metrics,
)
from mindgspo.trainer.reference import ReferencePolicy
from mindgspo.trainer.routing_transfer import RoutingTransfer
from mindgspo.trainer.schedules import FedRollouts
from mindgspo.trainer.updates import SkippedUpdates, apply_update, check_mismatch, check_ratio, require_rewards
from mindgspo.types import Float32Array, Prompt, StepResult


@dataclass(slots=True, kw_only=True)
class Trainer:
    """Trains one policy, on one rank of the plans; `build.build_experiment` makes it.

    old_log_probs: what `algorithm.old_log_probs` comes to. reward_functions, reward_weights: of the configuration, in
    order. layout: how samples become rows. engine: generates with the weights of `weight_version`. old_policy: scores
    with the present weights. reference: the policy that a KL term refers to, None without one. kl: its coefficient.
    leftovers: groups that wait for a later step. feed: where responses come from instead of the engine, None with
    trainer.schedule=sync. routing: where experts are recorded or those of scoring are replayed,
    brings them to the ranks that train a sample. failures_dir: where a batch that broke an update is saved.
    dumps_dir: where the step of trainer.dump_step is written.
    total_steps: of the whole run. speed: what it is measured by. weight_version: updates applied to the policy's
    weights, warm-up included.
    """

    algorithm: AlgorithmSection
    old_log_probs: Literal["recompute", "sampler"]
    rollout: RolloutSection
    settings: TrainerSection
    optimizer: OptimizerSection
    reward_functions: tuple[str, ...]
    reward_weights: tuple[float, ...]
    seed: int
    layout: BatchLayout
    model: nn.Cell
    engine: RolloutEngine
    scorer: ResponseScorer
    old_policy: PolicyScorer
    reference: ReferencePolicy | None
    kl: KLController
    backend: Updater
    train_set: PromptDataset
    stream: PromptStream
    leftovers: LeftoverBuffer
    routing: RoutingTransfer | None
    failures_dir: Path
    dumps_dir: Path
    total_steps: int
    feed: FedRollouts | None = None
    speed: Speed = field(default_factory=Speed)
    timers: Timers = field(default_factory=Timers)
    swap: Swap = field(default_factory=lambda: Swap(SwapSection(), None))
    skipped: SkippedUpdates = field(default_factory=SkippedUpdates)
    weight_version: int = 0

    def train_step(self, step: int) -> StepResult:
        """Sample, score, train. `step` counts from 1. Raises TrainingError on a failed check or a non-finite loss."""
        with self.timers("step"):
            samples = self.draw_samples(step)
            require_rewards(samples.groups, step)
            with self.timers("old_log_prob"), self.swap.phase(Phase.SCORE):
                self.follow_policy(step)
                mini_batches = self.lay_out(samples)
                mini_batches, score_metrics = self.score_policies(mini_batches)
                self.swap.prefetch(Phase.UPDATE)
            with self.timers("adv"):
                estimated = step_advantages(
                    samples,
                    flattened(mini_batches),
                    self.algorithm,
                    kl_coef=self.kl.coef,
                    reward_labels=self.scorer.labels,
                    reward_weights=self.reward_weights,
                )
                mini_batches = self.with_advantages(mini_batches, estimated.advantages)
            with self.timers("update_actor"), self.swap.phase(Phase.UPDATE):
                results = self.update(mini_batches, step)
            with self.timers("update_weights"):
                self.load_engine_weights()
        metrics = {
            **step_metrics(
                samples,
                estimated.groups,
                mini_batches,
                results,
                self.algorithm,
                self.rollout,
                self.settings,
                self.timers,
                layout=self.layout,
                speed=self.speed,
                scores_old=self.old_log_probs == "recompute",
            ),
            **sampling_metrics(self.algorithm.filter_groups, samples, self.leftovers),
            **reward_metrics(estimated, self.algorithm.kl, self.kl.coef),
            **score_metrics,
            **router_metrics(results, self.algorithm.router_replay, score_metrics, self.expert_loads(samples)),
            "actor/lr": self.learning_rate(max(self.updates_tried - 1, 0)),
            "training/epoch": self.stream.epochs,
            "training/updates": self.backend.updates,
            "training/global_step": step,
        }
        metrics |= self.schedule_metrics(samples, metrics["timing_s/step"])
        metrics = finite_metrics(metrics, num_skipped=results.count(None))
        self.adapt_kl_coefficient(metrics)
        return StepResult(step=step, metrics=metrics, groups=estimated.groups)

    # ---- generate and score

    def draw_samples(self, step: int) -> StepSamples:
        """The scored groups of the step; rollout after rollout where groups without a signal are replaced."""
        section, functions = self.algorithm.filter_groups, self.reward_functions
        label = dict(zip(functions, self.scorer.labels, strict=True)).get(section.metric)
        return draw_samples(
            lambda num_prompts, draw: self.generate_and_score(num_prompts, step=step, draw=draw),
            section=section,
            batch_size=self.rollout.prompts_per_step,
            left_out=left_out_rule(section, label, needs_baseline=self.needs_greedy),
            leftovers=self.leftovers,
            step=step,
            has_baselines=self.needs_greedy,
        )

    @property
    def needs_greedy(self) -> bool:
        """Whether the advantage compares with the reward of the greedy response."""
        return self.algorithm.advantage.estimator == "remax"

    def generate_and_score(
        self, num_prompts: int, *, step: int, draw: int
    ) -> tuple[list[SampledGroup], RolloutCounters]:
        """One rollout of the next prompts. draw: number of the rollout in the step."""
        with self.timers("gen"), self.swap.phase(Phase.ROLLOUT):
            prompts, rollout, greedy = self.generate(num_prompts, step=step, draw=draw)
            if not self.algorithm.filter_groups.refill:  # with it the next phase may be another rollout
                self.swap.prefetch(Phase.SCORE)
        with self.timers("reward"):
            groups = self.scorer.score(prompts, rollout)
            baselines = [None] * len(groups)
            if greedy is not None:
                baselines = [group.scores[0].value for group in self.scorer.score(prompts, greedy)]
        sampled = [
            SampledGroup(group=group, baseline=baseline, step=step)
            for group, baseline in zip(groups, baselines, strict=True)
        ]
        return sampled, rollout.counters

    def generate(self, num_prompts: int, *, step: int, draw: int) -> tuple[list[Prompt], Rollout, Rollout | None]:
        """The next prompts, sampled responses and, where the advantage needs them, greedy ones."""
        if self.feed is not None:
            return *self.feed.draw(num_prompts, step=step), None
        prompts = [self.train_set[index] for index in self.stream.take(num_prompts)]
        settings = training_sampling(self.rollout, self.seed, step=step, draw=draw)
        rollout = self.engine.generate(prompts, settings, weight_version=self.weight_version)
        if not self.needs_greedy:
            return prompts, rollout, None
        settings = replace(settings, num_samples=1, temperature=0.0)
        return prompts, rollout, self.engine.generate(prompts, settings, weight_version=self.weight_version)

    # ---- rows, log-probs, advantages

    def lay_out(self, samples: StepSamples) -> MiniBatches:
        """Micro-batches of the trained responses, by mini-batch."""
        size = self.settings.prompts_per_mini_batch * self.rollout.num_generations
        mini_batches = lay_out_mini_batches(samples, self.layout, responses_per_mini_batch=size)
        if self.routing is None or not self.rollout.record_experts:
            return mini_batches
        return self.routing.routed(mini_batches, samples.groups)

    def expert_loads(self, samples: StepSamples) -> np.ndarray | None:
        """Tokens of this step's responses by layer and expert; None where routing is not recorded."""
        if self.routing is None or not self.rollout.record_experts:
            return None
        return self.routing.loads([response for group in samples.generated for response in group.responses])

    def follow_policy(self, step: int) -> None:
        """Let a moving reference policy take its step towards the policy."""
        if self.reference is not None:
            self.reference.follow(self.model, steps_done=step - 1, version=self.weight_version)

    def score_policies(self, mini_batches: MiniBatches) -> tuple[MiniBatches, dict[str, float]]:
        """The same batches with log-probs under the old policy of all updates to come (the present weights, or as the
        sampler found them) and, where a KL term needs them, under the reference policy; with their metrics."""
        if not mini_batches:
            return [], {}
        batches, metrics = flattened(mini_batches), {}
        if self.old_log_probs == "sampler":
            batches = [replace(batch, old_logp_NK=batch.rollout_logp_NK) for batch in batches]
        else:
            old = self.score_old(mini_batches)
            batches = [replace(batch, old_logp_NK=found.logp_NK) for batch, found in zip(batches, old, strict=True)]
            entropy = sum(float(found.entropy_NK.sum(dtype=np.float64)) for found in old)
            metrics["actor/entropy"] = entropy / sum(micro_batches[0].num_tokens for micro_batches in mini_batches)
            metrics |= sampler_mismatch(old)
            if self.algorithm.router_replay == "old":
                batches = [
                    replace(batch, experts_RTX=found.experts_RTX) for batch, found in zip(batches, old, strict=True)
                ]
                batches = flattened(self.routing.shared(regrouped(batches, mini_batches)))
        if self.reference is not None:
            metrics |= {
                "critic/reference_version": self.reference.version,
                "critic/reference_age": self.weight_version - self.reference.version,
            }
            scores = self.reference.scorer.score(batches)
            batches = [replace(batch, ref_logp_NK=found.logp_NK) for batch, found in zip(batches, scores, strict=True)]
        return regrouped(batches, mini_batches), metrics

    def score_old(self, mini_batches: MiniBatches) -> list[TokenScores]:
        """By the old policy, all batches at once; where routing is recorded or replayed, so that each is scored on the
        ranks that train it, which have its routing."""
        if self.routing is None:
            return self.old_policy.score(flattened(mini_batches))
        return [score for batches in mini_batches for score in self.old_policy.score(batches)]

    def with_advantages(self, mini_batches: MiniBatches, advantages: Sequence[Float32Array]) -> MiniBatches:
        """The same batches with the advantages of their responses, by number, and the correction weights."""
        section = self.algorithm.rollout_correction
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

    # ---- update

    def update(self, mini_batches: MiniBatches, step: int) -> list[UpdateResult | None]:
        """One optimizer update per mini-batch, `epochs_per_rollout` times over; None where an update was skipped. The
        first one must find importance ratios of 1."""
        results: list[UpdateResult | None] = []
        kl_coef = self.kl.coef if self.algorithm.kl.placement == "loss" else 0.0
        dump = self._dump(step)
        rounds = mini_batches * self.settings.epochs_per_rollout
        for batches in rounds:
            lr = self.learning_rate(self.updates_tried)
            if dump is not None:
                dump.before(batches, lr=lr, kl_coef=kl_coef)
            result = apply_update(
                self.backend,
                batches,
                lr=lr,
                kl_coef=kl_coef,
                settings=self.settings,
                skipped=self.skipped,
                failures_dir=self.failures_dir,
                is_first=not results,
                name=f"step_{step:08d}_update_{len(results) + 1}",
            )
            if dump is not None:
                dump.after(result)
            if result is not None:
                self.weight_version += 1
                if all(earlier is None for earlier in results):
                    self._check_first_update(batches, result, step)
            results.append(result)
            progress.count(len(results), len(rounds), "updates")
        if dump is not None:
            dump.close()
        return results

    def _dump(self, step: int) -> StepDump | None:
        """Of the step that trainer.dump_step names."""
        if step != self.settings.dump_step:
            return None
        folder = self.dumps_dir / f"step_{step:08d}"
        return StepDump(folder, self.backend, step=step, beta1=self.optimizer.beta1)

    def _check_first_update(self, batches: Sequence, result: UpdateResult, step: int) -> None:
        settings, temperature = self.settings, self.rollout.temperature
        if self.algorithm.old_log_probs == "sampler":
            if self.feed is None or settings.max_staleness == 0:  # earlier weights drew with other log-probs
                check_mismatch(batches, result, step, limit=settings.max_rollout_mismatch, temperature=temperature)
        else:
            check_ratio(result, step, limit=settings.max_ratio_error, temperature=temperature)

    def load_engine_weights(self) -> None:
        """Let the engine generate with the policy's present weights."""
        with self.swap.phase(Phase.RESHARD):
            (self.feed or self.engine).load_weights(self.weight_version)

    def schedule_metrics(self, samples: StepSamples, seconds: float) -> dict[str, float]:
        """How old the trained responses were, and who waited in a step of so many seconds; nothing with
        trainer.schedule=sync."""
        if self.feed is None:
            return {}
        selection = samples.selection
        trained = selection.trained(0, len(selection.responses))
        return self.feed.metrics([selection.responses[number] for number in trained], seconds=seconds)

    def adapt_kl_coefficient(self, metrics: Mapping[str, float]) -> None:
        """Let the coefficient of the next step answer to the KL of this one."""
        kl = metrics.get("critic/kl", metrics.get("actor/kl"))
        if kl is not None:
            self.kl.update(kl, int(metrics["samples/trained"]))

    def learning_rate(self, update_index: int) -> float:
        """Learning rate of the update number `update_index` (from 0) of the run."""
        per_step = self.updates_per_rollout
        return learning_rate(update_index, self.total_steps * per_step, self.optimizer, updates_per_step=per_step)

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer updates per training step: mini-batches, times the epochs over them."""
        mini_batches = self.rollout.prompts_per_step // self.settings.prompts_per_mini_batch
        return mini_batches * self.settings.epochs_per_rollout

    @property
    def updates_tried(self) -> int:
        """Updates applied and skipped so far. The learning rate goes by it, so that a schedule ends with the run."""
        return self.backend.updates + self.skipped.total
