"""Sets the device up, joins the workers of a run, and places this process in each plan; helpers for what rank 0 does
while the others wait. In a process that is alone all of this costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mindgspo.config import ExperimentConfig, ParallelPlan, config_mapping
from mindgspo.errors import ConfigError
from mindgspo.parallel.collectives.host import barrier, exchange, open_shared_memory, require_agreement
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform import heartbeat, runtime, worker_process

# What may differ between ranks without changing what they compute together.
_FREE = ("run_dir", "logging")


def start_device(config: ExperimentConfig) -> None:
    """Set the device up and meet the other workers of the plans.

    Raises ConfigError where this machine does not offer the configured device, the number of workers is not the plans',
    or a worker was started with another configuration.
    """
    try:
        runtime.set_up_runtime(config.device)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"device: {config.device} cannot be used here; set device=CPU ({reason})") from error
    needed = config.plans.train.world_size
    # Once per process: the loop starts the device before it opens the run folder, and so does the builder.
    is_to_join = needed > 1 and worker_process.is_worker() and runtime.world_size() == 1
    if is_to_join:
        join_other_ranks()
        open_shared_memory()
    if runtime.world_size() != needed:
        raise ConfigError(
            f"plans: train {config.plans.train} and infer {config.plans.infer} need {needed} workers, there "
            f"{'is' if runtime.world_size() == 1 else 'are'} {runtime.world_size()}; start the run with `mindgspo run` "
            "or run_gspo.sh, which start as many as the plans need"
        )
    if is_to_join:
        mapping = {key: value for key, value in config_mapping(config).items() if key not in _FREE}
        require_agreement(
            "configuration", mapping, "Start every rank with the same YAML files and the same --set overrides"
        )


def join_other_ranks() -> None:
    """Join the cluster, and let the launcher see who has come. `runtime.set_up_runtime` comes first."""
    heartbeat.enter(heartbeat.MEETING, 0)
    worker_process.await_scheduler()
    runtime.join_cluster()
    heartbeat.enter("setup", 0)


def is_first() -> bool:
    """Whether this process writes logs, checkpoints and reports."""
    return runtime.rank() == 0


def train_place(config: ExperimentConfig) -> Placement:
    """Where this process stands while it trains."""
    return Placement(plan=config.plans.train, rank=runtime.rank())


def reference_place(config: ExperimentConfig) -> Placement:
    """Where this process stands while it scores with the reference policy's weights."""
    return Placement(plan=config.plans.scoring, rank=runtime.rank())


def infer_place(config: ExperimentConfig) -> Placement:
    """Where this process stands while it generates."""
    return Placement(plan=config.plans.infer, rank=runtime.rank())


def scoring_place(config: ExperimentConfig) -> Placement:
    """Where this process stands while responses are scored: with those that it generated, or, where other processes
    generate, as one of equals."""
    if config.has_servers:
        return Placement(plan=ParallelPlan(data_parallel=config.plans.train.world_size), rank=runtime.rank())
    return infer_place(config)


def first_rank_first(action: Callable[[], None]) -> None:
    """Rank 0 does it; the others go on when it is done."""
    if is_first():
        action()
    if runtime.world_size() > 1:
        barrier()


def path_for_all(find: Callable[[], Path | None]) -> Path | None:
    """What rank 0 finds, known to all."""
    path = find() if is_first() else None
    if runtime.world_size() == 1:
        return path
    told = exchange(str(path or "").encode(), senders=(0,))[0].decode()
    return Path(told) if told else None
