r"""Reward for DAPO-Math-17k: +1 for the right answer, -1 otherwise (arXiv 2503.14476, eq. 7).

The prompt asks for a line "Answer: n", the data set's own form; every answer of that data set is an integer. Published
implementations look at the last 300 characters or at a cut box only; here the whole response is searched. A gold answer
that is no number must be met by an expression that is the same without doubt; `math` looks further.
"""

from __future__ import annotations

from mindgspo.config.reward import AnswerMode
from mindgspo.rewards.answers.equivalence import Comparison, compare
from mindgspo.rewards.answers.extract import USUAL_MARKERS
from mindgspo.rewards.answers.markers import Marker
from mindgspo.rewards.answers.plain_text import plain
from mindgspo.rewards.answers.quantity import MAX_CONTENT_CHARS, unboxed
from mindgspo.rewards.functions.numeric import NumericJudge, gold_quantity


class MathDapo(NumericJudge):
    r"""answer: where the answer is looked for, see `answers.extract`.

    strict_box: only the last \boxed{} counts, whatever `answer` says (verl: strict_box_verify).
    """

    def __init__(self, answer: AnswerMode = "flexible", strict_box: bool = False) -> None:
        super().__init__(
            own=(Marker.BOXED,) if strict_box else (Marker.ANSWER_LINE,),
            others=() if strict_box else USUAL_MARKERS,
            mode="strict" if strict_box else answer,
            correct=1.0,
            wrong=-1.0,
        )

    def can_read(self, gold: str) -> bool:
        """Whether `gold` holds a letter or a digit."""
        return any(character.isalnum() for character in plain(gold[:MAX_CONTENT_CHARS]))

    def is_correct(self, announced: str, gold: str) -> bool:
        """Equal as numbers; where `gold` is none, certainly the same expression."""
        if gold_quantity(gold) is not None:
            return super().is_correct(announced, gold)
        return compare(plain(unboxed(announced)), gold) is Comparison.SAME
