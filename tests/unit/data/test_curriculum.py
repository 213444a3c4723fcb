"""Rows that are always or never solved rest, by hand on a few rows; whatever rests, draws stay whole and resumable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.config.data import CurriculumSection, TrainSource
from mindgspo.data.curriculum import Curriculum
from mindgspo.data.mixture import MixtureStream
from mindgspo.data.stream import PromptStream
from mindgspo.tensor_files.tensors import ArraySource
from mindgspo.types import FinishReason, Prompt, Response, Score, ScoredGroup, Verdict

RIGHT, WRONG, FAILED = Verdict.CORRECT, Verdict.WRONG, Verdict.ERROR


def group(index: int, verdicts: Sequence[Verdict]) -> ScoredGroup:
    ids = np.array([5], np.int32)
    response = Response(
        prompt_index=index, sample_index=0, ids=ids, logprobs=np.zeros(1, np.float32),
        finish_reason=FinishReason.STOP, temperature=1.0, weight_version=0,
    )  # fmt: skip
    return ScoredGroup(
        prompt=Prompt(index=index, ids=ids, text="?", answer="1", data_source="math"),
        responses=(response,) * len(verdicts),
        scores=tuple(
            Score(value=None if verdict is FAILED else float(verdict is RIGHT), verdict=verdict) for verdict in verdicts
        ),
    )


def solved(index: int, number: int, of: int = 4) -> ScoredGroup:
    return group(index, [RIGHT] * number + [WRONG] * (of - number))


def stored(arrays: Mapping[str, np.ndarray]) -> ArraySource:
    return ArraySource(arrays, path=Path("checkpoint"))


def test_three_rows_by_hand() -> None:
    """Row 0 is always solved, row 1 sometimes, row 2 never, but once in its second draw."""
    curriculum = Curriculum(CurriculumSection(), 3)
    stream = PromptStream(3, seed=1, shuffle=False, passes_over=curriculum.passes_over)
    drawn = []
    for _ in range(9):
        (index,) = stream.take(1)
        drawn.append(index)
        number = (4, 2, 1 if drawn.count(2) == 2 else 0)[index]
        curriculum.observe([solved(index, number)])
    # Epoch 0 draws all. Epochs 1: 0 and 2 rest. 2: both are tried again; 0 now rests for 3 epochs, 2 has a signal.
    # Epoch 3: 0 rests, 2 is drawn. Row 2 has no signal again, which is its first in a row: it rests for 1.
    assert drawn == [0, 1, 2, 1, 0, 1, 2, 1, 2]
    assert stream.epochs == 4
    assert curriculum.metrics() == {
        "curriculum/known_share": 1.0,
        "curriculum/pass_rate": (1 + 0.5 + 0) / 3,
        "curriculum/resting_share": 2 / 3,
    }


@pytest.mark.parametrize(("section", "rests"), [
    (CurriculumSection(), [1, 3, 7, 7]),
    (CurriculumSection(max_rest_epochs=2), [1, 2, 2, 2]),
    (CurriculumSection(max_rest_epochs=255), [1, 3, 7, 15, 31, 63, 127, 255, 255]),
])  # fmt: skip
def test_rests_double_up_to_their_limit(section: CurriculumSection, rests: list[int]) -> None:
    curriculum = Curriculum(section, 1)
    for expected in rests:
        curriculum.observe([solved(0, 0)])
        assert [curriculum.passes_over(0) for _ in range(expected + 1)] == [True] * expected + [False]


def test_bounds_and_answers_without_a_reward() -> None:
    curriculum = Curriculum(CurriculumSection(min_pass_rate=0.25, max_pass_rate=0.75), 6)
    curriculum.observe([solved(index, index) for index in range(5)])
    assert [curriculum.passes_over(index) for index in range(5)] == [True, True, False, True, True]
    curriculum.observe([group(5, [RIGHT, FAILED, FAILED, WRONG])])
    assert curriculum.metrics()["curriculum/pass_rate"] == (0 + 0.25 + 0.5 + 0.75 + 1 + 0.5) / 6
    unknown = Curriculum(CurriculumSection(), 2)
    unknown.observe([group(0, [FAILED, FAILED])])
    assert unknown.metrics() == {"curriculum/known_share": 0.0, "curriculum/resting_share": 0.0}


@given(st.lists(st.integers(1, 12), min_size=1, max_size=3), st.lists(st.integers(0, 4), max_size=20),
       st.integers(1, 9), st.integers(0, 20))  # fmt: skip
def test_draws_stay_whole_and_resume_at_any_position(rows, outcomes, most_rest, cut) -> None:
    """Whatever is solved, also if every row rests: draws are full, hold no row twice, and resume to the same rows."""
    section = CurriculumSection(max_rest_epochs=most_rest)
    sources = [
        TrainSource(name=str(number), num_rows=num_rows, share=Fraction(1, len(rows)))
        for number, num_rows in enumerate(rows)
    ]
    size = min(rows)

    def begin() -> tuple[Curriculum, MixtureStream]:
        curriculum = Curriculum(section, sum(rows))
        return curriculum, MixtureStream(sources, 1, passes_over=curriculum.passes_over)

    curriculum, stream = begin()
    expected, got = [], []
    for step, number in enumerate(outcomes):
        drawn = stream.take(size)
        assert len(set(drawn)) == len(drawn) == size
        expected.append(drawn)
        curriculum.observe([solved(index, (number + index) % 5) for index in drawn])
        if step == cut:
            saved = stream.to_json(), curriculum.arrays()
    if cut >= len(outcomes):
        return
    curriculum, stream = begin()
    stream.load_json(saved[0])
    curriculum.load({}, stored(saved[1]))
    for number in outcomes[cut + 1 :]:
        got.append(stream.take(size))
        curriculum.observe([solved(index, (number + index) % 5) for index in got[-1]])
    assert got == expected[cut + 1 :]


def test_rows_of_another_run_are_refused() -> None:
    saved = Curriculum(CurriculumSection(), 3).arrays()
    with pytest.raises(ValueError, match=r"pass_rate of \(3,\) rows"):
        Curriculum(CurriculumSection(), 4).load({}, stored(saved))
    with pytest.raises(ValueError, match="in float64"):
        Curriculum(CurriculumSection(), 3).load({}, stored({**saved, "pass_rate": np.zeros(3)}))
