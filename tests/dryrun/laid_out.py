"""Builders that go further than compiling: what a rank of a run does between compiling and its first step.

`build(config, graph, rank, strategy_path=...)`; imported in child processes only. An assertion that fails is the
child's failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from mindgspo.algorithms.optim.auto_parallel import AutoParallelUpdate

from mindgspo.algorithms.losses.registry import build_policy_loss
from mindgspo.algorithms.losses.supervised import SupervisedLoss
from mindgspo.ascend.dryrun.graphs import CompilableGraph
from mindgspo.config import ExperimentConfig
from mindgspo.models.policy import PolicyLogProbs, build_model
from mindgspo.models.scoring import AutoParallelScorer
from mindgspo.models.weights import held_parameters, initialize_weights, weight_layouts, weight_views
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.placement import auto_parallel_placement
from mindgspo.trainer.batches import longest_batch


def build(config: ExperimentConfig, graph: str, rank: int, *, strategy_path: Path) -> CompilableGraph:
    """Compile the update, fill the slices it left, and hand out the scoring graph of the same model."""
    plan, batch = config.plans.train, longest_batch(config)
    place = auto_parallel_placement(plan, config.model.num_key_value_heads, rank=rank)
    model = build_model(config.model, place)
    layouts = weight_layouts(config.model, place)
    assert all(parameter.has_init for parameter in model.get_parameters()), "parameters have memory before compiling"
    part = AutoParallelUpdate(
        PolicyLogProbs(model, temperature=1.0, with_entropy=False),
        build_policy_loss(config.algorithm),
        config.optimizer,
        num_micro_batches=plan.micro_batch_num,
        layouts=layouts,
    )
    part.compile(batch)
    _check_moments(part, layouts, rank)
    held = {parameter.name: parameter for parameter in held_parameters(model)}
    expected = {name: layout.slice_of(rank) for name, layout in layouts.items()}
    assert {name: tuple(parameter.shape) for name, parameter in held.items()} == {
        name: own.shape for name, own in expected.items() if own is not None
    }
    initialize_weights(model, config.model, config.seed)
    whole = _whole_weights(config)
    for name, values in weight_views(model).items():
        np.testing.assert_array_equal(values, whole[name][expected[name].index])
    # A warm-up's update: another loss and other moments, over weights that are cut and filled already.
    warm_up = AutoParallelUpdate(
        PolicyLogProbs(model, temperature=1.0, with_entropy=False),
        SupervisedLoss(),
        config.optimizer,
        num_micro_batches=plan.micro_batch_num,
        layouts=layouts,
    )
    warm_up.compile(batch)
    _check_moments(warm_up, layouts, rank)
    for name, values in weight_views(model).items():
        np.testing.assert_array_equal(values, whole[name][expected[name].index])
    cell, inputs = AutoParallelScorer(model, temperature=1.0).graph_for(batch)
    return CompilableGraph(cell=cell, inputs=inputs)


def _check_moments(part: AutoParallelUpdate, layouts: Mapping[str, Layout], rank: int) -> None:
    """Zeros of the slices' shapes, for the weights on this rank alone."""
    shapes = {name: own.shape for name, layout in layouts.items() if (own := layout.slice_of(rank)) is not None}
    moments = {moment.name: moment for moment in part.moments}
    assert {name: tuple(moment.shape) for name, moment in moments.items()} == {
        f"adamw.{kind}.{name}": shape for kind in ("m", "v") for name, shape in shapes.items()
    }
    assert not any(moment.asnumpy().any() for moment in moments.values())
    assert [tuple(gradient.shape) for gradient in part.gradients] == [
        shapes[weight.name] for weight in part.weights if weight.name in shapes
    ]


def _whole_weights(config: ExperimentConfig) -> dict[str, np.ndarray]:
    from mindgspo.models.names import parameter_shapes
    from mindgspo.models.weights import _initial_values

    return {
        name: _initial_values(name, shape, config.model, config.seed)
        for name, shape in parameter_shapes(config.model).items()
    }
