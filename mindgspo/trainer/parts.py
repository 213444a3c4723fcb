"""What evaluation and training work with, built once by `build` and handed from function to function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mindspore import nn

from mindgspo.algorithms.kl_control import KLController
from mindgspo.algorithms.optim.backend import UpdateBackend
from mindgspo.config import ExperimentConfig
from mindgspo.config.schema import SwapSection
from mindgspo.data import PromptDataset, PromptStream
from mindgspo.metrics import Timers
from mindgspo.models.scoring import AutoParallelScorer, PolicyScorer
from mindgspo.parallel.replicas import Replicas
from mindgspo.parallel.swap.states import Phase
from mindgspo.parallel.swap.swap import Swap
from mindgspo.rewards import Scorer
from mindgspo.rollout.protocol import RolloutEngine
from mindgspo.tokenization import Tokenizer
from mindgspo.trainer.baseline import Baseline
from mindgspo.trainer.fingerprints import Fingerprints
from mindgspo.trainer.kept_state import KeptState
from mindgspo.trainer.reference import ReferencePolicy
from mindgspo.trainer.skipped_updates import SkippedUpdates
from mindgspo.trainer.surplus import Surplus


@dataclass(slots=True, kw_only=True)
class EvaluationParts:
    """A policy that answers, and what judges its answers: this rank's part of them.

    judges: how the ranks share judging out. swap: what is resident in which phase. weight_version: number of updates
    that the policy's weights have behind them, warm-up included; what the engine was last given bears the same number.
    """

    config: ExperimentConfig
    tokenizer: Tokenizer
    model: nn.Cell
    engine: RolloutEngine
    scorer: Scorer
    judges: Replicas = field(default_factory=Replicas)
    swap: Swap = field(default_factory=lambda: Swap(SwapSection(), None))
    weight_version: int = 0

    def bring_weights(self) -> None:
        """Let the engine generate with the policy's weights as they are now. All ranks call it."""
        with self.swap.phase(Phase.RESHARD):
            self.engine.load_weights(self.weight_version)


@dataclass(slots=True, kw_only=True)
class TrainingParts(EvaluationParts):
    """The parts of one experiment, on one rank. Only `weight_version` and the parts' own state change while it runs.

    old_policy: log-probs under the weights of the present, before an update. reference: the policy that a KL term
    refers to, None without one. kl: its coefficient. total_steps: steps of the whole run. failures_dir: where a batch
    that broke an update is saved. skips: updates left out because they were not finite. kept: what else checkpoints
    hold, by name. eval_sets: held-out problems by the name of their set. surplus: groups that wait for a later step.
    baseline: what the first evaluation solved. fingerprints: of what the run learns from.
    """

    old_policy: PolicyScorer | AutoParallelScorer
    reference: ReferencePolicy | None
    kl: KLController
    updater: UpdateBackend
    train_set: PromptDataset
    eval_sets: Mapping[str, PromptDataset]
    stream: PromptStream
    surplus: Surplus
    timers: Timers
    total_steps: int
    failures_dir: Path
    skips: SkippedUpdates = field(default_factory=SkippedUpdates)
    baseline: Baseline = field(default_factory=Baseline)
    kept: dict[str, KeptState] = field(default_factory=dict)
    fingerprints: Fingerprints = field(default_factory=dict)

    def let_reference_follow(self, step: int) -> None:
        """Before the scoring of step number `step`, in its phase. All ranks call it."""
        if self.reference is not None:
            self.reference.follow(self.model, steps_done=step - 1, version=self.weight_version)

    @property
    def updates_per_rollout(self) -> int:
        """Optimizer updates per training step: mini-batches, times how often they are gone through."""
        trainer = self.config.trainer
        return self.config.rollout.prompts_per_step // trainer.prompts_per_mini_batch * trainer.epochs_per_rollout

    @property
    def updates_tried(self) -> int:
        """Updates applied and skipped so far. The learning rate goes by it, so that a schedule ends with the run."""
        return self.updater.updates + self.skips.total
