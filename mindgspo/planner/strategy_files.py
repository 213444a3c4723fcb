"""Strategy files of all graphs of a configuration: computed from its plans, or copied from a dry run."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mindgspo.config import ModelSection, ParallelPlan, load_model_and_plans
from mindgspo.config.schema import PlansSection
from mindgspo.errors import CheckpointError, ConfigError
from mindgspo.models.names import is_trained, mindformers_names, parameter_shapes
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.parameter_layouts import parameter_layouts
from mindgspo.parallel.plans.placement import RankGrid
from mindgspo.strategy.file import read_source, write_strategies
from mindgspo.strategy.layouts import compiled_strategy, hsdp_size
from mindgspo.strategy.record import NOT_SPLIT, Strategy

GRAPHS = ("train", "reference", "rollout")
# AdamW's moments of each weight.
_MOMENTS = ("adamw.m.", "adamw.v.")
_THEIR_MOMENTS = ("adam_m.", "adam_v.")
# Suites whose names the files can bear, and what stands before MindFormers' own in each graph. MindRLHF's cells have
# the model inside: see `reload_ckpt` and `load_checkpoint` of its train_worker.py, ref_worker.py and infer_worker.py.
NAMINGS: Mapping[str, Mapping[str, str]] = {
    "mindformers": dict.fromkeys(GRAPHS, ""),
    "mindrlhf": {
        "train": "grpo_model_train.policy_model.model.",
        "reference": "model.",
        "rollout": "grpo_model.policy_model.model.",
    },
}
_SIZES = re.compile(r"(\d{1,9})x(\d{1,9})x(\d{1,9})")


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
        size = hsdp_size(self.plan)
        shards = "" if size is None else f", optimizer shards over {size}"
        return (
            f"{self.graph:<9}  {self.plan} (data x model x pipeline){shards}: {self.num_files} files, "
            f"{self.num_parameters} parameters, {self.seconds:.1f} s  {self.folder}"
        )


def graph_layouts(model: ModelSection, plans: PlansSection, graph: str) -> tuple[ParallelPlan, dict[str, Layout]]:
    """The plan of one of GRAPHS, and the layouts of all its parameters without optimizer shards.

    Only `train` has AdamW's moments. Raises ConfigError if a plan does not fit the model."""
    assert graph in GRAPHS, graph
    plan = {"train": plans.train, "reference": plans.scoring, "rollout": plans.infer}[graph]
    weights = parameter_layouts(parameter_shapes(model), model, plan)
    if graph != "train":
        return plan, weights
    trained = {name: layout for name, layout in weights.items() if is_trained(model.base, name)}
    moments = {f"{prefix}{name}": layout for prefix in _MOMENTS for name, layout in trained.items()}
    return plan, {**weights, **moments}


def renamed(
    model: ModelSection, layouts: Mapping[str, Layout], graph: str, naming: str, plan: ParallelPlan
) -> dict[str, Layout]:
    """The layouts of a graph under the parameter names of one of NAMINGS, moments as their AdamW has them: `adam_m.`
    and `adam_v.` before the weight's. MindFormers' `vocab_emb_dp` means the output table, too.
    Raises WeightsError for a model whose weights have no name there."""
    prefix = NAMINGS[naming][graph]
    names = {name: f"{prefix}{theirs}" for name, theirs in mindformers_names(model).items()}
    moments = {
        f"{ours}{name}": f"{theirs}{their_name}"
        for ours, theirs in zip(_MOMENTS, _THEIR_MOMENTS, strict=True)
        for name, their_name in names.items()
    }
    names = {**names, **moments}
    heads = {"lm_head.weight", *(f"{prefix}lm_head.weight" for prefix in _MOMENTS)} if plan.vocab_emb_dp else set()
    whole = {name: replace(layouts[name], tensor_map=(NOT_SPLIT, NOT_SPLIT)) for name in heads & layouts.keys()}
    return {names[name]: whole.get(name, layout) for name, layout in layouts.items()}


def write_plan_files(
    model: ModelSection, plans: PlansSection, folder: Path, *, suffix: str = ".ckpt", naming: str | None = None
) -> list[WrittenFolder]:
    """Write the files of all ranks; existing ones of the same names are replaced.

    suffix: `.ckpt` (protobuf) or `.json`. naming: one of NAMINGS; None: this project's parameter names.
    Raises WeightsError for a model whose weights have no name there, ConfigError where a plan does not fit the model,
    CheckpointError for a folder that cannot be written or holds files of other ranks.
    """
    found = []
    for graph in GRAPHS:
        start = time.perf_counter()
        plan, layouts = graph_layouts(model, plans, graph)
        strategy_of = compiled_strategy
        if naming is not None:
            layouts = renamed(model, layouts, graph, naming, plan)
            # MindFormers' switches the optimizer's shards of its input table off.
            tables = {name for name in layouts if name.endswith(".tok_embeddings.embedding_weight")}
            strategy_of = partial(compiled_strategy, uncut=tables)
        paths = write_strategies(folder / graph, layouts, plan=plan, suffix=suffix, strategy_of=strategy_of)
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
        changed = {"data_parallel": data, "model_parallel": cards, "pipeline_stage": stages, "context_parallel": 1}
        plans = plans.model_copy(update={"train": type(plans.train)(**{**plans.train.model_dump(), **changed})})
    used, layouts = graph_layouts(model, plans, "train" if sizes else plan)
    grid = RankGrid(used)
    stages_of = [
        compiled_strategy(layouts, plan=used, rank=grid.stage_ranks(stage)[0]) for stage in range(used.pipeline_stage)
    ]
    merged = {stage: entries for record in stages_of for stage, entries in record.stages.items()}
    return replace(stages_of[0], stages=merged, source=f"plan {plan} of {config}")


def single_source(path: Path) -> Strategy:
    """One file or one folder of ranks' files. Raises CheckpointError if there are those of several graphs."""
    found = read_source(path)
    if len(found) > 1:
        example = path / next(iter(found))
        raise CheckpointError(f"{path}: holds the strategies of {', '.join(found)}; give one of them, e.g. {example}")
    (strategy,) = found.values()
    return replace(strategy, source=str(path))
