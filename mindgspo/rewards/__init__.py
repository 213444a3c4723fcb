"""Reward room: finds the answer in a response, compares it exactly with the gold answer, and pays for it.

What enters: prompts (gold answer, data source) and response texts up to EOS. What leaves: `types.Score`.
Pure Python: no MindSpore, no subprocess, every function linear in the text.
"""

from __future__ import annotations

from mindgspo.rewards.gsm8k import GSM8K
from mindgspo.rewards.math_dapo import MATH_DAPO
from mindgspo.rewards.number import parse_number
from mindgspo.rewards.scorer import Scorer, build_scorer

__all__ = ["GSM8K", "MATH_DAPO", "Scorer", "build_scorer", "parse_number"]
