"""Functions by name, the weighted sum, and the checks before a run."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from mindgspo.config.schema import RewardSection
from mindgspo.errors import ConfigError, DataError
from mindgspo.rewards import build_scorer
from mindgspo.rewards.registry import FUNCTIONS, function_for
from mindgspo.types import Prompt, Score, Verdict


def prompt(index: int = 0, *, answer: str = "72", source: str = "openai/gsm8k") -> Prompt:
    return Prompt(index=index, ids=np.array([1], np.int32), text="q", answer=answer, data_source=source)


class Length:
    """A fake reward: one point per character; raises on demand."""

    def read_gold(self, gold: str) -> str:
        return gold

    def score(self, text: str, gold: str) -> Score:
        if text == "raise":
            raise KeyError("broken on purpose")
        if text == "abstain":
            return Score(value=None, verdict=Verdict.TIMEOUT)
        return Score(value=float(len(text)), verdict=Verdict.CORRECT, extracted=text)


@pytest.fixture
def length_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FUNCTIONS, "length", Length())


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("arithmetic", "gsm8k"),
        ("math_dapo", "math_dapo"),
        ("math_dapo_512", "math_dapo"),
        ("BytedTsinghua-SIA/DAPO-Math-17k", "math_dapo"),
        ("BytedTsinghua-SIA/DAPO-Math-17k-Processed", "math_dapo"),
    ],
)
def test_auto_follows_the_data_source(source: str, name: str) -> None:
    assert function_for(source) == name


def test_auto_judges_each_row_by_its_own_source_in_input_order() -> None:
    scorer = build_scorer(RewardSection())
    rows = [prompt(0), prompt(1, source="math_dapo"), prompt(2, source="math_dapo", answer="1"), prompt(3)]
    scores = scorer.score(rows, ["#### 72", "Answer: 72", "Answer: 2", "nothing"])
    assert [score.value for score in scores] == [1.0, 1.0, -1.0, 0.0]
    assert [dict(score.parts) for score in scores] == [
        {"gsm8k": 1.0},
        {"math_dapo": 1.0},
        {"math_dapo": -1.0},
        {"gsm8k": 0.0},
    ]
    assert scores[3].verdict is Verdict.NO_ANSWER


@pytest.mark.usefixtures("length_function")
def test_the_reward_is_the_weighted_sum_and_keeps_its_parts() -> None:
    scorer = build_scorer(RewardSection(functions=("auto", "length"), weights=(2.0, -0.5)))
    (score,) = scorer.score([prompt()], ["#### 72"])
    assert score.value == 2.0 * 1.0 - 0.5 * 7.0
    assert dict(score.parts) == {"gsm8k": 1.0, "length": 7.0}
    assert (score.verdict, score.extracted) == (Verdict.CORRECT, "72")


@pytest.mark.usefixtures("length_function")
def test_an_exception_makes_the_sample_invalid_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    scorer = build_scorer(RewardSection(functions=("gsm8k", "length"), weights=(1.0, 1.0)))
    with caplog.at_level(logging.ERROR):
        scores = scorer.score([prompt(i) for i in range(3)], ["raise", "#### 72", "raise"])
    assert [score.verdict for score in scores] == [Verdict.ERROR, Verdict.CORRECT, Verdict.ERROR]
    assert [score.value for score in scores] == [None, 8.0, None]
    assert scorer.num_errors == 2
    assert len(caplog.records) == 1 and "broken on purpose" in caplog.text


@pytest.mark.usefixtures("length_function")
def test_one_abstaining_function_abstains_for_the_sum() -> None:
    scorer = build_scorer(RewardSection(functions=("gsm8k", "length"), weights=(1.0, 1.0)))
    (score,) = scorer.score([prompt()], ["abstain"])
    assert score.value is None and score.verdict is Verdict.TIMEOUT
    assert dict(score.parts) == {"gsm8k": 0.0}
    assert scorer.num_errors == 0


def test_an_unreadable_gold_abstains() -> None:
    (score,) = build_scorer(RewardSection()).score([prompt(answer="yes")], ["#### 1"])
    assert score.value is None and score.verdict is Verdict.UNPARSEABLE_GOLD


def test_unknown_function_names_its_neighbour() -> None:
    with pytest.raises(ConfigError, match=r"reward\.functions.*'gsm8' .*did you mean 'gsm8k'"):
        build_scorer(RewardSection(functions=("gsm8",)))


@pytest.mark.parametrize(
    ("functions", "weights", "message"),
    [
        (("gsm8k", "math_dapo"), (1.0,), "2 functions .* 1 weights"),
        (("gsm8k", "gsm8k"), (1.0, 1.0), "each function once"),
    ],
)
def test_impossible_weights(functions: tuple[str, ...], weights: tuple[float, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_scorer(RewardSection(functions=functions, weights=weights))


def test_check_rows_names_the_row_of_an_unknown_source() -> None:
    rows = [prompt(0), prompt(7, source="openai/gsm8K")]
    with pytest.raises(DataError, match=r"row 7: .*'openai/gsm8K' \(did you mean 'openai/gsm8k'\?\)"):
        build_scorer(RewardSection()).check_rows(rows)


def test_check_rows_lists_unreadable_answers_with_their_number() -> None:
    rows = [prompt(i, answer="72" if i < 3 else f"word {i}") for i in range(10)]
    with pytest.raises(DataError, match=r"7 gold answers in 10 rows .*row 3 \(gsm8k\): answer 'word 3'.*and 2 more"):
        build_scorer(RewardSection()).check_rows(rows)


def test_check_rows_accepts_good_rows_and_a_named_function_needs_no_source() -> None:
    build_scorer(RewardSection()).check_rows([prompt(0), prompt(1, source="arithmetic", answer="-3")])
    build_scorer(RewardSection(functions=("gsm8k",))).check_rows([prompt(0, source="my/own")])
