"""Start of a run from the command line: in this process, or in as many workers as the plans need."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mindgspo.checkpoint.run_folder import RunStatus, open_run_folder
from mindgspo.config import ExperimentConfig, KLSection, config_mapping, load_config
from mindgspo.config.hub import hub_revisions
from mindgspo.config.load import read_layers
from mindgspo.errors import ConfigError
from mindgspo.interrupts import advise
from mindgspo.launch.launcher import launch
from mindgspo.launch.processes import plan_cluster
from mindgspo.launch.serving import own_servers
from mindgspo.launch.watch import watch_this_process
from mindgspo.launch.worker import run_worker
from mindgspo.metrics.tracking import check_installed
from mindgspo.parallel.platform import worker_process
from mindgspo.progress import enter_phase
from mindgspo.rollout.weights_folder import weights_folders
from mindgspo.trainer.resume_checks import check_config, finished_line, is_complete


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Machines of a run, named as msrun's options."""

    workers: int | None = None
    """Workers that the user expects the plans to need; None: as many as they need."""
    nodes: int = 1
    """Machines."""
    node_rank: int = 0
    """Number of this machine."""
    master_addr: str = "127.0.0.1"
    """Address of rank 0's machine."""
    master_port: int | None = None
    """Port there; None: a free one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A run as it was asked for on the command line."""

    command: str
    """run or sft."""
    config: Path
    overrides: tuple[str, ...]
    overwrite: bool
    complete: Callable[[ExperimentConfig], ExperimentConfig]
    """Fills in settings that follow from the whole configuration."""

    def experiment(self) -> ExperimentConfig:
        """The resolved configuration of the requested run. Raises ConfigError."""
        if self.command != "sft":
            return self.complete(load_config(self.config, self.overrides))
        overrides, layers = self.overrides, read_layers(self.config, self.overrides)
        if layers.get("run_dir") is None:
            overrides = (*overrides, "run_dir=" + json.dumps(f"runs/{layers.get('experiment')}-sft"))
        return warm_up_alone(self.complete(load_config(self.config, overrides)))

    def arguments(self) -> list[str]:
        """Arguments of a worker for the same experiment; an earlier run has been moved aside by then."""
        return ["-m", "mindgspo.cli", self.command, *self.words()]

    def words(self) -> list[str]:
        """The experiment on a command line."""
        return [str(self.config), *(word for override in self.overrides for word in ("--set", override))]


def start(request: RunRequest, options: ClusterOptions) -> int:
    """Run an experiment and return the exit code. Raises the errors of `mindgspo.errors`."""
    worker_process.api_key()  # before there are children, which must not inherit it
    if worker_process.is_launched():
        if worker_process.launch_orders() is None:
            _check_msrun(request.experiment())
        run_worker(lambda: _work(request, request.experiment()))
    config = request.experiment()
    worker_process.tell_hub_revisions(hub_revisions(config_mapping(config)))
    if options.node_rank == 0:
        check_installed(config.logging.trackers)
    advise("what was saved stays, go on with --set resume=auto")
    needed = config.plans.train.world_size
    if options.workers not in (None, needed):
        raise ConfigError(f"--workers {options.workers}: {_needs(config)}; leave the option out, or change the plans")
    machines = {name: value for name, value in asdict(options).items() if name != "workers"}
    cluster = {"num_workers": needed, **machines}
    plan_cluster(**cluster)  # refuses impossible clusters before a folder is touched
    if config.has_own_servers and options.nodes > 1:
        raise ConfigError(
            f"--nodes {options.nodes}: a run starts servers that generate on one machine only; start them with "
            "`mindgspo serve` where their cards are, and name them in rollout.servers.urls"
        )
    if options.node_rank == 0 and _is_finished(request, config):
        return 0
    request = replace(request, overwrite=False)
    if not config.has_own_servers:
        return _work(request, config) if needed == 1 else _launch(request, config, cluster)
    assert config.run_dir is not None, "config is not resolved"
    try:
        with own_servers(config, request.words(), config.run_dir / "logs") as show_dead:
            if needed == 1:
                return _work(request, config)
            code = _launch(request, config, cluster)
            if code:
                show_dead()
            return code
    finally:
        for folder in weights_folders(config):  # of a trainer that was killed
            shutil.rmtree(folder, ignore_errors=True)


def _needs(config: ExperimentConfig) -> str:
    train, infer = config.plans.train, config.plans.infer
    return f"plans.train {train} and plans.infer {infer} (data x model x pipeline) need {train.world_size}"


def _check_msrun(config: ExperimentConfig) -> None:
    """Reject a number of workers other than the plans', in the scheduler's process, too: msrun waits for it, and it
    waits for workers that will not come. Also print which rank this is, for msrun's logs of ranks that print nothing
    else."""
    number, rank = worker_process.msrun_workers()
    if number != config.plans.train.world_size:
        needed = config.plans.train.world_size
        raise ConfigError(
            f"msrun --worker_num {number}: {_needs(config)}; give --worker_num {needed}, or change the plans"
        )
    if not worker_process.is_scheduler():
        who = "a rank" if rank is None else f"rank {rank}"
        print(
            f"{who} of {number}, process {os.getpid()} on {socket.gethostname()}; rank 0 tells how the run goes",
            flush=True,
        )


def _is_finished(request: RunRequest, config: ExperimentConfig) -> bool:
    """Handle what an earlier run left before MindSpore is imported; rank 0 opens and locks the folder again."""
    assert config.run_dir is not None, "config is not resolved"
    folder = open_run_folder(config.run_dir, resume=config.resume, overwrite=request.overwrite, restore=config.restore)
    folder.close()
    if folder.moved_aside is not None:
        print(f"the former run was moved to {folder.moved_aside}")
    check_config(config, folder)
    if is_complete(config, folder) or (request.command == "sft" and folder.status is RunStatus.FINISHED):
        print(finished_line(folder))
        return True
    return False


def _launch(request: RunRequest, config: ExperimentConfig, cluster: Mapping[str, Any]) -> int:
    """cluster: the arguments of `plan_cluster`."""
    assert config.run_dir is not None, "config is not resolved"
    on_cards, log_dir = config.device == "Ascend", config.run_dir / "logs"
    return launch(request.arguments(), log_dir=log_dir, watch=config.watch, on_cards=on_cards, **cluster)


def _work(request: RunRequest, config: ExperimentConfig) -> int:
    enter_phase("start")
    from mindgspo.trainer.loop import run_experiment  # MindSpore comes with it

    is_watched = worker_process.launch_orders() is not None  # the launcher looks at the heartbeats of its workers
    with nullcontext() if is_watched else watch_this_process(config.watch):
        report = run_experiment(config, overwrite=request.overwrite, only_warm_up=request.command == "sft")
    if report is not None:
        print(f"report: {report}")
    return 0


def warm_up_alone(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration of `mindgspo sft`: only the warm-up of an experiment, with its export.

    Its run folder is runs/<experiment>-sft unless run_dir names another: in the experiment's folder it would block the
    experiment. Raises ConfigError if no warm-up is configured.
    """
    if config.warmup is None:
        raise ConfigError("warmup: missing; `mindgspo sft` runs only the warm-up (max_steps, batch_size, lr)")
    # No step is trained, so no reference policy is needed.
    algorithm = config.algorithm.model_copy(update={"kl": KLSection(agg_mode=config.algorithm.kl.agg_mode)})
    return config.model_copy(update={"experiment": f"{config.experiment}-sft", "algorithm": algorithm})
