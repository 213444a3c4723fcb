"""Fixtures of tests that talk between ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from thread_ranks import over_ranks  # noqa: F401 (a fixture)

from mindgspo.parallel.collectives.shared_memory import SharedMemoryGroup, new_group_file


@pytest.fixture
def aside() -> Callable[..., Future]:
    """aside(function, *arguments, **options): its future, in a thread of its own, which may hang without holding
    pytest up."""

    def start(function: Callable, *arguments: object, **options: object) -> Future:
        future: Future = Future()

        def work() -> None:
            try:
                future.set_result(function(*arguments, **options))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return future

    return start


@pytest.fixture
def file() -> Iterator[Path]:
    """The memory that `ranks` share."""
    path = new_group_file(4)
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def ranks(file: Path) -> list[SharedMemoryGroup]:
    """Four of them, each to be used by a thread."""
    return [SharedMemoryGroup(file, rank=rank, world_size=4) for rank in range(4)]
