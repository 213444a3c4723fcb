"""Reward functions: pay for the answer that `math_answers` finds in a response and compares. No MindSpore.

What runs in the calling process is linear in the text; the rest runs in worker processes that are killed when they take
too long.
"""

from __future__ import annotations

from mindgspo.rewards.registry import gold_is_readable
from mindgspo.rewards.scorer import Scorer
from mindgspo.rewards.verification import Candidate
from mindgspo.rewards.workers.in_process import RewardFunction

__all__ = ["Candidate", "RewardFunction", "Scorer", "gold_is_readable"]
