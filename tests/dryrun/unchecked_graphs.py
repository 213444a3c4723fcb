"""The shipped cells of a wrong plan, without the rules that would have refused it; imported in child processes only.

`build(config, graph, ...)` in a folder that is named as the wrong plan.
"""

from __future__ import annotations

from pathlib import Path

from dryrun.wrong_plans import WRONG_PLANS, write_base

from mindgspo.ascend.dryrun.graphs import CompilableGraph, build_graph
from mindgspo.config import ExperimentConfig
from mindgspo.config.load import read_layers, resolve


def build(config: None, graph: str, rank: int, *, strategy_path: Path) -> CompilableGraph:
    wrong = WRONG_PLANS[strategy_path.parents[1].name.replace(":", "/")]
    base = write_base(strategy_path.with_name("experiment.yaml"))
    unchecked = ExperimentConfig.model_validate(read_layers(base, wrong.overrides))
    return build_graph(resolve(unchecked), graph, rank, strategy_path=strategy_path)
