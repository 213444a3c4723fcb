"""The judge for answers that are numbers, shared by the reward functions that differ in markers and values.

What enters: a `Candidate`. What leaves: a `Judgement`, always at once. Called by `gsm8k` and `math_dapo`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindgspo.config.reward import AnswerMode
from mindgspo.rewards.answers.extract import USUAL_MARKERS, find_answer
from mindgspo.rewards.answers.markers import Marker
from mindgspo.rewards.answers.plain_text import plain
from mindgspo.rewards.answers.quantity import Quantity, read_quantity, same_quantity
from mindgspo.rewards.candidate import Candidate
from mindgspo.rewards.judgement import MAX_EXTRACTED_CHARS, Judgement, Reply
from mindgspo.types import Verdict


class NumericJudge:
    """A `judgement.Judge`: the announced answer must equal the gold answer as an exact number.

    own: the data set's own markers. others: the most trusted first, see `extract.find_answer`. correct, wrong: reward
    values; that no answer was found is paid like a wrong one but has its own verdict.
    """

    def __init__(
        self,
        *,
        own: Sequence[Marker],
        others: Sequence[Marker] = USUAL_MARKERS,
        mode: AnswerMode,
        correct: float,
        wrong: float,
    ) -> None:
        self._own, self._others, self._mode = own, others, mode
        self._correct, self._wrong = correct, wrong

    def can_read(self, gold: str) -> bool:
        """Whether `gold` is a number, or a worked solution that ends in "#### 72"."""
        return gold_quantity(gold) is not None

    def judge(self, candidate: Candidate) -> Judgement:
        """UNPARSEABLE_GOLD abstains (value None); CORRECT, WRONG and NO_ANSWER are paid."""
        if not self.can_read(candidate.gold):
            return Judgement(value=None, verdict=Verdict.UNPARSEABLE_GOLD)
        announced = find_answer(
            candidate.text, own=self._own, others=self._others, mode=self._mode, is_cut=candidate.is_cut
        )
        if announced is None:
            return Judgement(value=self._wrong, verdict=Verdict.NO_ANSWER)
        is_correct = self.is_correct(announced, candidate.gold)
        return Judgement(
            value=self._correct if is_correct else self._wrong,
            verdict=Verdict.CORRECT if is_correct else Verdict.WRONG,
            extracted=plain(announced)[:MAX_EXTRACTED_CHARS],
        )

    def conclude(self, candidate: Candidate, reply: Reply) -> Judgement:
        """Never called: `judge` gives no job."""
        raise AssertionError(f"row {candidate.index}: a numeric judge gives no job, got a reply {reply}")

    def is_correct(self, announced: str, gold: str) -> bool:
        """Whether the announced answer is the gold answer, which can be read."""
        answer, expected = read_quantity(announced), gold_quantity(gold)
        return answer is not None and expected is not None and same_quantity(answer, expected)


def gold_quantity(gold: str) -> Quantity | None:
    """The gold answer's value, None where it is no number; a worked solution ending in "#### 72" is read too."""
    announced = find_answer(gold, own=(Marker.HASHES,), others=(), mode="strict")
    return read_quantity(gold if announced is None else announced)
