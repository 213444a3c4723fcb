"""The configurations of the two sides of an experiment whose generation has cards of its own."""

from __future__ import annotations

from mindgspo.config.cache import slots_per_replica
from mindgspo.config.plan import ParallelPlan
from mindgspo.config.schema import ExperimentConfig, PlansSection, ServersSection


def replica_config(config: ExperimentConfig) -> ExperimentConfig:
    """The same experiment on the cards of one replica of its infer plan, which does nothing but generate."""
    infer = config.plans.infer.model_copy(update={"data_parallel": 1, "cards": None})
    train = ParallelPlan(model_parallel=infer.model_parallel)
    rollout = config.rollout.model_copy(update={"slots": slots_per_replica(config), "servers": ServersSection()})
    trainer = config.trainer.model_copy(update={"schedule": "sync"})
    plans = PlansSection(train=train, infer=infer)
    return config.model_copy(update={"plans": plans, "rollout": rollout, "trainer": trainer})


def training_config(config: ExperimentConfig) -> ExperimentConfig:
    """The same experiment on the cards that train. Its infer plan is that of nobody, but as large as the train plan."""
    plans = config.plans.model_copy(update={"infer": ParallelPlan(data_parallel=config.plans.train.world_size)})
    return config.model_copy(update={"plans": plans})
