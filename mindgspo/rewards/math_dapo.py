r"""Reward for DAPO-Math-17k: +1 for the right number, -1 otherwise (arXiv 2503.14476, eq. 7).

The prompt asks for a line "Answer: n", which decides; a colon elsewhere in a line, \boxed{n} and "The
answer is n" are believed where no such line states a value. Every answer of that data set is an integer.
Published implementations look at the last 300 characters or at a cut box only; here the whole response is
searched.
"""

from __future__ import annotations

from mindgspo.rewards.extract import Marker
from mindgspo.rewards.verify import NumericVerifier

MATH_DAPO = NumericVerifier(
    name="math_dapo",
    own=(Marker.ANSWER_LINE,),
    others=(Marker.ANSWER_COLON, Marker.BOXED, Marker.ANSWER_IS),
    correct=1.0,
    wrong=-1.0,
)
