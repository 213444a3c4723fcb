"""One judge for answers that are numbers, shared by the reward functions that differ in markers and values.

What enters: a response's text and the row's gold answer. What leaves: a `types.Score`. Called by `gsm8k` and
`math_dapo`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mindgspo.rewards.extract import Marker, find_answer
from mindgspo.rewards.plain_text import plain
from mindgspo.rewards.quantity import Quantity, read_quantity, same_quantity
from mindgspo.types import Score, Verdict

MAX_EXTRACTED_CHARS = 200
"""How much of an answer is kept in the sample record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericVerifier:
    """Rewards a response whose announced answer equals the gold answer as an exact number.

    name: key under which the value appears in Score.parts. own, others: see `extract.find_answer`.
    correct, wrong: reward values; no answer found is paid like a wrong one but has its own verdict.
    """

    name: str
    own: Sequence[Marker]
    others: Sequence[Marker]
    correct: float
    wrong: float

    def read_gold(self, gold: str) -> Quantity | None:
        """The gold answer's value, None if unreadable; a worked solution ending in "#### 72" is read too."""
        announced = find_answer(gold, own=(Marker.HASHES,), others=())
        return read_quantity(gold if announced is None else announced)

    def score(self, text: str, gold: str) -> Score:
        """Judges `text`, the response up to EOS. Never raises on any pair of strings.

        Verdict UNPARSEABLE_GOLD abstains (value None, no parts); CORRECT, WRONG and NO_ANSWER are paid.
        """
        gold_quantity = self.read_gold(gold)
        if gold_quantity is None:
            return Score(value=None, verdict=Verdict.UNPARSEABLE_GOLD)
        announced = find_answer(text, own=self.own, others=self.others)
        if announced is None:
            return self._paid(self.wrong, Verdict.NO_ANSWER, None)
        answer = read_quantity(announced)
        is_correct = answer is not None and same_quantity(answer, gold_quantity)
        return self._paid(
            self.correct if is_correct else self.wrong,
            Verdict.CORRECT if is_correct else Verdict.WRONG,
            plain(announced)[:MAX_EXTRACTED_CHARS],
        )

    def _paid(self, value: float, verdict: Verdict, extracted: str | None) -> Score:
        return Score(value=value, verdict=verdict, extracted=extracted, parts={self.name: value})
