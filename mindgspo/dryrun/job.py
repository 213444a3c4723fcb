"""What a child process is told and what it answers, as JSON files that are whole or absent.

Written and read by `runner` and `child`.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from mindgspo.dryrun.graph_text import GraphFacts, facts_from_json
from mindgspo.io import write_file

UNFINISHED = "the process ended while the graph was called"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One graph of one rank to compile.

    config, overrides: experiment YAML and `--set` entries, read in `working_folder`; no config: the builder gets None.
    builder: "module:function", called as builder(config, graph, rank); it returns a `graphs.CompilableGraph`.
    import_folders: where else its module is looked for. measures_memory: whether the graph is called too, with
    MindSpore's allocator and without a kernel.
    """

    config: str | None
    overrides: tuple[str, ...]
    working_folder: str
    graph: str
    rank: int
    world_size: int
    builder: str
    import_folders: tuple[str, ...]
    result_path: str
    is_stand_in: bool
    measures_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """phase: "set-up", "build", "compile", "reading the graph", or "process" if the process gave no answer.

    kind: class of the exception. text: all that it says. place: the last line of ours that Python was in, as
    "file:line: code", or "".
    """

    phase: str
    kind: str
    text: str
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is taken on the device at the peak of one call.

    allocated: bytes of all tensors that MindSpore's allocator had given out, and `beside`. reserved: bytes of the
    blocks that it had taken for them, and `beside`. beside: bytes of parameters which are on the device during the
    call, but not in the graph: AdamW's moments beside a graph of gradients. why_not: one line, where it could not be
    measured.
    """

    allocated: int = 0
    reserved: int = 0
    beside: int = 0
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a child found out: a failure, or the facts of a compiled graph.

    seconds: of the compile alone. peak_rss: bytes of memory that the process held at most. memory: None where it was
    not asked for.
    """

    seconds: float
    peak_rss: int
    failure: Failure | None = None
    facts: GraphFacts = dataclasses.field(default_factory=GraphFacts)
    memory: Memory | None = None


def write_record(path: Path, record: Job | Answer) -> None:
    """Write a job or an answer atomically."""
    write_file(path, json.dumps(dataclasses.asdict(record)).encode(), sync=False)


def read_job(path: Path) -> Job:
    """The job that `write_record` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    lists = {key: tuple(content[key]) for key in ("overrides", "import_folders")}
    return Job(**content | lists)


def read_answer(path: Path) -> Answer:
    """The answer that `write_record` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    failure = Failure(**content["failure"]) if content["failure"] else None
    memory = Memory(**content["memory"]) if content["memory"] else None
    return Answer(**content | {"failure": failure, "facts": facts_from_json(content["facts"]), "memory": memory})
