"""Partial responses: what a service has returned so far, by prompt, and their form in checkpoints and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from mindgspo.rollout.protocol import RandomStream
from mindgspo.rollout.service import EpisodeSoFar, Piece
from mindgspo.types import (
    ExpertArray,
    FinishReason,
    Float32Array,
    Int32Array,
    Prompt,
    Response,
    Routing,
)


class PromptsByIndex(Protocol):
    """A data set, or any other prompts that are found by their index."""

    def __getitem__(self, index: int, /) -> Prompt: ...


_OF_SAMPLED = ("logprobs", "versions")
_TOKENS = ("ids", *_OF_SAMPLED)


@dataclass(slots=True, kw_only=True, eq=False)
class PartialResponse:
    """One response so far."""

    ids: Int32Array = field(default_factory=partial(np.zeros, 0, np.int32))
    """int32 [L], everything behind the prompt, observations included."""
    logprobs: Float32Array = field(default_factory=partial(np.zeros, 0, np.float32))
    """float32, of each sampled token."""
    versions: Int32Array = field(default_factory=partial(np.zeros, 0, np.int32))
    """int32, version of the weights that drew each sampled token."""
    finish_reason: FinishReason | None = None
    """None while it has not ended."""
    so_far: EpisodeSoFar | None = None
    """Its turns, where an environment takes part."""
    routing: Routing | None = None
    """Experts of its tokens, where they are recorded."""

    def append(self, piece: Piece, version: int) -> None:
        """Add the tokens of one answer. The routing of earlier tokens stays: they were drawn with it."""
        assert self.finish_reason is None, "a response that has ended goes on"
        if piece.routing is not None and piece.ids.size:
            found, earlier = piece.routing, self.routing
            if earlier is not None:
                response_LX = np.concatenate([earlier.response_LX, found.response_LX])
                found = Routing(prompt_LX=earlier.prompt_LX, response_LX=response_LX)
            self.routing = found
        self.ids = np.concatenate([self.ids, piece.ids])
        self.logprobs = np.concatenate([self.logprobs, piece.logprobs])
        self.versions = np.concatenate([self.versions, np.full(piece.logprobs.size, version, np.int32)])
        self.finish_reason, self.so_far = piece.finish_reason, piece.so_far

    def response(self, prompt: Prompt, sample: int, temperature: float) -> Response:
        """The ended response."""
        assert self.finish_reason is not None, f"response {prompt.index}/{sample} has not ended"
        first = int(self.versions[0])
        return Response(
            prompt_index=prompt.index,
            sample_index=sample,
            ids=self.ids,
            logprobs=self.logprobs,
            finish_reason=self.finish_reason,
            temperature=temperature,
            weight_version=first,
            token_versions=None if (self.versions == first).all() else self.versions,
            routing=self.routing,
            episode=None if self.so_far is None else self.so_far.ended,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class PartialGroup:
    """The responses to one prompt. stream: of their random numbers; its step and draw are those in which the prompt was
    taken."""

    prompt: Prompt
    stream: RandomStream
    partials: list[PartialResponse]

    @property
    def is_complete(self) -> bool:
        """Whether all responses have ended."""
        return all(draft.finish_reason is not None for draft in self.partials)

    @property
    def oldest_version(self) -> int | None:
        """Oldest version of the weights that drew any token; None while there is none."""
        firsts = [int(draft.versions[0]) for draft in self.partials if draft.versions.size]
        return min(firsts, default=None)

    def responses(self, temperature: float) -> tuple[Response, ...]:
        """Return the responses of a complete group, in order of their sample index."""
        return tuple(draft.response(self.prompt, sample, temperature) for sample, draft in enumerate(self.partials))


def describe(groups: Sequence[PartialGroup]) -> list[dict[str, Any]]:
    """JSON: everything but what `arrays_of` returns."""
    return [
        {
            "prompt": group.prompt.index,
            "step": group.stream.step,
            "draw": group.stream.draw,
            "lengths": [int(draft.ids.size) for draft in group.partials],
            "reasons": [draft.finish_reason and draft.finish_reason.value for draft in group.partials],
            "episodes": [None if draft.so_far is None else draft.so_far.to_json() for draft in group.partials],
        }
        for group in groups
    ]


def arrays_of(groups: Sequence[PartialGroup], *, with_routing: bool) -> dict[str, np.ndarray]:
    """Tokens of all partials end to end, and with_routing the experts of their tokens and prompts; nothing if there
    is no token."""
    partials = [draft for group in groups for draft in group.partials if draft.ids.size]
    if not partials:
        return {}
    arrays = {name: np.concatenate([getattr(draft, name) for draft in partials]) for name in _TOKENS}
    routing = [draft.routing for draft in partials if draft.routing is not None]
    if with_routing and routing:
        assert len(routing) == len(partials), f"routing of {len(routing)} of {len(partials)} responses"
        arrays["experts"] = np.concatenate([one.response_LX for one in routing])
        arrays["prompt_experts"] = np.concatenate([one.prompt_LX for one in routing])
    return arrays


class StoredTokens:
    """Arrays of many responses end to end, by name, read response by response. with_routing: whether to read stored
    experts."""

    def __init__(self, arrays: Mapping[str, np.ndarray], *, with_routing: bool = True) -> None:
        self._arrays, self._starts = arrays, dict.fromkeys(arrays, 0)
        self._has_routing = with_routing and "experts" in arrays

    def take(self, name: str, length: int) -> np.ndarray:
        """Copy the next `length` entries."""
        start = self._starts[name]
        self._starts[name] = start + length
        return self._arrays[name][start : start + length].copy()

    def prompt_experts(self, prompt: Prompt) -> ExpertArray | None:
        """Experts of the next prompt; its last token belongs to the response."""
        return self.take("prompt_experts", prompt.ids.size - 1) if self._has_routing else None

    def routing(self, prompt_LX: ExpertArray | None, length: int) -> Routing | None:
        """Routing of the next response, of `length` tokens."""
        return None if prompt_LX is None else Routing(prompt_LX=prompt_LX, response_LX=self.take("experts", length))


def restore(
    described: Sequence[Mapping[str, Any]],
    arrays: Mapping[str, np.ndarray],
    *,
    stream: RandomStream,
    prompts: PromptsByIndex,
) -> list[PartialGroup]:
    """Return the groups that `describe` and `arrays_of` stored. stream: with their seed and purpose."""
    stored = StoredTokens(arrays)
    groups = []
    for one in described:
        prompt = prompts[one["prompt"]]
        partials = []
        episodes = one.get("episodes", [None] * len(one["lengths"]))
        for length, reason, episode in zip(one["lengths"], one["reasons"], episodes, strict=True):
            draft = PartialResponse(
                finish_reason=None if reason is None else FinishReason(reason),
                so_far=None if episode is None else EpisodeSoFar.from_json(episode),
            )
            if length:
                sampled = length if draft.so_far is None else sum(turn.length for turn in draft.so_far.turns)
                draft.ids = stored.take("ids", length)
                draft.logprobs, draft.versions = (stored.take(name, sampled) for name in _OF_SAMPLED)
                draft.routing = stored.routing(stored.prompt_experts(prompt), length)
            partials.append(draft)
        own = replace(stream, step=one["step"], draw=one["draw"])
        groups.append(PartialGroup(prompt=prompt, stream=own, partials=partials))
    return groups
