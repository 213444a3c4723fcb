"""Responses in the making: what a service has answered so far, by prompt, and its form in files and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mindgspo.rollout.protocol import RandomStream
from mindgspo.rollout.service import Piece
from mindgspo.types import FinishReason, Float32Array, Int32Array, Prompt, Response, Routing


def _empty_ids() -> Int32Array:
    return np.zeros(0, np.int32)


def _empty_logprobs() -> Float32Array:
    return np.zeros(0, np.float32)


@dataclass(slots=True, kw_only=True, eq=False)
class PartialResponse:
    """One response so far. ids, logprobs, versions: int32, float32, int32 [L], of each token, with the version of the
    weights that drew it. finish_reason: None while it has not ended. routing: where it is recorded."""

    ids: Int32Array = field(default_factory=_empty_ids)
    logprobs: Float32Array = field(default_factory=_empty_logprobs)
    versions: Int32Array = field(default_factory=_empty_ids)
    finish_reason: FinishReason | None = None
    routing: Routing | None = None

    def append(self, piece: Piece, version: int) -> None:
        """What the draft got in one go. The routing of its earlier tokens stays: they were drawn with it."""
        assert self.finish_reason is None, "a response that has ended goes on"
        if piece.routing is not None and piece.ids.size:
            earlier = self.routing
            self.routing = (
                piece.routing
                if earlier is None
                else Routing(
                    prompt_LX=earlier.prompt_LX,
                    response_LX=np.concatenate([earlier.response_LX, piece.routing.response_LX]),
                )
            )
        self.ids = np.concatenate([self.ids, piece.ids])
        self.logprobs = np.concatenate([self.logprobs, piece.logprobs])
        self.versions = np.concatenate([self.versions, np.full(piece.ids.size, version, np.int32)])
        self.finish_reason = piece.finish_reason

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
        )


@dataclass(slots=True, kw_only=True, eq=False)
class PartialGroup:
    """The responses to one prompt. stream: their random numbers; its step and draw are those in which the prompt was
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
        """Of the weights that drew any token; None while there is none."""
        firsts = [int(draft.versions[0]) for draft in self.partials if draft.versions.size]
        return min(firsts, default=None)

    def responses(self, temperature: float) -> tuple[Response, ...]:
        """Of a complete group, in order of their sample index."""
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
        }
        for group in groups
    ]


def arrays_of(groups: Sequence[PartialGroup], *, with_routing: bool) -> dict[str, np.ndarray]:
    """Tokens of all partials end to end, and with_routing the experts of their tokens and prompts; nothing where there
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


def restore(
    described: Sequence[Mapping[str, Any]],
    arrays: Mapping[str, np.ndarray],
    *,
    stream: RandomStream,
    prompts: Mapping[int, Prompt] | Sequence[Prompt],
) -> list[PartialGroup]:
    """The groups of which `describe` and `arrays_of` told. stream: with their seed and purpose. prompts: by index."""
    starts = dict.fromkeys(arrays, 0)

    def take(name: str, length: int) -> np.ndarray:
        start = starts[name]
        starts[name] = start + length
        return arrays[name][start : start + length].copy()

    groups = []
    for one in described:
        prompt = prompts[one["prompt"]]
        partials = []
        for length, reason in zip(one["lengths"], one["reasons"], strict=True):
            draft = PartialResponse(finish_reason=None if reason is None else FinishReason(reason))
            if length:
                draft.ids, draft.logprobs, draft.versions = (take(name, length) for name in _TOKENS)
                if "experts" in arrays:
                    draft.routing = Routing(
                        prompt_LX=take("prompt_experts", prompt.ids.size - 1),
                        response_LX=take("experts", length),
                    )
            partials.append(draft)
        own = replace(stream, step=one["step"], draw=one["draw"])
        groups.append(PartialGroup(prompt=prompt, stream=own, partials=partials))
    return groups


_TOKENS = ("ids", "logprobs", "versions")
