"""Reward of the first task: the response is a box with a number, and nothing else."""

from __future__ import annotations

import re
from typing import Any

BOX = re.compile(r"\\boxed\{-?[0-9]{1,9}\}")


def only_a_box(data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> dict[str, Any]:
    """The share of the response's characters that its only box with a number takes: 1 for nothing else, 0 without a
    box or with several. Whether the number is right does not matter; `acc` is whether there is nothing else."""
    text = solution_str.strip()
    boxes = BOX.findall(text)
    share = len(boxes[0]) / len(text) if len(boxes) == 1 else 0.0
    return {"score": share, "acc": share == 1.0}
