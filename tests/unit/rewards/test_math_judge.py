r"""The reward `math`: which answer of a response counts, what is decided at once, what goes to a worker."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mindgspo.config.reward import AnswerMode
from mindgspo.rewards.functions.math import Math
from mindgspo.rewards.verification import Candidate, Job, Verification
from mindgspo.types import Verdict


def candidate(text: str, gold: str, *, is_cut: bool = False) -> Candidate:
    return Candidate(text=text, gold=gold, data_source="math", index=3, is_cut=is_cut)


def verdict(text: str, gold: str, mode: AnswerMode = "flexible") -> Verdict:
    found = Math(mode).verify(candidate(text, gold))
    assert isinstance(found, Verification), f"a job for {text!r}"
    assert found.value == {Verdict.CORRECT: 1.0, Verdict.UNPARSEABLE_GOLD: None}.get(found.verdict, 0.0)
    return found.verdict


CORRECT, WRONG, NO_ANSWER = Verdict.CORRECT, Verdict.WRONG, Verdict.NO_ANSWER


@pytest.mark.parametrize(
    ("text", "gold", "flexible", "strict"),
    [
        (r"So \(\boxed{\frac{1}{2}}\).", r"\frac12", CORRECT, CORRECT),
        (r"\boxed{0.5}" + " and so on" * 500, r"\frac12", CORRECT, CORRECT),
        (r"\boxed{3}, no: \boxed{4}", "4", CORRECT, CORRECT),
        (r"\boxed{3}, no: \boxed{4}", "3", WRONG, WRONG),
        (r"\boxed{x=\boxed{4}}", "4", CORRECT, CORRECT),
        (r"<think>\boxed{3}</think> \boxed{4}", "4", CORRECT, CORRECT),
        (r"Answer: \frac{\pi}{2}", r"\frac\pi2", CORRECT, NO_ANSWER),
        (r"The answer is $2\sqrt{3}$.", r"2\sqrt3", CORRECT, NO_ANSWER),
        (r"The answer is $\{1,2\}$. See 3.", "2,1", CORRECT, NO_ANSWER),
        (r"The answer is $x \in [-2,7]$.", "[-2,7]", CORRECT, NO_ANSWER),
        ("The answer is $x^2+1$, which is 2 at 1.", "1+x^2", CORRECT, NO_ANSWER),
        (r"The final answer is $\pi$.", r"\pi", CORRECT, NO_ANSWER),
        ("The answer is east. It took 3 hours.", r"\text{east}", CORRECT, NO_ANSWER),
        ("The answer is in dollars. That gives 5.", "5", CORRECT, NO_ANSWER),
        ("Answer: She sold 72 clips.", "72", CORRECT, NO_ANSWER),
        ("The result must be 72.", "72", CORRECT, NO_ANSWER),
        (r"\boxed{5}. The answer is 6.", "6", WRONG, WRONG),
        ("We do not know.", "72", NO_ANSWER, NO_ANSWER),
        ("", "72", NO_ANSWER, NO_ANSWER),
        (r"\boxed{}", "72", NO_ANSWER, NO_ANSWER),
        (r"\boxed{72}", r"We get 70, then \boxed{71}, and finally \boxed{72}.", CORRECT, CORRECT),
        (r"\boxed{\text{(C)}}", "C", CORRECT, CORRECT),
        (r"\boxed{$5}", "5", CORRECT, CORRECT),
        (r"\boxed{5 \text{ or } 6}", "5", WRONG, WRONG),
    ],
)
def test_verdicts(text: str, gold: str, flexible: Verdict, strict: Verdict) -> None:
    assert verdict(text, gold) is flexible
    assert verdict(text, gold, "strict") is strict


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("The answer is not $x+1$.", "x+1"),
        (r"The answer is more than $\sqrt2$", r"\sqrt2"),
        ("The answer is more than $5$.", "5"),
        ("The answer is not $5$.", "5"),
        ("The answer is twice $5$", "5"),
        ("The answer is half of $5$", "5"),
        (r"Answer: $\pi$ is not correct", r"\pi"),
        (r"Answer: $\pi$? or $e$?", r"\pi"),
        ("Answer: it cannot be $5$", "5"),
    ],
)
def test_what_prose_takes_back_is_not_paid(text: str, gold: str) -> None:
    found = Math().verify(candidate(text, gold))
    assert isinstance(found, Job) or found.verdict is not CORRECT
    assert not isinstance(found, Job) or found.arguments["answer"] != gold  # the words go along


def test_first_and_last() -> None:
    text = r"Answer: \boxed{3}. Wait: \boxed{4}"
    assert verdict(text, "3", "first") is CORRECT
    assert verdict(text, "4", "last") is CORRECT


@pytest.mark.parametrize("gold", ["", "  ", "$$", r"\boxed{}", "...", "x" * 5000])
def test_a_gold_answer_without_content_abstains(gold: str) -> None:
    assert not Math().can_read(gold)
    assert verdict(r"\boxed{1}", gold) is Verdict.UNPARSEABLE_GOLD


@pytest.mark.parametrize("gold", ["72", r"\text{east}", r"\infty", "4:30", r"A solution. \boxed{x^2}", "\u662f"])
def test_readable_gold_answers(gold: str) -> None:
    assert Math().can_read(gold)


def test_what_needs_algebra_is_a_job_of_plain_texts() -> None:
    verifier = Math()
    response = candidate(r"Thus $\boxed{2\sqrt{2}}$.", r"It is $\boxed{\sqrt{8}}$.")
    job = verifier.verify(response)
    assert isinstance(job, Job) and job.task == "math_verify"
    assert job.arguments == {"answer": r"2\sqrt{2}", "gold": r"\sqrt{8}"}
    same = {"same": True, "gold_parsed": True, "answer_parsed": True}
    assert job.conclude(same) == Verification(value=1.0, verdict=CORRECT, extracted=r"2\sqrt{2}")


@pytest.mark.parametrize("gold_parsed", [True, False])
def test_what_is_not_shown_to_be_the_same_is_wrong(gold_parsed: bool) -> None:
    verifier = Math()
    response = candidate(r"\boxed{2\sqrt{2}}", r"\sqrt{9}")
    job = verifier.verify(response)
    assert isinstance(job, Job)
    assert job.conclude({"same": False, "gold_parsed": gold_parsed, "answer_parsed": True}).verdict is WRONG


def test_a_response_that_was_cut_has_no_final_number() -> None:
    found = Math().verify(candidate("Then 3 + 4 = 7", "7", is_cut=True))
    assert isinstance(found, Verification) and found.verdict is NO_ANSWER


PIECES = [
    *(
        r"\boxed{",
        "}",
        "{",
        "Answer:",
        "The answer is ",
        "####",
        "$",
        r"\(",
        r"\)",
        "<answer>",
        "</answer>",
        "</think>",
    ),
    *(r"\frac", r"\sqrt", r"\text{", "1", "2.5", "x", "=", ",", ".", " ", "\n", "\\", "\ud800", "\u7b54\u6848\uff1a"),
]
soup = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@settings(max_examples=300)
@given(text=soup | st.text(), gold=soup | st.text(), mode=st.sampled_from(["strict", "flexible", "first", "last"]))
@example(text=r"\boxed{1/0}", gold="1/0", mode="flexible")
def test_any_text_gets_a_judgement_or_a_job(text: str, gold: str, mode: AnswerMode) -> None:
    verifier = Math(mode)
    response = candidate(text, gold)
    found = verifier.verify(response)
    if isinstance(found, Job):
        found = found.conclude({"same": False, "gold_parsed": False, "answer_parsed": False})
    assert (found.value is None) == (found.verdict is Verdict.UNPARSEABLE_GOLD)


@pytest.mark.parametrize(
    "unit",
    [
        *(r"\boxed{", r"\boxed{x}", "{", "}", "$", "$ ", r"\(", r"\frac", "Answer: x+1\n", "the answer is $x$ "),
        *("answer is ", "Answer:", "9", "1,", "x^", "(", "|", "a word ", "\n", r"\text{", "<answer>x", "=", "\\"),
    ],
)
def test_a_megabyte_of_noise_finishes(unit: str) -> None:
    noise = unit * (1_000_000 // len(unit))
    verified = (Math().verify(candidate(noise, "12345")), Math().verify(candidate(r"\boxed{1}", noise)))
    assert all(isinstance(each, Verification | Job) for each in verified)


def test_an_answer_is_found_before_a_megabyte_of_tail() -> None:
    tail = "\nwords without meaning" * 50_000
    assert verdict(r"\boxed{\frac{3}{7}}" + tail, "3/7") is CORRECT
    assert verdict(r"The answer is $\{1,2\}$." + tail, "2,1") is CORRECT
