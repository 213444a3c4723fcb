"""The micro-batch that graphs are compiled with before the first rollout."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config import load_config
from mindgspo.dryrun.graphs import build_graph

ARITHMETIC = Path(__file__).resolve().parents[3] / "examples" / "arithmetic"
SMALL = ("model.num_hidden_layers=1", "rollout.num_generations=4", "trainer.samples_per_micro_batch=4", "warmup=null")


@pytest.mark.parametrize(("file", "overrides"), [
    ("gspo.yaml", ("algorithm.name=clip_cov",)),
    ("gspo.yaml", ("algorithm.name=kl_cov",)),
    ("gspo.yaml", ("algorithm.rollout_correction.opsm_threshold=0.1", "algorithm.kl.placement=loss")),
    ("gspo_moe.yaml", ("algorithm.router_replay=rollout",)),
    ("gspo_moe.yaml", ("algorithm.router_replay=old",)),
])  # fmt: skip
@pytest.mark.parametrize("graph", ["train", "old_policy"])
def test_it_has_every_input_of_the_graphs(cpu_runtime, file: str, overrides: tuple[str, ...], graph: str) -> None:
    config = load_config(ARITHMETIC / file, [*SMALL, *overrides])
    built = build_graph(config, graph, rank=0)
    built.cell.compile(*built.inputs)
