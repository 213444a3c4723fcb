"""What became of each graph, as aligned lines for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from mindgspo.dryrun.graph_text import GraphFacts
from mindgspo.dryrun.job import Memory
from mindgspo.dryrun.messages import cut
from mindgspo.dryrun.runner import Result
from mindgspo.text import aligned, counted

_LABEL = 13
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MOST_RANKS = 6


def block(result: Result, *, world_size: int) -> Iterator[str]:
    """Lines on one graph of one rank."""
    head = f"{result.graph}, rank {result.rank} of {world_size}"
    if result.failure is None:
        yield head
        yield from _entry("compile", [f"{result.seconds:.1f} s, {size_text(result.peak_rss)} of host memory"])
        yield from _facts(result.facts)
        yield from _entry("memory", [_memory_text(result.memory)] if result.memory else [])
        return
    log = result.log.read_text(encoding="utf-8", errors="replace") if result.log.is_file() else ""
    refusal = cut(result.failure, log)
    yield f"{head}: FAILED ({result.failure.phase})"
    yield from _entry("error", refusal.message.splitlines())
    yield from _entry("because", refusal.reasons)
    yield from _entry("at", [refusal.place] if refusal.place else [])
    yield from _entry("log", [str(result.log)])


def summary(results: Sequence[Result], *, seconds: float) -> str:
    """The last line: what compiled and what failed."""
    failed = sum(result.failure is not None for result in results)
    compiled = len(results) - failed
    if failed:
        return f"{failed} of {len(results)} failed, {compiled} compiled for Ascend, in {seconds:.0f} s"
    ranks = len({result.rank for result in results})
    what = f"{counted(compiled, 'graph')} of {counted(ranks, 'rank')}"
    return f"{what} compiled for Ascend in {seconds:.0f} s"


def _facts(facts: GraphFacts) -> Iterator[str]:
    numbers = sum(parameter.type.count for parameter in facts.parameters)
    by_dtype: Counter[str] = Counter()
    for parameter in facts.parameters:
        by_dtype[parameter.dtype] += parameter.type.bytes or 0
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


def _memory_text(memory: Memory) -> str:
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
