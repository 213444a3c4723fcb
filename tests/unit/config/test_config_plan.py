"""Parallel plans: sizes, legal values, and what does not run yet."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from mindgspo.config import ModelSection, ParallelPlan, check_plan
from mindgspo.config.legal import divisors, nearest

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
    assert check_plan("plans.train", ParallelPlan(), MODEL_3B) == []


@pytest.mark.parametrize(
    ("plan", "named"),
    [
        (ParallelPlan(data_parallel=2), "data_parallel 2"),
        (ParallelPlan(model_parallel=4), "model_parallel 4"),
        (
            ParallelPlan(model_parallel=8),
            "model_parallel 8",
        ),  # more than the 2 key/value heads, evenly shared
        (ParallelPlan(context_parallel=2), "context_parallel 2"),
        (ParallelPlan(expert_parallel=2), "expert_parallel 2"),
        (ParallelPlan(micro_batch_num=4), "micro_batch_num 4"),
        (ParallelPlan(use_seq_parallel=True), "use_seq_parallel true"),
        (ParallelPlan(optimizer_shard=True), "optimizer_shard true"),
        (ParallelPlan(vocab_emb_dp=False), "vocab_emb_dp false"),
        (
            ParallelPlan(model_parallel=4, pipeline_stage=2, micro_batch_num=4),
            "model_parallel 4, pipeline_stage 2, micro_batch_num 4",
        ),
    ],
)
def test_what_fits_but_does_not_run_yet_is_refused_in_one_line(plan, named):
    assert check_plan("plans.train", plan, MODEL_3B) == [
        f"plans.train: {named}: only single-process plans run in this version; remove the entry"
    ]


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
    ],
)
def test_what_does_not_fit_the_model_names_legal_values(plan, line):
    first, *rest = check_plan("p", plan, MODEL_3B)
    assert first == line
    assert len(rest) == 1 and "only single-process plans" in rest[0]


def test_a_split_vocabulary_must_divide():
    odd = MODEL_3B.model_copy(update={"vocab_size": 151937})
    assert len(check_plan("p", ParallelPlan(model_parallel=2), odd)) == 1
    assert "nearest legal: 1" in check_plan("p", ParallelPlan(model_parallel=2, vocab_emb_dp=False), odd)[0]


def test_sizes_start_at_one():
    with pytest.raises(ValidationError):
        ParallelPlan(model_parallel=0)


def test_divisors_and_neighbours():
    assert divisors(1) == [1]
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert nearest([1, 2, 4, 8], 3) == [2, 4]
    assert nearest([1, 2, 4, 8], 9) == [8]
