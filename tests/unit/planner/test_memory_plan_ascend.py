"""The estimate for Ascend: activations by hand, and what must hold whatever its constants are."""

from __future__ import annotations

import pytest
from planned_experiments import experiment_of, qwen2

from mindgspo.config import ExperimentConfig
from mindgspo.parallel.swap.states import Phase
from mindgspo.planner import GIB, Level, Part, expected_memory
from mindgspo.planner.ascend_memory import temporary
from mindgspo.planner.rank_work import RankWork
from mindgspo.planner.smallest_change import changed

TOKENS = 4 * 10_240


def with_recompute(config: ExperimentConfig, recompute: str) -> ExperimentConfig:
    return changed(config, {"plans.train.recompute": recompute})


def test_activations_of_seven_billion_by_hand(seven_billion: ExperimentConfig) -> None:
    """Stage 0 of two keeps two micro-batches, stage 1 one; 7 query heads, one key/value head, 4736 inner features."""
    config = with_recompute(seven_billion, "none")
    per_token = 2 * (4 * 3584 + 2 * 896 + 2 * 128 + 3 * 4736) + 4 * 16 * 7
    ends, passing = 2 * 3584 * 2, 2 * (3 * 4736 + 2 * 3584)
    for rank, in_flight in ((0, 2), (4, 1)):
        found = temporary(RankWork.of(config, rank), Phase.UPDATE)
        assert found[Part.ACTIVATIONS] == TOKENS * (in_flight * (14 * per_token + ends) + passing)


def test_full_recompute_keeps_inputs_and_one_layer(seven_billion: ExperimentConfig) -> None:
    none, full = (
        temporary(RankWork.of(with_recompute(seven_billion, each), 4), Phase.UPDATE)[Part.ACTIVATIONS]
        for each in ("none", "full")
    )
    per_token = 2 * (4 * 3584 + 2 * 896 + 2 * 128 + 3 * 4736) + 4 * 16 * 7
    assert none - full == TOKENS * 13 * (per_token - 2 * 3584)


@pytest.mark.parametrize("rank", [0, 4])
def test_more_recompute_never_needs_more(seven_billion: ExperimentConfig, rank: int) -> None:
    sizes = [
        sum(temporary(RankWork.of(with_recompute(seven_billion, each), rank), Phase.UPDATE).values())
        for each in ("none", "selective", "full")
    ]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[2]


def test_micro_batches_in_flight_are_those_of_the_schedule() -> None:
    config = experiment_of(
        qwen2(),
        train={"pipeline_stage": 4, "micro_batch_num": 4},
        infer={"data_parallel": 4},
        device="Ascend",
        rows=1,
        slots=64,
    )
    assert [RankWork.of(config, rank).in_flight for rank in range(4)] == [4, 3, 2, 1]


def test_sequence_parallel_splits_what_lies_between_the_layers(seven_billion: ExperimentConfig) -> None:
    split = changed(seven_billion, {"plans.train.use_seq_parallel": True})
    whole, quarter = (
        temporary(RankWork.of(config, 4), Phase.UPDATE)[Part.ACTIVATIONS] for config in (seven_billion, split)
    )
    # Inputs of 14 layers, what lies before and behind them, and the four tensors of the layer that is computed again.
    assert whole - quarter == TOKENS * 2 * (3584 - 896) * (14 + 2 + 3)


def test_a_card_has_less_than_all_to_give(seven_billion: ExperimentConfig) -> None:
    plan = expected_memory(seven_billion)
    assert plan.capacity == 64 * GIB
    reserve = plan.classes[0].at(Level.EVERYTHING, Phase.UPDATE).parts[Part.RESERVE]
    # World, slices and stages of training, replicas and slices of generation: five groups of two buffers each.
    assert reserve == 3 * GIB + 5 * 2 * 200 * 2**20


def test_the_fullest_card_counts(seven_billion: ExperimentConfig) -> None:
    plan = expected_memory(seven_billion)
    totals = [each.at(plan.level, Phase.UPDATE).total for each in plan.classes]
    assert plan.needed(plan.level, Phase.UPDATE) == max(totals) > min(totals)
