"""The report on each graph, as aligned lines; where MindSpore refuses one, its words cut to the lines that matter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from mindgspo.dryrun.graph_text import GraphFacts
from mindgspo.dryrun.runner import CallMemory, CompileFailure, GraphResult
from mindgspo.text import aligned, counted

_LABEL = 13
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MOST_RANKS = 6


def block(result: GraphResult, *, world_size: int) -> Iterator[str]:
    """Lines on one graph of one rank."""
    head = f"{result.graph}, rank {result.rank} of {world_size}"
    if result.failure is None:
        yield head
        yield from _entry("compile", [f"{result.seconds:.1f} s, {size_text(result.peak_rss)} of host memory"])
        yield from _facts(result.facts)
        yield from _entry("memory", [_memory_text(result.memory)] if result.memory else [])
        return
    log = result.log.read_text(encoding="utf-8", errors="replace") if result.log.is_file() else ""
    refusal = refusal_of(result.failure, log)
    yield f"{head}: FAILED ({result.failure.phase})"
    yield from _entry("error", refusal.message.splitlines())
    yield from _entry("because", refusal.reasons)
    yield from _entry("at", [refusal.place] if refusal.place else [])
    yield from _entry("log", [str(result.log)])


def summary(results: Sequence[GraphResult], *, seconds: float) -> str:
    """The last line: what compiled and what failed."""
    failed = sum(result.failure is not None for result in results)
    compiled = len(results) - failed
    if failed:
        return f"{failed} of {len(results)} failed, {compiled} compiled for Ascend, in {seconds:.0f} s"
    ranks = len({result.rank for result in results})
    what = f"{counted(compiled, 'graph')} of {counted(ranks, 'rank')}"
    return f"{what} compiled for Ascend in {seconds:.0f} s"


def _facts(facts: GraphFacts) -> Iterator[str]:
    numbers = sum(parameter.count for parameter in facts.parameters)
    by_dtype: Counter[str] = Counter()
    for parameter in facts.parameters:
        by_dtype[parameter.dtype] += parameter.bytes or 0
    sizes = ", ".join(f"{dtype} {size_text(size)}" for dtype, size in sorted(by_dtype.items()))
    yield from _entry(
        "parameters",
        [
            f"{counted(len(facts.parameters), 'tensor')}, {numbers:,} numbers, {size_text(facts.parameter_bytes)}"
            + (f" ({sizes})" if sizes else "")
        ],
    )
    rows = [
        (entry.kind, f"ranks {rank_text(entry.ranks)}", counted(entry.count, "time"), size_text(entry.bytes))
        for entry in facts.collectives
    ]
    yield from _entry("collectives", aligned(rows, left=2) or ["none"])
    yield from _entry("fused", [_counts(facts.fused) or "none"])
    yield from _entry("products", [_counts(facts.products) or "none"])


def _memory_text(memory: CallMemory) -> str:
    if memory.why_not:
        return f"not measured: {memory.why_not}"
    beside = f"; {size_text(memory.beside)} of it lie beside the graph" if memory.beside else ""
    return (
        f"{size_text(memory.allocated)} peak on the device (MindSpore's allocator; without workspaces and HCCL "
        f"buffers{beside})"
    )


def size_text(size: int | None) -> str:
    """Bytes in the unit that leaves the fewest digits."""
    if size is None:
        return "size known at run time"
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.2f} {_UNITS[unit]}"


def rank_text(ranks: Sequence[int]) -> str:
    """0-3 for neighbours, 0,8,..,56 for many in equal steps, otherwise all."""
    if not ranks:
        return "?"
    steps = {later - earlier for earlier, later in pairwise(ranks)}
    if steps == {1} and len(ranks) > 2:
        return f"{ranks[0]}-{ranks[-1]}"
    if len(steps) == 1 and len(ranks) > _MOST_RANKS:
        return f"{ranks[0]},{ranks[1]},..,{ranks[-1]}"
    return ",".join(map(str, ranks))


def _entry(label: str, lines: Sequence[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"  {label if number == 0 else '':<{_LABEL}}{line}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


# ----- refusals: MindSpore raises a few words with pages of call stacks, and logs the reason with its numbers

_MOST_REASONS = 3
_MOST_CHARACTERS = 600

# From here on a message is call stacks.
_STACKS = re.compile(r"\n\s*-{20,}\n|\n\nAt:\n|\n# \d+ In file | \(See file ")
# [ERROR] PARALLEL(3372,7f4a4fe4cb80,python):2026-11-22-00:15:00 [mindspore/ccsrc/a/b.cc:248] Function] text
# but what it says about Python packages of CANN, which stand-ins do without.
_LOGGED = re.compile(
    r"^\[(?:ERROR|CRITICAL)\] \w+\([^)]*\):\S+ \[(?!mindspore/run_check/)[^\]]*\] (?:\w+\] )?(?P<text>.*)$",
    re.MULTILINE,
)
# What follows from a reason that was logged just before, or repeats what is raised.
_CONSEQUENCE = re.compile(
    r"\b(?:Check\w*|Init|Infer\w*) ?failed\.?$|infer failed, failed info: |Exception happened, check the information"
)
# "# 3 In file /a/b.py:40, 15~42" or without the number; the line of code follows. A range of lines is a whole function.
_FRAME = re.compile(r"^#(?: \d+)? In file (?P<file>[^\n]+?):(?P<line>\d+), [^\n]*\n(?P<code>[^\n]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """MindSpore's refusal of a graph."""

    message: str
    """The text that was raised."""
    reasons: tuple[str, ...]
    """Lines that were logged about it, with numbers."""
    place: str
    """Our line of code, or ""."""


def refusal_of(failure: CompileFailure, log: str) -> Refusal:
    """The lines that matter of what MindSpore raised and logged. log: all that the process said, "" if unknown."""
    message = _STACKS.split(failure.text, maxsplit=1)[0].strip().removeprefix("Failure:")
    if not message:
        message = failure.kind
    elif failure.phase in ("compile", "reading the graph"):
        message = f"{failure.kind}: {message}"
    return Refusal(
        message=_short(message), reasons=_reasons(log, message), place=_place(failure.text) or _shown(failure.place)
    )


def _reasons(log: str, message: str) -> tuple[str, ...]:
    found: dict[str, None] = {}  # an ordered set
    for match in _LOGGED.finditer(log):
        text = match["text"].strip()
        if text and text not in message and not _CONSEQUENCE.search(text):
            found[_short(text)] = None
    return tuple(found)[-_MOST_REASONS:]


def _place(text: str) -> str:
    """The innermost line of a cell outside of installed packages: stacks list callers first."""
    frames = [frame for frame in _FRAME.finditer(text) if "site-packages" not in frame["file"]]
    return _shown(f"{frames[-1]['file']}:{frames[-1]['line']}: {frames[-1]['code'].strip()}") if frames else ""


def _shown(place: str) -> str:
    """Paths of our own package from its name on."""
    package = Path(__file__).resolve().parents[2]
    return place.removeprefix(f"{package}/")


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."
