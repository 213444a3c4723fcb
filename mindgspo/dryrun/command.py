"""`mindgspo dryrun`: an experiment -> its graphs compiled for Ascend, one process after the other."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mindgspo.config import ExperimentConfig, ParallelPlan, dump_config, load_config
from mindgspo.dryrun.report import block, summary
from mindgspo.dryrun.runner import BUILDER, TIME_LIMIT_S, GraphResult, run_child
from mindgspo.errors import DryRunError
from mindgspo.io import write_error
from mindgspo.parallel.plans.placement import Placement, RankGrid
from mindgspo.parallel.platform.emulator import find_toolchain
from mindgspo.planner.cache_budget import with_cache_budget
from mindgspo.planner.command import DRY_RUNS
from mindgspo.planner.measured import MeasuredPeak, fingerprint, store_peak
from mindgspo.progress import console_of

if TYPE_CHECKING:
    from ascend_emulator.toolchain import Toolchain

OF_UPDATE = ("train", "forward", "sum", "step", "gather")
# Those that a run compiles, as far as the plan has them, and old_policy where the reference has a plan of its own.
RUN_GRAPHS = (*OF_UPDATE, "reference", "prefill", "decode")
GRAPHS = (*RUN_GRAPHS, "old_policy")
_CONFIG_FILE = "config.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunRequest:
    """A dry run to make: the experiment as it is on Ascend, whatever device its file names."""

    config: Path
    overrides: tuple[str, ...] = ()
    graphs: tuple[str, ...] = RUN_GRAPHS
    """Graphs to compile; those that a rank does not have are left out."""
    ranks: tuple[int, ...] | None = None
    """Ranks to compile for, of every graph; None: the first rank of each pipeline stage of the graph's plan."""
    is_all_ranks: bool = False
    folder: Path | None = None
    """Folder for logs and measurements; None: dryrun/<experiment>."""
    time_limit_s: float = TIME_LIMIT_S
    measures_memory: bool = True
    """See `run_child`."""
    builder: str = BUILDER
    """See `CompileJob`."""
    import_folders: tuple[Path, ...] = ()


@dataclass(slots=True)
class DryRun:
    """Compiles as `lines` or `results` is read. done: what was compiled so far."""

    request: DryRunRequest
    config: ExperimentConfig
    toolchain: Toolchain
    folder: Path
    done: list[GraphResult] = field(default_factory=list)

    @classmethod
    def prepare(cls, request: DryRunRequest) -> DryRun:
        """Check all that can be checked before the first compile.

        Raises ConfigError, DryRunUnavailable if nothing can be compiled, DryRunError for a rank or a graph that does
        not exist and for a folder that cannot be used.
        """
        request = replace(request, overrides=(*request.overrides, "device=Ascend"))
        config = with_cache_budget(load_config(request.config, request.overrides, check_files=False))
        if request.is_all_ranks and request.ranks is not None:
            raise DryRunError("--ranks and --all: give one of them")
        for graph in request.graphs:
            if graph not in GRAPHS:
                raise DryRunError(f"--graphs: {graph!r} is none of {', '.join(GRAPHS)}")
        plan = config.plans.train
        for rank in request.ranks or ():
            if not 0 <= rank < plan.world_size:
                raise DryRunError(f"--ranks: {rank}; plans.train {plan} has ranks 0 to {plan.world_size - 1}")
        if request.graphs == RUN_GRAPHS and config.plans.reference is not None:
            request = replace(request, graphs=(*RUN_GRAPHS, "old_policy"))
        toolchain = find_toolchain()
        return cls(request, config, toolchain, _folder(request, config))

    @property
    def num_failed(self) -> int:
        """Number of failures in `done`."""
        return sum(result.failure is not None for result in self.done)

    def lines(self) -> Iterator[str]:
        """The report; its last line sums up."""
        started = time.monotonic()
        yield str(self.toolchain)
        for result in self.results():
            yield ""
            yield from block(result, world_size=self._world_size)
        yield ""
        yield summary(self.done, seconds=time.monotonic() - started)

    def results(self) -> Iterator[GraphResult]:
        """Every graph and rank asked for, in order. Progress is shown on the terminal, if there is one."""
        jobs = self._jobs()
        console = console_of(sys.stderr)
        for number, (graph, rank) in enumerate(jobs, start=1):
            with console.status(f"compiling {graph} for rank {rank} ({number} of {len(jobs)})"):
                self.done.append(self._compile(graph, rank))
            self._store_memory(self.done[-1])
            yield self.done[-1]

    def _jobs(self) -> list[tuple[str, int]]:
        return [
            (graph, rank)
            for graph in self.request.graphs
            for rank in self._ranks(graph)
            if has_graph(_plan(self.config, graph), graph, rank)
        ]

    def _compile(self, graph: str, rank: int) -> GraphResult:
        return run_child(
            self.toolchain,
            self.folder,
            config=self.request.config,
            overrides=self.request.overrides,
            graph=graph,
            rank=rank,
            world_size=self._world_size,
            builder=self.request.builder,
            import_folders=self.request.import_folders,
            time_limit_s=self.request.time_limit_s,
            measures_memory=self.request.measures_memory,
        )

    def _store_memory(self, result: GraphResult) -> None:
        if result.memory is None or result.memory.why_not:
            return
        peak = MeasuredPeak(
            fingerprint=fingerprint(self.config, result.graph),
            graph=result.graph,
            rank=result.rank,
            world_size=self._world_size,
            mindspore=self.toolchain.mindspore,
            allocated=result.memory.allocated,
            reserved=result.memory.reserved,
        )
        try:
            store_peak(self.folder, peak)
        except OSError as error:
            raise DryRunError(str(write_error(self.folder, error))) from error

    @property
    def _world_size(self) -> int:
        """Train and infer plans share the cards, so one number holds for all graphs."""
        return self.config.plans.train.world_size

    def _ranks(self, graph: str) -> Sequence[int]:
        if self.request.is_all_ranks:
            return range(self._world_size)
        if self.request.ranks is not None:
            return self.request.ranks
        grid = RankGrid(_plan(self.config, graph))
        return [grid.stage_ranks(stage)[0] for stage in range(grid.plan.pipeline_stage)]


def has_graph(plan: ParallelPlan, graph: str, rank: int) -> bool:
    """Whether a rank runs a graph at all; plan: of training, for those of an update."""
    if graph == "forward":
        return not Placement(plan=plan, rank=rank).is_last_stage
    if graph == "gather":
        return plan.optimizer_shard and plan.token_parts > 1
    return graph != "sum" or plan.world_size > 1


def _plan(config: ExperimentConfig, graph: str) -> ParallelPlan:
    plans = config.plans
    if graph in ("prefill", "decode"):
        return plans.infer
    return plans.scoring if graph == "reference" else plans.train


def _folder(request: DryRunRequest, config: ExperimentConfig) -> Path:
    """The output folder with the configuration in it. One that was made for another configuration is moved aside."""
    folder = request.folder or DRY_RUNS / config.experiment
    text = dump_config(config)
    written = folder / _CONFIG_FILE
    try:
        if written.is_file() and written.read_text(encoding="utf-8") != text:
            os.rename(folder, folder.with_name(f"{folder.name}.old-{time.strftime('%Y%m%d-%H%M%S')}"))
        elif not written.is_file() and folder.is_dir() and any(folder.iterdir()):
            raise DryRunError(f"{folder}: holds something else than a dry run; give another --out")
        folder.mkdir(parents=True, exist_ok=True)
        written.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DryRunError(str(write_error(folder, error))) from error
    return folder
