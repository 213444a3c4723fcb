"""Scores responses by their text, the same way in training and in evaluation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TypeVar

from mindgspo import faults
from mindgspo.config.reward import RewardSection
from mindgspo.parallel.collectives.replicas import Replicas
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform import heartbeat
from mindgspo.rewards import Candidate, Scorer
from mindgspo.rollout.protocol import Rollout
from mindgspo.tokenization import Tokenizer
from mindgspo.types import FinishReason, Group, Prompt, Response, Score, ScoredGroup, Verdict

AnyGroup = TypeVar("AnyGroup", Group, ScoredGroup)


def start_scorer(section: RewardSection, place: Placement) -> Scorer:
    """The reward functions. Only ranks that score start worker processes. place: in the infer plan."""
    scorer = Scorer(section, on_answer=heartbeat.tick)
    if place.is_replica_leader:
        scorer.start()
    return scorer


class ResponseScorer:
    """Scores what the engine sampled; each scoring rank takes its share, and all ranks get all scores."""

    def __init__(self, scorer: Scorer, tokenizer: Tokenizer, replicas: Replicas | None = None) -> None:
        self._scorer, self._tokenizer = scorer, tokenizer
        self._replicas = replicas or Replicas()
        self.labels = scorer.labels

    def score(self, prompts: Sequence[Prompt], rollout: Rollout) -> tuple[ScoredGroup, ...]:
        """Every response by its text up to the EOS, in the order of `prompts`."""
        faults.reach("reward.before")
        candidates = [
            self._candidate(prompt, response)
            for prompt, siblings in zip(prompts, rollout.responses, strict=True)
            for response in siblings
        ]
        found = self._scorer.score(self._replicas.own(candidates)) if self._replicas.speaks else []
        faults.reach("reward.inside")
        collected = self._replicas.collect_objects(
            found, num_items=len(candidates), encode=score_to_json, decode=score_from_json
        )
        scores = iter(collected)
        return tuple(
            ScoredGroup(prompt=prompt, responses=siblings, scores=tuple(next(scores) for _ in siblings))
            for prompt, siblings in zip(prompts, rollout.responses, strict=True)
        )

    def _candidate(self, prompt: Prompt, response: Response) -> Candidate:
        return Candidate(
            text=self._tokenizer.decode(response.ids.tolist(), skip_special_tokens=True),
            gold=prompt.answer,
            data_source=prompt.data_source,
            index=prompt.index,
            num_tokens=response.length,
            is_cut=response.finish_reason is FinishReason.LENGTH,
            extra_info=prompt.extra_info,
        )


def score_to_json(score: Score) -> str:
    """What `score_from_json` reads back as an equal score."""
    return json.dumps({**asdict(score), "verdict": score.verdict.value})


def score_from_json(text: str) -> Score:
    """The score that `score_to_json` wrote."""
    fields = json.loads(text)
    return Score(**{**fields, "verdict": Verdict(fields["verdict"])})


def logged_groups(groups: Sequence[AnyGroup], count: int | None) -> tuple[AnyGroup, ...]:
    """The first `count` groups, and as many of the others in which a reward function failed, so that its message is
    logged. None: all."""
    if count is None:
        return tuple(groups)
    failed = [group for group in groups[count:] if any(score.message for score in group.scores)]
    return (*groups[:count], *failed[:count])
