"""Groups with a signal that a full batch had no room for, until a later step trains them.

What enters: judged groups. What leaves: the same groups, oldest first, while they are young enough. Filled and emptied
by `collect`; part of a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mindgspo.data import PromptDataset
from mindgspo.tensor_files import TensorSource
from mindgspo.trainer.kept_state import State
from mindgspo.trainer.score_text import score_from_json, score_to_json
from mindgspo.trainer.selection import JudgedGroup
from mindgspo.types import FinishReason, Response, ScoredGroup


class Surplus:
    """keep_steps: for how many steps after its own a group may be trained. train_set: whose prompts they answer."""

    def __init__(self, keep_steps: int, train_set: PromptDataset) -> None:
        self._keep_steps, self._train_set = keep_steps, train_set
        self._groups: list[JudgedGroup] = []
        self.num_expired = 0
        """Groups that became too old before there was room for them, over the whole run."""

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def keeps(self) -> bool:
        """Whether anything is ever kept."""
        return self._keep_steps > 0

    def put(self, groups: Sequence[JudgedGroup]) -> None:
        """Keep these behind those that wait."""
        self._groups += groups

    def take(self, most: int, *, step: int) -> list[JudgedGroup]:
        """At most `most` groups that step `step` may still train; those that are too old are forgotten."""
        young = [judged for judged in self._groups if step - judged.step <= self._keep_steps]
        self.num_expired += len(self._groups) - len(young)
        self._groups = young[most:]
        return young[:most]

    def state(self) -> State:
        """Everything but token ids and log-probs."""
        return {"num_expired": self.num_expired, "groups": [_described(judged) for judged in self._groups]}

    def arrays(self) -> dict[str, np.ndarray]:
        """ids and logprobs of all responses, end to end; nothing where no group waits."""
        responses = [response for judged in self._groups for response in judged.group.responses]
        if not responses:
            return {}
        return {
            "ids": np.concatenate([response.ids for response in responses]),
            "logprobs": np.concatenate([response.logprobs for response in responses]),
        }

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        """Go on from what `state` and `arrays` returned."""
        self.num_expired = int(state["num_expired"])
        self._groups, start = [], 0
        tokens = {name: arrays.read(name) for name in arrays.tensors}
        for described in state["groups"]:
            judged, start = self._judged(described, tokens, start)
            self._groups.append(judged)

    def _judged(
        self, described: Mapping[str, Any], tokens: Mapping[str, np.ndarray], start: int
    ) -> tuple[JudgedGroup, int]:
        """The group whose tokens begin at `start`, and where they end."""
        prompt = self._train_set[described["prompt"]]
        responses = []
        for sample, (length, reason) in enumerate(zip(described["lengths"], described["reasons"], strict=True)):
            stop = start + length
            responses.append(
                Response(
                    prompt_index=prompt.index,
                    sample_index=sample,
                    ids=tokens["ids"][start:stop].copy(),
                    logprobs=tokens["logprobs"][start:stop].copy(),
                    finish_reason=FinishReason(reason),
                    temperature=described["temperature"],
                    weight_version=described["weight_version"],
                )
            )
            start = stop
        scores = tuple(score_from_json(json.dumps(fields)) for fields in described["scores"])
        judged = JudgedGroup(
            group=ScoredGroup(prompt=prompt, responses=tuple(responses), scores=scores),
            baseline=described["baseline"],
            step=described["step"],
        )
        return judged, start


def _described(judged: JudgedGroup) -> State:
    group = judged.group
    first = group.responses[0]
    return {
        "prompt": group.prompt.index,
        "step": judged.step,
        "baseline": judged.baseline,
        "temperature": first.temperature,
        "weight_version": first.weight_version,
        "lengths": [response.length for response in group.responses],
        "reasons": [response.finish_reason.value for response in group.responses],
        "scores": [json.loads(score_to_json(score)) for score in group.scores],
    }
