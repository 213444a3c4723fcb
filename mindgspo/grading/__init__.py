"""Grading: a reward function against a file of responses, whose labels, where it has some, judge the function.

What enters: JSON Lines with responses and gold answers. What leaves: the same rows with score and verdict, and a
confusion table. Called by `mindgspo reward score`. What `conformance` is to the losses, this is to the rewards.
"""

from __future__ import annotations

from mindgspo.grading.score_file import RowKeys, score_file

__all__ = ["RowKeys", "score_file"]
