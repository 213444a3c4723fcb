"""The estimate for Ascend: moments of each graph by hand, and what must hold whatever its constants are."""

from __future__ import annotations

import pytest
from planned_experiments import experiment_of, qwen2

from mindgspo.config import ExperimentConfig
from mindgspo.planner import GIB, MIB, Part, SwapLevel, expected_memory
from mindgspo.planner.ascend_memory import ascend_temporary, graph_moments, hccl_buffers, paged_workspace
from mindgspo.planner.memory_plan import Parts
from mindgspo.planner.rank_work import RankWork
from mindgspo.planner.smallest_change import changed
from mindgspo.swap.states import Phase

# Qwen2.5-7B, 4 rows of 10,240 tokens, 4 slices; MiB of one tensor of a micro-batch.
STATES, QUERY, KEY_VALUE, INNER = 280, 70, 10, 370
STATISTICS, ROTATION = 8.75, 20
SCORED_STATES = 224  # 4 x 8,192 response tokens
TABLE, TABLE_FLOAT = 259.875, 519.75  # [38,016, 3,584]
CHUNK = 3530 * 38_016 * 4 / MIB  # the tokens whose logits fit 512 MiB
LAYER = 4 * STATES + 2 * QUERY + 2 * KEY_VALUE + 3 * INNER + 2 * STATISTICS


def with_recompute(config: ExperimentConfig, recompute: str) -> ExperimentConfig:
    return changed(config, {"plans.train.recompute": recompute})


def graph_parts(work: RankWork, graph: str) -> Parts:
    """The fullest moment."""
    return max(graph_moments(work, graph), key=lambda parts: sum(parts.values()))


def gradients(config: ExperimentConfig, rank: int) -> dict[Part, float]:
    """MiB by part, of the graph of a micro-batch's gradients."""
    return {part: size / MIB for part, size in graph_parts(RankWork.of(config, rank), "train").items()}


def test_both_stages_keep_inputs_and_one_layer(seven_billion: ExperimentConfig) -> None:
    """One micro-batch of 14 layers; of the first stage, the gradient of what it has sent; a layer computed again, with
    the gradients of its gate and up and of what lies behind it."""
    found = gradients(seven_billion, 0)
    again = LAYER - STATES + 2 * INNER + STATES
    assert found[Part.ACTIVATIONS] == 14 * STATES + 2 * ROTATION + STATES + again
    assert gradients(seven_billion, 4)[Part.ACTIVATIONS] == 14 * STATES + 2 * ROTATION + again
    assert found[Part.COMPUTE_WEIGHTS] == pytest.approx(3 * 32.375 + 2 * 6.125 + 2 * 0.875, rel=1e-3)
    assert found[Part.NEW_GRADIENTS] == 0, "they come later"
    assert found[Part.CONSTANTS] == 2 * 64 + 4


def test_what_other_recomputes_keep(seven_billion: ExperimentConfig) -> None:
    """none: all of a layer, and its matrices in bfloat16 with them; selective: products."""
    config = with_recompute(seven_billion, "none")
    found = gradients(config, 0)
    assert found[Part.ACTIVATIONS] == 14 * LAYER + 2 * ROTATION + STATES + 2 * INNER + STATES
    assert found[Part.COMPUTE_WEIGHTS] == pytest.approx(14 * (3 * 32.375 + 2 * 6.125 + 2 * 0.875), rel=1e-3)
    # The last stage is fullest in its head: the final norm's input, response tokens' states and their gradients.
    found = gradients(config, 4)
    assert found[Part.ACTIVATIONS] == 14 * LAYER + 2 * ROTATION + STATES + 2 * SCORED_STATES
    assert found[Part.LOGITS] == pytest.approx(2.5 * CHUNK)
    matrices = 14 * (3 * 32.375 + 2 * 6.125 + 2 * 0.875)
    assert found[Part.COMPUTE_WEIGHTS] == pytest.approx(matrices + TABLE, rel=1e-3)
    assert found[Part.NEW_GRADIENTS] == TABLE_FLOAT
    found = gradients(with_recompute(seven_billion, "selective"), 4)
    kept = 2 * STATES + 2 * QUERY + 2 * KEY_VALUE + 2 * INNER + 2 * STATISTICS
    assert found[Part.ACTIVATIONS] == 14 * kept + 2 * ROTATION + STATES + 2 * SCORED_STATES


