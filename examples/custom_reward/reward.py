"""A reward of your own, after DianJin-R1: one point for the structure of the response, one for the right answer.

Named in YAML as `reward.functions: [reward.py:compute_score]` and called in worker processes with verl's four
arguments. It may use any package of your environment. A number is enough as a return value; with a dictionary, `acc`
says whether the answer is right, `pred` which answer was found, and further numbers are logged.
"""

from __future__ import annotations

import re

STRUCTURE = re.compile(r"\s*(?:<think>)?(?P<think>[^<]*)</think>\s*<answer>(?P<answer>[^<]*)</answer>\s*")
BOX = re.compile(r"\\boxed\{([^{}]*)\}")


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict) -> dict:
    """0 to 2: 1 for <think>...</think><answer>...</answer>, 1 for the right letters in the answer's last box."""
    structure = STRUCTURE.fullmatch(solution_str)
    boxes = BOX.findall(solution_str if structure is None else structure["answer"])
    chosen = letters(boxes[-1]) if boxes else ""
    is_right = bool(chosen) and chosen == letters(ground_truth)
    return {
        "score": float(structure is not None) + float(is_right),
        "acc": is_right,
        "pred": chosen,
        "structure": float(structure is not None),
    }


def letters(text: str) -> str:
    """ "B, A" -> "AB"."""
    return "".join(sorted(set(re.findall(r"[A-J]", text))))
