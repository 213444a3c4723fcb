"""Multiple choice: exactly the right letters, in whatever way they are written."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from math_answers.choices import check_choice, gold_choices, read_choices
from math_answers.findings import AnswerMode, Outcome

CORRECT, WRONG, NO_ANSWER = Outcome.CORRECT, Outcome.WRONG, Outcome.NO_ANSWER


def verdict(text: str, gold: str, mode: AnswerMode = "flexible", *, is_cut: bool = False) -> Outcome:
    return check_choice(text, gold, mode=mode, is_cut=is_cut).outcome


ABD = [
    *("ABD", "DBA", "AABBD", "A, B, D", "A,B and D", "A, B, and D", "A B D", "A/B/D", "A\u3001B\u3001D"),
    *("A\uff0cB\uff0cD", "\uff21\uff22\uff24", "ABD\u9009\u9879", "\u9009ABD", r"\text{ABD}", "(A)(B)(D)"),
    *(r"\text{A}, \text{B}, \text{D}", "Options A, B and D"),
]
ONLY_B = [
    *("B", "(B)", "[B]", "B.", "b", "(b)", r"\text{B}", r"\mathrm{(B)}", r"\textbf{B}", "B. Paris", "Option B"),
    *("B) Paris or London", "(B) 5", "B: 12", "B\u3001\u5df4\u9ece"),
]


@pytest.mark.parametrize(("text", "letters"), [
    *((text, "ABD") for text in ABD), *((text, "B") for text in ONLY_B), ("A\u548cC", "AC"), ("A. red, C. blue", "AC"),
    (r"\text{Both A and C}", "AC"),  # it names these two and nothing else
])  # fmt: skip
def test_letters(text: str, letters: str) -> None:
    assert read_choices(text) == frozenset(letters)
    assert verdict(rf"\boxed{{{text}}}", letters, "strict") is CORRECT
    assert gold_choices(text) is not None


@pytest.mark.parametrize("text", [
    *("", " ", "Paris", "BAD idea", "A or B", "A\u6216B", "K", "ABK", "A1", "72", "All of the above", "abd"),
    *("A. red or C. blue", "not A", "None", "\u65e0", r"\boxed{}", "ABD" * 500),
])  # fmt: skip
def test_no_letters(text: str) -> None:
    assert read_choices(text) is None
    assert gold_choices(text) is None
    assert verdict(r"\boxed{A}", text) is Outcome.UNPARSEABLE_GOLD


@pytest.mark.parametrize("gold", ["ABD", r"\boxed{ABD}", "A, B, D", r"First A. Then \boxed{A}, no, \boxed{DBA}"])
def test_gold_answers(gold: str) -> None:
    assert verdict(r"\boxed{ABD}", gold) is CORRECT
    assert verdict(r"\boxed{BDA}", gold) is CORRECT
    for other in ("AB", "ABCD", "C", "A"):
        assert verdict(rf"\boxed{{{other}}}", gold) is WRONG


@pytest.mark.parametrize(("text", "gold", "flexible", "strict"), [
    (r"So \boxed{ABD}. Well done.", "ABD", CORRECT, CORRECT), (r"\boxed{A}? No, \boxed{B}.", "B", CORRECT, CORRECT),
    (r"<think>\boxed{A}</think><answer>\boxed{BD}</answer>", "BD", CORRECT, CORRECT),
    (r"<answer>\boxed{BD}</answer> or \boxed{A}", "BD", CORRECT, CORRECT),
    ("<answer>B, D</answer>", "BD", CORRECT, NO_ANSWER), ("<answer>\nB\n</answer>", "B", CORRECT, NO_ANSWER),
    ("\u7b54\u6848\u662fAB", "AB", CORRECT, NO_ANSWER),
    ("\u6b63\u786e\u7b54\u6848\u662fB\u9009\u9879", "B", CORRECT, NO_ANSWER),
    ("\u7b54\u6848\uff1aA\u3001C", "AC", CORRECT, NO_ANSWER),
    ("\u7efc\u4e0a\uff0c\u6545\u9009BD\u3002", "BD", CORRECT, NO_ANSWER), ("Answer: (B)", "B", CORRECT, NO_ANSWER),
    ("Answer: A and C.", "AC", CORRECT, NO_ANSWER), ("Answer: A or C", "A", NO_ANSWER, NO_ANSWER),
    ("Answer: B. Paris is right", "B", CORRECT, NO_ANSWER), ("The answer is B.", "B", CORRECT, NO_ANSWER),
    ("The answer is **B**.", "B", CORRECT, NO_ANSWER), ("The answer is B because A is false.", "B", CORRECT, NO_ANSWER),
    ("The answer is B, not C.", "B", CORRECT, NO_ANSWER), ("The answer is (B) and (D).", "BD", CORRECT, NO_ANSWER),
    ("The correct answer is option C.", "C", CORRECT, NO_ANSWER), ("The answer is not B.", "B", NO_ANSWER, NO_ANSWER),
    ("The answer is A good one.", "A", NO_ANSWER, NO_ANSWER), ("That was a BAD idea.", "ABD", NO_ANSWER, NO_ANSWER),
    ("Answer: BAD idea", "ABD", NO_ANSWER, NO_ANSWER), ("B", "B", CORRECT, NO_ANSWER),
    ("Both fit.\nA, C", "AC", CORRECT, NO_ANSWER), (r"\boxed{Paris}", "B", WRONG, WRONG),
    (r"12 is \boxed{12}. Answer: B", "B", CORRECT, WRONG), (r"\boxed{A}. The answer is B.", "B", WRONG, WRONG),
    ("", "B", NO_ANSWER, NO_ANSWER),
])  # fmt: skip
def test_responses(text: str, gold: str, flexible: Outcome, strict: Outcome) -> None:
    assert verdict(text, gold) is flexible
    assert verdict(text, gold, "strict") is strict


@pytest.mark.parametrize("text", [
    *("Answer: (B) 72", "The answer is (B) $72$.", "The correct answer is (B) Paris.", "Answer: B) 72"),
    *("<answer>B. Paris</answer>", "<answer>(B) Paris</answer>", "<answer>Think: A no.\nB</answer>"),
    *("\u3010\u7b54\u6848\u3011B", "\u3010\u7b54\u6848\u3011B\n\u3010\u89e3\u6790\u3011A\u9519\u8bef\u3002"),
    *("\u672c\u9898\u9009B\u3002", "\u6240\u4ee5\u7b54\u6848\u9009B", "\u5e94\u9009\u62e9 B \u9009\u9879"),
    *("\u6b63\u786e\u7684\u9009\u9879\u662fB", "The correct option is B.", "Option B is correct."),
    *("So option B is correct.", "The correct option is B because A is false.\nDone."),
    # An option's own text, and another letter that is turned down, take nothing back.
    *("Answer: B. No", "Answer: (B) False", "Answer: B, not C", "\u7b54\u6848\u662fB\u4e0d\u662fC"),
    *("Answer: B (or equivalently 72)", "\u7b54\u6848\uff1aB\u4e0d\u53d8", "Answer: (B) Paris or London"),
])  # fmt: skip
def test_common_forms(text: str) -> None:
    assert verdict(text, "B") is CORRECT
    assert verdict(text, "C") is WRONG
    assert verdict(text, "B", "strict") is NO_ANSWER


@pytest.mark.parametrize("frame", ["{}", "Answer: {}", "The answer is {}", r"\boxed{{{}}}", "<answer>{}</answer>"])
@pytest.mark.parametrize("text", [
    *("B is wrong", "(B) is wrong", "B is not right", "B isn't right", "B is incorrect because of X, so C."),
    *("B (or C)", "B, maybe C", "B? or C?", "B. No, C.", "(B) or (C)", "B. Wait, it is C.", "B. Or C."),
    *("B\u9519\u8bef", "B\u4e0d\u5bf9", "B\u662f\u9519\u8bef\u7684", "B\u9009\u9879\u4e0d\u6b63\u786e"),
    *("B is the wrong one", "B would be incorrect", "B\u8fd8\u662f\u9009C", "B\u6216C"),
    "B\uff0c\u4e5f\u53ef\u80fd\u662fC",
])  # fmt: skip
def test_what_is_taken_back_is_no_choice(frame: str, text: str) -> None:
    for gold in ("B", "C", "BC"):
        assert verdict(frame.format(text), gold) in (WRONG, NO_ANSWER)


@pytest.mark.parametrize("text", [
    *("\u7b54\u6848\uff1aB\u9519\u8bef", "\u7b54\u6848\uff1aB\u4e0d\u5bf9", "\u672c\u9898\u4e0d\u5e94\u9009B"),
    *("We reject option B", "The correct option is not B.", "So option B is wrong."),
])  # fmt: skip
def test_what_is_turned_down_is_no_choice(text: str) -> None:
    assert verdict(text, "B") is NO_ANSWER


LINKS = (", ", ",", "\u3001", "\uff0c", " and ", ", and ", "$, $", "\u548c")


@pytest.mark.parametrize(("text", "letters"), [
    *((link.join(rf"\boxed{{{letter}}}" for letter in "ABD"), "ABD") for link in LINKS),
    (r"$\boxed{A}$, $\boxed{B}$ and $\boxed{D}$.", "ABD"), (r"\boxed{C}. No: \boxed{A}, \boxed{B}", "AB"),
    (r"\boxed{A}, no, \boxed{B}", "B"), (r"\boxed{72}, \boxed{B}", "B"), (r"\boxed{72} or \boxed{B}", "B"),
    (r"\boxed{B} or \boxed{(B) 72}", "B"), (r"\boxed{A} or \boxed{B}? It is \boxed{B}", "B"),
])  # fmt: skip
def test_boxes_in_a_row_are_one_choice(text: str, letters: str) -> None:
    for frame in ("{}", "The answer is {}", "<answer>{}</answer>"):
        assert verdict(frame.format(text), letters) is CORRECT
        assert verdict(frame.format(text), letters, "strict") is CORRECT
    assert verdict(rf"\boxed{{{letters}}}", text) is CORRECT


@pytest.mark.parametrize("link", [" or ", ", or ", "\u6216", "\u6216\u8005", "$ or $", " or maybe "])
@pytest.mark.parametrize("frame", ["{}", "Answer: {}", "The answer is {}.", "<answer>{}</answer>"])
@pytest.mark.parametrize("mode", ["strict", "flexible", "first", "last"])
def test_boxes_that_are_alternatives_choose_nothing(frame: str, link: str, mode: AnswerMode) -> None:
    for text in (rf"\boxed{{A}}{link}\boxed{{B}}", rf"\boxed{{A}}, \boxed{{C}}{link}\boxed{{B}}"):
        for gold in ("A", "B", "AB", "ABC", "AC"):
            assert verdict(frame.format(text), gold, mode) is WRONG


def test_first_last_cut_and_words_of_letters() -> None:
    text = "Answer: A\nQuestion: more?\nAnswer: B"
    assert verdict(text, "A", "first") is CORRECT
    assert verdict(text, "B", "last") is CORRECT
    assert verdict("We compare\nA", "A", is_cut=True) is NO_ANSWER
    for word in ("BAD", "(BAD)", "**BAD**", "Hm.\nBAD.", "ADD"):
        assert verdict(word, "".join(set(word) & set("ABD"))) is NO_ANSWER
    for text in ("ABD", "Hm.\n(ABD)", "B, A, D", r"\boxed{BAD}", "Answer: BAD", "<answer>BAD</answer>"):
        assert verdict(text, "ABD") is CORRECT


PIECES = [
    *(r"\boxed{", "}", "Answer:", "The answer is ", "<answer>", "</answer>", "A", "B.", "(C)", ",", " and ", " or "),
    *("\u7b54\u6848\u662f", "\u3001", "\n", " ", "option", "\ud800", "BAD", ".", ")", "\u6545\u9009"),
]
soup = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@settings(max_examples=300)
@given(text=soup | st.text(), gold=soup | st.text(), mode=st.sampled_from(["strict", "flexible", "first", "last"]))
def test_any_text_gets_a_verdict(text: str, gold: str, mode: AnswerMode) -> None:
    assert verdict(text, gold, mode) in Outcome


some_letters = st.sets(st.sampled_from("ABCDEFGHIJ"), min_size=1)


@given(letters=some_letters, others=some_letters)
def test_exactly_the_same_set(letters: set[str], others: set[str]) -> None:
    expected = CORRECT if letters == others else WRONG
    text = "\u3001".join(letters)
    assert verdict(rf"\boxed{{{text}}}", "".join(others)) is expected


@pytest.mark.parametrize("unit", [
    *("A", "A ", "A,", "A. ", "(", "Answer: A\n", "Answer: A or ", r"\boxed{A}", r"\boxed{A}, "),
    *(r"\boxed{A} or ", "\u3010\u7b54\u6848\u3011", "\u672c\u9898\u9009A", r"\boxed{", "the answer is B "),
    *("\n", "<answer>"),
])  # fmt: skip
def test_a_megabyte_of_noise_finishes(unit: str) -> None:
    noise = unit * (1_000_000 // len(unit))
    assert verdict(noise, "AC") in (WRONG, NO_ANSWER)
    assert verdict(r"\boxed{A}", noise) is Outcome.UNPARSEABLE_GOLD or unit.startswith(r"\boxed{A}")
