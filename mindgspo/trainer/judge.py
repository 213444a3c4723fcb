"""Responses -> scores, the same way in training and in evaluation.

What enters: prompts with what the engine sampled for them. What leaves: `ScoredGroup`s.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindgspo import faults
from mindgspo.rewards import Candidate
from mindgspo.rollout.protocol import Rollout
from mindgspo.trainer.parts import EvaluationParts
from mindgspo.trainer.score_text import score_from_json, score_to_json
from mindgspo.types import FinishReason, Prompt, Response, ScoredGroup


def judge(parts: EvaluationParts, prompts: Sequence[Prompt], rollout: Rollout) -> tuple[ScoredGroup, ...]:
    """Score every response by its text up to the EOS. Each judging rank scores its share; all get all scores."""
    faults.reach("reward.before")
    candidates = [
        _candidate(parts, prompt, response)
        for prompt, siblings in zip(prompts, rollout.responses, strict=True)
        for response in siblings
    ]
    own = parts.scorer.score(parts.judges.own(candidates)) if parts.judges.speaks else []
    faults.reach("reward.inside")
    collected = parts.judges.collect_objects(
        own, num_items=len(candidates), encode=score_to_json, decode=score_from_json
    )
    scores = iter(collected)
    return tuple(
        ScoredGroup(prompt=prompt, responses=siblings, scores=tuple(next(scores) for _ in siblings))
        for prompt, siblings in zip(prompts, rollout.responses, strict=True)
    )


def _candidate(parts: EvaluationParts, prompt: Prompt, response: Response) -> Candidate:
    return Candidate(
        text=parts.tokenizer.decode(response.ids.tolist(), skip_special_tokens=True),
        gold=prompt.answer,
        data_source=prompt.data_source,
        index=prompt.index,
        num_tokens=response.length,
        is_cut=response.finish_reason is FinishReason.LENGTH,
        extra_info=prompt.extra_info,
    )
