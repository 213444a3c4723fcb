"""Bookkeeping of generation in plain Python: the blocks of the key/value cache, and the sequences at work.

A block holds the keys and values of `BLOCK` consecutive tokens of a sequence. Siblings of a group share the blocks that
hold nothing but their prompt, so a block may have several holders; it is free again when the last one releases it.

Legend: S rows of the decode batch, P blocks of the longest sequence, J steps of a run, L tokens, X experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mindgspo.rollout.service import Piece, Request
from mindgspo.types import ExpertArray, FinishReason, Float32Array, Int32Array, Routing

SCRATCH = 0
"""A block that no sequence holds or reads: padding and idle rows are written there."""


def num_blocks_for(columns: int, block: int) -> int:
    """Number of blocks that hold this many columns."""
    return -(-columns // block)


def num_shared_blocks(prompt_length: int, block: int) -> int:
    """Number of a prompt's blocks that its siblings share: the full ones before its last token. Each sibling feeds that
    token again, and so writes it into a block of its own."""
    return (prompt_length - 1) // block


class BlockAllocator:
    """Hands out the blocks of one cache, which are numbered from 0; never `SCRATCH`."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 1, num_blocks
        self._free = list(range(num_blocks - 1, SCRATCH, -1))
        self._holders = [0] * num_blocks
        self.capacity = num_blocks - 1
        self.most_in_use = 0

    @property
    def num_free(self) -> int:
        """Number of blocks without a holder."""
        return len(self._free)

    @property
    def num_in_use(self) -> int:
        """Number of blocks with a holder."""
        return self.capacity - len(self._free)

    def take(self, count: int) -> list[int]:
        """Return this many free blocks, each with one holder. There must be enough (`num_free`)."""
        assert count <= len(self._free), f"{count} blocks wanted, {len(self._free)} are free"
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._holders[block] = 1
        self.most_in_use = max(self.most_in_use, self.num_in_use)
        return taken

    def share(self, blocks: Sequence[int]) -> list[int]:
        """Return the same blocks, each with one more holder."""
        for block in blocks:
            assert self._holders[block] > 0, f"block {block} is free"
            self._holders[block] += 1
        return list(blocks)

    def release(self, blocks: Sequence[int]) -> None:
        """Remove one holder of each of these blocks."""
        for block in blocks:
            assert self._holders[block] > 0, f"block {block} is free"
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._free.append(block)

    def holders(self, block: int) -> int:
        """Number of holders of a block."""
        return self._holders[block]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRow:
    """Tokens that are run through the model at once."""

    request: int
    """Number of the request whose prompt they begin with."""
    ids: Int32Array
    """int32 [L]."""
    cache_rows: Int32Array
    """int32 [L], where their keys and values go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """A request all of whose responses have ended, or were aborted."""

    request: Request
    pieces: tuple[Piece, ...]
    """In the order of the request's samples."""
    seconds: tuple[float, ...]
    """Time from each sample's first admission to the sync that found its end; 0 if it was never admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admissions:
    """Work that newly admitted sequences need, in this order."""

    prefills: list[PrefillRow] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    """Blocks to copy, as (source, target)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRun:
    """The decode steps up to the next sync."""

    num_rows: int
    """Rows in use; the ones after them are idle."""
    ids_S: Int32Array
    """int32, the tokens fed in the first step; each other step is fed with the tokens that the step before it drew."""
    table_SP: Int32Array
    """int32, the blocks of each row's sequence."""
    positions_JS: Int32Array
    """int32, each fed token's position in its sequence."""
    cache_rows_JS: Int32Array
    """int32, where each token's key and value go."""
    uniforms_JS: Float32Array
    """float32 in (0, 1]."""

    @property
    def num_steps(self) -> int:
        """Number of decode steps J."""
        return len(self.positions_JS)


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A request at work."""

    request: Request
    next_place: int = 0
    """Place, among the request's samples, of the next one to admit."""
    pieces: dict[int, Piece] = field(default_factory=dict)
    starts: dict[int, float] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)
    held: list[int] | None = None
    """Blocks of the prompt, kept for samples that are still to be admitted."""
    prompt_experts: ExpertArray | None = None
    """See `Routing.prompt_LX`; of prompt and prefix, where both were prefilled."""
    parked_experts: ExpertArray | None = None
    """The prompt's, where the prefix is fed behind parked blocks; those of the prefix are then kept with the response's
    tokens."""

    @property
    def has_more(self) -> bool:
        """Whether samples are still to be admitted."""
        return self.next_place < len(self.request.samples)

    @property
    def prompt_length(self) -> int:
        return int(self.request.prompt.ids.size)

    @property
    def limit(self) -> int:
        """Maximum number of tokens of a response."""
        return self.request.settings.max_new_tokens

    def piece(
        self, ids: Int32Array, logprobs: Float32Array, experts: ExpertArray | None, reason: FinishReason | None
    ) -> Piece:
        """Return the part of these tokens that follows the request's prefix. reason: None if it was aborted."""
        start, routing = self.request.prefix.size, None
        if experts is not None and ids.size > start:
            prompt_LX = self.prompt_experts
            if self.parked_experts is not None:
                prompt_LX = np.concatenate([self.parked_experts, experts[:start]])
            assert prompt_LX is not None
            routing = Routing(prompt_LX=prompt_LX, response_LX=experts[start:])
        return Piece(ids=ids[start:].copy(), logprobs=logprobs[start:].copy(), finish_reason=reason, routing=routing)

    @property
    def has_ended(self) -> bool:
        """Whether all its responses have ended."""
        return len(self.pieces) == len(self.request.samples)

    def ended(self, places: Sequence[int]) -> EndedRequest:
        """The request for the samples at these places, which have ended."""
        return EndedRequest(
            request=replace(self.request, samples=tuple(self.request.samples[place] for place in places)),
            pieces=tuple(self.pieces[place] for place in places),
            seconds=tuple(self.seconds.get(place, 0.0) for place in places),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parked:
    """An ended sequence whose blocks wait for a request that continues it."""

    ids: Int32Array
    """int32 [L], prompt and response; the last one is not in the blocks."""
    blocks: list[int]
    prompt_experts: ExpertArray | None
    """[prompt tokens - 1, X], where recorded."""
    experts: ExpertArray | None
    """[response tokens, X], of the token before each, where recorded."""

    @property
    def num_fed(self) -> int:
        """Tokens whose keys and values are in the blocks."""
        return int(self.ids.size) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A sequence that waits for admission."""

    job: Job
    place: int
    """Index of its sample among the request's."""
    ids: Int32Array
    """int32 [L], the tokens that it has."""
    logprobs: Float32Array
    experts: ExpertArray | None = None
    """[L, X], the experts that each token was drawn from, where they are recorded."""
    continues: bool = False
    """Whether it goes before other requests, because an earlier one parked its beginning."""
