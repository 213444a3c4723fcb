"""The native rollout engine: a scheduler decides what is decoded, and compiled graphs do the work.

It reads the parameters of the model that it was given: the trainer's own, or a copy laid out for generation, which
another component fills (`rollout.build`).

Legend: S rows of the decode batch, J steps of a run, Q prompts of one prefill, L prompt columns, M = Q * L.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

import numpy as np
from mindspore import Parameter, Tensor

from mindgspo import faults, progress
from mindgspo.batches.rows import round_up
from mindgspo.config.cache import BLOCK
from mindgspo.models.transformer import Transformer
from mindgspo.parallel.collectives.host import GraphOfRanks
from mindgspo.parallel.ops.device import attention_segments, takes_packed
from mindgspo.parallel.platform.runtime import CompiledCell, paged_kernels
from mindgspo.rollout.cache import CopyBlocks, PagedCache
from mindgspo.rollout.graphs import Collect, DecodeStep, NextLogits, PackedWeights, Prefill
from mindgspo.rollout.protocol import Purpose, Rollout, RolloutCounters, SamplingFilter, SamplingSettings
from mindgspo.rollout.scheduler import Scheduler
from mindgspo.rollout.sequences import SCRATCH, BlockAllocator, EndedRequest, PrefillRow, num_blocks_for
from mindgspo.rollout.service import numbered_requests, whole_responses
from mindgspo.types import ExpertArray, Float32Array, Int32Array, Prompt, Response

Packable = TypeVar("Packable")
_MOST_FILTERS = 8  # decode graphs to keep beside the engine's own: the most recently used ones


class NativeEngine:
    """Implements `RolloutEngine` with MindSpore graphs.

    num_slots: maximum number of sequences decoded at once.
    prefill_width: prompts per prefill.
    max_prompt_length, max_new_tokens: bounds of a sequence, in tokens.
    length_multiple: prompts are padded to a multiple of it.
    num_blocks: blocks of the cache, including the scratch block; None: enough for all slots at their longest.
    tokens_per_sync: decode steps between two syncs with the host.
    cache_dtype: type of the cache; None: the model's.
    top_k, top_p: see `SamplingFilter`; requests with another filter get a graph of their own.
    block: tokens per block.
    records_experts: whether training responses carry their `Routing`.
    merges_adapters: see `PackedWeights`; prompts are prefilled by the layers as they are.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        eos_ids: Collection[int],
        num_slots: int,
        prefill_width: int,
        max_prompt_length: int,
        max_new_tokens: int,
        length_multiple: int,
        num_blocks: int | None = None,
        tokens_per_sync: int = 1,
        cache_dtype: str | None = None,
        top_k: int = 0,
        top_p: float = 1.0,
        block: int = BLOCK,
        records_experts: bool = False,
        merges_adapters: bool = False,
    ) -> None:
        self._eos_ids = tuple(eos_ids)
        self._num_slots, self._prefill_width = num_slots, prefill_width
        self._max_new_tokens, self._length_multiple = max_new_tokens, length_multiple
        self._tokens_per_sync = tokens_per_sync
        self._prompt_columns = round_up(max_prompt_length, length_multiple)
        num_columns = self._prompt_columns + max_new_tokens
        if num_blocks is None:
            num_blocks = num_slots * num_blocks_for(num_columns, block) + 1
        self._cache = PagedCache(model, num_blocks=num_blocks, num_columns=num_columns, dtype=cache_dtype, block=block)
        self._model, self._team, self._records_experts = model, model.place.model_ranks, records_experts
        self._prefill = GraphOfRanks(Prefill(model, self._cache, records_experts=records_experts), self._team)
        # The last block of a short prompt has no more tokens than the prompt.
        self._copy_blocks = CompiledCell(CopyBlocks(self._cache, min(block, self._prompt_columns)))
        self._packed = PackedWeights(model, merges=merges_adapters)
        self._pack_weights = CompiledCell(self._packed)
        self._filter = SamplingFilter(top_k, top_p)
        self._decoders = {self._filter: self._decoder(self._filter)}
        self._collect = CompiledCell(Collect())
        # Copying a few blocks per graph keeps admission cheap; a wider graph would mostly copy padding.
        self._copy_width = min(8, num_slots)
        self._is_packed = takes_packed(model)
        self._weight_version: int | None = None

    @property
    def cache(self) -> tuple[Parameter, ...]:
        """Keys and values of all blocks; their content is not needed between two calls of `generate`."""
        return tuple(self._cache.matrices)

    def load_weights(self, version: int) -> None:
        """Use the present values of the model's parameters, as version `version`."""
        if self._is_packed:
            self._pack_weights()
            self._packed.merge()
        self._weight_version = version

    def require_version(self, version: int) -> None:
        """Assert that the loaded weights are those of `version`."""
        assert version == self._weight_version, (
            f"rollout with weights of version {self._weight_version}, trainer is at {version}"
        )

    def generate(self, prompts: Sequence[Prompt], settings: SamplingSettings, *, weight_version: int) -> Rollout:
        """See `RolloutEngine`. The result depends on nothing but weights, prompts and settings."""
        self.require_version(weight_version)
        assert settings.max_new_tokens <= self._max_new_tokens, settings
        fault = "rollout" if settings.stream.purpose is Purpose.TRAINING else "eval"
        faults.reach(f"{fault}.before")
        requests = numbered_requests(prompts, settings)
        decoding = self.begin(settings)
        ended: dict[int, EndedRequest] = {}
        for request in requests:
            decoding.add(request)
        while not decoding.done:
            decoding.advance()
            ended |= {one.request.number: one for one in decoding.ended()}
            progress.count(decoding.num_finished, len(prompts) * settings.num_samples, "responses")
            faults.reach(f"{fault}.inside")
        in_order = [ended[request.number] for request in requests]
        responses = tuple(whole_responses(one.request, one.pieces, weight_version) for one in in_order)
        seconds = np.array([one.seconds for one in in_order])
        return Rollout(responses=responses, counters=decoding.counters(**_extremes(seconds, prompts, responses)))

    def begin(self, settings: SamplingSettings) -> Decoding:
        """Return an empty decoding session. Requests may be added whose settings differ from these only in stream and
        length. All sessions use the one cache, so the next may begin only when this one is done."""
        return Decoding(self, settings)

    def _scheduler(self, allocator: BlockAllocator) -> Scheduler:
        return Scheduler(
            num_slots=self._num_slots,
            max_new_tokens=self._max_new_tokens,
            block=self._cache.block,
            most_blocks=self._cache.most_blocks,
            allocator=allocator,
            tokens_per_sync=self._tokens_per_sync,
            eos_ids=self._eos_ids,
        )

    def _sampling(self, settings: SamplingSettings) -> tuple[Tensor, Tensor]:
        """Return inverse temperatures, float32 [S], and whether sampling is greedy, bool [S]."""
        greedy = settings.temperature == 0
        inverse = 1.0 if greedy else 1.0 / settings.temperature
        return Tensor(np.full(self._num_slots, inverse, np.float32)), Tensor(np.full(self._num_slots, greedy))

    def _decoder(self, sampling_filter: SamplingFilter) -> GraphOfRanks:
        logits = NextLogits(self._model, self._cache, self._packed, records_experts=self._records_experts)
        return GraphOfRanks(DecodeStep(logits, self._model.place, sampling_filter), self._team)

    def _decoder_of(self, settings: SamplingSettings) -> GraphOfRanks:
        """Return the decode graph of the settings' filter. Each filter has its own, because sorting the vocabulary is
        slow."""
        sampling_filter = settings.sampling_filter
        if sampling_filter is None or settings.temperature == 0:
            sampling_filter = self._filter
        decoder = self._decoders.pop(sampling_filter, None) or self._decoder(sampling_filter)
        self._decoders[sampling_filter] = decoder  # the most recently used one is last
        for old in [one for one in self._decoders if one != self._filter][:-_MOST_FILTERS]:
            del self._decoders[old]
        return decoder

    def _read(
        self, drawn: Sequence[tuple[Tensor, ...]], *, is_recorded: bool
    ) -> tuple[Int32Array, Float32Array, ExpertArray | None]:
        """Sync with the host: ids and log-probs [J, S] of a run's decode steps, and, where recorded, the experts
        [J, S, X] of the fed tokens."""
        experts_JSX = np.stack([found[2].asnumpy() for found in drawn]) if is_recorded else None
        if self._tokens_per_sync == 1:
            ((ids_S, logprobs_S, *_),) = drawn
            return ids_S.asnumpy()[None], logprobs_S.asnumpy()[None], experts_JSX
        # Always the same number, so that there is one graph.
        ids, logprobs, *_ = zip(*drawn, *[drawn[-1]] * (self._tokens_per_sync - len(drawn)), strict=True)
        ids_JS, logprobs_JS = self._collect(*ids, *logprobs).asnumpy()[:, : len(drawn)]
        return ids_JS.astype(np.int32), logprobs_JS, experts_JSX

    def _run_prompts(self, rows: Sequence[PrefillRow]) -> list[tuple[PrefillRow, ExpertArray]]:
        """Prefill rows. Those that continue a sequence, after a preemption or with a prefix, may be longer than any
        prompt. Returns the experts of each row's tokens, [L, X], where recorded."""
        recorded: list[tuple[PrefillRow, ExpertArray]] = []
        prompts = [row for row in rows if row.ids.size <= self._prompt_columns]
        for some in _parts(prompts, self._prefill_width):
            longest = max(row.ids.size for row in some)
            recorded += self._prefill_rows(some, self._prefill_width, round_up(longest, self._length_multiple))
        longer: dict[int, list[PrefillRow]] = {}
        for row in rows:
            if row.ids.size > self._prompt_columns:
                longer.setdefault(self._long_columns(row.ids.size), []).append(row)
        for columns, some in longer.items():
            # As many tokens as in a prefill of prompts; a few rows cost less one by one than padded to that width.
            width = max(1, self._prefill_width * self._prompt_columns // columns)
            for part in _parts(some, width):
                if 2 * len(part) > width:
                    recorded += self._prefill_rows(part, width, columns)
                else:
                    recorded += [found for row in part for found in self._prefill_rows([row], 1, columns)]
        return recorded

    def _long_columns(self, length: int) -> int:
        """Double the longest prompt's columns until the row fits: few graphs cover all lengths."""
        columns = self._prompt_columns
        while columns < length:
            columns *= 2
        return min(columns, round_up(self._cache.num_columns, self._length_multiple))

    def _prefill_rows(
        self, rows: Sequence[PrefillRow], width: int, columns: int
    ) -> list[tuple[PrefillRow, ExpertArray]]:
        """Prefill up to `width` rows in one graph; padding goes into the scratch block."""
        inputs = _packed_rows(rows, width, columns) if self._is_packed else self._padded_rows(rows, width, columns)
        with paged_kernels():
            _, *recorded = self._prefill(*(Tensor(array) for array in inputs))
        if not recorded:
            return []
        experts_MX, lengths = recorded[0].asnumpy(), [row.ids.size for row in rows]
        ends = np.cumsum(lengths) if self._is_packed else np.arange(len(rows)) * columns + lengths
        return [(row, experts_MX[end - length : end]) for row, end, length in zip(rows, ends, lengths, strict=True)]

    def _padded_rows(self, rows: Sequence[PrefillRow], width: int, columns: int) -> tuple[np.ndarray, ...]:
        ids_QL, segments_QL = np.zeros((2, width, columns), np.int32)
        positions_QL = np.tile(np.arange(columns, dtype=np.int32), (width, 1))
        cache_rows_QL = SCRATCH * self._cache.block + positions_QL % np.int32(self._cache.block)
        for number, row in enumerate(rows):
            ids_QL[number, : row.ids.size] = row.ids
            segments_QL[number, : row.ids.size] = 1
            cache_rows_QL[number, : row.ids.size] = row.cache_rows
        return ids_QL, positions_QL, attention_segments(segments_QL, is_packed=False), cache_rows_QL.reshape(-1)

    def _copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy the last blocks of prompts, (source, target) each."""
        with paged_kernels():
            for some in _parts(copies, self._copy_width):
                filled = [*some, *[(SCRATCH, SCRATCH)] * (self._copy_width - len(some))]
                blocks = np.array(filled, np.int32).T
                self._copy_blocks(*(Tensor(np.ascontiguousarray(row)) for row in blocks))


class Decoding:
    """A decoding session: requests with one way of sampling are added, decoded and returned."""

    def __init__(self, engine: NativeEngine, settings: SamplingSettings) -> None:
        self._engine, self._allocator = engine, BlockAllocator(engine._cache.num_blocks)
        self._scheduler = engine._scheduler(self._allocator)
        self._sampling, self._decode = engine._sampling(settings), engine._decoder_of(settings)
        self._is_recorded = engine._records_experts and settings.stream.purpose is Purpose.TRAINING
        self._steps = self._busy = self._prefilled = 0
        self.add, self.ended, self.abort = self._scheduler.add, self._scheduler.ended, self._scheduler.abort
        self.tokens_of = self._scheduler.tokens_of

    @property
    def done(self) -> bool:
        """Whether no request runs or waits."""
        return self._scheduler.done

    @property
    def num_finished(self) -> int:
        """Number of responses that have ended so far."""
        return self._scheduler.num_finished

    def advance(self) -> None:
        """Admit sequences, and decode up to the next sync with the host; each step feeds the tokens that the one before
        it drew."""
        engine, scheduler = self._engine, self._scheduler
        scheduler.grow()
        admissions = scheduler.admit()
        self._prefilled += len(admissions.prefills)
        routed = engine._run_prompts(admissions.prefills)
        if self._is_recorded:
            scheduler.keep_routing(routed)
        engine._copy(admissions.copies)
        run = scheduler.next_run()
        ids_S, table_SP = Tensor(run.ids_S), Tensor(run.table_SP)
        num_rows_1 = Tensor(np.array([run.num_rows], np.int32))
        drawn: list[tuple[Tensor, ...]] = []
        with paged_kernels():
            for step in range(run.num_steps):
                ids_S, *others = self._decode(
                    ids_S,
                    Tensor(run.positions_JS[step]),
                    Tensor(run.cache_rows_JS[step]),
                    table_SP,
                    Tensor(run.uniforms_JS[step]),
                    *self._sampling,
                    Tensor(run.positions_JS[step] + np.int32(1)),
                    num_rows_1,
                )
                drawn.append((ids_S, *others))
        self._busy += scheduler.take(*engine._read(drawn, is_recorded=self._is_recorded))
        self._steps += run.num_steps

    def counters(self, **extremes: int) -> RolloutCounters:
        """Return the counters of the session. extremes: the fastest and slowest response, see `RolloutCounters`."""
        return RolloutCounters(
            prefilled_prompts=self._prefilled,
            decode_steps=self._steps,
            busy_slot_steps=self._busy + self._scheduler.num_observed,
            slot_steps=self._steps * self._engine._num_slots,
            generated_tokens=self._busy,
            preemptions=self._scheduler.preemptions,
            most_blocks=self._allocator.most_in_use,
            **extremes,
        )


def _extremes(
    seconds: np.ndarray, prompts: Sequence[Prompt], responses: Sequence[Sequence[Response]]
) -> dict[str, int]:
    """Return the fields of `RolloutCounters` for the fastest and the slowest response. seconds: [P, G]."""
    if not prompts:
        return {}
    prompt, sample = divmod(int(seconds.argmax()), len(responses[0]))
    return {
        "fastest_us": max(1, round(1e6 * seconds.min())),  # 0 means not measured
        "slowest_us": max(1, round(1e6 * seconds.max())),
        "slowest_prompt": prompts[prompt].ids.size,
        "slowest_response": responses[prompt][sample].length,
    }


def _packed_rows(rows: Sequence[PrefillRow], width: int, columns: int) -> tuple[np.ndarray, ...]:
    """Concatenate the rows, as kernels take them."""
    ids_M, positions_M, cache_rows_M = np.zeros((3, width * columns), np.int32)
    ends_Q, start = np.zeros(width, np.int32), 0
    for number, row in enumerate(rows):
        stop = start + row.ids.size
        ids_M[start:stop], positions_M[start:stop] = row.ids, np.arange(row.ids.size)
        cache_rows_M[start:stop] = row.cache_rows
        ends_Q[number:] = start = stop
    return ids_M[None], positions_M[None], ends_Q, cache_rows_M


def _parts(rows: Sequence[Packable], width: int) -> Iterator[list[Packable]]:
    """Split rows into parts of `width`; the last may be shorter."""
    for start in range(0, len(rows), width):
        yield list(rows[start : start + width])
