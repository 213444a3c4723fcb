"""Responses -> scores, the same way in training and in evaluation; and scores -> groups with advantages.

What enters: prompts with what the engine sampled for them. What leaves: `Score`s, or the `Group`s of a training step.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindgspo.algorithms import group_advantages
from mindgspo.rewards import Scorer
from mindgspo.rollout.protocol import Rollout
from mindgspo.tokenization import Tokenizer
from mindgspo.trainer.parts import TrainingParts
from mindgspo.types import Group, Prompt, Response, Score


def score_responses(
    scorer: Scorer,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    responses: Sequence[Sequence[Response]],
) -> list[tuple[Score, ...]]:
    """Scores by prompt and sample; a response is judged by its text up to the EOS."""
    owners = [prompt for prompt, siblings in zip(prompts, responses, strict=True) for _ in siblings]
    texts = [
        tokenizer.decode(response.ids.tolist(), skip_special_tokens=True)
        for siblings in responses
        for response in siblings
    ]
    scores = iter(scorer.score(owners, texts))
    return [tuple(next(scores) for _ in siblings) for siblings in responses]


def judge(parts: TrainingParts, prompts: Sequence[Prompt], rollout: Rollout) -> tuple[Group, ...]:
    """Score every response by its text up to the EOS, and turn each group's scores into advantages."""
    scores = score_responses(parts.scorer, parts.tokenizer, prompts, rollout.responses)
    section = parts.config.algorithm.advantage
    return tuple(
        Group(
            prompt=prompt,
            responses=siblings,
            scores=judged,
            advantages=group_advantages([score.value for score in judged], section),
        )
        for prompt, siblings, judged in zip(prompts, rollout.responses, scores, strict=True)
    )
