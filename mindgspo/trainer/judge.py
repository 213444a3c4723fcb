"""Responses -> scores, the same way in training and in evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from mindgspo.rewards import Scorer
from mindgspo.tokenization import Tokenizer
from mindgspo.types import Prompt, Response, Score


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
