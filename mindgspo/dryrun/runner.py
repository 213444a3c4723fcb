"""Compiles one graph of one rank in a process of its own, `child`; they exchange JSON files, whole or absent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import TypeAdapter

from mindgspo.dryrun.graph_text import GraphFacts
from mindgspo.io import scratch_folder, write_file

if TYPE_CHECKING:
    from ascend_emulator.toolchain import Toolchain

_Record = TypeVar("_Record")
# A simulated rank must not meet a real cluster, nor take a graph from a cache instead of compiling it.
_NOT_PASSED_ON = frozenset(
    (
        *("MS_ROLE", "MS_WORKER_NUM", "MS_NODE_ID", "MS_SCHED_HOST", "MS_SCHED_PORT"),
        *("RANK_TABLE_FILE", "DEVICE_ID", "MS_COMPILER_CACHE_ENABLE"),
    )
)

BUILDER = "mindgspo.dryrun.graphs:build_graph"
TIME_LIMIT_S = 1800.0


UNFINISHED = "the process ended while the graph was called"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileJob:
    """One graph of one rank to compile."""

    config: str | None
    """Experiment YAML; None: the builder gets None."""
    overrides: tuple[str, ...]
    """`--set` entries, read in `working_folder`."""
    working_folder: str
    graph: str
    rank: int
    world_size: int
    builder: str
    """"module:function", called as builder(config, graph, rank); returns a `graphs.CompilableGraph`."""
    import_folders: tuple[str, ...]
    """Further folders to look for the builder's module."""
    result_path: str
    is_stand_in: bool
    measures_memory: bool = False
    """Whether the graph is called too, with MindSpore's allocator and without a kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFailure:
    """Why a graph did not compile."""

    phase: str
    """"set-up", "build", "compile", "reading the graph", or "process" if the process gave no answer."""
    kind: str
    """Class of the exception."""
    text: str
    place: str = ""
    """The last line of ours that Python was in, as "file:line: code", or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMemory:
    """Device memory at the peak of one call, in bytes."""

    allocated: int = 0
    """All tensors that MindSpore's allocator had given out, and `beside`."""
    reserved: int = 0
    """The blocks that it had taken for them, and `beside`."""
    beside: int = 0
    """Parameters on the device during the call but not in the graph: AdamW's moments beside a graph of gradients."""
    why_not: str = ""
    """One line, where it could not be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildAnswer:
    """A failure, or the facts of a compiled graph."""

    seconds: float
    """Seconds of the compile alone."""
    peak_rss: int
    """Most bytes of host memory that the process held."""
    failure: CompileFailure | None = None
    facts: GraphFacts = field(default_factory=GraphFacts)
    memory: CallMemory | None = None
    """None if it was not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphResult(ChildAnswer):
    """The answer on one graph of one rank."""

    graph: str
    rank: int
    log: Path
    """All that the process said."""


def write_message(path: Path, message: CompileJob | ChildAnswer) -> None:
    """Write a job or an answer atomically."""
    write_file(path, TypeAdapter(type(message)).dump_json(message), sync=False)


def read_message(path: Path, kind: type[_Record]) -> _Record:
    """The job or answer that `write_message` wrote."""
    return TypeAdapter(kind).validate_json(path.read_bytes())


