"""Where ranks are, in words. What enters: heartbeats. What leaves: text. Called by whatever speaks to the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mindgspo.parallel.launch.folder import SCHEDULER
from mindgspo.parallel.launch.heartbeat import Record, State


def name(rank: int) -> str:
    """`rank 3`, or what the scheduler is called."""
    return "MindSpore's scheduler" if rank == SCHEDULER else f"rank {rank}"


def names(ranks: Iterable[int]) -> str:
    """`rank 3`, or `ranks 0, 2-5`."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"{'rank' if len(runs) == 1 and len(runs[0]) == 1 else 'ranks'} {', '.join(texts)}"


def position(record: Record | None) -> str:
    """`step 3, generate`; empty for a rank without a sign of life."""
    if record is None:
        return ""
    if record.state is State.FINISHED:
        return "finished"
    if record.entered == 0:
        return "starting"
    return f"step {record.step}, {record.stage}"


def positions(records: Mapping[int, Record | None]) -> str:
    """Ranks at the same place together: `ranks 0, 2 at step 3, update; rank 1 at step 3, generate`."""
    places: dict[str, list[int]] = {}
    for rank, record in sorted(records.items()):
        places.setdefault(position(record), []).append(rank)
    return "; ".join(_at(place, ranks) for place, ranks in places.items())


def _at(place: str, ranks: list[int]) -> str:
    if not place:
        return f"{names(ranks)} without a sign of life"
    return f"{names(ranks)} {place if place in ('finished', 'starting') else f'at {place}'}"
