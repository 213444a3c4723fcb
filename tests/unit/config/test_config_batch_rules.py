"""Rules of a step's batches: one size of a micro-batch, a budget that holds a sample, what packing needs."""

from __future__ import annotations

import pytest

from mindgspo.config import batch_table, notes

BUDGET = ("trainer.samples_per_micro_batch=", "trainer.max_tokens_per_micro_batch=256")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            ["trainer.samples_per_micro_batch="],
            "trainer.samples_per_micro_batch: missing; set it, the responses of one pass, or "
            "trainer.max_tokens_per_micro_batch, its token slots",
        ),
        (
            ["trainer.max_tokens_per_micro_batch=256"],
            "trainer.max_tokens_per_micro_batch: 256 and samples_per_micro_batch 8 both say how large a micro-batch "
            "is; leave one out (--set trainer.samples_per_micro_batch= takes an inherited one back)",
        ),
        (
            ["trainer.packing=true"],
            "trainer.packing: true needs trainer.max_tokens_per_micro_batch instead of samples_per_micro_batch, e.g. "
            "192, two samples of full length",
        ),
        (
            # 64 + 32 = 96 is a multiple of 32 already, 112 is the next of 16 x 7.
            [*BUDGET, "trainer.max_tokens_per_micro_batch=100", "trainer.length_multiple=56"],
            "trainer.max_tokens_per_micro_batch: 100 slots do not hold the longest sample, data.max_prompt_length 64 "
            "+ rollout.max_new_tokens 32, rounded up to a multiple of trainer.length_multiple 56: 112; "
            "nearest legal: 112",
        ),
        (
            [*BUDGET, "plans.train.data_parallel=32", "plans.infer.data_parallel=4", "plans.infer.model_parallel=8"],
            "trainer.prompts_per_mini_batch: 24 samples of a mini-batch do not fill the 32 micro-batches that "
            "data_parallel 32 x micro_batch_num 1 of plans.train compute at once; smallest legal: 8",
        ),
    ],
    ids=["neither", "both", "packing", "too small", "replicas"],
)
def test_joined_rules(problems, overrides, expected) -> None:
    assert expected in problems(*overrides)


def test_a_budget_needs_no_divisor_of_the_mini_batch(load) -> None:
    config = load(*BUDGET, "trainer.packing=true", "rollout.prompts_per_step=7", "trainer.prompts_per_mini_batch=7")
    line = dict(batch_table(config, None))["micro-batches per update"]
    assert line == "as lengths ask for, of up to 256 token slots, several samples per row"
    balanced = load(*BUDGET, "plans.train.data_parallel=2", "plans.infer.data_parallel=2")
    line = dict(batch_table(balanced, None))["micro-batches per update"]
    assert line == "as lengths ask for, of up to 256 token slots, one sample per row, balanced over 2 replicas"


def test_a_budget_that_leaves_nothing_to_pack_is_noted(load) -> None:
    assert notes(load(*BUDGET, "trainer.packing=true")) == []
    (line,) = notes(load(*BUDGET, "trainer.packing=true", "trainer.max_tokens_per_micro_batch=128"))
    assert line == (
        "trainer.max_tokens_per_micro_batch: 128 token slots leave little to pack beside a sample of up to 96; 192 or "
        "more pack better, where memory allows"
    )
