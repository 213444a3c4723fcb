"""The summary of an evaluation, from answers whose verdicts are known."""

from __future__ import annotations

import numpy as np
import pytest

from mindgspo.evaluation.estimates import ScoredProblem, mean_at_n, mean_estimate, share_estimate, summarize_problems
from mindgspo.types import FinishReason, Prompt, Response, Score, ScoredGroup, Verdict

RIGHT, WRONG, NONE, LATE = Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER, Verdict.TIMEOUT


def score(verdict: Verdict, extracted: str | None = None, value: float | None = None) -> Score:
    paid = {RIGHT: 1.0, WRONG: 0.0, NONE: 0.0, LATE: None}[verdict]
    return Score(value=paid if value is None else value, verdict=verdict, extracted=extracted)


def problem(*scores: Score, lengths: tuple[int, ...] | None = None, num_cut: int = 0) -> ScoredProblem:
    lengths = (1,) * len(scores) if lengths is None else lengths
    return ScoredProblem(data_source="math", scores=scores, lengths=lengths, num_cut=num_cut)


PROBLEMS = (
    problem(score(RIGHT, "4"), score(RIGHT, "4"), score(WRONG, "5"), score(NONE)),
    problem(score(RIGHT, "1/2"), score(WRONG, "7"), score(WRONG, "7.0"), score(WRONG, "8")),
    problem(score(NONE), score(NONE), score(LATE), score(WRONG, "3")),
)


def test_sampled_figures_by_hand() -> None:
    figures = summarize_problems(PROBLEMS, ks=(1, 2, 4))
    values = {name: estimate.value for name, estimate in figures.estimates.items()}
    # maj@2: of 6 pairs of the first problem RR and two R- are right, two RW even; of the second three are even; its
    # vote of 4 goes to 7, however that is written.
    assert values == pytest.approx({
        "acc/mean@4": 3 / 12, "acc/pass@1": 3 / 12, "acc/pass@2": (5 / 6 + 1 / 2 + 0) / 3, "acc/pass@4": 2 / 3,
        "acc/maj@2": (4 / 6 + 1 / 4 + 0) / 3, "acc/maj@4": 1 / 3,
    })  # fmt: skip
    assert figures.estimates["acc/mean@4"] == mean_at_n([2, 1, 0], 4)
    assert figures.estimates["acc/maj@4"] == share_estimate([1, 0, 0])
    assert (figures.num_problems, figures.num_correct) == (3, 3)
    assert (figures.no_answer, figures.failed) == pytest.approx((3 / 12, 1 / 12))


def test_greedy_figures_ties_and_untold_answers() -> None:
    figures = summarize_problems([problem(score(RIGHT, "1")), problem(score(NONE))])
    assert figures.estimates == {"acc/mean@1": share_estimate([1, 0])}
    figures = summarize_problems([problem(score(RIGHT, "1"), score(WRONG, "2"), score(WRONG, "3"))], ks=(3,))
    assert figures.estimates["acc/maj@3"].value == pytest.approx(1 / 3)
    # A user's function may judge without saying what it found.
    figures = summarize_problems([problem(score(RIGHT), score(WRONG), score(WRONG))], ks=(3,))
    assert set(figures.estimates) == {"acc/mean@3", "acc/pass@3"}


def test_when_rewards_are_shown() -> None:
    # Of -1, 0.5 and a failed judgement (the lowest, -1), and of 1, 1, 1: means -0.5 and 1, best 0.5 and 1; of two
    # samples the best of the first problem is 0.5 in two of three pairs, -1 in the third.
    late = score(LATE)
    mixed = problem(score(WRONG, "2", value=-1.0), score(RIGHT, "1", value=0.5), late)
    figures = summarize_problems([mixed, problem(*[score(RIGHT, "1", value=1.0)] * 3)], ks=(1, 2))
    assert figures.estimates["reward/mean@3"].value == pytest.approx((-0.5 + 1) / 2)
    assert figures.estimates["reward/best@2"] == mean_estimate([(0.5 + 0.5 - 1) / 3, 1])
    assert "reward/best@1" not in figures.estimates, "it is the mean"
    assert figures.estimates["reward/best@3"].value == pytest.approx((0.5 + 1) / 2)
    # DAPO pays +1 and -1.
    paid = problem(score(WRONG, "2", value=-1.0), score(RIGHT, "1", value=1.0), score(NONE, value=-1.0))
    assert set(summarize_problems([paid], ks=(3,)).estimates) == {"acc/mean@3", "acc/pass@3", "acc/maj@3"}
    paid = problem(score(WRONG, "2"), score(RIGHT, "1"), score(NONE))
    found = summarize_problems([paid, paid], ks=(2,), all_rewards=True).estimates
    assert {name for name in found if name.startswith("reward")} == {"reward/mean@3", "reward/best@2", "reward/best@3"}
    assert summarize_problems([problem(score(LATE))], all_rewards=True).estimates.keys() == {"acc/mean@1"}


def test_failures_lengths_and_cuts() -> None:
    figures = summarize_problems([problem(score(LATE), score(LATE))], ks=(2,))
    assert figures.failed == 1 and figures.estimates["acc/mean@2"].value == 0
    answers = [score(RIGHT, "1"), score(NONE)]
    figures = summarize_problems([problem(*answers, lengths=(3, 16), num_cut=1), problem(*answers, lengths=(4, 5))])
    assert (figures.mean_length, figures.cut) == (28 / 4, 1 / 4)


def test_what_is_kept_of_a_group() -> None:
    def response(number: int, length: int, reason: FinishReason) -> Response:
        return Response(
            prompt_index=0, sample_index=number, ids=np.zeros(length, np.int32), logprobs=np.zeros(length, np.float32),
            finish_reason=reason, temperature=1.0, weight_version=0,
        )  # fmt: skip

    prompt = Prompt(index=0, ids=np.ones(1, np.int32), text="?", answer="1", data_source="math")
    scores = (score(RIGHT, "1"), score(NONE))
    responses = (response(0, 3, FinishReason.STOP), response(1, 16, FinishReason.LENGTH))
    group = ScoredGroup(prompt=prompt, responses=responses, scores=scores)
    assert ScoredProblem.of(group) == problem(*scores, lengths=(3, 16), num_cut=1)
