"""The largest shipped model at its own sizes: Qwen3-30B-A3B as it is trained and sampled on 32 cards, compiled for the
first rank and the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascend_emulator.toolchain import Toolchain
from mindgspo.config import load_config
from mindgspo.dryrun import run_child
from mindgspo.models.names import parameter_shapes
from mindgspo.parallel.plans.parameter_layouts import parameter_layouts

EXPERIMENT = Path(__file__).parents[2] / "examples" / "dapo_math" / "gspo_qwen3_30b_a3b.yaml"
LAYERS = 48
# Products of experts: gate, up and down of each layer; in training of 12 layers, twice, for they are computed again,
# and two gradients of each. Keys and values of the last layer are all that a prefill wants.
PRODUCTS = {"train": 12 * 3 * 4, "reference": 12 * 3, "prefill": (LAYERS - 1) * 3, "decode": LAYERS * 3}


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 31])
@pytest.mark.parametrize("graph", PRODUCTS)
def test_a_rank_holds_what_the_algebra_says(toolchain: Toolchain, tmp_path: Path, graph: str, rank: int) -> None:
    config = load_config(EXPERIMENT, check_files=False)
    result = run_child(toolchain, tmp_path, config=EXPERIMENT, graph=graph, rank=rank, world_size=32, time_limit_s=2400)
    assert result.failure is None, result.failure
    assert result.facts.operators["GroupedMatmul"] == PRODUCTS[graph]
    held = {entry.name: entry.shape for entry in result.facts.parameters}
    plan = config.plans.train if graph in ("train", "reference") else config.plans.infer
    layouts = parameter_layouts(parameter_shapes(config.model), config.model, plan)
    if graph in ("prefill", "decode"):
        assert held["model.layers.46.mlp.experts.down_proj.weight"] == (32, 2048, 768)
    else:
        layer = 0 if rank == 0 else LAYERS - 1
        assert held[f"model.layers.{layer}.mlp.experts.gate_proj.weight"] == (16, 768, 2048)
    for name, shape in held.items():
        if name in layouts:
            assert shape == layouts[name].slice_of(rank).shape, name
