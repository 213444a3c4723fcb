"""The strategy files of all graphs of a configuration, from the layout algebra.

What enters: model and plans. What leaves: `<folder>/{train,reference,rollout}/ckpt_strategy_rank_<rank>.ckpt`, which
say what the compiler's own files say. Called by `tools/generate_strategy.py`; needs no MindSpore.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.config.schema import PlansSection
from mindgspo.models.names import parameter_shapes
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.parameter_layouts import parameter_layouts
from mindgspo.parallel.strategy.file import write_strategies
from mindgspo.parallel.strategy.hsdp import hsdp_call
from mindgspo.parallel.strategy.layouts import compiled_strategy

GRAPHS = ("train", "reference", "rollout")
# What AdamW keeps beside each weight.
_MOMENTS = ("adamw.m.", "adamw.v.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFolder:
    """The files of one graph."""

    graph: str
    folder: Path
    plan: ParallelPlan
    num_files: int
    num_parameters: int
    """Weights and optimizer state; a rank has those of its stage."""
    seconds: float

    def __str__(self) -> str:
        call = hsdp_call(self.plan)
        shards = "" if call is None else f", optimizer shards over {call.shard_size}"
        return (
            f"{self.graph:<9}  {self.plan} (data x model x pipeline){shards}: {self.num_files} files, "
            f"{self.num_parameters} parameters, {self.seconds:.1f} s  {self.folder}"
        )


class GraphLayouts(NamedTuple):
    """plan: of the graph. layouts: of everything it keeps, without optimizer shards."""

    plan: ParallelPlan
    layouts: dict[str, Layout]


def graph_layouts(model: ModelSection, plans: PlansSection, graph: str) -> GraphLayouts:
    """What one of GRAPHS is compiled with. The reference has no optimizer; only `train` has
    AdamW's moments. Raises ConfigError where a plan does not fit the model."""
    assert graph in GRAPHS, graph
    plan = {"train": plans.train, "reference": plans.scoring, "rollout": plans.infer}[graph]
    weights = parameter_layouts(parameter_shapes(model), model, plan)
    if graph != "train":
        return GraphLayouts(plan, weights)
    moments = {f"{prefix}{name}": layout for prefix in _MOMENTS for name, layout in weights.items()}
    return GraphLayouts(plan, {**weights, **moments})


def write_plan_files(
    model: ModelSection, plans: PlansSection, folder: Path, *, suffix: str = ".ckpt"
) -> list[WrittenFolder]:
    """Write the files of all ranks; existing ones of the same names are replaced.

    suffix: `.ckpt` (protobuf) or `.json`. Raises ConfigError where a plan does not fit the model, CheckpointError for a
    folder that cannot be written or holds files of other ranks.
    """
    found = []
    for graph in GRAPHS:
        start = time.perf_counter()
        plan, layouts = graph_layouts(model, plans, graph)
        paths = write_strategies(folder / graph, layouts, plan=plan, suffix=suffix, strategy_of=compiled_strategy)
        found.append(
            WrittenFolder(
                graph=graph,
                folder=folder / graph,
                plan=plan,
                num_files=len(paths),
                num_parameters=len(layouts),
                seconds=time.perf_counter() - start,
            )
        )
    return found
