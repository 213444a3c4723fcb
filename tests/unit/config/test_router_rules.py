"""What `check` says of routing that cannot be recorded or replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config import load_config
from mindgspo.config.summary import batch_table
from mindgspo.errors import ConfigError

MOE = Path(__file__).resolve().parents[3] / "examples/arithmetic/gspo_moe.yaml"
DENSE = MOE.with_name("gspo.yaml")


def problems(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_config(path, overrides)
    first, *rest = str(error.value).splitlines()
    assert first.endswith(": 1 problem") and len(rest) == 1, error.value
    return rest[0].strip()


def test_routing_is_recorded_where_it_is_replayed() -> None:
    assert load_config(MOE, ["rollout.record_experts="]).rollout.record_experts is False
    replayed = ["rollout.record_experts=", "algorithm.router_replay=rollout"]
    assert load_config(MOE, replayed).rollout.record_experts is True


def test_each_mistake_is_one_line_with_its_fix() -> None:
    assert problems(DENSE, "algorithm.router_replay=old") == (
        "algorithm.router_replay: old, but qwen2 has no experts; remove it"
    )
    assert problems(DENSE, "rollout.record_experts=true") == (
        "rollout.record_experts: true, but qwen2 has no experts; remove it"
    )
    nothing = problems(MOE, "algorithm.router_replay=rollout", "rollout.record_experts=false")
    assert nothing.startswith("algorithm.router_replay: rollout replays") and "router_replay=old" in nothing
    skipped = problems(MOE, "algorithm.router_replay=old", "algorithm.old_log_probs=sampler")
    assert "leaves out; set algorithm.router_replay=rollout, or algorithm.old_log_probs=recompute" in skipped
    assert problems(MOE, "optimizer.router_bias_update_rate=0.001") == (
        "optimizer.router_bias_update_rate: 0.001, but routers of qwen3_moe have no correction bias; remove it"
    )
    biased = ["model.architecture=glm4_moe", "optimizer.router_bias_update_rate=0.001"]
    assert load_config(MOE, biased).optimizer.router_bias_update_rate == 0.001
    assert "would change the base, which model.lora freezes" in problems(MOE, *biased, "model.lora={rank: 2}")
    again = [*biased, "plans.train.recompute=full"]
    assert problems(MOE, *again).endswith("set algorithm.router_replay=rollout, or plans.train.recompute=none")
    assert load_config(MOE, [*again, "algorithm.router_replay=rollout"])


def test_check_says_what_recording_costs() -> None:
    settings = ["algorithm.router_replay=rollout", "rollout.max_new_tokens=224"]
    lines = dict(batch_table(load_config(MOE, settings), None))
    assert lines["recorded experts"] == (
        "6 bytes per token = 3 layers x 2 experts x 1 byte, at most 0.3 MB per step in all; replayed"
    )
    assert "recorded experts" not in dict(batch_table(load_config(DENSE), None))
