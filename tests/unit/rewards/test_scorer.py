"""Functions by name, the weighted sum, failing workers, the checks before a run, and a user's own reward file."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.config import RewardSection
from mindgspo.config.reward import RewardWorkersSection
from mindgspo.errors import DataError, RewardError
from mindgspo.rewards import Scorer, gold_is_readable
from mindgspo.rewards.functions.from_file import FromFile, conclude
from mindgspo.rewards.registry import build_function, function_for, repeats_itself
from mindgspo.rewards.verification import Candidate, JobOutcome, JSONValue, Reply, RewardJob, Verification
from mindgspo.types import Prompt, Verdict


def prompt(index: int = 0, *, answer: str = "72", source: str = "openai/gsm8k") -> Prompt:
    return Prompt(index=index, ids=np.array([1], np.int32), text="q", answer=answer, data_source=source)


def candidate(text: str, index: int = 0, *, gold: str = "72", source: str = "openai/gsm8k") -> Candidate:
    return Candidate(text=text, gold=gold, data_source=source, index=index, num_tokens=len(text))


class CharacterCount:
    """A verifier: one point per character. "raise" raises, "later ..." is left to a worker."""

    def can_read(self, gold: str) -> bool:
        return gold != "unreadable"

    def verify(self, candidate: Candidate) -> Verification | RewardJob:
        if candidate.text == "raise":
            raise KeyError("broken on purpose")
        if candidate.text.startswith("later"):
            return RewardJob(task="count", arguments={"text": candidate.text}, conclude=self.concluded)
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
        self.jobs: list[RewardJob] = []
        self.is_closed = False

    def start(self) -> None:
        raise RewardError("my_reward.py: no function compute_score")

    def run(self, jobs: Sequence[RewardJob]) -> list[Reply]:
        self.jobs += jobs
        replies, self.replies = self.replies[: len(jobs)], self.replies[len(jobs) :]
        return replies

    def close(self) -> None:
        self.is_closed = True


def scorer(*functions: str, weights: tuple[float, ...] | None = None, pool: ScriptedPool | None = None) -> Scorer:
    """verl_strict counts characters, length is constant; every other name is the real thing."""
    fakes = {"verl_strict": CharacterCount(), "length": Constant()}

    def build(name: str, section: RewardSection) -> object:
        return fakes[name] if name in fakes else build_function(name, section)

    return Scorer(RewardSection(functions=functions, weights=weights), build=build, pool=pool or ScriptedPool())


@pytest.mark.parametrize(("source", "name"), [
    ("openai/gsm8k", "gsm8k"), ("arithmetic", "gsm8k"), ("math_dapo", "math_dapo"), ("math_dapo_512", "math_dapo"),
    ("BytedTsinghua-SIA/DAPO-Math-17k", "math_dapo"), ("BytedTsinghua-SIA/DAPO-Math-17k-Processed", "math_dapo"),
    ("aime2024", "math_dapo"), ("HuggingFaceH4/MATH-500", "math"), ("dianjin", "multiple_choice"),
    ("dianjin_open", "math"),
])  # fmt: skip
def test_auto_follows_the_data_source(source: str, name: str) -> None:
    assert function_for(source) == name


def test_auto_judges_each_row_by_its_own_source_in_input_order() -> None:
    scores = scorer("auto").score(
        [
            candidate("#### 72"),
            candidate("Answer: 72", source="math_dapo"), candidate("Answer: 2", source="math_dapo", gold="1"),
            candidate("nothing"), candidate(r"\boxed{BA}", source="dianjin", gold="AB"),
        ]
    )  # fmt: skip
    assert [score.value for score in scores] == [1.0, 1.0, -1.0, 0.0, 1.0]
    assert [list(score.parts) for score in scores] == [
        ["gsm8k"], ["math_dapo"], ["math_dapo"], ["gsm8k"], ["multiple_choice"],
    ]  # fmt: skip
    assert scores[3].verdict is Verdict.NO_ANSWER


def test_weighted_sums_and_who_gives_the_verdict() -> None:
    (score,) = scorer("auto", "verl_strict", weights=(2.0, -0.5)).score([candidate("#### 72")])
    assert score.value == 2.0 * 1.0 - 0.5 * 7.0
    assert dict(score.parts) == {"gsm8k": 1.0, "verl_strict": 7.0}
    assert (score.verdict, score.extracted) == (Verdict.CORRECT, "72")
    (score,) = scorer("length", "gsm8k", "verl_strict").score([candidate("#### 71")])
    assert (score.verdict, score.extracted, score.value) == (Verdict.WRONG, "71", -0.25 + 0.0 + 7.0)
    assert list(score.parts) == ["length", "gsm8k", "verl_strict"]
    (score,) = scorer("auto").score([candidate("#### 1", gold="yes")])
    assert score.value is None and score.verdict is Verdict.UNPARSEABLE_GOLD


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


def test_jobs_run_together_and_ordinary_rows_must_not_fail() -> None:
    pool = ScriptedPool([Reply(outcome=JobOutcome.DONE, value=5), Reply(outcome=JobOutcome.DONE, value=6)])
    scores = scorer("verl_strict", pool=pool).score([candidate("later a"), candidate("now"), candidate("later b")])
    assert [score.value for score in scores] == [5.0, 3.0, 6.0]
    assert [job.arguments["text"] for job in pool.jobs] == ["later a", "later b"]
    assert dict(scores[0].extras) == {"verl_strict/words": 2.0}
    pool = ScriptedPool([Reply(outcome=JobOutcome.TIMEOUT, message="took longer than 10 s")])
    with pytest.raises(RewardError, match=r"verl_strict: took longer than 10 s \(tried on row 3\)"):
        scorer("verl_strict", pool=pool).try_out([candidate("now"), candidate("later", 3)])
    assert [score.value for score in scorer("gsm8k").try_out([candidate("#### 71")])] == [0.0]


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [(JobOutcome.TIMEOUT, Verdict.TIMEOUT), (JobOutcome.FAILED, Verdict.ERROR), (JobOutcome.DIED, Verdict.ERROR)],
)
def test_a_failed_job_makes_its_sample_invalid_and_no_other(outcome: JobOutcome, verdict: Verdict) -> None:
    pool = ScriptedPool([Reply(outcome=outcome, message="what went wrong")])
    first, second = scorer("gsm8k", "verl_strict", "length", pool=pool).score(
        [candidate("later"), candidate("#### 72")]
    )
    assert (first.value, first.verdict, first.message) == (None, verdict, "verl_strict: what went wrong")
    assert dict(first.parts) == {"gsm8k": 0.0, "length": -0.25}
    assert second.value == 1.0 + 7.0 - 0.25


def test_a_late_job_is_paid_as_it_says_if_it_is_quick_without_its_response() -> None:
    def verify(candidate: Candidate) -> RewardJob:
        return RewardJob(
            task="count",
            arguments={"text": candidate.text},
            conclude=lambda value: Verification(value=1.0, verdict=Verdict.CORRECT),
            when_late=Verification(value=-1.0, verdict=Verdict.TIMEOUT),
            without_response={"gold": candidate.gold},
        )

    late = Reply(outcome=JobOutcome.TIMEOUT, message="took longer than 10 s")
    done = Reply(outcome=JobOutcome.DONE, value=1)
    pool = ScriptedPool([late, done, late, late, done, late, late, late])
    function = CharacterCount()
    function.verify = verify  # type: ignore[method-assign]
    section = RewardSection(functions=("math",), weights=(1.0,))
    three = [candidate("a"), candidate("b"), candidate("c"), candidate("d", gold="slow")]
    with Scorer(section, build=lambda name, section: function, pool=pool) as scorer:
        first = scorer.score(three)
        again = scorer.score(three[:1])
    assert [score.value for score in first] == [-1.0, 1.0, -1.0, None]
    assert [score.verdict.value for score in first] == ["timeout", "correct", "timeout", "timeout"]
    assert [job.arguments for job in pool.jobs[4:6]] == [{"gold": "72"}, {"gold": "slow"}], "once per gold answer"
    assert again[0].value == -1.0 and len(pool.jobs) == 7, "known from the first batch"
    lenient = section.model_copy(update={"workers": RewardWorkersSection(on_timeout="leave_out")})
    with Scorer(lenient, build=lambda name, section: function, pool=ScriptedPool([late])) as scorer:
        assert scorer.score(three[:1])[0].value is None


def test_an_exception_makes_the_sample_invalid_and_only_the_first_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        scores = scorer("gsm8k", "verl_strict").score([candidate("raise", 4), candidate("#### 72"), candidate("raise")])
    assert [score.verdict for score in scores] == [Verdict.ERROR, Verdict.CORRECT, Verdict.ERROR]
    assert [score.value for score in scores] == [None, 8.0, None]
    assert len(caplog.records) == 1
    assert "broken on purpose" in caplog.text and "row 4" in caplog.text


def test_start_close_and_labels() -> None:
    scorer("math").start()
    with pytest.raises(RewardError, match="no function compute_score"):
        scorer("/folder/my_reward.py:compute_score").start()
    pool = ScriptedPool()
    with scorer("gsm8k", pool=pool):
        assert not pool.is_closed
    assert pool.is_closed
    assert scorer("gsm8k", "/folder/my_reward.py:score").labels == ("gsm8k", "my_reward.score")


def test_check_rows_names_what_it_refuses() -> None:
    rows = [prompt(0), prompt(7, source="openai/gsm8K")]
    with pytest.raises(DataError, match=r"row 7: .*'openai/gsm8K'; did you mean 'openai/gsm8k'\?"):
        scorer("auto").check_rows(rows)
    rows = [prompt(i, answer="72" if i < 3 else f"word {i}") for i in range(10)]
    with pytest.raises(DataError, match=r"7 gold answers in 10 rows .*row 3 \(gsm8k\): answer 'word 3'.*and 2 more"):
        scorer("auto", "length").check_rows(rows)
    scorer("auto").check_rows([prompt(0), prompt(1, source="arithmetic", answer="-3")])
    scorer("gsm8k").check_rows([prompt(0, source="my/own")])
    sources = ("openai/gsm8k", "openai/gsm8k", "math", "dianjin", "my/own")
    golds = ("1,000", "x + 1", "x + 1", "yes", "anything")
    assert list(map(gold_is_readable, sources, golds)) == [True, False, True, False, None]
    with pytest.raises(DataError, match=r"row 1 \(math\): answer '.*', which is not met by its own repetition"):
        scorer("math").check_rows([prompt(0), prompt(1, answer=r"\frac{1}{2")])
    met = ("A, B", "She sold 72.\n#### 72", r"It is \boxed{5}.", "Solution is: $k=4$.")
    names = ("multiple_choice", "gsm8k", "math", "math")
    assert all(repeats_itself(name, gold) for name, gold in zip(names, met, strict=True))
    assert repeats_itself("verl_strict", "72") and not repeats_itself("gsm8k", "72 </think>")


CANDIDATE = Candidate(text="It is #### 72", gold="72", data_source="mine", index=3, extra_info={"index": 3})
VERIFIER = FromFile("/rewards/mine.py:compute_score")


def test_the_job_has_verls_four_arguments_and_details_are_kept() -> None:
    job = VERIFIER.verify(CANDIDATE)
    assert job.task == "/rewards/mine.py:compute_score"
    expected = {"data_source": "mine", "solution_str": "It is #### 72", "ground_truth": "72"}
    assert job.arguments == expected | {"extra_info": {"index": 3}}
    assert VERIFIER.can_read("") and VERIFIER.can_read("anything")
    verification = conclude(
        {"score": 1.0, "acc": True, "pred": "7" * 300, "format": 0.5, "words": 12, "lucky": False, "note": "text"}
    )
    assert (verification.extracted, verification.extras) == ("7" * 200, {"format": 0.5, "words": 12.0, "lucky": 0.0})
    assert conclude({"score": 1.0, "pred": 72}).extracted == "72"
    assert conclude({"score": 1.0, "pred": None}).extracted is None
    assert conclude(1.0).extracted is None and conclude(1.0).extras == {}


@pytest.mark.parametrize(("value", "score", "verdict"), [
    (1, 1.0, Verdict.CORRECT), (0.25, 0.25, Verdict.CORRECT), (0, 0.0, Verdict.WRONG), (-1.0, -1.0, Verdict.WRONG),
    (True, 1.0, Verdict.CORRECT), (False, 0.0, Verdict.WRONG), ({"score": 0.1}, 0.1, Verdict.CORRECT),
    ({"score": True}, 1.0, Verdict.CORRECT), ({"score": 0.1, "acc": False}, 0.1, Verdict.WRONG),
    ({"score": -0.5, "acc": True}, -0.5, Verdict.CORRECT), ({"score": -0.5, "acc": 1.0}, -0.5, Verdict.CORRECT),
    ({"score": 1, "acc": 0}, 1.0, Verdict.WRONG), ({"score": 1, "acc": 0.5}, 1.0, Verdict.CORRECT),
    ({"score": 0, "verdict": "no_answer"}, 0.0, Verdict.NO_ANSWER),
    ({"score": 0, "verdict": "correct"}, 0.0, Verdict.CORRECT),
    ({"score": 0, "verdict": "correct", "acc": False}, 0.0, Verdict.WRONG),
    ({"score": 1, "verdict": "brilliant"}, 1.0, Verdict.CORRECT),
])  # fmt: skip
def test_values_and_verdicts(value: JSONValue, score: float, verdict: Verdict) -> None:
    verification = conclude(value)
    assert (verification.value, verification.verdict, verification.message) == (score, verdict, "")
    assert type(verification.value) is float


@pytest.mark.parametrize("verdict", [Verdict.UNPARSEABLE_GOLD, Verdict.TIMEOUT, Verdict.ERROR])
def test_none_and_verdicts_that_say_nothing_about_the_answer_abstain(verdict: Verdict) -> None:
    for value in (None, {"score": None}):
        verification = conclude(value)
        assert (verification.value, verification.verdict) == (None, Verdict.ERROR)
        assert "abstained" in verification.message
    verification = conclude({"score": 1.0, "verdict": verdict.value})
    assert (verification.value, verification.verdict) == (None, verdict)
    assert bool(verification.message) == (verdict is not Verdict.UNPARSEABLE_GOLD)


@pytest.mark.parametrize(("value", "message"), [
    ("0.5", r"returned '0\.5'; expected a finite number, a dict with a finite number 'score', or None"),
    ([1.0], r"returned \[1\.0\]; expected"), (math.nan, "returned nan; expected"),
    (-math.inf, "returned -inf; expected"), (10**400, r"returned 1000.*\(int\); expected"),
    ({}, r"dict with the keys \[\]; expected"), ({"scores": 1.0}, r"dict with the keys \['scores'\]; expected"),
    ({"score": "1"}, "returned 'score' '1'; expected"), ({"score": math.nan}, "returned 'score' nan; expected"),
    ({"score": [1]}, r"returned 'score' \[1\]; expected"),
])  # fmt: skip
def test_what_is_no_reward_says_what_is(value: JSONValue, message: str) -> None:
    verification = conclude(value)
    assert (verification.value, verification.verdict) == (None, Verdict.ERROR)
    assert re.search(message, verification.message), verification.message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["score", "acc", "verdict", "pred", "other"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(value=json_values)
def test_no_value_raises_and_none_is_paid_by_chance(value: JSONValue) -> None:
    verification = conclude(value)
    assert verification.value is None or math.isfinite(verification.value)
    assert (verification.value is None) == (
        verification.verdict in (Verdict.ERROR, Verdict.TIMEOUT, Verdict.UNPARSEABLE_GOLD)
    )
    assert all(math.isfinite(extra) for extra in verification.extras.values())


def test_the_whole_way_through_a_worker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An array among the extras costs no score and is named once."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy\n"
        "def score(data_source, solution_str, ground_truth, extra_info):\n"
        "    if '#' not in solution_str:\n"
        "        return {'strange': 'right', 'skip': None, 'array': {'score': numpy.zeros(3)}}[solution_str]\n"
        "    found = solution_str.rpartition('#### ')[2]\n"
        "    extras = {'row': extra_info['index'], 'is_mine': data_source == 'mine'}\n"
        "    dropped = {'states': numpy.zeros(3), 'loss': float('nan')}\n"
        "    return {'score': numpy.float32(found == ground_truth), 'pred': found, **extras, **dropped}\n"
    )
    candidates = [
        Candidate(text=text, gold="72", data_source="mine", index=index, extra_info={"index": index})
        for index, text in enumerate(("#### 72", "strange", "#### 73", "skip", "array"))
    ]
    section = RewardSection(functions=(f"{file}:score",), weights=(1.0,))
    with caplog.at_level(logging.WARNING), Scorer(section) as scorer:
        scores = scorer.score(candidates)
    assert [score.value for score in scores] == [1.0, None, 0.0, None, None]
    assert [score.verdict.value for score in scores] == ["correct", "error", "wrong", "error", "error"]
    assert scores[2].extracted == "73" and scores[2].extras == {"mine.score/row": 2.0, "mine.score/is_mine": 1.0}
    for index, said in ((1, "returned 'right'"), (3, "abstained"), (4, "['score']")):
        assert said in scores[index].message
    dropped = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert len(dropped) == 1 and "mine.score: 'states' (ndarray), 'loss' (float)" in dropped[0]
