"""How many sequences at once fit, and what would be faster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.cli import main
from mindgspo.config import ExperimentConfig, load_config
from mindgspo.planner import GIB, expected_memory, most_slots
from mindgspo.planner.smallest_change import changed
from mindgspo.planner.speedup import largest_speedup

PROJECT = Path(__file__).resolve().parents[3]
GSM8K = PROJECT / "examples" / "gsm8k" / "gspo_qwen2_5_3b.yaml"


def loaded(*overrides: str) -> ExperimentConfig:
    return load_config(GSM8K, overrides, check_files=False)


def test_slots_are_the_most_that_fit_with_the_cache_at_its_longest() -> None:
    """Two replicas of 4 cards; a slot's longest cache, 80 blocks of 128 tokens in 36 layers, takes 180 MiB."""
    config = loaded("rollout.slots=64")
    assert [most_slots(config, capacity=size * GIB) for size in (100, 64, 44, 32, 8)] == [512, 256, 128, 64, 64]
    assert expected_memory(changed(config, {"rollout.slots": 256})).peak()[1] <= 0.9 * 64 * GIB
    assert expected_memory(changed(config, {"rollout.slots": 512})).peak()[1] > 0.9 * 64 * GIB


@pytest.mark.parametrize(("overrides", "slots"), [
    (["rollout.prompts_per_step=8", "trainer.prompts_per_mini_batch=2"], 128),  # that many responses
    (["rollout.cache_gb=8"], 64),  # 128 want 11.3 GiB
    (["rollout.cache_gb=12"], 128),
    (["rollout.slots=4096"], 4096),
    (["trainer.schedule=one_step_off", "rollout.servers.urls=[http://there:8000]"], 64),  # not ours
    (["trainer.schedule=one_step_off"], 512),  # a server's card holds nothing else
])  # fmt: skip
def test_slots_are_no_more_than_a_step_draws_a_budget_pays_for_or_is_set(overrides: list[str], slots: int) -> None:
    assert most_slots(loaded("rollout.slots=64", *overrides)) == slots


def lines_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["plan", str(GSM8K), *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_a_plan_names_the_largest_speedup_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    slow = ["--set", "rollout.slots=64", "--set", "trainer.max_steps=10"]
    (line,) = (line for line in lines_of(capsys, *slow) if line.startswith("largest speed-up that fits: "))
    assert line.startswith("largest speed-up that fits: --set rollout.slots=256, with which a step takes ")
    # Its own figures are those of a plan with that setting, which has nothing as large left.
    lines = lines_of(capsys, *slow, "--set", "rollout.slots=256")
    seconds, hours = line.split(" takes ")[1].split(" s ")[0], line.split("the run ")[1]
    assert any(one.startswith("  together ") and one.split()[1] == seconds for one in lines)
    assert any(one.startswith(f"10 steps: {hours}") for one in lines)
    assert lines[-1].startswith("fits: ")


def test_a_plan_as_json_has_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads("\n".join(lines_of(capsys, "--json", "--set", "rollout.slots=64")))
    assert found["speedup"]["settings"] == {"rollout.slots": 256}
    assert found["speedup"]["seconds"] < 0.9 * found["time"]["seconds"]


def test_of_all_changes_the_one_that_saves_most_is_named() -> None:
    """Seconds by hand: what would be faster and does not fit is not named."""
    config = loaded("rollout.slots=64")

    def expected(other: ExperimentConfig) -> float:
        saved = 30 * (other.rollout.slots > 64) + 50 * (other.plans.train.recompute == "none")
        return 400 - saved - 5 * other.trainer.packing

    phases = {"generation": 100.0, "update": 300.0}
    assert largest_speedup(config, phases, expected, capacity=64 * GIB) is None  # 30 are less than a tenth
    roomy = largest_speedup(config, phases, expected, capacity=1000 * GIB)
    assert roomy == ({"plans.train.recompute": "none"}, 350)
    phases = {"generation": 40.0, "update": 160.0}
    found = largest_speedup(config, phases, lambda other: expected(other) - 200, capacity=64 * GIB)
    assert found == ({"rollout.slots": 256}, 170)


def test_what_does_not_fit_is_first_to_be_made_to_fit() -> None:
    phases = {"generation": 100.0, "update": 300.0}
    assert largest_speedup(loaded(), phases, lambda other: 1.0, capacity=8 * GIB) is None


def test_what_cannot_save_enough_is_not_worked_out() -> None:
    def never(other: ExperimentConfig) -> float:
        raise AssertionError(other.rollout.slots)

    phases = {"generation": 5.0, "reward, advantages": 90.0, "update": 5.0}
    assert largest_speedup(loaded("rollout.slots=64"), phases, never, capacity=1000 * GIB) is None
