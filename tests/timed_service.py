"""A completion service that takes time as a real one would, on any clock: the fake that lets schedules run without
servers. With `VirtualClock` an hour passes at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from mindgspo.rollout.service import Answer, Piece, Request
from mindgspo.types import FinishReason, Prompt


class VirtualClock:
    """Seconds that pass when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let so much time pass."""
        self.now += max(seconds, 0.0)


class TimedService:
    """Implements `CompletionService`: `slots` responses at a time get a token every `token_s` seconds each.

    script(prompt, sample) -> token ids; log-probs are minus the weight version that drew them. load_s: to take new
    weights over. submitted: all requests so far.
    """

    def __init__(
        self,
        script: Callable[[Prompt, int], Sequence[int]],
        *,
        slots: int,
        token_s: float = 1.0,
        load_s: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._script, self._slots, self._token_s, self._load_s = script, slots, token_s, load_s
        self._clock, self._sleep = clock, sleep
        self._requests: dict[int, Request] = {}
        self._queue: list[tuple[int, int]] = []  # (request, place of the sample in it)
        self._active: dict[tuple[int, int], float] = {}  # when its first token began
        self._ended: dict[tuple[int, int], Piece] = {}
        self._answers: list[Answer] = []
        self._version: int | None = None
        self._seen, self._idle = clock(), 0.0
        self.submitted: list[Request] = []
        self.loaded: list[int] = []

    def submit(self, requests: Sequence[Request]) -> None:
        """See `CompletionService`."""
        assert self._version is not None or not requests, "no weights yet"
        self._advance()
        for request in requests:
            assert request.number not in self._requests, request.number
            self._requests[request.number] = request
            self._queue += [(request.number, place) for place in range(len(request.samples))]
        self.submitted += requests
        self._refill(self._seen)

    def wait(self, timeout_s: float | None = None) -> list[Answer]:
        """See `CompletionService`."""
        self._advance()
        while not self._answers:
            assert self._active, "nothing runs"
            self._sleep(min(self._end(key) for key in self._active) - self._clock())
            self._advance()
        answers, self._answers = self._answers, []
        return answers

    def abort(self) -> list[Answer]:
        """See `CompletionService`."""
        self._advance()
        for key, began in self._active.items():
            self._ended[key] = self._piece(key, int((self._seen - began) / self._token_s + 1e-9), is_cut=True)
        for key in self._queue:
            self._ended[key] = self._piece(key, 0, is_cut=True)
        self._active, self._queue = {}, []
        for number in list(self._requests):
            self._answer(number)
        answers, self._answers = self._answers, []
        return answers

    def load_weights(self, folder: Path, version: int) -> None:
        """See `CompletionService`; nothing is read."""
        assert not self._requests, "weights are loaded while requests run"
        self._sleep(self._load_s)
        self._advance()
        self._version = version
        self.loaded.append(version)

    def idle_seconds(self) -> float:
        """See `CompletionService`: of the slots."""
        self._advance()
        return self._idle

    def _advance(self) -> None:
        now = self._clock()
        while self._active and (moment := min(self._end(key) for key in self._active)) <= now + 1e-9:
            self._pass_to(moment)
            for key in [key for key in self._active if self._end(key) <= moment + 1e-9]:
                del self._active[key]
                self._ended[key] = self._piece(key, len(self._rest(key)), is_cut=False)
                if all((key[0], place) in self._ended for place in range(len(self._requests[key[0]].samples))):
                    self._answer(key[0])
            self._refill(moment)
        self._pass_to(now)

    def _pass_to(self, moment: float) -> None:
        self._idle += max(moment - self._seen, 0.0) * (self._slots - len(self._active)) / self._slots
        self._seen = max(moment, self._seen)

    def _refill(self, moment: float) -> None:
        while self._queue and len(self._active) < self._slots:
            self._active[self._queue.pop(0)] = moment

    def _end(self, key: tuple[int, int]) -> float:
        return self._active[key] + len(self._rest(key)) * self._token_s

    def _rest(self, key: tuple[int, int]) -> Sequence[int]:
        request = self._requests[key[0]]
        whole = self._script(request.prompt, request.samples[key[1]])[: request.settings.max_new_tokens]
        return whole[request.prefix.size :]

    def _piece(self, key: tuple[int, int], length: int, *, is_cut: bool) -> Piece:
        request, rest = self._requests[key[0]], self._rest(key)
        is_longest = request.prefix.size + len(rest) == request.settings.max_new_tokens
        reason = FinishReason.LENGTH if is_longest else FinishReason.STOP
        assert self._version is not None
        return Piece(
            ids=np.array(rest[:length], np.int32),
            logprobs=np.full(length, -float(self._version), np.float32),
            finish_reason=None if is_cut else reason,
        )

    def _answer(self, number: int) -> None:
        request = self._requests.pop(number)
        pieces = tuple(self._ended.pop((number, place)) for place in range(len(request.samples)))
        assert self._version is not None
        self._answers.append(Answer(number=number, weight_version=self._version, pieces=pieces))
