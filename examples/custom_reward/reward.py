"""A reward of your own, after DianJin-R1: one point for the structure of the response, one for the right answer.

Named in YAML as `reward.functions: [reward.py:compute_score]` and called in worker processes with verl's four
arguments. It may use any package of your environment. A number is enough as a return value; with a dictionary, `acc`
says whether the answer is right, `pred` which answer was found, and further numbers are logged.
"""

from __future__ import annotations

import re

BOX = re.compile(r"\\boxed\{([^{}]*)\}")


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: dict) -> dict:
    """0 to 2: 1 for <think>...</think><answer>...</answer>, 1 for the right letters in the answer's last box."""
    answer = answer_block(solution_str)
    boxes = BOX.findall(solution_str if answer is None else answer)
    chosen = letters(boxes[-1]) if boxes else ""
    is_right = bool(chosen) and chosen == letters(ground_truth)
    return {
        "score": float(answer is not None) + float(is_right),
        "acc": is_right,
        "pred": chosen,
        "structure": float(answer is not None),
    }


def answer_block(response: str) -> str | None:
    """What stands in <answer>...</answer> of a response of the right structure, else None. The opening <think> may
    belong to the prompt."""
    thought, end_of_thought, rest = response.partition("</think>")
    rest = rest.strip()
    is_whole = rest.startswith("<answer>") and rest.endswith("</answer>") and rest.count("answer>") == 2
    is_one_thought = "<think>" not in thought.strip().removeprefix("<think>") and "</think>" not in rest
    return rest[len("<answer>") : -len("</answer>")] if end_of_thought and is_whole and is_one_thought else None


def letters(text: str) -> str:
    """ "B, A" -> "AB"."""
    return "".join(sorted(set(re.findall(r"[A-J]", text))))
