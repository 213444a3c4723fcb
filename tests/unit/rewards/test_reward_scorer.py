"""Functions by name, the weighted sum, what a failing worker does to it, and the checks before a run."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest

from mindgspo.config import RewardSection
from mindgspo.errors import DataError, RewardError
from mindgspo.rewards import Candidate, Scorer, gold_is_readable
from mindgspo.rewards.registry import build_function, function_for
from mindgspo.rewards.verification import Job, JSONValue, Outcome, Reply, Shaper, Verification, Verifier
from mindgspo.types import Prompt, Verdict


def prompt(index: int = 0, *, answer: str = "72", source: str = "openai/gsm8k") -> Prompt:
    return Prompt(index=index, ids=np.array([1], np.int32), text="q", answer=answer, data_source=source)


def candidate(text: str, index: int = 0, *, gold: str = "72", source: str = "openai/gsm8k") -> Candidate:
    return Candidate(text=text, gold=gold, data_source=source, index=index, num_tokens=len(text))


class CharacterCount:
    """A verifier: one point per character. "raise" raises, "later ..." is left to a worker."""

    def can_read(self, gold: str) -> bool:
        return gold != "unreadable"

    def verify(self, candidate: Candidate) -> Verification | Job:
        if candidate.text == "raise":
            raise KeyError("broken on purpose")
        if candidate.text.startswith("later"):
            return Job(task="count", arguments={"text": candidate.text}, conclude=self.concluded)
        return Verification(value=float(len(candidate.text)), verdict=Verdict.CORRECT, extracted=candidate.text)

    def concluded(self, value: JSONValue) -> Verification:
        return Verification(value=float(value), verdict=Verdict.WRONG, extras={"words": 2.0})


class Constant:
    """A shaper that remembers which verdicts it was shown."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict | None] = []

    def value(self, candidate: Candidate, verdict: Verdict | None) -> float:
        self.verdicts.append(verdict)
        return -0.25


class ScriptedPool:
    """Answers jobs with the replies it was given, and remembers the jobs."""

    def __init__(self, replies: Sequence[Reply] = ()) -> None:
        self.replies = list(replies)
        self.jobs: list[Job] = []
        self.is_closed = False

    def start(self) -> None:
        raise RewardError("my_reward.py: no function compute_score")

    def run(self, jobs: Sequence[Job]) -> list[Reply]:
        self.jobs += jobs
        replies, self.replies = self.replies[: len(jobs)], self.replies[len(jobs) :]
        return replies

    def close(self) -> None:
        self.is_closed = True


def scorer(*functions: str, weights: tuple[float, ...] | None = None, pool: ScriptedPool | None = None) -> Scorer:
    """verl_strict counts characters, length is constant; every other name is the real thing."""
    fakes = {"verl_strict": CharacterCount(), "length": Constant()}

    def build(name: str, section: RewardSection) -> Verifier | Shaper:
        return fakes[name] if name in fakes else build_function(name, section)

    return Scorer(RewardSection(functions=functions, weights=weights), build=build, pool=pool or ScriptedPool())


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("openai/gsm8k", "gsm8k"),
        ("arithmetic", "gsm8k"),
        ("math_dapo", "math_dapo"),
        ("math_dapo_512", "math_dapo"),
        ("BytedTsinghua-SIA/DAPO-Math-17k", "math_dapo"),
        ("BytedTsinghua-SIA/DAPO-Math-17k-Processed", "math_dapo"),
        ("aime2024", "math_dapo"),
        ("HuggingFaceH4/MATH-500", "math"),
        ("dianjin", "multiple_choice"),
        ("dianjin_open", "math"),
    ],
)
def test_auto_follows_the_data_source(source: str, name: str) -> None:
    assert function_for(source) == name


def test_auto_judges_each_row_by_its_own_source_in_input_order() -> None:
    scores = scorer("auto").score(
        [
            candidate("#### 72"),
            candidate("Answer: 72", source="math_dapo"),
            candidate("Answer: 2", source="math_dapo", gold="1"),
            candidate("nothing"),
            candidate(r"\boxed{BA}", source="dianjin", gold="AB"),
        ]
    )
    assert [score.value for score in scores] == [1.0, 1.0, -1.0, 0.0, 1.0]
    assert [list(score.parts) for score in scores] == [
        ["gsm8k"],
        ["math_dapo"],
        ["math_dapo"],
        ["gsm8k"],
        ["multiple_choice"],
    ]
    assert scores[3].verdict is Verdict.NO_ANSWER


def test_the_reward_is_the_weighted_sum_and_keeps_its_parts() -> None:
    (score,) = scorer("auto", "verl_strict", weights=(2.0, -0.5)).score([candidate("#### 72")])
    assert score.value == 2.0 * 1.0 - 0.5 * 7.0
    assert dict(score.parts) == {"gsm8k": 1.0, "verl_strict": 7.0}
    assert (score.verdict, score.extracted) == (Verdict.CORRECT, "72")


def test_the_first_function_that_judges_the_answer_gives_the_verdict() -> None:
    (score,) = scorer("length", "gsm8k", "verl_strict").score([candidate("#### 71")])
    assert (score.verdict, score.extracted) == (Verdict.WRONG, "71")
    assert score.value == -0.25 + 0.0 + 7.0
    assert list(score.parts) == ["length", "gsm8k", "verl_strict"]


