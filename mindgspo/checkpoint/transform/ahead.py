"""The next items of an iterator, made in a thread of their own while the last one is used.

What enters: an iterator. What leaves: the same items in the same order. Called by `writing`, where a single file leaves
a processor idle.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
_END = object()


@contextmanager
def ahead(items: Iterator[Item], *, depth: int) -> Iterator[Iterator[Item]]:
    """At most `depth` items wait; one more is being made. An error of the maker is raised where its item would come.

    Leaving the block early stops the maker after its current item.
    """
    ready: queue.Queue = queue.Queue(maxsize=depth)
    is_left = threading.Event()
    failure: list[BaseException] = []

    def make() -> None:
        try:
            for item in items:
                ready.put(item)
                if is_left.is_set():
                    return
        except BaseException as error:
            failure.append(error)
        ready.put(_END)

    def take() -> Iterator[Item]:
        while (item := ready.get()) is not _END:
            yield item
        if failure:
            raise failure[0]

    maker = threading.Thread(target=make, name="reads ahead")
    maker.start()
    try:
        yield take()
    finally:
        is_left.set()
        while maker.is_alive():  # it may wait for room
            try:
                ready.get(timeout=0.01)
            except queue.Empty:
                continue
        maker.join()
