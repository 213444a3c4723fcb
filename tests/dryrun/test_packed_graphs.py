"""Packed micro-batches compiled for Ascend: several segments in one row, fewer predictions than response slots."""

from __future__ import annotations

from pathlib import Path

import pytest
from dryrun.shipped_experiment import NUM_RANKS, write_experiment

from mindgspo.ascend.dryrun import Toolchain, run_child
from mindgspo.config import load_config
from mindgspo.trainer.longest_batch import longest_batch

PACKED = "trainer: {samples_per_micro_batch: null, max_tokens_per_micro_batch: 256, packing: true, length_multiple: 32}"
PLANS = {
    "2x4x1": ("qwen2", "data_parallel: 2, model_parallel: 4"),
    "2x2x2": ("qwen3", "data_parallel: 2, model_parallel: 2, pipeline_stage: 2, micro_batch_num: 2"),
}


def packed_experiment(folder: Path, plan: str) -> Path:
    architecture, train = PLANS[plan]
    path = write_experiment(folder / "packed.yaml", architecture=architecture, train=train, infer="data_parallel: 8")
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("trainer: {samples_per_micro_batch: 2}", PACKED), encoding="utf-8")
    return path


def test_the_longest_batch_of_a_budget_is_packed(tmp_path: Path) -> None:
    # Prompts of 32 and responses of 22: four of them in 256 slots, their 88 predictions rounded up.
    batch = longest_batch(load_config(packed_experiment(tmp_path, "2x4x1"), check_files=False))
    assert batch.ids_RT.shape == (1, 224) and batch.mask_NK.shape == (4, 32)
    assert batch.segments_RT.max() == 4 and batch.predict_P.shape == (96,)


@pytest.mark.parametrize(
    ("plan", "graph", "rank"),
    [
        ("2x4x1", "train", 5),
        ("2x4x1", "reference", 5),
        ("2x2x2", "train", 6),
        ("2x2x2", "reference", 6),
    ],
)
def test_packed_graphs_compile(toolchain: Toolchain, tmp_path: Path, plan: str, graph: str, rank: int) -> None:
    path = packed_experiment(tmp_path, plan)
    result = run_child(
        toolchain, tmp_path / "out", config=path, graph=graph, rank=rank, world_size=NUM_RANKS, time_limit_s=300
    )
    assert result.failure is None, result.failure
    assert any("layers.0" in entry.name or "layers.1" in entry.name for entry in result.facts.parameters)
