"""examples/mindrlhf in graphs that MindSpore's Ascend front end divides, as MindRLHF's train worker has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.ascend.dryrun import Result, Toolchain, run_child

HERE = Path(__file__).parent
FOLDERS = (HERE, HERE.parents[1] / "examples" / "mindrlhf")
NAME = "grpo_model_train.policy_model."


@pytest.fixture(scope="module")
def compiled(toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory):
    """compiled(graph, rank): one graph of mindrlhf_cells as one of 8 ranks."""
    folder = tmp_path_factory.mktemp("compiled")

    def compile_(graph: str, rank: int) -> Result:
        job = {"config": None, "world_size": 8, "builder": "mindrlhf_cells:build", "import_folders": FOLDERS}
        return run_child(toolchain, folder, graph=graph, rank=rank, **job)

    return compile_


def weights(result: Result) -> dict[str, tuple[int, ...]]:
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