def test_a_stage_keeps_what_came_of_the_others_in_flight() -> None:
    """Of 4 stages, each with 2 layers of 4 x 128 tokens, 256 wide, the second one has three micro-batches in flight."""
    config = experiment_of(qwen2(), train={"pipeline_stage": 4, "micro_batch_num": 4}, infer={"data_parallel": 4},
                           device="Ascend", rows=4, slots=64)  # fmt: skip
    works = [RankWork.of(config, rank) for rank in range(4)]
    assert [work.in_flight for work in works] == [4, 3, 2, 1]
    first, second, third, _ = (graph_parts(work, "train")[Part.ACTIVATIONS] for work in works)
    states = 4 * 4 * 128 * 256
    assert (second - first, third - first) == (2 * states, states)


def test_sums_and_the_optimizer_take_one_weight_at_a_time(seven_billion: ExperimentConfig) -> None:
    """The largest one is the input table of 152,064 x 3,584, whole on every rank: its gradient on the way and what
    comes back; its clipped gradient or its decay. Where replicas share the rows out, half of it comes back."""
    work = RankWork.of(seven_billion, 0)
    assert graph_parts(work, "sum")[Part.STEP] / MIB == 2 * 4 * TABLE_FLOAT
    assert graph_parts(work, "step")[Part.STEP] / MIB == 4 * TABLE_FLOAT
    plan = {"plans.train.data_parallel": 2, "plans.train.pipeline_stage": 1, "plans.train.micro_batch_num": 1}
    work = RankWork.of(changed(seven_billion, {**plan, "plans.train.optimizer_shard": True}), 0)
    assert graph_parts(work, "sum")[Part.STEP] / MIB == 4 * TABLE_FLOAT + 2 * TABLE_FLOAT
    assert graph_parts(work, "step")[Part.STEP] / MIB == 2 * TABLE_FLOAT


def test_graphs_of_generation(seven_billion: ExperimentConfig) -> None:
    """4 prompts of 2,048 tokens: gate and up, twice, and the stream. 64 slots: what sampling makes of all logits, and
    attention's workspace; the weights are in bfloat16 already."""
    work = RankWork.of(seven_billion, 0)
    prefill = graph_parts(work, "prefill")
    assert prefill[Part.ACTIVATIONS] / MIB == 4 * INNER / 5 + STATES / 5
    head, sampling, experts, attention = graph_moments(work, "decode")
    assert not any(moment.get(Part.COMPUTE_WEIGHTS) for moment in (head, sampling, experts, attention))
    assert sampling[Part.LOGITS] == 3 * 4 * 64 * 152_064
    assert attention[Part.WORKSPACE] == 25 * (16.25 * MIB + 10_240 * 7 * 1024)


@pytest.mark.parametrize(
    "cores, columns, cache_dtype, expected",
    # As the host code of MindSpore's kernels answers, in MiB: 910B3, 910B1 and a die of Atlas A3, up to 16,384 columns.
    [(20, 10_240, "bfloat16", 1725), (20, 16_384, "bfloat16", 2565), (20, 131_072, "bfloat16", 2565),
     (24, 10_240, "bfloat16", 2070), (24, 16_384, "bfloat16", 3078), (25, 10_240, "bfloat16", 2156.25),
     (20, 128, "float16", 332.5), (20, 10_240, "float16", 925), (20, 40_960, "float16", 1285)],
)  # fmt: skip
def test_workspace_of_paged_attention(cores: int, columns: int, cache_dtype: str, expected: float) -> None:
    assert paged_workspace(columns, cache_dtype, cores=cores) == expected * MIB


