"""The strategy files of a dry run, placed as those of the layout algebra are.

What enters: one compiled graph after the other, of the first rank of each pipeline stage. What leaves: the files of all
ranks, copies within a stage. Called by `tools/generate_strategy.py --compile`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from mindgspo.config.schema import PlansSection
from mindgspo.errors import CheckpointError
from mindgspo.parallel.ranks import RankGrid
from mindgspo.parallel.strategy.file import copy_strategy, rank_paths, read_strategy
from mindgspo.strategies.folding import ranges


class CompiledGraph(Protocol):
    """What the dry run tells of one graph of one rank. graph: one of GRAPHS. failure: None if it compiled. strategy:
    MindSpore's file."""

    graph: str
    rank: int
    seconds: float
    failure: Any
    strategy: Path | None
    log: Path


def place_compiled(compiled: CompiledGraph, plans: PlansSection, folder: Path) -> str:
    """Copy MindSpore's file to every rank of the compiled rank's stage; returns a line of summary.

    Raises CheckpointError where the graph did not compile, or wrote no file.
    """
    if compiled.failure is not None:
        raise CheckpointError(
            f"{compiled.graph}, rank {compiled.rank}: does not compile ({compiled.failure.phase}: "
            f"{compiled.failure.text.strip().splitlines()[0]}); `mindgspo dryrun` says more, or {compiled.log}"
        )
    if compiled.strategy is None:
        raise CheckpointError(
            f"{compiled.graph}, rank {compiled.rank}: MindSpore wrote no strategy file; {compiled.log}"
        )
    graph = compiled.graph
    plan = {"reference": plans.scoring, "rollout": plans.infer}.get(graph, plans.train)
    grid = RankGrid.of(plan)
    ranks = grid.stage_ranks(grid.coordinates(compiled.rank).stage)
    size = read_strategy(compiled.strategy).stage_size
    if size != len(ranks):
        raise CheckpointError(
            f"{compiled.strategy}: arranges {size} ranks, a stage of {plan} has {len(ranks)}; was another plan "
            "compiled?"
        )
    paths = rank_paths(folder / graph, plan, ".ckpt")
    strategy = copy_strategy(compiled.strategy, [paths[rank] for rank in ranks])
    return (
        f"{graph:<9}  compiled for rank {compiled.rank} in {compiled.seconds:.1f} s: {len(strategy.parameters)} "
        f"entries; the files of ranks {ranges(ranks)} in {folder / graph}"
    )
