"""A strategy without a strategy file: what the compiler would write for a plan, or the one source a user named.

What enters: a configuration and a plan, or a path. What leaves: one record of all stages. Called by the commands on
checkpoints; needs no MindSpore.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from mindgspo.config import load_model_and_plans
from mindgspo.errors import CheckpointError, ConfigError
from mindgspo.parallel.ranks import RankGrid
from mindgspo.parallel.strategy.layouts import compiled_strategy
from mindgspo.parallel.strategy.record import Strategy
from mindgspo.strategies.plan_files import GRAPHS, graph_layouts
from mindgspo.strategies.sources import read_source

_SIZES = re.compile(r"(\d+)x(\d+)x(\d+)")


def plan_strategy(config: Path, plan: str) -> Strategy:
    """The strategy of a graph of `config` (train, reference, rollout), or of its training graph on other sizes.

    plan: a graph's name, or data x model x pipeline, e.g. 1x4x2. Raises ConfigError for another word, or a plan that
    does not fit the model.
    """
    model, plans = load_model_and_plans(config)
    sizes = _SIZES.fullmatch(plan)
    if sizes is None and plan not in GRAPHS:
        raise ConfigError(f"{plan}: no plan; give {', '.join(GRAPHS)}, or data x model x pipeline, e.g. 1x4x2")
    if sizes is not None:
        data, cards, stages = map(int, sizes.groups())
        changed = {"data_parallel": data, "model_parallel": cards, "pipeline_stage": stages}
        plans = plans.model_copy(update={"train": type(plans.train)(**{**plans.train.model_dump(), **changed})})
    used, layouts = graph_layouts(model, plans, "train" if sizes else plan)
    grid = RankGrid.of(used)
    stages_of = [
        compiled_strategy(layouts, plan=used, rank=grid.stage_ranks(stage)[0]) for stage in range(grid.pipeline_stage)
    ]
    merged = {stage: entries for record in stages_of for stage, entries in record.stages.items()}
    return replace(stages_of[0], stages=merged, source=f"plan {plan} of {config}")


def single_source(path: Path) -> Strategy:
    """One file or one folder of ranks' files. Raises CheckpointError where there are those of several graphs."""
    found = read_source(path)
    if len(found) > 1:
        example = path / next(iter(found))
        raise CheckpointError(f"{path}: holds the strategies of {', '.join(found)}; give one of them, e.g. {example}")
    (strategy,) = found.values()
    return replace(strategy, source=str(path))
