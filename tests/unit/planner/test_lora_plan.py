"""Memory, seconds and words of a plan with low-rank adapters, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from planned_experiments import QWEN2_5_7B, experiment_of, qwen2
from running import sets

from mindgspo.cli import main
from mindgspo.config import ExperimentConfig
from mindgspo.models.operations import Operations
from mindgspo.planner import Part, SwapLevel, expected_memory
from mindgspo.planner.rank_work import RankWork, held_bytes
from mindgspo.planner.smallest_change import changed
from mindgspo.swap.states import Holding, Phase

ARITHMETIC = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo.yaml"
# 8 layers: q, k, v, o of 256 x 256, 128 x 256 twice, 256 x 256; gate, up, down of 768 x 256 and 256 x 768.
BASE = 8 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 768 + 256 + 2 * 128 + 2 * 256) + 2 * 1024 * 256 + 256
ADAPTERS = 8 * 8 * (2 * (256 + 256) + 2 * (256 + 128) + 3 * (256 + 768))


def adapted(device: str = "CPU", **settings: object) -> ExperimentConfig:
    return experiment_of(qwen2(lora={"rank": 8}), device=device, **settings)


def parts_of(config: ExperimentConfig, phase: Phase, rank: int = 0) -> dict[Part, int]:
    memory = expected_memory(config)
    found = next(each for each in memory.classes if rank in each.ranks)
    return dict(found.at(memory.level, phase).parts)


def test_only_adapters_have_gradients_and_moments() -> None:
    for device in ("CPU", "Ascend"):
        held = held_bytes(RankWork.of(adapted(device), 0))
        assert held[Holding.ACTOR_WEIGHTS] == 4 * (BASE + ADAPTERS)
        assert (held[Holding.GRADIENTS], held[Holding.MOMENTS]) == (4 * ADAPTERS, 8 * ADAPTERS)
    parts = parts_of(adapted(), Phase.UPDATE)
    assert (parts[Part.FROZEN_WEIGHTS], parts[Part.WEIGHTS]) == (4 * BASE, 4 * ADAPTERS)
    assert Part.FROZEN_WEIGHTS not in parts_of(experiment_of(qwen2()), Phase.UPDATE)


def test_slices_hold_whole_matrices_on_the_side_that_is_not_cut() -> None:
    """Over two slices A of q, k, v, gate and up, and B of o and down are whole."""
    config = adapted("Ascend", train={"model_parallel": 2}, infer={"data_parallel": 2})
    whole, cut = 5 * 256 + 2 * 256, 256 + 2 * 128 + 2 * 768 + 256 + 768
    assert whole + cut == ADAPTERS // 64
    assert held_bytes(RankWork.of(config, 1))[Holding.GRADIENTS] == 4 * 8 * 8 * (whole + cut // 2)


def test_shared_out_adapters_leave_the_base_whole() -> None:
    """Each of two replicas updates half of the adapters, of which it has masters besides."""
    config = adapted("Ascend", train={"data_parallel": 2, "optimizer_shard": True}, infer={"data_parallel": 2})
    held = held_bytes(RankWork.of(config, 0))
    assert held[Holding.MOMENTS] == 2 * 4 * ADAPTERS // 2
    assert held[Holding.GRADIENTS] == 4 * (ADAPTERS + ADAPTERS // 2)
    assert parts_of(config, Phase.UPDATE)[Part.FROZEN_WEIGHTS] == 4 * BASE


def test_a_card_keeps_no_gradients_of_frozen_matrices_or_tables() -> None:
    sizes = {"device": "Ascend", "rows": 1, "prompt": 64, "response": 64, "slots": 4}
    full, lora = (
        parts_of(experiment_of(QWEN2_5_7B | more, **sizes), Phase.UPDATE) for more in ({}, {"lora": {"rank": 16}})
    )
    assert full[Part.NEW_GRADIENTS] > 4 * 7_000_000_000 > 100 * lora.get(Part.NEW_GRADIENTS, 0)


def test_checkpoints_have_moments_of_adapters_alone() -> None:
    saved = parts_of(adapted(), Phase.SAVE)
    assert saved[Part.COPIES] == 4 * (BASE + ADAPTERS) + 8 * ADAPTERS


def test_frozen_weights_take_one_product_backwards() -> None:
    full, lora = (experiment_of(qwen2(dtype="bfloat16", **more)) for more in ({}, {"lora": {"rank": 8}}))
    operations = Operations.of(lora.model)
    base = Operations.of(full.model)
    assert operations.trunk == base.trunk + 2 * ADAPTERS
    assert (operations.frozen_trunk, operations.frozen_head) == (base.trunk, base.head)
    assert operations.trained_token == base.trained_token - base.trunk - base.head + 6 * ADAPTERS


def test_a_step_with_adapters_is_expected_to_be_faster() -> None:
    from mindgspo.planner.time.estimate import estimate_step

    full, lora = (
        estimate_step(experiment_of(QWEN2_5_7B | more, device="Ascend", train={"model_parallel": 4},
                                    infer={"model_parallel": 4}, rows=16, response=1024))
        for more in ({}, {"lora": {"rank": 16}})
    )  # fmt: skip
    assert full is not None and lora is not None
    assert lora.phases["update"] < 0.85 * full.phases["update"]
    assert lora.phases["old log-probs"] > full.phases["old log-probs"]


def test_what_is_frozen_is_said(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", str(ARITHMETIC), "--set", "model.lora.rank=4"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("model.lora: the base is frozen, without gradients and moments; adapters are trained, ")
    assert "frozen weights" in said
    assert main(["plan", str(ARITHMETIC)]) == 0
    assert "frozen" not in capsys.readouterr().out
    for choice, api, computes, travels in (
        ("auto", "mindgspo", "merged weights, in the place of the base (rollout.lora: merged)", "adapters alone"),
        ("separate", "vllm", "the adapters beside the frozen weights (rollout.lora: separate)", "adapters alone"),
        ("merged", "sglang", "merged weights, in the place of the base (rollout.lora: merged)", "whole merged weights"),
    ):
        more = ("rollout.servers.urls=[http://127.0.0.1:8000]", f"rollout.lora={choice}", f"rollout.servers.api={api}")
        assert main(["plan", str(ARITHMETIC), *sets("model.lora.rank=4", *more)]) == 0
        assert f"generation computes with {computes}; servers get {travels}\n" in capsys.readouterr().out


@pytest.mark.parametrize("level", list(SwapLevel))
def test_parts_add_up_at_every_level(level: SwapLevel) -> None:
    config = changed(adapted("Ascend", infer={}, train={}), {"swap.enabled": level is not SwapLevel.EVERYTHING})
    for memory in expected_memory(config).classes[0].levels[level]:
        assert memory.total == sum(memory.parts.values()) and all(size > 0 for size in memory.parts.values())
