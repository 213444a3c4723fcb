"""Device setup, joining the workers of a run, this process's placement in each plan, and work that only rank 0 does.

In a single process all of this costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mindgspo.config import ExperimentConfig, ParallelPlan, config_mapping
from mindgspo.errors import ConfigError
from mindgspo.parallel.collectives.host import barrier, exchange, open_shared_memory, require_agreement
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform import heartbeat, runtime, worker_process

# Settings that may differ between ranks.
_FREE = ("run_dir", "logging")


def start_device(config: ExperimentConfig) -> None:
    """Set up the device and join the other workers of the plans.

    Raises ConfigError if this machine lacks the configured device, the plans need another number of workers, or a
    worker was started with another configuration.
    """
    try:
        runtime.set_up_runtime(config.device, deterministic=config.trainer.deterministic)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"device: {config.device} cannot be used here; set device=CPU ({reason})") from error
    needed = config.plans.train.world_size
    # Both the training loop and the builder call this, but a process joins only once.
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
    """Join the cluster and show the launcher that this rank has; call `runtime.set_up_runtime` first."""
    heartbeat.enter(heartbeat.MEETING, 0)
    worker_process.await_scheduler()
    runtime.join_cluster()
    heartbeat.enter("setup", 0)


def is_first() -> bool:
    """Whether this process writes logs, checkpoints and reports."""
    return runtime.rank() == 0


def train_place(config: ExperimentConfig) -> Placement:
    """Return this process's placement while training."""
    return Placement(plan=config.plans.train, rank=runtime.rank())


def reference_place(config: ExperimentConfig) -> Placement:
    """Return this process's placement while scoring with the reference policy's weights."""
    return Placement(plan=config.plans.scoring, rank=runtime.rank())


def infer_place(config: ExperimentConfig) -> Placement:
    """Return this process's placement while generating."""
    return Placement(plan=config.plans.infer, rank=runtime.rank())


def scoring_place(config: ExperimentConfig) -> Placement:
    """Return this process's placement while responses are scored: that of generation, or, if servers generate, one
    replica per rank."""
    if config.has_servers:
        return Placement(plan=ParallelPlan(data_parallel=config.plans.train.world_size), rank=runtime.rank())
    return infer_place(config)


def first_rank_first(action: Callable[[], object]) -> None:
    """Run `action` on rank 0 and have the other ranks wait for it."""
    if is_first():
        action()
    if runtime.world_size() > 1:
        barrier()


def path_for_all(find: Callable[[], Path | None]) -> Path | None:
    """Return the path that rank 0 finds, on every rank."""
    found = text_for_all(lambda: str(find() or ""))
    return Path(found) if found else None


def text_for_all(find: Callable[[], str]) -> str:
    """Return the text that rank 0 finds, on every rank."""
    if runtime.world_size() == 1:
        return find()
    return exchange(find().encode() if is_first() else b"", senders=(0,))[0].decode()