def run_child(
    toolchain: Toolchain,
    folder: Path,
    *,
    config: Path | None,
    graph: str,
    rank: int,
    world_size: int,
    overrides: tuple[str, ...] = (),
    builder: str = BUILDER,
    import_folders: tuple[Path, ...] = (),
    time_limit_s: float = TIME_LIMIT_S,
    measures_memory: bool = False,
) -> GraphResult:
    """Compile one graph as `rank` of `world_size`; nothing of the process outlives this call.

    Writes <folder>/logs/<graph>_<rank>.log. builder, import_folders: as in `CompileJob`. measures_memory: also by
    MindSpore's backend, which is asked for the memory of a call; where that fails, the graph is compiled once more
    without, so that the result has the facts of the front end in any case. Raises nothing for a graph that does not
    compile: that is in the result.
    """
    log = (folder / "logs" / f"{graph}_{rank}.log").resolve()
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    with scratch_folder("dryrun") as scratch:
        job = CompileJob(
            config=str(config.resolve()) if config else None,
            overrides=overrides,
            working_folder=os.getcwd(),
            graph=graph,
            rank=rank,
            world_size=world_size,
            builder=builder,
            import_folders=tuple(str(path.resolve()) for path in import_folders),
            result_path=str(scratch / "answer.json"),
            is_stand_in=toolchain.is_stand_in,
            measures_memory=measures_memory,
        )
        answer = _answer(job, scratch, toolchain, log, time_limit_s)
        if measures_memory and answer.failure is not None and answer.failure.phase in ("set-up", "compile", "process"):
            answer = _without_memory(answer.failure, job, scratch, toolchain, log, time_limit_s)
    found = {each.name: getattr(answer, each.name) for each in fields(answer)}
    return GraphResult(graph=graph, rank=rank, log=log, **found)


def _without_memory(
    failure: CompileFailure, job: CompileJob, scratch: Path, toolchain: Toolchain, log: Path, time_limit_s: float
) -> ChildAnswer:
    """failure: that of the front end and the backend together."""
    answer = _answer(replace(job, measures_memory=False), scratch, toolchain, log, time_limit_s)
    if answer.failure is not None:
        return answer
    why_not = f"{failure.kind}: {failure.text}".strip().splitlines()[0]
    return replace(answer, memory=CallMemory(why_not=why_not))


def _answer(job: CompileJob, scratch: Path, toolchain: Toolchain, log: Path, time_limit_s: float) -> ChildAnswer:
    """Start the process, wait for its end, kill what is left of it; also when this process is interrupted."""
    write_message(scratch / "job.json", job)
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "mindgspo.dryrun.child", str(scratch / "job.json")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(job, scratch, toolchain),
            cwd=scratch,  # MindSpore leaves folders where it runs
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends the other
        )
        try:
            code: int | None = child.wait(time_limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if Path(job.result_path).is_file():
        answer = read_message(Path(job.result_path), ChildAnswer)
        is_whole = answer.memory is None or answer.memory.why_not != UNFINISHED
        return answer if is_whole else replace(answer, memory=CallMemory(why_not=_end(code, time_limit_s)))
    failure = CompileFailure(phase="process", kind="no answer", text=_end(code, time_limit_s))
    return ChildAnswer(seconds=0.0, peak_rss=0, failure=failure)


def _end(code: int | None, time_limit_s: float) -> str:
    if code is None:
        return f"not done after {time_limit_s:g} s, so it was ended; --time-limit gives it more"
    if code == -signal.SIGKILL:
        return "killed by the system, which does so when memory runs out"
    return f"the process ended by signal {-code}" if code < 0 else f"the process ended with exit code {code}"


def _environment(job: CompileJob, scratch: Path, toolchain: Toolchain) -> dict[str, str]:
    """MindSpore reads it when it is loaded, so all of it has to be there before the process starts.

    GLOG_v 3: errors are logged, and only there stands why an operator refused its inputs.
    """
    package = Path(__file__).resolve().parents[2]
    passed_on = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    return passed_on | {
        "LD_LIBRARY_PATH": _joined(toolchain.libraries, os.environ.get("LD_LIBRARY_PATH")),
        "PYTHONPATH": _joined(package, os.environ.get("PYTHONPATH")),
        "MS_SIMULATION_LEVEL": "1" if job.measures_memory else "0",
        "RANK_SIZE": str(job.world_size),
        "RANK_ID": str(job.rank),
        "GLOG_v": "3",
        "GLOG_logtostderr": "1",
        "MS_DEV_DUMP_PATH": str(scratch),
        "MS_OM_PATH": str(scratch),
    }


def _joined(first: Path, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else str(first)
