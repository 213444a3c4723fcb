"""The CPU's terms against what MindSpore's pool had given out in traces of real graphs, and their order."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from planned_experiments import experiment_of, qwen2

from mindgspo.parallel.swap.states import Phase
from mindgspo.planner import MIB, Level, Part, expected_memory
from mindgspo.planner.cpu_memory import temporary
from mindgspo.planner.rank_work import RankWork


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Most MiB in use in MindSpore's pool, counted allocation by allocation (2.10.0, float32).

    update: during a micro-batch and the step. score: during log-probs. rollout: of 8 slots, groups of 2. shape:
    vocabulary, width, inner width, layers, heads, key/value heads. rows: rows, prompt and response of a micro-batch.
    """

    shape: tuple[int, int, int, int, int, int]
    rows: tuple[int, int, int]
    update: float
    score: float
    rollout: float
    is_tied: bool = True


TRACES = {
    "two layers": Trace(shape=(4104, 528, 1432, 2, 6, 2), rows=(3, 64, 48), update=60.4, score=10.7, rollout=6.8),
    "eight layers: activations": Trace(
        shape=(4104, 528, 1432, 8, 6, 2), rows=(3, 64, 48), update=155.8, score=10.7, rollout=9.9
    ),
    "long rows: scores": Trace(
        shape=(1032, 264, 720, 4, 6, 2), rows=(2, 336, 160), update=147.0, score=37.8, rollout=38.3
    ),
    "chunks of logits": Trace(
        shape=(2056, 264, 720, 12, 6, 2), rows=(4, 144, 112), update=362.9, score=22.2, rollout=14.2
    ),
    "two tables": Trace(
        shape=(4104, 528, 1432, 3, 6, 2), rows=(3, 64, 48), update=76.3, score=10.7, rollout=8.2, is_tied=False
    ),
    "large vocabulary: the step": Trace(
        shape=(60008, 136, 360, 2, 4, 2), rows=(3, 64, 48), update=124.5, score=95.5, rollout=7.6
    ),
    "few tokens: gradients": Trace(
        shape=(2056, 528, 1432, 6, 6, 2), rows=(1, 16, 16), update=81.4, score=1.0, rollout=2.2
    ),
}
HOLES = 1.04


@pytest.mark.parametrize("trace", TRACES.values(), ids=list(TRACES))
def test_the_pool_of_real_graphs_is_foretold(trace: Trace) -> None:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    model = dict(zip((*names, "num_key_value_heads"), trace.shape, strict=True))
    rows, prompt, response = trace.rows
    config = experiment_of(
        qwen2(**model, tie_word_embeddings=trace.is_tied), rows=rows, prompt=prompt, response=response, slots=8, group=2
    )
    work = RankWork.of(config, 0)

    def foretold(phase: Phase) -> float:
        return sum(temporary(work, phase).values()) / HOLES / MIB

    assert foretold(Phase.UPDATE) == pytest.approx(trace.update, rel=0.03)
    assert foretold(Phase.SCORE) == pytest.approx(trace.score, rel=0.03, abs=0.1)
    assert foretold(Phase.ROLLOUT) == pytest.approx(trace.rollout, rel=0.06, abs=1.5)


@pytest.mark.parametrize(
    ("recompute", "shape", "rows", "pool"),
    [
        ("selective", (4104, 528, 1432, 8, 6, 2), (3, 64, 48), 121.8),
        ("selective", (1032, 264, 720, 4, 6, 2), (2, 336, 160), 107.3),
        ("selective", (2056, 264, 720, 12, 6, 2), (4, 144, 112), 234.0),
        ("full", (4104, 528, 1432, 8, 6, 2), (3, 64, 48), 116.8),
        ("full", (1032, 264, 720, 4, 6, 2), (2, 336, 160), 55.0),
        ("full", (2056, 264, 720, 12, 6, 2), (4, 144, 112), 72.3),
    ],
)
def test_the_pool_of_graphs_that_compute_layers_again(
    recompute: str,
    shape: tuple[int, ...],
    rows: tuple[int, int, int],
    pool: float,
) -> None:
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    model = qwen2(**dict(zip((*names, "num_key_value_heads"), shape, strict=True)), tie_word_embeddings=True)
    config = experiment_of(
        model, train={"recompute": recompute}, rows=rows[0], prompt=rows[1], response=rows[2], slots=8, group=2
    )
    found = sum(temporary(RankWork.of(config, 0), Phase.UPDATE).values())
    assert found / 1.14 / MIB == pytest.approx(pool, rel=0.08)


def test_the_pool_keeps_what_its_largest_phase_needed() -> None:
    plan = expected_memory(experiment_of(qwen2()))
    (alone,) = plan.classes
    pooled = {Part.ACTIVATIONS, Part.NEW_GRADIENTS, Part.LOGITS, Part.POOL}
    for level in Level:
        pools = [
            sum(alone.at(level, phase).parts.get(part, 0) for part in pooled)
            for phase in (Phase.ROLLOUT, Phase.SCORE, Phase.UPDATE)
        ]
        assert len(set(pools)) == 1
        assert Part.POOL not in alone.at(level, Phase.UPDATE).parts


def test_a_process_of_one_phase_has_no_other_holdings() -> None:
    config = experiment_of(qwen2())
    rollout = expected_memory(config, phases=[Phase.ROLLOUT]).classes[0].at(Level.EVERYTHING, Phase.ROLLOUT)
    whole = expected_memory(config).classes[0].at(Level.EVERYTHING, Phase.ROLLOUT)
    assert {Part.WEIGHTS, Part.KV_CACHE} <= set(rollout.parts)
    assert not {Part.GRADIENTS, Part.MOMENTS, Part.POOL} & set(rollout.parts)
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
