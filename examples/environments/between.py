"""A number between two bounds, for which there are many right answers: a tiny judge scores what the policy writes.

`score` is the judge, the only thing that the policy learns from; `rule` says how good judge and policy really are.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from judge import Judge

TEMPLATE = "{question} : {response}"
LABELS = {"yes": 1.0, "less": 0.0, "more": 0.0, "none": 0.0}
"""Words of the judge: right, too large, too small, no number."""

score = Judge(
    url=os.environ.get("JUDGE_URL", "http://127.0.0.1:8765/v1"),
    model="judge-model",
    template=TEMPLATE,
    labels=LABELS,
    sampling={"temperature": 0, "max_tokens": 8},
    tokenizer=Path(__file__).with_name("data") / "tokenizer",
    cache=Path(os.environ.get("JUDGE_CACHE", "judge_cache")),
    seconds=30.0,
)


def right_label(question: str, response: str) -> str:
    """What a judge without mistakes says."""
    low, high = map(int, question.split())
    if re.fullmatch(r"[1-9]\d", response) is None:
        return "none"
    return "more" if int(response) <= low else "less" if int(response) >= high else "yes"


def rule(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]) -> bool:
    """Whether a response of the policy is right."""
    return right_label(str(extra_info["question"]), solution_str) == "yes"


def same_label(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]) -> bool:
    """Whether the judge, while it is trained and evaluated, says the right word."""
    return solution_str == ground_truth
