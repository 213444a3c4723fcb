"""Decides which sequences are decoded, and which blocks of the cache they hold; plain numpy, no MindSpore.

The engine calls `grow`, `admit`, `next_run` and `take` in turn until `done`; each turn is one sync with the host.
Requests may be added between two syncs, and `ended` returns them as soon as all their responses have ended.

Sequences wait in one queue: request by request, sample by sample. One is admitted when a slot and enough blocks are
free, and gets more blocks as it grows. When none is left, the sequence admitted last is preempted: its blocks are
freed, and it waits at the front of the queue with its tokens. Prompt and tokens are then prefilled again, and since
each token has a uniform number of its own, it continues as if nothing had happened. A request with a prefix starts like
this, unless an earlier one parked the beginning of its sequence.

A response that may be continued (`Request.may_continue`) gives up its slot when it ends, and its blocks are parked. The
request that continues it starts with these blocks, and feeds the tokens that they lack: the last one drawn, and those
that were put behind it. Rows of the batch may be consecutive tokens of one sequence, because the keys and values of all
rows are written before any row attends, so these tokens also take rows that have no sequence. Blocks that others need
are taken from what was parked first.

A prompt is prefilled once for all siblings that are admitted while its blocks are held: they share its full blocks, and
each gets a copy of the last, partial one. The blocks are held until the last sibling is admitted, unless others need
them.

Legend: S rows of the decode batch, P blocks of the longest sequence, K response tokens, J steps of a run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence

import numpy as np

from mindgspo.rollout.sequences import (
    SCRATCH,
    Admissions,
    BlockAllocator,
    DecodeRun,
    EndedRequest,
    Job,
    Parked,
    PrefillRow,
    Waiting,
    num_blocks_for,
    num_shared_blocks,
)
from mindgspo.rollout.service import NO_TOKENS, Piece, Request
from mindgspo.types import ExpertArray, FinishReason, Int32Array

# A sequence is admitted only if this many free blocks remain for each active one. At published lengths (responses to
# 20k) 1 keeps 4 % more sequences at work than 4, but prefills four times as many tokens again; 8 keeps 7 % fewer.
_MARGIN = 4
Counts = np.ndarray | int


class Scheduler:
    """Schedules the sequences of one cache.

    num_slots: maximum number of sequences decoded at once.
    max_new_tokens: upper bound of every request.
    block: tokens per block.
    most_blocks: blocks of the longest sequence, the width P of the block table.
    allocator: blocks of a cache that holds at least one longest sequence.
    tokens_per_sync: maximum number of decode steps in a run.
    clock: returns seconds.
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
        self.num_finished = self.preemptions = self.num_observed = 0
        self._jobs: dict[int, Job] = {}  # by number of the request, until all its responses have ended
        self._queue: deque[Job] = deque()  # jobs with samples to admit
        self._continuing: deque[Job] = deque()  # they go before the queue, because they hold blocks
        self._parked: dict[Hashable, Parked] = {}  # oldest first
        self._preempted: deque[Waiting] = deque()
        self._ended: list[EndedRequest] = []
        # A sequence keeps its slot while it is active; the batch's rows refer to slots, in the order of admission.
        size = (num_slots, max_new_tokens)
        self._rows: list[int] = []
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._sequences: list[tuple[Job, int] | None] = [None] * num_slots
        self._prompt_lengths, self._lengths, self._limits, self._fed = np.zeros((4, num_slots), np.int64)
        self._first_ids = np.zeros(num_slots, np.int32)  # the prompts' last tokens, which are fed first
        self._ids, self._logprobs = np.zeros(size, np.int32), np.zeros(size, np.float32)
        self._experts: ExpertArray | None = None  # [slots, tokens, X], where recorded
        self._uniforms = np.ones(size, np.float32)
        self._table = np.full((num_slots, most_blocks), SCRATCH, np.int32)
        self._num_blocks = np.zeros(num_slots, np.int64)

    def add(self, request: Request) -> None:
        """Append a request to the queue."""
        assert request.number not in self._jobs, request.number
        assert request.settings.max_new_tokens <= self._ids.shape[1], request.settings
        job = self._jobs[request.number] = Job(request=request)
        (self._queue if self._parked_of(job) is None else self._continuing).append(job)

    def ended(self) -> list[EndedRequest]:
        """Return the requests that have ended since the last call, in the order in which they did."""
        found, self._ended = self._ended, []
        return found

    def abort(self, numbers: Collection[int] | None = None) -> list[EndedRequest]:
        """Remove these requests, or all, and return them with their tokens so far, along with the requests that have
        ended since the last call."""
        chosen = {number: job for number, job in self._jobs.items() if numbers is None or number in numbers}
        for slot in list(self._rows):
            if self._sequence(slot)[0].request.number in chosen:
                self._finish(slot, None)
        preempted, self._preempted = self._preempted, deque()
        for waiting in preempted:
            if waiting.job.request.number in chosen:
                piece = waiting.job.piece(waiting.ids, waiting.logprobs, waiting.experts, None)
                self._end(waiting.job, waiting.place, piece)
            else:
                self._preempted.append(waiting)
        for queue in (self._queue, self._continuing):
            left = [job for job in queue if job.request.number not in chosen]
            queue.clear()
            queue.extend(left)
        for job in chosen.values():
            self._release_prompt(job)
            for place in range(job.next_place, len(job.request.samples)):
                self._end(job, place, NO_TOKENS)
        if numbers is None:
            while self._evict():
                pass
        assert self._jobs or self._parked or self._allocator.num_in_use == 0
        return self.ended()

    @property
    def done(self) -> bool:
        """Every response has ended."""
        return not self._jobs

    def tokens_of(self, number: int) -> Int32Array:
        """Return the tokens so far of a request's first active response; none if all of them wait."""
        for slot in self._rows:
            if self._sequence(slot)[0].request.number == number:
                return self._ids[slot, : self._lengths[slot]].copy()
        return np.zeros(0, np.int32)

    def grow(self) -> None:
        """Give active sequences the blocks of their next tokens, oldest first; preempt the youngest where none are
        left."""
        rows = np.array(self._rows, np.int64)
        all_missing = self._missing(rows)
        for row in np.flatnonzero(all_missing > 0).tolist():
            slot, missing = int(rows[row]), int(all_missing[row])
            if self._sequences[slot] is None:
                return  # preempted, and so are all that were admitted later
            while missing > self._allocator.num_free:
                if self._evict() or self._release_prompts():
                    continue
                youngest = self._rows[-1]
                assert len(self._rows) > 1, "the cache does not hold one sequence"
                self._preempt(youngest)
                if youngest == slot:
                    return
            self._give(slot, self._allocator.take(missing))

    def admit(self) -> Admissions:
        """Admit sequences from the queue while a slot and enough blocks are free."""
        admissions = Admissions()
        finished_prompts: list[Job] = []
        growth = self._growth(np.array(self._rows, np.int64))
        while self._free_slots and (waiting := self._front()) is not None:
            job = waiting.job
            fresh = waiting.ids.size == 0
            held = job.held if fresh else None
            parked = self._parked_of(job) if waiting.continues else None
            shared = self._shared_with(job, held) if parked is None else []
            # The last held block contains the rest of the prompt; without another holder it is used and not copied.
            in_place = held is not None and len(held) > len(shared) and self._allocator.holders(held[-1]) == 1
            before = [] if parked is None else parked.blocks
            own = int(self._blocks_of(job.prompt_length, waiting.ids.size, job.limit)) - len(shared) - in_place
            own = max(own - len(before), 0)
            if own + growth > self._allocator.num_free:
                if self._evict(but=parked):
                    continue
                if self._rows:
                    break
                self._release_prompts()
                continue
            tail = self._allocator.share(held[-1:]) if held is not None and in_place else []
            blocks = [*before, *self._allocator.share(shared), *tail, *self._allocator.take(own)]
            self._place(waiting, blocks, parked)
            longest = job.prompt_length + job.limit - 1
            growth += min(num_blocks_for(longest, self._block) - len(blocks), _MARGIN)
            if parked is not None:
                continue
            if held is None:
                admissions.prefills.append(self._prefill_row(waiting, blocks, len(shared)))
            elif len(held) > len(shared) and not in_place:
                admissions.copies.append((held[-1], blocks[len(shared)]))
            if fresh and held is None and job.has_more:
                # Without the prompt's last token, because each sibling writes that itself.
                job.held = self._allocator.share(blocks[: num_blocks_for(job.prompt_length - 1, self._block)])
            elif held is not None and not job.has_more:
                finished_prompts.append(job)
        for job in finished_prompts:  # only now, because their blocks are the sources of copies
            self._release_prompt(job)
        return admissions

    def next_run(self) -> DecodeRun:
        """Return the inputs of the decode graph up to the next sync."""
        slots = np.array(self._rows, np.int64)
        assert slots.size, "no sequence is active"
        remaining = self._limits[slots] - self._lengths[slots]
        unfed = self._prompt_lengths[slots] + self._lengths[slots] - self._fed[slots]
        num_steps = 1 if (unfed > 1).any() else min(self._tokens_per_sync, int(remaining.max()))
        # One row for each sequence; the other rows go to those with more to feed, oldest first.
        more = unfed - 1
        counts = 1 + np.clip(len(self._sequences) - slots.size - (np.cumsum(more) - more), 0, more)
        ends = np.cumsum(counts)
        self._last_rows, self._has_fed = ends - 1, counts == unfed
        self._fed[slots] += counts
        self.num_observed += int(ends[-1] - self._has_fed.sum())
        rows, num_idle = np.repeat(slots, counts), len(self._sequences) - int(ends[-1])
        steps_J1 = np.arange(num_steps)[:, None]
        is_busy = steps_J1 < np.repeat(remaining, counts)
        first = self._fed[rows] - np.repeat(ends, counts) + np.arange(rows.size)
        positions = np.where(is_busy, first + steps_J1, 0)
        table_SP, idle = self._table[rows], SCRATCH * self._block
        cache_rows = self._cache_rows(table_SP[np.arange(rows.size), positions // self._block], positions)
        columns = np.minimum(first + steps_J1 - self._prompt_lengths[rows] + 1, self._limits[rows] - 1)
        return DecodeRun(
            num_rows=rows.size,
            ids_S=np.pad(self._ids_at(rows, first), (0, num_idle)),
            table_SP=np.pad(table_SP, ((0, num_idle), (0, 0))),
            positions_JS=_padded(positions.astype(np.int32), num_idle, 0),
            cache_rows_JS=_padded(np.where(is_busy, cache_rows, np.int32(idle)), num_idle, idle),
            uniforms_JS=_padded(self._uniforms[rows, columns], num_idle, 1.0),
        )

    def keep_routing(self, recorded: Sequence[tuple[PrefillRow, ExpertArray]]) -> None:
        """Keep the prompts' part of the experts of prefilled rows, [L, X] each. A prompt that is prefilled again keeps
        its first ones. Those of its last token come with the first token that is drawn."""
        for row, experts_LX in recorded:
            job = self._jobs[row.request]
            if job.prompt_experts is None and job.parked_experts is None:
                length = job.prompt_length + job.request.prefix.size - 1
                job.prompt_experts = experts_LX[:length].copy()

    def take(self, ids_JS: np.ndarray, logprobs_JS: np.ndarray, experts_JSX: ExpertArray | None = None) -> int:
        """Append the tokens of a run, without those after a sequence's end. experts_JSX: those of the fed tokens, where
        recorded. Returns the number of appended tokens."""
        rows = np.array(self._rows, np.int64)
        ids, logprobs = ids_JS[:, self._last_rows], logprobs_JS[:, self._last_rows]
        steps_J1 = np.arange(len(ids))[:, None]
        fits = (steps_J1 < self._limits[rows] - self._lengths[rows]) & self._has_fed
        is_eos = (ids[..., None] == self._eos_ids).any(axis=-1) & fits
        is_after_eos = np.cumsum(is_eos, axis=0) - is_eos > 0
        step, row = np.nonzero(fits & ~is_after_eos)
        slots, columns = rows[row], self._lengths[rows[row]] + step
        if experts_JSX is not None:
            if self._experts is None:  # zeros take no memory until they are written
                self._experts = np.zeros((*self._ids.shape, experts_JSX.shape[2]), experts_JSX.dtype)
            self._keep_observed_experts(rows, self._experts, experts_JSX[0])
            self._experts[slots, columns] = experts_JSX[step, self._last_rows[row]]
        self._ids[slots, columns], self._logprobs[slots, columns] = ids[step, row], logprobs[step, row]
        self._lengths[rows] += np.bincount(row, minlength=rows.size)
        fed = self._prompt_lengths[rows] + self._lengths[rows] - 1
        self._fed[rows] = np.where(self._has_fed, fed, self._fed[rows])
        stopped = is_eos.any(axis=0)
        full = self._has_fed & (self._lengths[rows] == self._limits[rows])
        for slot, stop in zip(rows[stopped | full].tolist(), stopped[stopped | full], strict=True):
            self._finish(slot, FinishReason.STOP if stop else FinishReason.LENGTH)
        return step.size

    def _keep_observed_experts(self, rows: np.ndarray, experts: ExpertArray, fed_SX: ExpertArray) -> None:
        """Keep the experts of the tokens that were fed first at the token behind each, drawn or not."""
        counts = np.diff(self._last_rows, prepend=-1)
        slots = np.repeat(rows, counts)
        positions = self._fed[slots] - np.repeat(self._last_rows + 1, counts) + np.arange(slots.size)
        experts[slots, positions + 1 - self._prompt_lengths[slots]] = fed_SX[: slots.size]

    def _sequence(self, slot: int) -> tuple[Job, int]:
        found = self._sequences[slot]
        assert found is not None, slot
        return found

    def _front(self) -> Waiting | None:
        if self._preempted:
            return self._preempted[0]
        queue = self._continuing or self._queue
        if not queue:
            return None
        job, ids = queue[0], queue[0].request.prefix
        unused = np.zeros(ids.size, np.float32)  # a piece does not contain the prefix's log-probs
        return Waiting(job=job, place=job.next_place, ids=ids, logprobs=unused, continues=bool(self._continuing))

    def _shared_with(self, job: Job, held: list[int] | None) -> list[int]:
        """Return the full blocks that contain the prompt already: the held ones, or an active sibling's."""
        count = num_shared_blocks(job.prompt_length, self._block)
        if held is not None:
            return held[:count]
        for slot in self._rows:
            if self._sequence(slot)[0] is job:
                return self._table[slot, :count].tolist()
        return []

    def _blocks_of(self, prompt_lengths: Counts, lengths: Counts, limits: Counts) -> Counts:
        """Number of blocks that sequences need up to the next sync."""
        steps = np.minimum(self._tokens_per_sync, limits - lengths)
        return -(-(prompt_lengths + lengths + steps - 1) // self._block)

    def _missing(self, slots: np.ndarray) -> np.ndarray:
        """Number of blocks that the sequences in these slots lack up to the next sync."""
        needed = self._blocks_of(self._prompt_lengths[slots], self._lengths[slots], self._limits[slots])
        return needed - self._num_blocks[slots]

    def _growth(self, slots: np.ndarray) -> int:
        """Number of blocks to keep free for the sequences in these slots."""
        longest = self._prompt_lengths[slots] + self._limits[slots] - 1
        return int(np.minimum(-(-longest // self._block) - self._num_blocks[slots], _MARGIN).sum())

    def _place(self, waiting: Waiting, blocks: list[int], parked: Parked | None) -> None:
        """Move the sequence at the front of the queue into a free slot, as the last row of the batch. parked: whose
        blocks it goes on with."""
        job, place = waiting.job, waiting.place
        if self._preempted:
            self._preempted.popleft()
        else:
            job.next_place += 1
            if not job.has_more:
                (self._continuing if waiting.continues else self._queue).popleft()
            job.starts[place] = self._clock()
        request, slot, length = job.request, self._free_slots.pop(), waiting.ids.size
        self._rows.append(slot)
        self._sequences[slot] = job, place
        self._prompt_lengths[slot], self._limits[slot] = job.prompt_length, job.limit
        self._lengths[slot], self._first_ids[slot] = length, request.prompt.ids[-1]
        self._fed[slot] = job.prompt_length + length - 1
        self._ids[slot, :length], self._logprobs[slot, :length] = waiting.ids, waiting.logprobs
        experts = waiting.experts
        if parked is not None:
            del self._parked[_parking_place(job)]
            self._fed[slot] = parked.num_fed
            job.parked_experts, experts = parked.prompt_experts, parked.experts
        if self._experts is not None and experts is not None:
            self._experts[slot, : len(experts)] = experts
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
        """Return the row of prompt and tokens; shared blocks are not written again."""
        request = waiting.job.request
        ids = np.concatenate([request.prompt.ids, waiting.ids]).astype(np.int32)
        columns = np.arange(ids.size)
        targets = np.array([SCRATCH] * num_shared + blocks[num_shared:], np.int32)
        cache_rows = self._cache_rows(targets[columns // self._block], columns)
        return PrefillRow(request=request.number, ids=ids, cache_rows=cache_rows)

    def _cache_rows(self, blocks: np.ndarray, positions: np.ndarray) -> Int32Array:
        return (blocks * self._block + positions % self._block).astype(np.int32)

    def _ids_at(self, rows: np.ndarray, positions: np.ndarray) -> Int32Array:
        """The tokens at these positions of these slots' sequences, none of them before the prompt's last."""
        places = positions - self._prompt_lengths[rows]
        return np.where(places < 0, self._first_ids[rows], self._ids[rows, np.maximum(places, 0)])

    def _preempt(self, slot: int) -> None:
        length = int(self._lengths[slot])
        job, place = self._sequence(slot)
        if self._fed[slot] < job.prompt_length + length - 1:
            job.parked_experts = None  # the prefill that comes records all of them
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

    def _finish(self, slot: int, reason: FinishReason | None) -> None:
        """End a sequence. reason: None if it is aborted."""
        job, place = self._sequence(slot)
        length = int(self._lengths[slot])
        if reason is not None:
            job.seconds[place] = self._clock() - job.starts[place]
            self.num_finished += 1
        experts = self._experts_of(slot)
        piece = job.piece(self._ids[slot, :length], self._logprobs[slot, :length], experts, reason)
        if reason is FinishReason.STOP and job.request.may_continue:
            self._park(slot, job, place, experts)
        self._leave(slot)
        self._end(job, place, piece)

    def _end(self, job: Job, place: int, piece: Piece) -> None:
        job.pieces[place] = piece
        if job.request.may_continue:
            self._ended.append(job.ended([place]))
        elif job.has_ended:
            self._ended.append(job.ended(range(len(job.request.samples))))
        if job.has_ended:
            del self._jobs[job.request.number]

    def _park(self, slot: int, job: Job, place: int, experts: ExpertArray | None) -> None:
        """Keep the blocks of a response that has ended for the request that continues it."""
        request, length, prompt_LX = job.request, int(self._lengths[slot]), job.parked_experts
        if experts is not None and job.prompt_experts is not None:
            prompt_LX, experts[: request.prefix.size] = np.split(job.prompt_experts, [job.prompt_length - 1])
        self._parked[_parking_place(job, place)] = Parked(
            ids=np.concatenate([request.prompt.ids, self._ids[slot, :length]]),
            blocks=self._allocator.share(self._table[slot, : self._num_blocks[slot]].tolist()),
            prompt_experts=prompt_LX,
            experts=experts,
        )

    def _parked_of(self, job: Job) -> Parked | None:
        """What an earlier request has parked that this one continues."""
        if not job.request.prefix.size:
            return None
        found, ids = self._parked.get(_parking_place(job)), job.request.token_ids
        return None if found is None or ids[: found.ids.size] != found.ids.tolist() else found

    def _evict(self, but: Parked | None = None) -> bool:
        """Release the blocks that were parked first; returns whether there were any."""
        for where, parked in self._parked.items():
            if parked is not but:
                self._allocator.release(self._parked.pop(where).blocks)
                return True
        return False

    def _experts_of(self, slot: int) -> ExpertArray | None:
        return None if self._experts is None else self._experts[slot, : self._lengths[slot]].copy()

    def _leave(self, slot: int) -> None:
        self._allocator.release(self._table[slot, : self._num_blocks[slot]].tolist())
        self._table[slot], self._num_blocks[slot], self._sequences[slot] = SCRATCH, 0, None
        self._rows.remove(slot)
        self._free_slots.append(slot)

    def _release_prompt(self, job: Job) -> None:
        self._allocator.release(job.held or [])
        job.held = None

    def _release_prompts(self) -> bool:
        """Release all blocks that are held for further siblings; returns whether there were any."""
        holding = [job for job in self._jobs.values() if job.held]
        for job in holding:
            self._release_prompt(job)
        return bool(holding)


def _parking_place(job: Job, place: int = 0) -> Hashable:
    """What a request and the one that continues it have in common."""
    request = job.request
    return request.settings.stream, request.prompt.index, request.samples[place]


def _padded(values_JX: np.ndarray, count: int, value: float) -> np.ndarray:
    """Append this many columns of a value."""
    return np.pad(values_JX, ((0, 0), (0, count)), constant_values=value)
