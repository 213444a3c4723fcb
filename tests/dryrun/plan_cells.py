"""A builder that takes its split from the experiment's plan: 66 rows over model_parallel."""

from __future__ import annotations

from pathlib import Path

from toy_cells import Graph
from wrong_cells import build as build_wrong

from mindgspo.config import ExperimentConfig


def build(config: ExperimentConfig, graph: str, rank: int, *, strategy_path: Path) -> Graph:
    assert config.plans.train.model_parallel == 4
    return build_wrong(config, "rows_do_not_divide", rank, strategy_path=strategy_path)
