"""Published data sets and graded model outputs, read where they lie beside the project."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import pytest

from math_answers.equivalence import RIGHT, votes_of
from math_answers.final_number import final_number
from math_answers.findings import AnswerMode
from math_answers.quantity import read_quantity, same_quantity
from mindgspo.config import RewardSection
from mindgspo.rewards import Scorer
from mindgspo.rewards.functions.numeric import Gsm8k, MathDapo, NumericVerifier
from mindgspo.rewards.verification import Candidate
from mindgspo.types import Verdict

CALCULATOR_NOTES = re.compile(r"<<[^<>]*>>")
LAST_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


pytestmark = pytest.mark.shared_data


def verdict(verifier: NumericVerifier, text: str, gold: str) -> Verdict:
    return verifier.verify(Candidate(text=text, gold=gold, data_source="", index=0)).verdict


@pytest.mark.parametrize("mode", ["strict", "flexible", "first", "last"])
def test_every_gsm8k_solution_is_correct_against_its_own_answer(shared_rows, mode: AnswerMode) -> None:
    test = shared_rows("gsm8k/test.jsonl")
    assert len(test) == 1319
    for row in test:
        gold = row["answer"].rpartition("####")[2].strip()
        assert verdict(Gsm8k(mode), row["answer"], gold) is Verdict.CORRECT, row["answer"]


def test_the_final_number_of_a_human_solution_is_its_answer(shared_rows) -> None:
    """7,473 solutions without their line "#### n": nobody wrote these for a rule of ours."""
    agreed = last_agreed = 0
    for row in shared_rows("gsm8k/train.jsonl"):
        solution, _, gold = row["answer"].rpartition("\n####")
        solution = CALCULATOR_NOTES.sub("", solution)
        expected = read_quantity(gold)
        assert expected is not None
        found = read_quantity(final_number(solution) or "")
        agreed += found is not None and same_quantity(found, expected)
        numbers = LAST_NUMBER.findall(solution.replace("$", ""))
        last = read_quantity(numbers[-1]) if numbers else None
        last_agreed += last is not None and same_quantity(last, expected)
    assert agreed >= 0.99 * 7473
    assert last_agreed < 0.975 * 7473  # what a plain search for the last number reaches


def test_every_dapo_answer_is_readable(shared_rows) -> None:
    golds = [row["reward_model"]["ground_truth"] for row in shared_rows("dapo-math-17k/dapo_math_512.jsonl")]
    assert len(golds) == 512
    for gold in golds:
        assert verdict(MathDapo("strict"), f"Answer: {gold}", gold) is Verdict.CORRECT
        assert verdict(MathDapo(strict_box=True), rf"So \boxed{{{gold}}}.", gold) is Verdict.CORRECT
        assert verdict(MathDapo(), f"So it is {gold}.", gold) is Verdict.CORRECT


# Rows of gsm8k_rho7b_cot.jsonl where mode flexible and the label of the source's grader differ: row number, end of the
# response, gold answer, our verdict.
WRONG_LABELS = [
    # The unit confused the grader: the question asks for it.
    (405, "The answer is 50 dollars.", "50", Verdict.CORRECT),
    (605, "The answer is 10 cents.", "10", Verdict.CORRECT),
    (690, "The answer is 32 dollars.", "32", Verdict.CORRECT),
    (758, "So 16 people think that horse #12 will win.", "16", Verdict.CORRECT),  # 12 is the horse's name
    # The response repeats the question and answers nothing; its 5 is a given.
    (1098, "After 5 days, how many hours do his lunches and breaks add up to?", "5", Verdict.WRONG),
]


@pytest.mark.parametrize(
    ("name", "count", "wrong_labels"), [("gsm8k_openai_6b", 1319, []), ("gsm8k_rho7b_cot", 1316, WRONG_LABELS)]
)
def test_answers_agree_with_all_labels_but_the_wrong_ones(shared_rows, name: str, count: int, wrong_labels) -> None:
    graded = shared_rows(f"model-outputs/{name}.jsonl")
    assert len(graded) == count
    differing = []
    for index, row in enumerate(graded):
        found = verdict(Gsm8k(), row["response"], row["gold"])
        if (found is Verdict.CORRECT) != row["correct"]:
            differing.append((index, row["response"], row["gold"], found))
    for (index, end, *expected), (found_index, response, *found) in zip(wrong_labels, differing, strict=True):
        assert (found_index, found) == (index, expected) and response.endswith(end)


def test_mode_last_believes_the_result_of_a_calculation_too(shared_rows) -> None:
    """Five more labels are wrong if the last number counts: "The answer is 520 - 480 = 40." against a gold 40."""
    graded = shared_rows("model-outputs/gsm8k_rho7b_cot.jsonl")
    paid = [
        index
        for index, row in enumerate(graded)
        if not row["correct"]
        and verdict(Gsm8k(), row["response"], row["gold"]) is Verdict.WRONG
        and verdict(Gsm8k("last"), row["response"], row["gold"]) is Verdict.CORRECT
    ]
    assert paid == [53, 138, 508, 667, 842]


def test_mode_strict_finds_no_answer_in_the_prose_of_other_data_sets(shared_rows) -> None:
    for name in ("gsm8k_openai_6b", "gsm8k_rho7b_cot"):
        found = {
            verdict(Gsm8k("strict"), row["response"], row["gold"]) for row in shared_rows(f"model-outputs/{name}.jsonl")
        }
        assert found == {Verdict.NO_ANSWER}


def test_boxed_answers_agree_with_their_published_labels(shared_rows) -> None:
    graded = shared_rows("model-outputs/math_qwen25math_boxed.jsonl")
    counts = Counter((row["correct"], verdict(Gsm8k("strict"), row["response"], row["gold"]).value) for row in graded)
    # Three problems have a gold that is no number ("4t", "4a-2", "4:30p.."): 24 rows abstain.
    assert counts == Counter(
        {(True, "correct"): 279, (False, "wrong"): 17, (True, "unparseable_gold"): 16, (False, "unparseable_gold"): 8}
    )


def test_real_groups_of_eight_answers(shared_rows) -> None:
    """40 problems of MATH with 8 answers each: right ones agree, so whoever has five right ones wins the vote."""
    rows = shared_rows("model-outputs/math_qwen25math_boxed.jsonl")
    candidates = [
        Candidate(text=row["response"], gold=row["gold"], data_source="math", index=number)
        for number, row in enumerate(rows)
    ]
    with Scorer(RewardSection(functions=("math",), weights=(1.0,))) as scorer:
        scores = scorer.score(candidates)
    groups = defaultdict(list)
    for row, score in zip(rows, scores, strict=True):
        groups[row["problem"]].append(score)
    assert len(groups) == 40
    for group in groups.values():
        are_correct = [score.verdict is Verdict.CORRECT for score in group]
        votes = votes_of([score.extracted for score in group], are_correct)
        assert [vote == RIGHT for vote in votes] == are_correct
        assert all((vote is None) == (score.extracted is None) for vote, score in zip(votes, group, strict=True))
