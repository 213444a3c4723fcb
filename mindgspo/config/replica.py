"""The configuration of one replica that generates and does nothing else."""

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
