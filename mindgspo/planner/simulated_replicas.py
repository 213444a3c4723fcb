"""Replicas that generate, simulated: from one ended response to the next.

A replica decodes up to so many sequences at once, in steps whose seconds are linear in what it decodes. It gets its
requests as `rollout.http_service` gives them to servers.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import floor, inf, sqrt
from operator import attrgetter
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Seconds that work takes.

    decode_step: of one decode step of a replica; decode_sequence: more for each sequence in it; decode_context: more
    for each token of their contexts. prefill_token: per token of a prompt, or of a response that goes on. train_step:
    between the draw of a step's responses and new weights; train_token: more for each token of prompts and responses.
    push_weights: until generation has the new weights.
    """

    decode_step: float
    decode_sequence: float = 0.0
    decode_context: float = 0.0
    prefill_token: float = 0.0
    train_step: float = 0.0
    train_token: float = 0.0
    push_weights: float = 0.0


class Span(NamedTuple):
    """A replica between two changes: seconds from the start, sequences that it runs or decodes, version of the
    weights."""

    begin: float
    end: float
    active: int
    version: int


@dataclass(slots=True, eq=False)
class Group:
    """lengths, tokens: of each response in the end, and so far. num_open: responses that have not ended. drawn: tokens
    by the version of the weights that drew them."""

    lengths: list[int]
    tokens: list[int]
    num_open: int
    drawn: dict[int, int] = field(default_factory=dict)

    def add(self, sample: int, count: int, version: int) -> None:
        """So many more tokens of a response."""
        if count:
            self.tokens[sample] += count
            self.drawn[version] = self.drawn.get(version, 0) + count
            self.num_open -= self.tokens[sample] == self.lengths[sample]


@dataclass(slots=True, eq=False)
class _Request:
    """Responses that one replica is asked for: all of a group that have no token yet, or one that goes on. num_open:
    those that have not ended."""

    group: Group
    samples: tuple[int, ...]
    num_open: int


def _requests(group: Group) -> Iterator[_Request]:
    fresh = tuple(sample for sample, tokens in enumerate(group.tokens) if not tokens)
    begun = [
        (sample,)
        for sample, (tokens, length) in enumerate(zip(group.tokens, group.lengths, strict=True))
        if 0 < tokens < length
    ]
    for samples in ([fresh] if fresh else []) + begun:
        yield _Request(group, samples, len(samples))


class _Sequence(NamedTuple):
    """One response in a replica. since: decode steps of the replica before it came."""

    request: _Request
    sample: int
    since: int


class _Replica:
    """Decodes up to `slots` sequences; nothing changes between two ends but the number of steps."""

    def __init__(self, rates: Rates, slots: int, prompt_tokens: int) -> None:
        self._rates, self._slots, self._prompt_tokens = rates, slots, prompt_tokens
        self._ends: list[tuple[int, int, _Sequence]] = []  # a heap by the step in which each ends
        self._waiting: deque[tuple[_Request, int, int]] = deque()
        self._clock, self._steps, self._context, self._serial = 0.0, 0, 0, 0
        self.busy = 0.0
        self.spans: list[Span] = []
        self.next_end = inf
        self.asked = 0  # responses of the requests that it has

    def ask(self, request: _Request) -> None:
        """Its responses share the prompt's prefill."""
        self.asked += len(request.samples)
        for number, sample in enumerate(request.samples):
            prefill = 0 if number else self._prompt_tokens + request.group.tokens[sample]
            self._waiting.append((request, sample, prefill))

    def admit(self, now: float, version: int) -> None:
        """Take waiting sequences into free slots, and run them through the model up to their last token."""
        if not self._ends:
            self._clock = max(self._clock, now)
        elif not self._waiting or len(self._ends) == self._slots or not self._reach(now, version):
            return self._look_ahead()
        begin, prefilled = self._clock, 0
        while self._waiting and len(self._ends) < self._slots:
            request, sample, prefill = self._waiting.popleft()
            group = request.group
            prefilled += prefill
            self._serial += 1
            sequence = _Sequence(request, sample, self._steps)
            left = group.lengths[sample] - group.tokens[sample]
            heapq.heappush(self._ends, (self._steps + left, self._serial, sequence))
            self._context += self._prompt_tokens + group.tokens[sample]
        self._pass(begin + prefilled * self._rates.prefill_token, version)
        self._look_ahead()

    def _look_ahead(self) -> None:
        self.next_end = self._clock + self._seconds(self._ends[0][0] - self._steps) if self._ends else inf

    def _reach(self, now: float, version: int) -> bool:
        """Go on to the end of the decode step that runs; False where sequences end with it, which lets others in."""
        if self._clock >= now:
            return True
        steps = self._steps_within(now - self._clock)
        steps += self._clock + self._seconds(steps) < now - 1e-9
        if self._steps + steps == self._ends[0][0]:
            return False
        self._run(steps, self._clock + self._seconds(steps), version)
        return True

    def end_next(self, version: int) -> bool:
        """Run until the next sequences end; whether a group is complete with them."""
        self._run(self._ends[0][0] - self._steps, self.next_end, version)
        has_completed = False
        while self._ends and self._ends[0][0] == self._steps:
            _, _, sequence = heapq.heappop(self._ends)
            self._leave(sequence, version)
            request = sequence.request
            request.num_open -= 1
            self.asked -= 0 if request.num_open else len(request.samples)
            has_completed |= not request.group.num_open
        return has_completed

    def cut(self, now: float, version: int) -> None:
        """Stop; the decode step that runs is lost."""
        if self._ends:
            self._run(self._steps_within(now - self._clock), max(now, self._clock), version)
            for _, _, sequence in self._ends:
                self._leave(sequence, version)
        self._ends, self._context, self.asked, self.next_end = [], 0, 0, inf
        self._waiting.clear()

    def _leave(self, sequence: _Sequence, version: int) -> None:
        count = self._steps - sequence.since
        group = sequence.request.group
        group.add(sequence.sample, count, version)
        self._context -= self._prompt_tokens + group.tokens[sequence.sample]

    def _run(self, steps: int, until: float, version: int) -> None:
        self._steps += steps
        self._context += steps * len(self._ends)
        self._pass(until, version)

    def _pass(self, until: float, version: int) -> None:
        if until > self._clock:
            self.busy += until - self._clock
            self.spans.append(Span(self._clock, until, len(self._ends), version))
            self._clock = until

    def _seconds(self, steps: int) -> float:
        """Of so many decode steps of the present sequences, whose contexts grow."""
        rates, active = self._rates, len(self._ends)
        contexts = steps * self._context + active * steps * (steps - 1) / 2
        return steps * (rates.decode_step + active * rates.decode_sequence) + rates.decode_context * contexts

    def _steps_within(self, seconds: float) -> int:
        """Whole decode steps; fewer than the next end needs."""
        rates, active = self._rates, len(self._ends)
        most = self._ends[0][0] - self._steps - 1
        if seconds <= 0:
            return 0
        growth = rates.decode_context * active / 2
        first = rates.decode_step + active * rates.decode_sequence + rates.decode_context * self._context - growth
        steps = 2 * seconds / (first + sqrt(first * first + 4 * growth * seconds)) if first or growth else inf
        return int(min(most, floor(steps + 1e-9))) if steps < inf else most