def test_workspace_of_attentions_backward_pass(seven_billion: ExperimentConfig) -> None:
    """float32 gradients of 4 x 10,240 tokens' queries, keys and values, while the layer's gate and up are gone."""
    moments = list(graph_moments(RankWork.of(seven_billion, 0), "train"))
    attention = [moment for moment in moments if moment.get(Part.WORKSPACE)]
    feed_forward = [moment for moment in moments if moment not in attention and Part.ACTIVATIONS in moment]
    assert [moment[Part.WORKSPACE] / MIB for moment in attention] == [2 * (QUERY + 2 * KEY_VALUE)] * 2
    assert (feed_forward[0][Part.ACTIVATIONS] - attention[0][Part.ACTIVATIONS]) / MIB == 2 * INNER


def test_scoring_goes_layer_by_layer(seven_billion: ExperimentConfig) -> None:
    for rank in (0, 4):
        found = ascend_temporary(RankWork.of(seven_billion, rank), Phase.SCORE)
        assert found[Part.ACTIVATIONS] / MIB == 4 * INNER + STATES + ROTATION
    few = changed(seven_billion, {"trainer.samples_per_micro_batch": 1})
    found = ascend_temporary(RankWork.of(few, 4), Phase.SCORE)
    assert found[Part.LOGITS] / MIB == pytest.approx(1.5 * CHUNK)
    assert found[Part.ACTIVATIONS] / MIB == SCORED_STATES / 4


@pytest.mark.parametrize("rank", [0, 4])
def test_more_recompute_never_needs_more(seven_billion: ExperimentConfig, rank: int) -> None:
    sizes = [
        sum(graph_parts(RankWork.of(with_recompute(seven_billion, each), rank), "train").values())
        for each in ("none", "selective", "full")
    ]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[2]


def test_sequence_parallel_splits_what_lies_between_the_layers(seven_billion: ExperimentConfig) -> None:
    config = with_recompute(seven_billion, "selective")
    whole, quarter = (
        gradients(each, 4)[Part.ACTIVATIONS]
        for each in (config, changed(config, {"plans.train.use_seq_parallel": True}))
    )
    # Inputs of both blocks of 14 layers, and what lies behind them.
    assert whole - quarter == 29 * (STATES - STATES / 4)


def test_parts_of_sequences_split_all_activations(seven_billion: ExperimentConfig) -> None:
    """Twice the features of half of the tokens; attention's output before and behind the exchange."""
    plan = {"plans.train.model_parallel": 2, "plans.train.context_parallel": 2, "plans.train.recompute": "none"}
    config = changed(seven_billion, plan)
    layer = LAYER - 4 * STATES / 2 + QUERY
    expected = 14 * layer + 2 * ROTATION / 2 + STATES / 2 + 2 * STATES / 2
    assert gradients(config, 4)[Part.ACTIVATIONS] == expected
    scoring = ascend_temporary(RankWork.of(config, 4), Phase.SCORE)
    assert scoring[Part.ACTIVATIONS] / MIB == 4 * INNER + STATES / 2 + ROTATION / 2
    # One key/value head for two parts: half of the features, twice.
    shared = changed(config, {"model.num_key_value_heads": 2})
    assert gradients(shared, 4)[Part.ACTIVATIONS] == expected


def test_a_card_has_less_than_all_to_give_and_the_fullest_counts(seven_billion: ExperimentConfig) -> None:
    plan = expected_memory(seven_billion)
    assert plan.capacity == int(15 / 16 * (64 - 3.3) * GIB)
    # World, slices and stages of training, replicas and slices of generation: five groups of two buffers each, which
    # the 3.8 GiB beside the pool hold; those of a card of 32 GiB hold 4.5 such groups.
    assert hccl_buffers(RankWork.of(seven_billion, 0)) == 5 * 2 * 200 * MIB
    small = changed(seven_billion, {"memory.device_gb": 32.0, "memory.reserve_gb": 3.2})
    beyond = [
        expected_memory(config).classes[0].at(SwapLevel.EVERYTHING, Phase.UPDATE).parts.get(Part.BUFFERS, 0)
        for config in (seven_billion, small)
    ]
    assert beyond == pytest.approx([0, 2000 * MIB - 1.8 * GIB], abs=2)
    totals = [each.at(plan.level, Phase.UPDATE).total for each in plan.classes]
    assert plan.needed(plan.level, Phase.UPDATE) == max(totals) > min(totals)
