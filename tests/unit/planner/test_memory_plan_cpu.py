"""The CPU's rough terms: by hand for a small model, and their order."""

from __future__ import annotations

import pytest
from planned_experiments import experiment_of, qwen2

from mindgspo.parallel.swap.states import Phase
from mindgspo.planner import Level, Part, expected_memory
from mindgspo.planner.cpu_memory import temporary
from mindgspo.planner.rank_work import RankWork

# 4 rows of 64 + 64 tokens; 8 layers of width 256, 8 heads and 4 key/value heads of 32, inner 768, vocabulary 1024.
TOKENS, SCORES = 4 * 128, 4 * 8 * 128**2
STREAMS = 6 * 256 + 2 * 256 + 2 * 128


@pytest.mark.parametrize(
    ("recompute", "elements"),
    [
        ("none", 8 * (TOKENS * (STREAMS + 5 * 768) + SCORES)),
        ("selective", 8 * TOKENS * (STREAMS - 2 * 256 + 4 * 768) + TOKENS * (STREAMS + 5 * 768) + SCORES),
        ("full", 8 * TOKENS * 256 + TOKENS * (STREAMS + 5 * 768) + SCORES),
    ],
)
def test_an_update_by_hand(recompute: str, elements: int) -> None:
    parts = temporary(RankWork.of(experiment_of(qwen2(), train={"recompute": recompute}), 0), Phase.UPDATE)
    layer = 256 * 256 * 2 + 2 * 128 * 256 + 3 * 256 * 768 + (256 + 2 * 128) + 2 * 256
    assert parts[Part.ACTIVATIONS] == 4 * elements
    assert parts[Part.NEW_GRADIENTS] == 4 * (2 * 1024 * 256 + 8 * layer + 256)
    assert parts[Part.LOGITS] == 4 * 3 * 1024 * 256


def test_a_step_of_the_rollout_by_hand() -> None:
    parts = temporary(RankWork.of(experiment_of(qwen2(), slots=16), 0), Phase.ROLLOUT)
    assert parts[Part.LOGITS] == 4 * 4 * 16 * 1024


def test_a_process_of_one_phase_has_no_other_holdings() -> None:
    config = experiment_of(qwen2())
    rollout = expected_memory(config, phases=[Phase.ROLLOUT]).classes[0].at(Level.EVERYTHING, Phase.ROLLOUT)
    whole = expected_memory(config).classes[0].at(Level.EVERYTHING, Phase.ROLLOUT)
    assert {Part.WEIGHTS, Part.KV_CACHE} <= set(rollout.parts)
    assert not {Part.GRADIENTS, Part.MOMENTS} & set(rollout.parts)
    assert rollout.total < whole.total


def test_rank_0_alone_copies_a_checkpoint() -> None:
    config = experiment_of(qwen2(), train={"model_parallel": 2}, infer={"data_parallel": 2})
    first, other = expected_memory(config).classes
    assert (first.ranks, other.ranks) == ((0,), (1,))
    tables, layer = 2 * 1024 * 256, 256 * 256 * 2 + 2 * 128 * 256 + 3 * 256 * 768 + (256 + 2 * 128) + 2 * 256
    assert first.at(Level.EVERYTHING, Phase.SAVE).parts[Part.COPIES] == 3 * 4 * (tables + 8 * layer + 256)
    assert Part.COPIES not in other.at(Level.EVERYTHING, Phase.SAVE).parts
    assert Part.COPIES not in first.at(Level.EVERYTHING, Phase.ROLLOUT).parts


def test_copies_that_are_written_in_the_background_stand_beside_the_next_phases() -> None:
    config = experiment_of(qwen2())
    trainer = config.trainer.model_copy(update={"save_in_background": True})
    (only,) = expected_memory(config.model_copy(update={"trainer": trainer})).classes
    phases = (Phase.ROLLOUT, Phase.UPDATE, Phase.SAVE)
    copies = [only.at(Level.EVERYTHING, phase).parts[Part.COPIES] for phase in phases]
    assert copies[0] == copies[1] == copies[2] > 0


@pytest.mark.parametrize(
    ("setting", "phase"),
    [
        ({"rows": 8}, Phase.UPDATE),
        ({"response": 256}, Phase.UPDATE),
        ({"response": 256}, Phase.SCORE),
        ({"slots": 64}, Phase.ROLLOUT),
    ],
)
def test_more_work_needs_more(setting: dict[str, int], phase: Phase) -> None:
    small, large = (
        expected_memory(experiment_of(qwen2(), **changes), phases=[phase]).peak()[1] for changes in ({}, setting)
    )
    assert small < large
