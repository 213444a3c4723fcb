"""One training step, on one page: `Trainer.train_step` names every verb in order.

    prompts -> responses                                                take_prompts, engine
            -> rewards -> scored groups (filtered, drawn again)         reward
            -> rows of each mini-batch -> old and reference log-probs   scorer
            -> advantages -> one update per mini-batch                  updater
            -> weights, with a new version, to what generates           weights
            -> metrics, from the record of the step

All ranks call every verb at once: the collaborators divide their work and give all ranks all results, so that this page
is the same on one process and on many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from mindgspo import progress
from mindgspo.algorithms.kl_control import KLController
from mindgspo.algorithms.optim.learning_rate import learning_rate
from mindgspo.algorithms.optim.updater import Updater, UpdateResult
from mindgspo.batches.micro_batches import BatchLayout
from mindgspo.config import AlgorithmSection, OptimizerSection, RolloutSection, TrainerSection
from mindgspo.data.curriculum import Curriculum
from mindgspo.evaluation.evaluator import ResponseScorer
from mindgspo.metrics.timers import Timers
from mindgspo.models.adapter_norms import AdapterNorms
from mindgspo.models.model import Model
from mindgspo.rollout.protocol import RolloutCounters, RolloutEngine, training_sampling
from mindgspo.swap.states import Phase
from mindgspo.swap.swap import Swap
from mindgspo.trainer.advantages import step_advantages, with_advantages
from mindgspo.trainer.batches import MiniBatches, flattened, lay_out_mini_batches
from mindgspo.trainer.dump import StepDump
from mindgspo.trainer.dynamic_sampling import LeftoverBuffer, SampledGroup, StepBatch, StepSamples, left_out_rule
from mindgspo.trainer.exact_log_probs import ExactLogProbs
from mindgspo.trainer.metrics import StepRecord, StepReport
from mindgspo.trainer.policies import PolicyScores
from mindgspo.trainer.teachers import Teachers, sources_of
from mindgspo.trainer.updates import UpdateGuard, check_first_update, require_rewards
from mindgspo.types import Prompt, StepResult


@dataclass(slots=True, kw_only=True)
class WeightSync:
    """Brings trained weights to the engine, stamped with a version: the number of updates they have had."""

    engine: RolloutEngine
    swap: Swap
    version: int = 0

    def push(self) -> None:
        """Generate with the policy's present weights from now on."""
        with self.swap.phase(Phase.RESHARD):
            self.engine.load_weights(self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """Trains one policy, on one rank of the plans; `build.build_experiment` makes it."""

    take_prompts: Callable[[int, int], list[Prompt]]
    """(number, step) -> the next prompts; from a feed, those whose responses have come."""
    engine: RolloutEngine
    reward: ResponseScorer
    scorer: PolicyScores
    updater: Updater
    weights: WeightSync

    algorithm: AlgorithmSection
    rollout: RolloutSection
    settings: TrainerSection
    optimizer: OptimizerSection
    reward_functions: tuple[str, ...]
    reward_weights: tuple[float, ...]
    """Weights of `reward_functions`, in the same order."""
    seed: int
    layout: BatchLayout
    """Layout of samples in rows."""
    model: Model
    total_steps: int
    """Steps of the whole run; 0 if it only warms up."""
    kl: KLController
    leftovers: LeftoverBuffer
    guard: UpdateGuard
    report: StepReport
    dumps_dir: Path
    """Folder for the step of trainer.dump_step."""
    timers: Timers
    swap: Swap
    adapters: AdapterNorms | None = None
    """None if every weight is trained."""
    teachers: Teachers | None = None
    curriculum: Curriculum | None = None
    """Takes note of every group that is scored, before further prompts are drawn."""
    exact: ExactLogProbs | None = None
    """None unless trainer.require_exact_logprobs."""

    def train_step(self, step: int) -> StepResult:
        """Sample, score, train. `step` counts from 1. Raises TrainingError on a failed check or a non-finite loss."""
        with self.timers("step"):
            batch, version = self.open_batch(step), self.weights.version
            while num_prompts := batch.missing:
                batch.add(*self.sample(num_prompts, step=step, draw=batch.num_draws))
            samples = batch.close()
            require_rewards(samples.groups, step)
            with self.timers("old_log_prob"), self.swap.phase(Phase.SCORE):
                self.scorer.follow(step, version)
                size = self.settings.prompts_per_mini_batch * self.rollout.num_generations
                has_turns = self.algorithm.ratio_over == "turn"
                mini_batches = lay_out_mini_batches(
                    samples, self.layout, responses_per_mini_batch=size, with_turns=has_turns
                )
                mini_batches = self.scorer.with_routing(mini_batches, samples.groups)
                mini_batches, old_scores = self.scorer.score(mini_batches)
                energies, teacher_logp = self.scorer.energies(mini_batches), None
                if self.teachers is not None:
                    teacher_logp = self.teachers.log_probs(flattened(mini_batches), sources_of(samples))
                num_exact = self.compare_log_probs(mini_batches, samples, step, version)
                self.swap.prefetch(Phase.UPDATE)
            with self.timers("adv"):
                estimated = step_advantages(
                    samples,
                    flattened(mini_batches),
                    self.algorithm,
                    energies=energies,
                    teacher_logp=teacher_logp,
                    kl_coef=self.kl.coef,
                    reward_labels=self.reward.labels,
                    reward_weights=self.reward_weights,
                )
                mini_batches = with_advantages(
                    mini_batches, estimated.advantages, self.algorithm, seed=(self.seed, step)
                )
            with self.timers("update_actor"), self.swap.phase(Phase.UPDATE):
                results = self.update(mini_batches, step)
                if num_exact is not None:
                    self.compare_first_update(mini_batches, results, samples, step, version)
                norms = {} if self.adapters is None else self.adapters.metrics()
            with self.timers("update_weights"):
                self.weights.push()
        record = StepRecord(
            step=step,
            samples=samples,
            estimated=estimated,
            mini_batches=mini_batches,
            results=results,
            old_scores=old_scores,
            version=version,
            reference_version=self.scorer.reference_version,
            expert_loads=self.scorer.expert_loads(samples.generated),
            kl_coef=self.kl.coef,
            learning_rate=self.learning_rate(max(self.updates_tried - 1, 0)),
            updates=self.updater.updates,
            adapter_norms=norms,
            num_exact=num_exact,
        )
        metrics = self.report.metrics(record)
        self.adapt_kl_coefficient(metrics)
        return StepResult(step=step, metrics=metrics, groups=estimated.groups)

    def open_batch(self, step: int) -> StepBatch:
        """Begin the groups of a step; one rollout fills them, or as many as replace groups without a signal."""
        section = self.algorithm.filter_groups
        label = dict(zip(self.reward_functions, self.reward.labels, strict=True)).get(section.metric)
        return StepBatch(
            section,
            batch_size=self.rollout.prompts_per_step,
            left_out=left_out_rule(section, label, needs_baseline=self.has_baselines),
            leftovers=self.leftovers,
            step=step,
            has_baselines=self.has_baselines,
        )

    def sample(self, num_prompts: int, *, step: int, draw: int) -> tuple[list[SampledGroup], RolloutCounters]:
        """Return the scored groups of the next prompts, and the work that they took.

        draw: number of the rollout within the step, from 0.
        """
        version, greedy = self.weights.version, None
        with self.timers("gen"), self.swap.phase(Phase.ROLLOUT):
            prompts = self.take_prompts(num_prompts, step)
            settings = training_sampling(self.rollout, self.seed, step=step, draw=draw)
            sampled = self.engine.generate(prompts, settings, weight_version=version)
            if self.has_baselines:
                settings = replace(settings, num_samples=1, temperature=0.0)
                greedy = self.engine.generate(prompts, settings, weight_version=version)
            if not self.algorithm.filter_groups.refill:  # no other rollout follows in this step
                self.swap.prefetch(Phase.SCORE)
        with self.timers("reward"):
            groups = self.reward.score(prompts, sampled)
            if self.curriculum is not None:
                self.curriculum.observe(groups)
            baselines: list[float | None] = [None] * len(groups)
            if greedy is not None:
                baselines = [group.scores[0].value for group in self.reward.score(prompts, greedy)]
        return [
            SampledGroup(group=group, baseline=baseline, step=step)
            for group, baseline in zip(groups, baselines, strict=True)
        ], sampled.counters

    def update(self, mini_batches: MiniBatches, step: int) -> list[UpdateResult | None]:
        """Make one optimizer update per mini-batch, `epochs_per_rollout` times over; None if one was skipped."""
        results: list[UpdateResult | None] = []
        kl_coef = self.kl.coef if self.algorithm.kl.placement == "loss" else 0.0
        dump = self._dump(step)
        rounds = mini_batches * self.settings.epochs_per_rollout
        for number, batches in enumerate(rounds, 1):
            lr, result = self.learning_rate(self.updates_tried), None
            if dump is not None:
                dump.before(batches, lr=lr, kl_coef=kl_coef)
            with self.guard(batches, f"step_{step:08d}_update_{number}", is_first=number == 1) as guarded:
                result = self.updater.step(guarded, lr, kl_coef=kl_coef)
            if dump is not None:
                dump.after(result)
            if result is not None:
                self.weights.version += 1
                if all(earlier is None for earlier in results):
                    check_first_update(
                        batches, result, step, self.settings, self.algorithm, temperature=self.rollout.temperature
                    )
            results.append(result)
            progress.count(number, len(rounds), "updates")
        if dump is not None:
            dump.close()
        return results

    def compare_log_probs(self, mini_batches: MiniBatches, samples: StepSamples, step: int, version: int) -> int | None:
        """Return the number of tokens whose log-probs of sampler and trainer were compared; None if the step is not.
        Raises TrainingError if one differs. version: of the weights before the step's updates."""
        if self.exact is None or not self.exact.is_due(step):
            return None
        found, responses = self.scorer.log_probs(mini_batches), samples.selection.responses
        return self.exact.require(flattened(mini_batches), found, responses, step=step, version=version)

    def compare_first_update(
        self,
        mini_batches: MiniBatches,
        results: list[UpdateResult | None],
        samples: StepSamples,
        step: int,
        version: int,
    ) -> None:
        """Compare the log-probs that the graph of the step's first update computed, like `compare_log_probs`."""
        assert self.exact is not None
        for number, result in enumerate(results):
            if result is not None:
                batches, responses = mini_batches[number % len(mini_batches)], samples.selection.responses
                self.exact.require(
                    batches, result.logp_NK, responses, step=step, version=version, graph="graph of the first update"
                )
                return

    def _dump(self, step: int) -> StepDump | None:
        """Open the dump of the step that trainer.dump_step names."""
        if step != self.settings.dump_step:
            return None
        folder = self.dumps_dir / f"step_{step:08d}"
        return StepDump(folder, self.updater, step=step, beta1=self.optimizer.beta1)

    def adapt_kl_coefficient(self, metrics: dict[str, float]) -> None:
        """Let the coefficient of the next step answer to the KL of this one."""
        kl = metrics.get("critic/kl", metrics.get("actor/kl"))
        if kl is not None:
            self.kl.update(kl, int(metrics["samples/trained"]))

    def learning_rate(self, update_index: int) -> float:
        """Learning rate of the update number `update_index` (from 0) of the run."""
        per_step = self.updates_per_rollout
        return learning_rate(update_index, self.total_steps * per_step, self.optimizer, updates_per_step=per_step)

    @property
    def has_baselines(self) -> bool:
        """Whether the advantage compares with the reward of a greedy response."""
        return self.algorithm.advantage.estimator == "remax"

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer updates per training step: mini-batches, times the epochs over them."""
        mini_batches = self.rollout.prompts_per_step // self.settings.prompts_per_mini_batch
        return mini_batches * self.settings.epochs_per_rollout

    @property
    def updates_tried(self) -> int:
        """Updates applied and skipped so far. The learning rate goes by it, so that a schedule ends with the run."""
        return self.updater.updates + self.guard.skipped.total