_NEXT_END, _ASKED = attrgetter("next_end"), attrgetter("asked")
_ASKED_PER_SLOT = 2


class Generation:
    """All replicas, and the requests that none of them has yet. busy: seconds in which they worked, summed."""

    def __init__(self, rates: Rates, replicas: int, slots: int, prompt_tokens: int, is_dealt: bool) -> None:
        self.replicas = [_Replica(rates, slots, prompt_tokens) for _ in range(replicas)]
        self.version = 0
        self._slots, self._is_dealt = slots, is_dealt
        self._queue: deque[_Request] = deque()

    @property
    def busy(self) -> float:
        return sum(replica.busy for replica in self.replicas)

    def submit(self, groups: Sequence[Group], now: float) -> None:
        """Ask for the open responses of these."""
        requests = [request for group in groups for request in _requests(group)]
        if self._is_dealt:
            parts = np.array_split(np.arange(len(requests)), len(self.replicas))
            for replica, part in zip(self.replicas, parts, strict=True):
                for number in part:
                    replica.ask(requests[number])
        else:
            self._queue.extend(requests)
            self._share()
        for replica in self.replicas:
            replica.admit(now, self.version)

    def run_until_group(self) -> float:
        """Until the next group is complete; when that is."""
        while True:
            now, has_completed = self._end_next()
            if has_completed:
                return now

    def run_until_all(self) -> float:
        """Until nothing runs; when the last response ended, 0 if there was none."""
        now = 0.0
        while any(replica.next_end < inf for replica in self.replicas):
            now, _ = self._end_next()
        return now

    def run_until(self, time: float) -> None:
        while min(replica.next_end for replica in self.replicas) <= time:
            self._end_next()

    def cut(self, now: float) -> None:
        """Stop whatever runs."""
        for replica in self.replicas:
            replica.cut(now, self.version)
        self._queue.clear()

    def _end_next(self) -> tuple[float, bool]:
        replica = min(self.replicas, key=_NEXT_END)
        now = replica.next_end
        assert now < inf, "nothing runs, and the step waits"
        has_completed = replica.end_next(self.version)
        replica.admit(now, self.version)
        for other in self._share():
            other.admit(now, self.version)
        return now, has_completed

    def _share(self) -> set[_Replica]:
        """As `rollout.http_service` does: in turn, each to the replica with the fewest responses, while that has room;
        returns those that got any. A request keeps its room until all its responses have ended."""
        got = set()
        while self._queue:
            replica, size = min(self.replicas, key=_ASKED), len(self._queue[0].samples)
            if replica.asked and replica.asked + size > _ASKED_PER_SLOT * self._slots:
                break
            replica.ask(self._queue.popleft())
            got.add(replica)
        return got
