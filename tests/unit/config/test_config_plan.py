"""Parallel plans: sizes, legal values, and what is not built yet."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from mindgspo.config import ModelSection, ParallelPlan, check_infer_plan, check_train_plan
from mindgspo.config.plan import check_same_world
from mindgspo.text import divisors, nearest

MODEL_3B = ModelSection(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=11008,
    num_hidden_layers=36,
    num_attention_heads=16,
    num_key_value_heads=2,
)


def test_world_size_counts_every_axis_but_experts():
    plan = ParallelPlan(data_parallel=2, model_parallel=4, pipeline_stage=3, context_parallel=5, expert_parallel=7)
    assert plan.world_size == 2 * 4 * 3 * 5
    assert ParallelPlan().world_size == 1
    assert str(plan) == "2 x 4 x 3"


def test_one_process_is_legal():
    assert check_train_plan("plans.train", ParallelPlan(), MODEL_3B) == []


@pytest.mark.parametrize(
    "plan",
    [
        ParallelPlan(data_parallel=3),
        ParallelPlan(model_parallel=4),
        ParallelPlan(model_parallel=8),  # more than the 2 key/value heads, evenly shared
        ParallelPlan(model_parallel=4, pipeline_stage=2, micro_batch_num=4),
        ParallelPlan(data_parallel=2, optimizer_shard=True, vocab_emb_dp=False),
        ParallelPlan(data_parallel=2, model_parallel=4, use_seq_parallel=True),
    ],
)
def test_what_fits_is_legal(plan):
    assert check_train_plan("plans.train", plan, MODEL_3B) == []


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        (
            ParallelPlan(model_parallel=6),
            "p.model_parallel: 6 does not split the model evenly (16 attention heads, 2 key/value heads, "
            "intermediate_size 11008, vocab_size 151936); nearest legal: 4 or 8",
        ),
        (
            ParallelPlan(pipeline_stage=8, micro_batch_num=8),
            "p.pipeline_stage: 8 does not divide 36 layers; nearest legal: 6 or 9",
        ),
        (
            ParallelPlan(pipeline_stage=4, micro_batch_num=2),
            "p.micro_batch_num: 2 is less than pipeline_stage 4; smallest legal: 4",
        ),
        (
            ParallelPlan(micro_batch_num=2),
            "p.micro_batch_num: 2 micro-batches are in flight between pipeline stages, and there is one stage; "
            "remove it (trainer.samples_per_micro_batch cuts mini-batches)",
        ),
        (
            ParallelPlan(optimizer_shard=True),
            "p.optimizer_shard: there is one replica, which keeps all moments; remove it",
        ),
        (
            ParallelPlan(context_parallel=2),
            "p.context_parallel: 2 is not built in this version; the only legal value is 1",
        ),
        (
            ParallelPlan(data_parallel=2, expert_parallel=2),
            "p.expert_parallel: 2, but qwen2 has no experts; remove it",
        ),
        (
            ParallelPlan(use_seq_parallel=True),
            "p.use_seq_parallel: model_parallel is 1, so nothing splits the sequence; remove it",
        ),
    ],
)
def test_what_does_not_fit_names_legal_values_in_one_line(plan, line):
    assert check_train_plan("p", plan, MODEL_3B) == [line]


def test_the_vocabulary_must_divide_over_the_output_table():
    odd = MODEL_3B.model_copy(update={"vocab_size": 151937})
    assert "nearest legal: 1" in check_train_plan("p", ParallelPlan(model_parallel=2), odd)[0]


def test_what_means_nothing_while_generating_is_refused():
    plan = ParallelPlan(
        model_parallel=2, pipeline_stage=2, micro_batch_num=2, optimizer_shard=True, use_seq_parallel=True
    )
    assert [line.split(":")[0] for line in check_infer_plan("plans.infer", plan, MODEL_3B)] == [
        "plans.infer.pipeline_stage",
        "plans.infer.optimizer_shard",
        "plans.infer.micro_batch_num",
        "plans.infer.use_seq_parallel",
    ]
    assert check_infer_plan("plans.infer", ParallelPlan(data_parallel=2, model_parallel=4), MODEL_3B) == []


@pytest.mark.parametrize(
    ("infer", "fix"),
    [
        (ParallelPlan(model_parallel=4), "they share the same cards; set plans.infer.data_parallel=2"),
        (ParallelPlan(model_parallel=3), "they share the same cards, so data x model x pipeline must be equal"),
    ],
)
def test_both_plans_take_the_same_cards(infer, fix):
    train = ParallelPlan(model_parallel=4, pipeline_stage=2, micro_batch_num=2)
    (line,) = check_same_world(train, infer)
    assert "plans.train 1 x 4 x 2 needs 8 workers" in line and line.endswith(fix)
    assert check_same_world(train, ParallelPlan(data_parallel=2, model_parallel=4)) == []


def test_sizes_start_at_one():
    with pytest.raises(ValidationError):
        ParallelPlan(model_parallel=0)


def test_divisors_and_neighbours():
    assert divisors(1) == [1]
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert nearest([1, 2, 4, 8], 3) == [2, 4]
    assert nearest([1, 2, 4, 8], 9) == [8]
