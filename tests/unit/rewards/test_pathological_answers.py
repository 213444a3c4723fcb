"""What symbolic comparison cannot finish costs its own response, and no other, through real worker processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mindgspo.config import RewardSection
from mindgspo.config.reward import RewardWorkersSection
from mindgspo.rewards import Candidate, Scorer
from mindgspo.types import Score, Verdict

TOWER = r"\boxed{9^{9^{9^{9^{9}}}}}"


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    section = RewardWorkersSection(count=2, timeout_s=2.0)
    with Scorer(RewardSection(functions=("math",), workers=section)) as scorer:
        yield scorer


def scored(scorer: Scorer, *pairs: tuple[str, str]) -> list[Score]:
    return scorer.score(
        [Candidate(text=text, gold=gold, data_source="math", index=i) for i, (text, gold) in enumerate(pairs)]
    )


def test_a_power_tower_is_left_out_and_its_neighbours_are_judged(scorer: Scorer) -> None:
    right = (r"\boxed{(x+1)^2}", "x^2+2x+1")
    wrong = (r"\boxed{(x+1)^2}", "x^2+2x+2")
    scores = scored(scorer, right, wrong, (TOWER, "x^2+1"), right, wrong, right)
    assert [score.verdict.value for score in scores] == ["correct", "wrong", "timeout", "correct", "wrong", "correct"]
    assert scores[2].value is None and "within 2 s" in scores[2].message
    again = scored(scorer, right, wrong)
    assert [score.verdict for score in again] == [Verdict.CORRECT, Verdict.WRONG]


def test_numbers_of_ten_thousand_digits_are_judged(scorer: Scorer) -> None:
    number = "7" * 10_000
    scores = scored(
        scorer,
        (rf"\boxed{{{number}}}", "7"),
        (rf"\boxed{{{number} + x}}", "x + 1"),
        (rf"\boxed{{\frac{{{number}}}{{{number}1}}}}", r"\frac{1}{10}"),
        (rf"\boxed{{{number[:90]}x}}", f"x \\cdot {number[:90]}"),
        (r"\boxed{7}", number),
    )
    assert [score.verdict.value for score in scores[:3]] == ["wrong"] * 3
    assert scores[3].verdict is Verdict.CORRECT
    assert scores[4].verdict is Verdict.UNPARSEABLE_GOLD


@pytest.mark.parametrize("unit", ["(a+)+$", "((", r"\frac{", "x^", r"\sqrt{\sqrt{", "1,", "a=", "|", r"\left("])
def test_texts_made_to_backtrack_are_judged(scorer: Scorer, unit: str) -> None:
    noise = unit * (100_000 // len(unit))
    short = unit * 100
    scores = scored(scorer, (rf"\boxed{{{noise}}}", "x^2+1"), (rf"\boxed{{{short}}}", "x^2+1"), (noise, noise[:500]))
    assert len(scores) == 3
    assert all(score.verdict in set(Verdict) for score in scores)
    assert scored(scorer, (r"\boxed{1+x^2}", "x^2+1"))[0].verdict is Verdict.CORRECT