def test_shapers_are_shown_the_verdict_and_alone_their_sign_gives_one() -> None:
    shaper = Constant()
    both = Scorer(
        RewardSection(functions=("gsm8k", "length")),
        build=lambda name, section: shaper if name == "length" else build_function(name, section),
        pool=ScriptedPool(),
    )
    both.score([candidate("#### 72"), candidate("#### 71"), candidate("")])
    assert shaper.verdicts == [Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER]
    (alone,) = scorer("length").score([candidate("#### 72")])
    assert (alone.value, alone.verdict) == (-0.25, Verdict.WRONG)
    (tags,) = scorer("format").score([candidate("<think>a</think><answer>b</answer>")])
    assert (tags.value, tags.verdict) == (1.0, Verdict.CORRECT)


def test_jobs_of_a_batch_run_together_and_come_back_in_order() -> None:
    pool = ScriptedPool([Reply(outcome=Outcome.DONE, value=5), Reply(outcome=Outcome.DONE, value=6)])
    scores = scorer("verl_strict", pool=pool).score([candidate("later a"), candidate("now"), candidate("later b")])
    assert [score.value for score in scores] == [5.0, 3.0, 6.0]
    assert [job.arguments["text"] for job in pool.jobs] == ["later a", "later b"]
    assert dict(scores[0].extras) == {"verl_strict/words": 2.0}


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [(Outcome.TIMEOUT, Verdict.TIMEOUT), (Outcome.FAILED, Verdict.ERROR), (Outcome.DIED, Verdict.ERROR)],
)
def test_a_failed_job_makes_its_sample_invalid_and_no_other(outcome: Outcome, verdict: Verdict) -> None:
    pool = ScriptedPool([Reply(outcome=outcome, message="what went wrong")])
    first, second = scorer("gsm8k", "verl_strict", "length", pool=pool).score(
        [candidate("later"), candidate("#### 72")]
    )
    assert (first.value, first.verdict) == (None, verdict)
    assert first.message == "verl_strict: what went wrong"
    assert dict(first.parts) == {"gsm8k": 0.0, "length": -0.25}
    assert second.value == 1.0 + 7.0 - 0.25


def test_an_exception_makes_the_sample_invalid_and_only_the_first_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scores = scorer("gsm8k", "verl_strict").score([candidate("raise", 4), candidate("#### 72"), candidate("raise")])
    assert [score.verdict for score in scores] == [Verdict.ERROR, Verdict.CORRECT, Verdict.ERROR]
    assert [score.value for score in scores] == [None, 8.0, None]
    assert len(caplog.records) == 1
    assert "broken on purpose" in caplog.text and "row 4" in caplog.text


def test_an_unreadable_gold_abstains() -> None:
    (score,) = scorer("auto").score([candidate("#### 1", gold="yes")])
    assert score.value is None and score.verdict is Verdict.UNPARSEABLE_GOLD


def test_try_out_refuses_what_fails_on_an_ordinary_row() -> None:
    pool = ScriptedPool([Reply(outcome=Outcome.TIMEOUT, message="took longer than 10 s")])
    with pytest.raises(RewardError, match=r"verl_strict: took longer than 10 s \(tried on row 3\)"):
        scorer("verl_strict", pool=pool).try_out([candidate("now"), candidate("later", 3)])
    assert [score.value for score in scorer("gsm8k").try_out([candidate("#### 71")])] == [0.0]


def test_only_a_file_starts_the_workers_before_the_first_response() -> None:
    scorer("math").start()
    with pytest.raises(RewardError, match="no function compute_score"):
        scorer("/folder/my_reward.py:compute_score").start()


def test_closing_the_scorer_closes_its_pool() -> None:
    pool = ScriptedPool()
    with scorer("gsm8k", pool=pool):
        assert not pool.is_closed
    assert pool.is_closed


def test_labels_are_the_names_under_which_parts_are_logged() -> None:
    assert scorer("gsm8k", "/folder/my_reward.py:score").labels == ("gsm8k", "my_reward.score")


def test_check_rows_names_the_row_of_an_unknown_source() -> None:
    rows = [prompt(0), prompt(7, source="openai/gsm8K")]
    with pytest.raises(DataError, match=r"row 7: .*'openai/gsm8K'; did you mean 'openai/gsm8k'\?"):
        scorer("auto").check_rows(rows)


def test_check_rows_lists_unreadable_answers_with_their_number() -> None:
    rows = [prompt(i, answer="72" if i < 3 else f"word {i}") for i in range(10)]
    with pytest.raises(DataError, match=r"7 gold answers in 10 rows .*row 3 \(gsm8k\): answer 'word 3'.*and 2 more"):
        scorer("auto", "length").check_rows(rows)


def test_check_rows_accepts_good_rows_and_a_named_function_needs_no_source() -> None:
    scorer("auto").check_rows([prompt(0), prompt(1, source="arithmetic", answer="-3")])
    scorer("gsm8k").check_rows([prompt(0, source="my/own")])


def test_a_gold_answer_is_judged_by_the_function_of_its_source() -> None:
    assert gold_is_readable("openai/gsm8k", "1,000") is True
    assert gold_is_readable("openai/gsm8k", "x + 1") is False
    assert gold_is_readable("math", "x + 1") is True
    assert gold_is_readable("dianjin", "yes") is False
    assert gold_is_readable("my/own", "anything") is None
