"""A value that moves with the length of a response along half a cosine, one way if it is right and another if not.

What enters: the section, a response's length in tokens, the verdict on its answer. What leaves: what is added to its
reward. Called by the scorer.
"""

from __future__ import annotations

import math

from mindgspo.config.reward import LengthSection
from mindgspo.rewards.candidate import Candidate
from mindgspo.types import Verdict


class CosineLength:
    """The cosine reward of arXiv 2502.03373, appendix C.1, as in TRL (get_cosine_scaled_reward).

        value = long + (short - long) (1 + cos(pi length / max_len)) / 2

    short and long are the values at lengths 0 and max_len, those of a correct response for the verdict CORRECT and
    those of a wrong one for every other verdict, so also where no function judges the answer. Beyond max_len the value
    stays that of max_len; the paper pays a value of its own there, for which `overlong` is meant here.
    """

    def __init__(self, section: LengthSection) -> None:
        assert section.max_len is not None, "the configuration fills in length.max_len"
        self._max_len = section.max_len
        self._correct = (section.correct_short, section.correct_long)
        self._wrong = (section.wrong_short, section.wrong_long)

    def value(self, candidate: Candidate, verdict: Verdict | None) -> float:
        """Between short and long, both included."""
        assert candidate.num_tokens is not None, "length needs the length in tokens"
        short, long = self._correct if verdict is Verdict.CORRECT else self._wrong
        progress = min(candidate.num_tokens / self._max_len, 1.0)
        closeness = (1.0 + math.cos(math.pi * progress)) / 2
        # Two products instead of a difference: at both ends the result is exactly the configured number.
        return short * closeness + long * (1.0 - closeness)
