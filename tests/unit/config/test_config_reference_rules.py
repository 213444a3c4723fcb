"""Rules of a reference policy that follows the policy, and of its own plan; what is filled in, and what is shown."""

from __future__ import annotations

import pytest

from mindgspo.config import PlansSection, batch_table, notes
from mindgspo.config.plan import ParallelPlan

KEY = "algorithm.kl.reference"
LOSS, REWARD = "algorithm.kl.placement=loss", "algorithm.kl.placement=reward"
SIX = "trainer.samples_per_micro_batch=6"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            [f"{KEY}.mode=ema"],
            f"{KEY}.mode: ema, but algorithm.kl.placement is none, so there is no reference policy; set "
            "algorithm.kl.placement to loss or reward, or remove it",
        ),
        (
            [LOSS, f"{KEY}.every=5"],
            f"{KEY}.every: 5, but a frozen reference never changes; set {KEY}.mode=sync, or remove it",
        ),
        (
            [LOSS, f"{KEY}.mode=sync"],
            f"{KEY}.every: missing; after how many steps does the reference become the policy? e.g. {KEY}.every=100",
        ),
        (
            [LOSS, f"{KEY}.mode=sync", f"{KEY}.every=5", f"{KEY}.decay=0.5"],
            f"{KEY}.decay: 0.5 belongs to a moving average, but {KEY}.mode is sync; set {KEY}.mode=ema, or remove it",
        ),
        (
            [REWARD, f"{KEY}.mode=sync", f"{KEY}.every=1"],
            f"{KEY}.every: 1 makes the old policy of each step its reference, from which it has no distance: the "
            "penalty in the reward would always be 0; smallest legal: 2",
        ),
        (
            ["plans.reference={data_parallel: 2}"],
            "plans.reference: plans.train 1 x 1 x 1 needs 1 workers, plans.reference 2 x 1 x 1 needs 2; they share the "
            "same cards; set plans.reference.data_parallel=1",
        ),
        (
            ["plans.reference={optimizer_shard: true}"],
            "plans.reference.optimizer_shard: true; there is no optimizer while scoring; remove it",
        ),
        (
            ["plans.reference={recompute: full}"],
            "plans.reference.recompute: full; there is no backward pass while scoring; remove it",
        ),
        (
            ["plans.reference={micro_batch_num: 2}"],
            "plans.reference.micro_batch_num: 2; without a backward pass micro-batches follow each other through the "
            "stages as they are; remove it",
        ),
    ],
)
def test_each_rule_names_the_key_and_the_fix(problems, overrides: list[str], expected: str) -> None:
    assert problems(*overrides) == [expected]


def test_a_moving_average_has_a_pace(load) -> None:
    section = load(LOSS, f"{KEY}.mode=ema").algorithm.kl.reference
    assert (section.every, section.decay) == (1, 0.99)
    section = load(LOSS, f"{KEY}.mode=ema", f"{KEY}.every=4", f"{KEY}.decay=0.5").algorithm.kl.reference
    assert (section.every, section.decay) == (4, 0.5)
    frozen = load(LOSS).algorithm.kl.reference
    assert (frozen.every, frozen.decay) == (None, None)


def test_without_a_plan_of_its_own_it_has_that_of_training_without_shards(load) -> None:
    sharded = ParallelPlan(data_parallel=2, optimizer_shard=True)
    plans = PlansSection(train=sharded, infer=ParallelPlan(data_parallel=2))
    assert plans.scoring == ParallelPlan(data_parallel=2)
    own = load(
        SIX, "plans={train: {data_parallel: 2}, infer: {data_parallel: 2}, reference: {model_parallel: 2}}"
    ).plans
    assert own.scoring == ParallelPlan(model_parallel=2)


def test_the_banner_says_what_it_refers_to(load) -> None:
    plans = "plans={train: {data_parallel: 2}, infer: {data_parallel: 2}, reference: {model_parallel: 2}}"
    table = dict(batch_table(load(SIX, plans, LOSS, f"{KEY}.mode=ema", f"{KEY}.decay=0.75"), 96))
    assert table["reference policy"].startswith(
        "a moving average: ref + 0.25 (policy - ref), each step; k3 in the loss"
    )
    assert table["plans"] == "train 2 x 1 x 1, infer 2 x 1 x 1, reference 1 x 2 x 1 (data x model x pipeline)"
    table = dict(batch_table(load(LOSS, f"{KEY}.mode=sync", f"{KEY}.every=8"), 96))
    assert table["reference policy"].startswith("the policy, taken anew every 8 steps; k3 in the loss")
    unread = load(SIX, plans)
    assert "reference" not in dict(batch_table(unread, 96))["plans"], "nobody scores with it"
    assert any(line.startswith("plans.reference: not read") for line in notes(unread))
    assert dict(batch_table(load("algorithm.old_log_probs=sampler"), 96))["old log-probs"].startswith("the sampler's")


def test_ratios_against_the_sampler_are_not_called_one(load) -> None:
    sampler = "algorithm.old_log_probs=sampler"
    single = notes(load(sampler, "trainer.prompts_per_mini_batch=12"))
    assert any("every ratio is the mismatch of sampler and trainer" in line for line in single)
    assert not any("every ratio is 1" in line for line in single)
    bfloat16 = notes(load(sampler, "device=Ascend", "model.dtype=bfloat16", "model.num_attention_heads=2"))
    assert any("in bfloat16 about 1e-2 per token, into a ratio whose clip range is 0.0003" in line for line in bfloat16)
