"""Reward functions: find the answer in a response, compare it with the gold answer, and pay for it. No MindSpore.

What runs in the calling process is linear in the text; the rest runs in worker processes that are killed when they take
too long.
"""

from __future__ import annotations

from mindgspo.rewards.registry import gold_is_readable
from mindgspo.rewards.scorer import Scorer
from mindgspo.rewards.verification import Candidate

__all__ = ["Candidate", "Scorer", "gold_is_readable"]
