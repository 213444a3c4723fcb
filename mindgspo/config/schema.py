"""The experiment's configuration: one pydantic model per section, text under every field.

What enters: plain values from `config.load`. What leaves: a frozen `ExperimentConfig`, which stops at
`trainer/build.py`; a room takes its own section, which has a file of its own. Rules that need one field only stand
there, rules that join fields in `config.validate`. Neither MindSpore nor numpy is
imported. A field exists only if code reads it.

A key named `path` that is relative is resolved against the folder of the YAML file it stands in
(`config.layers`). Fields documented "None: ..." with a derived default are filled in by `config.load` (the model's by
itself), so that no reader guesses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from mindgspo.config.algorithm_section import AlgorithmSection
from mindgspo.config.data_section import DataSection, TokenizerSection
from mindgspo.config.eval_section import EvalSection
from mindgspo.config.model_section import ModelSection
from mindgspo.config.optimizer_section import OptimizerSection
from mindgspo.config.plan import ParallelPlan
from mindgspo.config.reshard_section import ReshardSection
from mindgspo.config.reward_section import RewardSection
from mindgspo.config.rollout_section import RolloutSection
from mindgspo.config.section import Section
from mindgspo.config.swap_section import SwapSection
from mindgspo.config.trainer_section import TrainerSection
from mindgspo.config.warmup_section import WarmupSection
from mindgspo.config.watch_section import WatchSection


class PlansSection(Section):
    """Parallel plans of the graphs that share the cards."""

    train: ParallelPlan = ParallelPlan()
    """Plan of the policy while it is trained."""
    infer: ParallelPlan = ParallelPlan()
    """Plan of the policy while it generates. The same cards: its product equals that of `train`. Equal plans share one
    set of weights; otherwise weights are laid out anew after each step."""
    reference: ParallelPlan | None = None
    """Plan of the reference policy of a KL term, which only scores. The same cards: its product equals that of `train`.
    Its replicas share the micro-batches; its weights are laid out anew from the trained ones. None: as `train`, without
    optimizer shards (verl: actor_rollout_ref.ref; MindRLHF: ref_config.parallel_config)."""

    @property
    def scoring(self) -> ParallelPlan:
        """The plan that the reference policy scores with."""
        if self.reference is not None:
            return self.reference
        return self.train.model_copy(update={"optimizer_shard": False})


class LoggingSection(Section):
    """What a run writes down beside metrics.jsonl."""

    tensorboard: bool = False
    """Also write TensorBoard event files below run_dir/tensorboard."""
    groups_per_step: int | None = Field(default=4, ge=1)
    """Groups written to samples.jsonl per step. None: all."""
    progress: bool = True
    """Show a progress bar on a terminal."""


class ExperimentConfig(Section):
    """One experiment."""

    experiment: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name; also the default run folder's name."""
    run_dir: Path | None = None
    """Folder for everything the run writes, relative to the current folder. None: runs/<experiment>."""
    seed: int = Field(default=1, ge=0)
    """Master seed: weights, data order and sampling derive their streams from it."""
    device: Literal["CPU", "Ascend"] = "CPU"
    """Where graphs run."""
    resume: Literal["never", "auto"] | Path = "never"
    """never: a run folder that holds a run is refused. auto: continue from its newest complete checkpoint. Or a path,
    relative to the current folder: a checkpoint, a folder of checkpoints or a run, whose newest complete one counts. To
    an earlier checkpoint of its own a run goes back, and what came later is set aside; with another run's a new run
    begins (verl: resume_mode, resume_from_path; TRL: resume_from_checkpoint)."""
    restore: Literal["all", "weights"] = "all"
    """What a new run takes from another run's checkpoint that `resume` names. all: it goes on at that step, with its
    optimizer, counters and place in the data. weights: the weights alone; it begins at step 0, without a warm-up."""
    model: ModelSection
    """The policy."""
    plans: PlansSection = PlansSection()
    """Parallel plans; one process by default."""
    reshard: ReshardSection = ReshardSection()
    """How weights go from the train plan to the infer plan."""
    swap: SwapSection = SwapSection()
    """What leaves the device while no graph reads it."""
    watch: WatchSection = WatchSection()
    """When a stage of a run on several workers counts as stalled."""
    tokenizer: TokenizerSection = TokenizerSection()
    """Text to token ids and back."""
    data: DataSection
    """Where prompts come from."""
    warmup: WarmupSection | None = None
    """Supervised warm-up before reinforcement learning. None: no warm-up."""
    rollout: RolloutSection
    """Generation of responses."""
    algorithm: AlgorithmSection = AlgorithmSection()
    """The loss that is minimised."""
    reward: RewardSection = RewardSection()
    """Judgement of responses."""
    optimizer: OptimizerSection = OptimizerSection()
    """Update of the weights."""
    trainer: TrainerSection
    """Length of the run and sizes of its batches."""
    eval: EvalSection = EvalSection()
    """Measurement on held-out problems."""
    logging: LoggingSection = LoggingSection()
    """What is written down and shown."""
