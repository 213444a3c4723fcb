"""Further graphs compiled for Ascend: packed rows, MindRLHF's."""

from __future__ import annotations

from pathlib import Path

import pytest
from dryrun.shipped_experiment import NUM_RANKS, write_experiment

from ascend_emulator.toolchain import Toolchain
from mindgspo.config import load_config
from mindgspo.dryrun import GraphResult, run_child
from mindgspo.trainer.batches import longest_batch

PACKED = "trainer: {samples_per_micro_batch: null, max_tokens_per_micro_batch: 256, packing: true, length_multiple: 32}"
PACKED_PLANS = {
    "2x4x1": ("qwen2", "data_parallel: 2, model_parallel: 4"),
    "2x2x2": ("qwen3", "data_parallel: 2, model_parallel: 2, pipeline_stage: 2, micro_batch_num: 2"),
}


def packed_experiment(folder: Path, plan: str) -> Path:
    architecture, train = PACKED_PLANS[plan]
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
    [("2x4x1", "train", 5), ("2x4x1", "reference", 5), ("2x2x2", "train", 6), ("2x2x2", "reference", 6)],
)
def test_packed_graphs_compile(toolchain: Toolchain, tmp_path: Path, plan: str, graph: str, rank: int) -> None:
    path = packed_experiment(tmp_path, plan)
    result = run_child(
        toolchain, tmp_path / "out", config=path, graph=graph, rank=rank, world_size=NUM_RANKS, time_limit_s=300
    )
    assert result.failure is None, result.failure
    assert any("layers.0" in entry.name or "layers.1" in entry.name for entry in result.facts.parameters)


HERE = Path(__file__).parent
FOLDERS = (HERE, HERE.parents[1] / "examples" / "mindrlhf")
NAME = "grpo_model_train.policy_model."


@pytest.fixture(scope="module")
def compiled(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory):
    """compiled(graph, rank): one graph of mindrlhf_cells as one of 8 ranks."""
    folder = tmp_path_factory.mktemp("compiled")

    def compile_(graph: str, rank: int) -> GraphResult:
        job = {"config": None, "world_size": 8, "builder": "mindrlhf_cells:build", "import_folders": FOLDERS}
        return run_child(toolchain, folder, graph=graph, rank=rank, **job)

    return compile_


def weights(result: GraphResult) -> dict[str, tuple[int, ...]]:
    assert result.failure is None, result.failure
    names = (NAME, f"adam_m.{NAME}")
    return {
        parameter.name: parameter.shape for parameter in result.facts.parameters if parameter.name.startswith(names)
    }


def test_two_replicas_of_four_slices(compiled) -> None:
    """The loss is whole on every rank: log-probs are gathered for it, and no sum of it is needed."""
    result = compiled("train", 0)
    held = {f"{NAME}model.weight": (64, 32), f"{NAME}lm_head.weight": (16, 32)}
    assert weights(result) == held | {f"adam_m.{name}": shape for name, shape in held.items()}
    gathered = [entry for entry in result.facts.collectives if entry.kind == "AllGather"]
    assert sum(entry.count * entry.bytes for entry in gathered) <= 2 * 8 * 128 * 4, "more than the log-probs"


def test_the_monitors_are_parameters_of_the_policy(compiled) -> None:
    found = weights(compiled("monitored", 5))
    assert found.keys() >= {f"{NAME}{name}" for name in ("old_log_ratio", "clipfrac", "kl_loss", "actor_loss")}


@pytest.mark.parametrize("rank, part", [(0, "model"), (6, "lm_head")])
def test_two_pipeline_stages(compiled, rank: int, part: str) -> None:
    found = weights(compiled("pipeline", rank))
    assert found.keys() == {f"{NAME}{part}.weight", f"adam_m.{NAME}{part}.weight"}
