"""Which sequences are decoded, and which blocks of the cache they hold: bookkeeping in plain numpy, no MindSpore.

The engine calls `grow`, `admit`, `next_run` and `take` in turn until `done`; each turn is one look of the host.
Requests may be added between two looks, and are given back by `ended` as soon as all their responses have ended.

Sequences wait in one queue: request by request, sample by sample. One is admitted where a slot and enough blocks are
free; it gets more blocks as it grows. Where none is left, the sequence that was admitted last is pre-empted: its blocks
are freed, and it waits at the front of the queue with the tokens that it has. Its prompt and tokens are then run once
more, and since each token has a uniform of its own, it goes on as if nothing had happened. A request with a prefix is
such a sequence from the start.

A prompt is run once for all siblings that come while its blocks are held: they share its full blocks, and the rest of
it is copied into a block of each sibling's own. The blocks are held until the last sibling has come, but no longer than
they are to spare.

Legend: S rows of the decode batch, P blocks of the longest sequence, K response tokens, J steps of a run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

import numpy as np

from mindgspo.rollout.blocks import SCRATCH, BlockAllocator, num_blocks_for, num_shared_blocks
from mindgspo.rollout.sequences import Admissions, DecodeRun, EndedRequest, Job, PrefillRow, Waiting
from mindgspo.rollout.service import NO_TOKENS, Piece, Request
from mindgspo.types import ExpertArray, FinishReason, Int32Array

# Free blocks per active sequence without which no other is admitted. At published lengths (responses to 20k) 1 keeps
# 4 % more sequences at work than 4, and runs four times as many tokens again behind pre-emptions; 8 keeps 7 % fewer.
_MARGIN = 4


class Scheduler:
    """What one cache works on.

    num_slots: most sequences decoded at once. max_new_tokens: the most that any request asks for. block: tokens per
    block. most_blocks: of one sequence, the width P of the block table. allocator: of a cache that holds one longest
    sequence at least. tokens_per_sync: most decode steps of a run. clock: seconds from an arbitrary origin.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        max_new_tokens: int,
        block: int,
        most_blocks: int,
        allocator: BlockAllocator,
        tokens_per_sync: int,
        eos_ids: Collection[int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        assert allocator.num_in_use == 0 and most_blocks <= allocator.capacity, (most_blocks, allocator.capacity)
        self._block, self._allocator, self._tokens_per_sync = block, allocator, tokens_per_sync
        self._eos_ids, self._clock = np.array(sorted(eos_ids), dtype=np.int32), clock
        self._num_added = self.num_finished = 0
        self._jobs: dict[int, Job] = {}  # by number of the request, until all its responses have ended
        self._queue: deque[Job] = deque()  # those with samples to be admitted
        self._preempted: deque[Waiting] = deque()
        self._ended: list[EndedRequest] = []
        self.preemptions = 0
        # By slot, the place of a sequence from its admission on; rows of the batch name slots, oldest first.
        size = (num_slots, max_new_tokens)
        self._rows: list[int] = []
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._sequences: list[tuple[Job, int] | None] = [None] * num_slots
        self._prompt_lengths, self._lengths, self._limits = np.zeros((3, num_slots), np.int64)
        self._first_ids = np.zeros(num_slots, np.int32)  # the prompts' last tokens, which decoding is fed first
        self._ids, self._logprobs = np.zeros(size, np.int32), np.zeros(size, np.float32)
        self._experts: ExpertArray | None = None  # [slots, tokens, X], where they are recorded
        self._uniforms = np.ones(size, np.float32)
        self._table = np.full((num_slots, most_blocks), SCRATCH, np.int32)
        self._num_blocks = np.zeros(num_slots, np.int64)

    def add(self, request: Request) -> None:
        """Let a request wait behind those that are here."""
        assert request.number not in self._jobs, request.number
        assert request.settings.max_new_tokens <= self._ids.shape[1], request.settings
        job = Job(request=request, number=self._num_added)
        self._num_added += len(request.samples)
        self._jobs[request.number] = job
        self._queue.append(job)

    def ended(self) -> list[EndedRequest]:
        """Requests that have ended since the last call, in the order of their ends."""
        found, self._ended = self._ended, []
        return found

    def abort(self, numbers: Collection[int] | None = None) -> list[EndedRequest]:
        """Those that have ended since the last call, and these requests, or all, as far as they have come: nothing is
        left of them."""
        chosen = {number: job for number, job in self._jobs.items() if numbers is None or number in numbers}
        for slot in list(self._rows):
            job, place = self._sequence(slot)
            if job.request.number in chosen:
                length = int(self._lengths[slot])
                experts = self._experts_of(slot)
                piece = job.piece(self._ids[slot, :length], self._logprobs[slot, :length], experts, None)
                self._leave(slot)
                self._end(job, place, piece)
        preempted, self._preempted = self._preempted, deque()
        for waiting in preempted:
            if waiting.job.request.number in chosen:
                piece = waiting.job.piece(waiting.ids, waiting.logprobs, waiting.experts, None)
                self._end(waiting.job, waiting.place, piece)
            else:
                self._preempted.append(waiting)
        self._queue = deque(job for job in self._queue if job.request.number not in chosen)
        for job in chosen.values():
            self._allocator.release(job.held or [])
            job.held = None
            for place in range(job.next_place, len(job.request.samples)):
                self._end(job, place, NO_TOKENS)
        assert self._jobs or self._allocator.num_in_use == 0
        return self.ended()

    @property
    def done(self) -> bool:
        """Every response has ended."""
        return not self._jobs

    @property
    def num_active(self) -> int:
        """Sequences in the decode batch."""
        return len(self._rows)

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._preempted) + sum(len(job.request.samples) - job.next_place for job in self._queue)

    def progress(self) -> list[tuple[int, int]]:
        """Of each active sequence, in the order of the rows: its number among all responses, and its tokens."""
        found = []
        for slot in self._rows:
            job, place = self._sequence(slot)
            found.append((job.number + place, int(self._lengths[slot])))
        return found

    def tokens_of(self, number: int) -> Int32Array:
        """The tokens so far of the first active response to a request; none where all of them wait."""
        for slot in self._rows:
            if self._sequence(slot)[0].request.number == number:
                return self._ids[slot, : self._lengths[slot]].copy()
        return np.zeros(0, np.int32)

    def grow(self) -> None:
        """Give active sequences the blocks of their next tokens, the oldest first, and pre-empt the youngest where
        none are left."""
        rows = np.array(self._rows, np.int64)
        all_missing = self._missing(rows)
        for row in np.flatnonzero(all_missing > 0).tolist():
            slot, missing = int(rows[row]), int(all_missing[row])
            if self._sequences[slot] is None:
                return  # it was pre-empted, and so were all that came later
            while missing > self._allocator.num_free:
                if self._let_go_of_prompts():
                    continue
                youngest = self._rows[-1]
                assert len(self._rows) > 1, "the cache does not hold one sequence"
                self._preempt(youngest)
                if youngest == slot:
                    return
            self._give(slot, self._allocator.take(missing))

    def admit(self) -> Admissions:
        """Take sequences out of the queue while a slot and blocks are free. `_MARGIN` blocks are left for each of the
        others that may still grow."""
        admissions = Admissions()
        finished_prompts: list[Job] = []
        growth = self._growth(np.array(self._rows, np.int64))
        while self._free_slots and (waiting := self._front()) is not None:
            job = waiting.job
            fresh = waiting.ids.size == 0
            held = job.held if fresh else None
            shared = self._shared_with(job, held)
            # The rest of the prompt lies in the last block held; where nobody writes into it, it need not be copied.
            in_place = held is not None and len(held) > len(shared) and self._allocator.holders(held[-1]) == 1
            own = self._blocks_of(waiting) - len(shared) - in_place
            if own + growth > self._allocator.num_free:
                if self._rows:
                    break
                self._let_go_of_prompts()
                continue
            tail = self._allocator.share(held[-1:]) if in_place else []
            blocks = [*self._allocator.share(shared), *tail, *self._allocator.take(own)]
            self._place(waiting, blocks)
            longest = job.prompt_length + job.limit - 1
            growth += min(num_blocks_for(longest, self._block) - len(blocks), _MARGIN)
            if held is None:
                admissions.prefills.append(self._prefill_row(waiting, blocks, len(shared)))
            elif len(held) > len(shared) and not in_place:
                admissions.copies.append((held[-1], blocks[len(shared)]))
            if fresh and held is None and job.has_more:
                # Nothing but its last token in the last block: each sibling writes that itself.
                job.held = self._allocator.share(blocks[: num_blocks_for(job.prompt_length - 1, self._block)])
            elif held is not None and not job.has_more:
                finished_prompts.append(job)
        for job in finished_prompts:  # only now: their blocks are still to be copied
            self._allocator.release(job.held or [])
            job.held = None
        return admissions

    def next_run(self) -> DecodeRun:
        """What the decode graph is fed up to the next look."""
        rows = np.array(self._rows, np.int64)
        assert rows.size, "nobody is active"
        remaining = self._limits[rows] - self._lengths[rows]
        num_steps, num_slots = min(self._tokens_per_sync, int(remaining.max())), len(self._sequences)
        steps_J1 = np.arange(num_steps)[:, None]
        is_busy = steps_J1 < remaining
        first = self._prompt_lengths[rows] + self._lengths[rows] - 1
        positions = np.where(is_busy, first + steps_J1, 0)
        table_SP = np.zeros((num_slots, self._table.shape[1]), np.int32)
        table_SP[: rows.size] = self._table[rows]
        cache_rows = self._cache_rows(table_SP[np.arange(rows.size), positions // self._block], positions)
        columns = np.minimum(self._lengths[rows] + steps_J1, self._limits[rows] - 1)
        ids_S = np.zeros(num_slots, np.int32)
        ids_S[: rows.size] = self._last_ids(rows)
        shape = (num_steps, num_slots)
        run = DecodeRun(
            num_rows=rows.size,
            ids_S=ids_S,
            table_SP=table_SP,
            positions_JS=np.zeros(shape, np.int32),
            cache_rows_JS=np.full(shape, SCRATCH * self._block, np.int32),
            uniforms_JS=np.ones(shape, np.float32),
        )
        run.positions_JS[:, : rows.size] = positions
        run.cache_rows_JS[:, : rows.size] = np.where(is_busy, cache_rows, SCRATCH * self._block)
        run.uniforms_JS[:, : rows.size] = self._uniforms[rows, columns]
        return run

    def keep_routing(self, recorded: Sequence[tuple[PrefillRow, ExpertArray]]) -> None:
        """The experts of rows that were run, [L, X] each; those of a prompt's last token come with the first token that
        is drawn, and a prompt that is run again keeps what it had."""
        for row, experts_LX in recorded:
            job = self._jobs[row.request]
            if job.prompt_experts is None:
                length = job.prompt_length + job.request.prefix.size - 1
                job.prompt_experts = experts_LX[:length].copy()

    def take(self, ids_JS: np.ndarray, logprobs_JS: np.ndarray, experts_JSX: ExpertArray | None = None) -> int:
        """Append the tokens of a run and end sequences; what lies behind an end is dropped. experts_JSX: of the tokens
        that were fed, where they are recorded. Returns how many tokens were appended."""
        rows = np.array(self._rows, np.int64)
        ids, logprobs = ids_JS[:, : rows.size], logprobs_JS[:, : rows.size]
        steps_J1 = np.arange(len(ids))[:, None]
        fits = steps_J1 < self._limits[rows] - self._lengths[rows]
        is_eos = (ids[..., None] == self._eos_ids).any(axis=-1) & fits
        behind_eos = np.cumsum(is_eos, axis=0) - is_eos > 0
        step, row = np.nonzero(fits & ~behind_eos)
        slots, columns = rows[row], self._lengths[rows[row]] + step
        self._ids[slots, columns], self._logprobs[slots, columns] = ids[step, row], logprobs[step, row]
        if experts_JSX is not None:
            if self._experts is None:  # its pages take memory as they are written
                self._experts = np.zeros((*self._ids.shape, experts_JSX.shape[2]), experts_JSX.dtype)
            self._experts[slots, columns] = experts_JSX[step, row]
        self._lengths[rows] += np.bincount(row, minlength=rows.size)
        stopped = is_eos.any(axis=0)
        full = self._lengths[rows] == self._limits[rows]
        for slot, stop in zip(rows[stopped | full].tolist(), stopped[stopped | full], strict=True):
            self._finish(slot, FinishReason.STOP if stop else FinishReason.LENGTH)
        return step.size

    def _sequence(self, slot: int) -> tuple[Job, int]:
        found = self._sequences[slot]
        assert found is not None, slot
        return found

    def _front(self) -> Waiting | None:
        if self._preempted:
            return self._preempted[0]
        if not self._queue:
            return None
        job = self._queue[0]  # a prefix's log-probs are read by nobody
        ids = job.request.prefix
        return Waiting(job=job, place=job.next_place, ids=ids, logprobs=np.zeros(ids.size, np.float32))

    def _shared_with(self, job: Job, held: list[int] | None) -> list[int]:
        """Full blocks of the prompt that hold it already: those held for it, or an active sibling's."""
        count = num_shared_blocks(job.prompt_length, self._block)
        if held is not None:
            return held[:count]
        for slot in self._rows:
            if self._sequence(slot)[0] is job:
                return self._table[slot, :count].tolist()
        return []

    def _blocks_of(self, waiting: Waiting) -> int:
        """Blocks with which a sequence goes on: those of the columns that are written up to the next look."""
        job, length = waiting.job, waiting.ids.size
        steps = min(self._tokens_per_sync, job.limit - length)
        return -(-(job.prompt_length + length + steps - 1) // self._block)

    def _missing(self, slots: np.ndarray) -> np.ndarray:
        """Blocks that they do not have of those that `_blocks_of` counts."""
        lengths = self._lengths[slots]
        steps = np.minimum(self._tokens_per_sync, self._limits[slots] - lengths)
        return -(-(self._prompt_lengths[slots] + lengths + steps - 1) // self._block) - self._num_blocks[slots]

    def _growth(self, slots: np.ndarray) -> int:
        """Blocks that the sequences in these slots may soon need."""
        longest = self._prompt_lengths[slots] + self._limits[slots] - 1
        return int(np.minimum(-(-longest // self._block) - self._num_blocks[slots], _MARGIN).sum())

    def _place(self, waiting: Waiting, blocks: list[int]) -> None:
        """Put the sequence at the front of the queue into a free slot, the last row of the batch."""
        job, place = waiting.job, waiting.place
        if self._preempted:
            self._preempted.popleft()
        else:
            job.next_place += 1
            if not job.has_more:
                self._queue.popleft()
            job.starts[place] = self._clock()
        request, slot, length = job.request, self._free_slots.pop(), waiting.ids.size
        self._rows.append(slot)
        self._sequences[slot] = job, place
        self._prompt_lengths[slot], self._limits[slot] = job.prompt_length, job.limit
        self._lengths[slot], self._first_ids[slot] = length, request.prompt.ids[-1]
        self._ids[slot, :length], self._logprobs[slot, :length] = waiting.ids, waiting.logprobs
        if self._experts is not None and waiting.experts is not None:
            self._experts[slot, :length] = waiting.experts
        self._uniforms[slot] = 1.0
        if request.settings.temperature > 0:
            stream, sample = request.settings.stream, request.samples[place]
            self._uniforms[slot, : job.limit] = stream.uniforms(request.prompt.index, sample, job.limit)
        self._give(slot, blocks)

    def _give(self, slot: int, blocks: list[int]) -> None:
        start = int(self._num_blocks[slot])
        self._table[slot, start : start + len(blocks)] = blocks
        self._num_blocks[slot] += len(blocks)

    def _prefill_row(self, waiting: Waiting, blocks: list[int], num_shared: int) -> PrefillRow:
        """Prompt and tokens; what shared blocks hold already is not written again."""
        request = waiting.job.request
        ids = np.concatenate([request.prompt.ids, waiting.ids]).astype(np.int32)
        columns = np.arange(ids.size)
        targets = np.array([SCRATCH] * num_shared + blocks[num_shared:], np.int32)
        cache_rows = self._cache_rows(targets[columns // self._block], columns)
        return PrefillRow(request=request.number, ids=ids, cache_rows=cache_rows)

    def _cache_rows(self, blocks: np.ndarray, positions: np.ndarray) -> Int32Array:
        return (blocks * self._block + positions % self._block).astype(np.int32)

    def _last_ids(self, rows: np.ndarray) -> Int32Array:
        drawn = self._ids[rows, np.maximum(self._lengths[rows] - 1, 0)]
        return np.where(self._lengths[rows] > 0, drawn, self._first_ids[rows])

    def _preempt(self, slot: int) -> None:
        length = int(self._lengths[slot])
        job, place = self._sequence(slot)
        self._preempted.appendleft(
            Waiting(
                job=job,
                place=place,
                ids=self._ids[slot, :length].copy(),
                logprobs=self._logprobs[slot, :length].copy(),
                experts=self._experts_of(slot),
            )
        )
        self.preemptions += 1
        self._leave(slot)

    def _finish(self, slot: int, reason: FinishReason) -> None:
        job, place = self._sequence(slot)
        length = int(self._lengths[slot])
        job.seconds[place] = self._clock() - job.starts[place]
        experts = self._experts_of(slot)
        piece = job.piece(self._ids[slot, :length], self._logprobs[slot, :length], experts, reason)
        self._leave(slot)
        self.num_finished += 1
        self._end(job, place, piece)

    def _end(self, job: Job, place: int, piece: Piece) -> None:
        job.pieces[place] = piece
        if (ended := job.outcome()) is not None:
            del self._jobs[job.request.number]
            self._ended.append(ended)

    def _experts_of(self, slot: int) -> ExpertArray | None:
        return None if self._experts is None else self._experts[slot, : self._lengths[slot]].copy()

    def _leave(self, slot: int) -> None:
        self._allocator.release(self._table[slot, : self._num_blocks[slot]].tolist())
        self._table[slot], self._num_blocks[slot], self._sequences[slot] = SCRATCH, 0, None
        self._rows.remove(slot)
        self._free_slots.append(slot)

    def _let_go_of_prompts(self) -> bool:
        """Release the blocks that are held for siblings to come; whether there were any."""
        holding = [job for job in self._jobs.values() if job.held]
        for job in holding:
            self._allocator.release(job.held or [])
            job.held = None
        return bool(holding)
