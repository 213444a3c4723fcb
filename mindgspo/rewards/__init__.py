"""Reward room: finds the answer in a response, compares it with the gold answer, and pays for it.

What enters: `Candidate`s (a response's text up to its EOS with its row's gold answer). What leaves: `types.Score`. No
MindSpore. What runs in the calling process is linear in the text; the rest runs in worker processes that are killed
when they take too long.
"""

from __future__ import annotations

from mindgspo.rewards.answers.number import parse_number
from mindgspo.rewards.candidate import Candidate
from mindgspo.rewards.registry import gold_is_readable
from mindgspo.rewards.scorer import Scorer

__all__ = ["Candidate", "Scorer", "gold_is_readable", "parse_number"]
