"""What the scheduler keeps of a request while it is at work, and what the engine is told and given back.

Legend: S rows of the decode batch, P blocks of the longest sequence, J steps of a run, L tokens, X experts per token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mindgspo.rollout.service import Piece, Request
from mindgspo.types import ExpertArray, FinishReason, Float32Array, Int32Array, Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRow:
    """Tokens to be run at once. request: number of the one whose prompt they begin with. ids: int32 [L]. cache_rows:
    int32 [L], where their keys and values go."""

    request: int
    ids: Int32Array
    cache_rows: Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """pieces: in the order of the request's samples. seconds: between each one's first admission and the look that
    found its end, 0 where it was never admitted."""

    request: Request
    pieces: tuple[Piece, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admissions:
    """What the cache needs for those that were admitted, in this order: rows to be run, and blocks to be copied, as
    (source, target)."""

    prefills: list[PrefillRow] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRun:
    """The steps up to the host's next look. Rows behind the first `num_rows` are idle.

    ids_S: int32, the tokens of the first step; those of the others are what the step before drew. table_SP: int32.
    positions_JS, cache_rows_JS: int32, each token's position and where its key and value go. uniforms_JS: float32.
    """

    num_rows: int
    ids_S: Int32Array
    table_SP: Int32Array
    positions_JS: Int32Array
    cache_rows_JS: Int32Array
    uniforms_JS: Float32Array

    @property
    def num_steps(self) -> int:
        """Decode steps of the run."""
        return len(self.positions_JS)


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A request at work. number: of its first response among all that were added. next_place: of the sample that is
    admitted next. held: blocks of the prompt while siblings are to come. prompt_experts: see `Routing.prompt_LX`."""

    request: Request
    number: int
    next_place: int = 0
    pieces: dict[int, Piece] = field(default_factory=dict)
    starts: dict[int, float] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    held: list[int] | None = None
    prompt_experts: ExpertArray | None = None

    @property
    def has_more(self) -> bool:
        """Whether samples are still to be admitted."""
        return self.next_place < len(self.request.samples)

    @property
    def prompt_length(self) -> int:
        return int(self.request.prompt.ids.size)

    @property
    def limit(self) -> int:
        """Most tokens of a response."""
        return self.request.settings.max_new_tokens

    def piece(
        self, ids: Int32Array, logprobs: Float32Array, experts: ExpertArray | None, reason: FinishReason | None
    ) -> Piece:
        """What of these tokens lies behind the prefix. reason: None where it was cut."""
        start, routing = self.request.prefix.size, None
        if experts is not None and ids.size > start:
            assert self.prompt_experts is not None
            routing = Routing(prompt_LX=self.prompt_experts, response_LX=experts[start:])
        return Piece(ids=ids[start:].copy(), logprobs=logprobs[start:].copy(), finish_reason=reason, routing=routing)

    def outcome(self) -> EndedRequest | None:
        """None before all its responses have ended."""
        places = range(len(self.request.samples))
        if len(self.pieces) < len(places):
            return None
        return EndedRequest(
            request=self.request,
            pieces=tuple(self.pieces[place] for place in places),
            seconds=tuple(self.seconds.get(place, 0.0) for place in places),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A sequence in the queue. place: of its sample in the request. ids, logprobs: the tokens it has. experts: of what
    each of them was drawn from, [L, X], where they are recorded."""

    job: Job
    place: int
    ids: Int32Array
    logprobs: Float32Array
    experts: ExpertArray | None = None
