"""Ranks that are threads of the test's own process: for what they tell each other over the whole world, and for those
that may wait for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest

from mindgspo.parallel.collectives import host as process_groups
from mindgspo.parallel.platform import runtime

Result = TypeVar("Result")
PATIENCE_S = 60.0
WAIT_S = 120.0
# Long enough for a rank that does not wait to show it.
MOMENT_S = 0.05


def assert_waits(*futures: Future) -> None:
    time.sleep(MOMENT_S)
    assert not any(future.done() for future in futures)


def assert_goes_on(*futures: Future) -> None:
    for future in futures:
        future.result(timeout=WAIT_S)


def until(condition: Callable[[], object]) -> bool:
    """Whether it comes true in time."""
    give_up = time.monotonic() + WAIT_S
    while not condition() and time.monotonic() < give_up:
        time.sleep(0.001)
    return bool(condition())


class ThreadRanks:
    """Stands in for the device: rank, world size and the two collectives that `parallel.platform.runtime` offers."""

    def __init__(self, world_size: int) -> None:
        self._size = world_size
        self._here = threading.local()
        self._door = threading.Barrier(world_size, timeout=PATIENCE_S)
        self._arrays: dict[int, np.ndarray] = {}

    def rank(self) -> int:
        return self._here.rank

    def world_size(self) -> int:
        return self._size

    def broadcast_in_place(self, array: np.ndarray, *, sender: int, group: str) -> None:
        sent = self._all(array)[sender]
        assert sent.shape == array.shape, (sent.shape, array.shape)
        if self.rank() != sender:
            array[...] = sent
        self._door.wait()

    def sum_in_place(self, array: np.ndarray, *, group: str) -> None:
        total = sum(self._all(array).values())
        self._door.wait()
        array[...] = total

    def run(self, work: Callable[[int], Result]) -> list[Result]:
        """[work(rank)], all at once."""
        with ThreadPoolExecutor(self._size) as pool:
            futures = [pool.submit(self._as_rank, rank, work) for rank in range(self._size)]
        errors = [future.exception() for future in futures]
        first = [error for error in errors if error and not isinstance(error, threading.BrokenBarrierError)] or errors
        if first[0]:
            raise first[0]
        return [future.result() for future in futures]

    def _as_rank(self, rank: int, work: Callable[[int], Result]) -> Result:
        self._here.rank = rank
        try:
            return work(rank)
        except BaseException:
            self._door.abort()
            raise

    def _all(self, array: np.ndarray) -> dict[int, np.ndarray]:
        """Everybody's array, which nobody may change before the next group."""
        self._arrays[self.rank()] = array
        self._door.wait()
        return dict(self._arrays)


@pytest.fixture
def over_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list]:
    """over_ranks(world_size, work): [work(rank) for every rank], each in a thread that takes itself for that rank.

    An error of one rank is raised; for errors that all ranks are to raise, `work` catches them.
    """

    def run(world_size: int, work: Callable[[int], Result]) -> list[Result]:
        ranks = ThreadRanks(world_size)
        for name in ("rank", "world_size", "broadcast_in_place", "sum_in_place"):
            monkeypatch.setattr(runtime, name, getattr(ranks, name))
        monkeypatch.setattr(process_groups, "_names", {tuple(range(world_size)): "world"})
        return ranks.run(work)

    return run
