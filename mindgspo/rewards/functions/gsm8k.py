r"""Reward for GSM8K and tasks in its format: 1 for the right number, else 0.

The data set's own form is "#### n"; \boxed{n} counts as much, because that is what instruction-tuned models write.
"""

from __future__ import annotations

from mindgspo.config.reward import AnswerMode
from mindgspo.rewards.answers.markers import Marker
from mindgspo.rewards.functions.numeric import NumericJudge


class Gsm8k(NumericJudge):
    """answer: where the answer is looked for, see `answers.extract`."""

    def __init__(self, answer: AnswerMode = "flexible") -> None:
        super().__init__(own=(Marker.HASHES, Marker.BOXED), mode=answer, correct=1.0, wrong=0.0)
