"""The process that compiles one graph: `python -m mindgspo.dryrun.child JOB.json`.

Started by `runner`, once per graph and rank, because a process is one rank of one cluster.

Where memory is measured, MindSpore's simulation level is 1: the backend too makes its kernels of the graph, and a call
takes memory for every tensor in the order of execution, but launches nothing. Parameters that are on the device then
and not in the graph are added.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ascend_emulator.toolchain import install_stand_in_packages
from mindgspo.dryrun.graph_text import GraphFacts, read_graph
from mindgspo.dryrun.runner import (
    UNFINISHED,
    CallMemory,
    ChildAnswer,
    CompileFailure,
    CompileJob,
    read_message,
    write_message,
)
from mindgspo.metrics.timers import peak_rss_mb
from mindgspo.parallel.collectives.host import made_groups
from mindgspo.parallel.platform.runtime import (
    call_for_memory,
    compiled_text,
    give_untouched_zeros,
    join_cluster,
    set_up_runtime,
)
from mindgspo.parallel.platform.worker_process import die_with_parent

if TYPE_CHECKING:
    from mindgspo.config import ExperimentConfig


def compile_and_answer() -> None:
    """Compile, answer, end at once: stand-ins cannot be taken down in order."""
    die_with_parent()
    job = read_message(Path(sys.argv[1]), CompileJob)
    sys.path[:0] = job.import_folders
    if job.is_stand_in:
        install_stand_in_packages()
    compile_ = _Compile(job)
    answer, path = compile_.answer(), Path(job.result_path)
    if job.measures_memory and answer.failure is None:
        write_message(path, replace(answer, memory=CallMemory(why_not=UNFINISHED)))  # in case the call ends the process
        answer = replace(answer, memory=compile_.memory(answer.facts))
    write_message(path, answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _Compile:
    """One graph on its way; `phase` says how far it came, for the case that it does not arrive."""

    def __init__(self, job: CompileJob) -> None:
        self.job = job
        self.phase = "set-up"
        self.seconds = 0.0
        self.graph: Any = None

    def answer(self) -> ChildAnswer:
        failure, facts = None, GraphFacts()
        try:
            facts = self._compile()
        except Exception as error:
            traceback.print_exc()
            failure = CompileFailure(
                phase=self.phase, kind=type(error).__name__, text=str(error), place=_place(error.__traceback__)
            )
        return ChildAnswer(seconds=self.seconds, peak_rss=round(peak_rss_mb() * 2**20), failure=failure, facts=facts)

    def _compile(self) -> GraphFacts:
        job = self.job
        set_up_runtime("Ascend")
        join_cluster()  # rank RANK_ID of RANK_SIZE; no other process is met
        self.phase = "build"
        graph = _builder(job.builder)(_config(job), job.graph, job.rank)
        self.graph = graph
        self.phase = "compile"
        started = time.monotonic()
        try:
            graph.cell.compile(*graph.inputs)
        finally:
            self.seconds = time.monotonic() - started
        self.phase = "reading the graph"
        return read_graph(compiled_text(graph.cell), job.world_size, made_groups())

    def memory(self, facts: GraphFacts) -> CallMemory:
        """Memory of one call of the compiled graph; no kernel is executed. facts: of the graph."""
        try:
            give_untouched_zeros(self.graph.cell.get_parameters())
            allocated, reserved = call_for_memory(self.graph.cell, self.graph.inputs)
        except Exception as error:
            traceback.print_exc()
            return CallMemory(why_not=f"{type(error).__name__}: {error}".strip().splitlines()[0])
        held = {parameter.name for parameter in facts.parameters}
        beside = sum(parameter.nbytes for parameter in self.graph.resident if parameter.name not in held)
        return CallMemory(allocated=allocated + beside, reserved=reserved + beside, beside=beside)


def _config(job: CompileJob) -> ExperimentConfig | None:
    """The experiment, as the parent read it: weights and data need not be there."""
    if job.config is None:
        return None
    from mindgspo.config import load_config
    from mindgspo.planner.cache_budget import with_cache_budget

    before = os.getcwd()
    os.chdir(job.working_folder)  # relative paths in overrides count from there
    try:
        return with_cache_budget(load_config(job.config, job.overrides, check_files=False))
    finally:
        os.chdir(before)


def _builder(name: str) -> Any:
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)


def _place(trace: TracebackType | None) -> str:
    """The innermost line outside of installed packages and of this file; "" if there is none."""
    for frame in reversed(traceback.extract_tb(trace)):
        if "site-packages" not in frame.filename and frame.filename != __file__:
            return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return ""


if __name__ == "__main__":
    compile_and_answer()
