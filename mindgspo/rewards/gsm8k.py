r"""Reward for GSM8K and tasks in its format: 1 for the right number, else 0.

The answer is announced by "#### n" (the data set's own form) or \boxed{n}; "Answer: n" and "The answer is
n" are believed where neither states a value. A response without any marker is NO_ANSWER: a bare last number
is not searched for, because then any number pays.
"""

from __future__ import annotations

from mindgspo.rewards.extract import Marker
from mindgspo.rewards.verify import NumericVerifier

GSM8K = NumericVerifier(
    name="gsm8k",
    own=(Marker.HASHES, Marker.BOXED),
    others=(Marker.ANSWER_LINE, Marker.ANSWER_COLON, Marker.ANSWER_IS),
    correct=1.0,
    wrong=0.0,
)
