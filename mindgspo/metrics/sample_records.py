"""Responses as lines of samples.jsonl and validation.jsonl.

What enters: groups, and how ids become text. What leaves: one JSON-able record per response. Called by `sinks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from mindgspo.metrics.files import plain_number
from mindgspo.types import Group, Int32Array, Prompt, Response, Score, ScoredGroup

Decode = Callable[[Int32Array], str]
"""Response ids int32 [L] -> text."""


def training_records(step: int, group: Group, decode: Decode) -> Iterator[dict[str, object]]:
    """What was trained on, with advantages."""
    for response, score, advantages in zip(group.responses, group.scores, group.advantages, strict=True):
        yield {
            "step": step,
            "prompt_index": group.prompt.index,
            "sample_index": response.sample_index,
            **_judged_text(group.prompt, response, score, decode),
            "parts": dict(score.parts),
            **({"extras": dict(score.extras)} if score.extras else {}),
            **({"message": score.message} if score.message else {}),
            "advantage": plain_number("advantage", advantages.mean(dtype=np.float64)),
            **_ending(response),
        }


def validation_records(step: int, set_name: str, group: ScoredGroup, decode: Decode) -> Iterator[dict[str, object]]:
    """Answers to a held-out problem. sample: "greedy", or the number of the sample."""
    for response, score in zip(group.responses, group.scores, strict=True):
        yield {
            "step": step,
            "set": set_name,
            "prompt_index": group.prompt.index,
            "sample": "greedy" if response.temperature == 0 else response.sample_index,
            **_judged_text(group.prompt, response, score, decode),
            **({"message": score.message} if score.message else {}),
            **_ending(response),
        }


def _judged_text(prompt: Prompt, response: Response, score: Score, decode: Decode) -> dict[str, object]:
    return {
        "data_source": prompt.data_source,
        "prompt": prompt.text,
        "response": decode(response.ids),
        "extracted": score.extracted,
        "answer": prompt.answer,
        "verdict": score.verdict.value,
        "score": score.value,
    }


def _ending(response: Response) -> dict[str, object]:
    return {"length": response.length, "finish_reason": response.finish_reason.value}
