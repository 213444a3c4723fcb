"""Moves of single parameters between device and tier, booked, at once or behind a computation.

What enters: lists of blocks, chosen by `swap`. What leaves: moved blocks and entries of the ledger. A block's state
changes when its own move has succeeded, so that after an error every block is either resident or evicted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from mindspore import Parameter

from mindgspo.errors import TrainingError
from mindgspo.parallel.swap.ledger import SwapLedger
from mindgspo.parallel.swap.memory_tier import MemoryTier
from mindgspo.parallel.swap.states import Holding


@dataclass(slots=True, kw_only=True, eq=False)
class Block:
    """One parameter, whoever holds it. owner: the holding that registered it first, under which it is booked."""

    parameter: Parameter
    owner: Holding
    num_bytes: int
    is_resident: bool = True


class SwapMover:
    """Evicts and loads through one tier. Used by one `Swap`, from one thread."""

    def __init__(self, tier: MemoryTier, ledger: SwapLedger) -> None:
        self.tier, self._ledger = tier, ledger
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="swap")
        self._ahead: Future[TrainingError | None] | None = None
        self._coming: list[Block] = []
        self._arrived: list[Block] = []

    def evict(self, blocks: Sequence[Block]) -> None:
        """Resident blocks leave, one after the other. Raises TrainingError; the failing one and the rest stay."""
        with self._timed(is_load=False):
            for block in blocks:
                assert block.is_resident, block.parameter.name
                self.tier.evict(block.parameter)
                block.is_resident = False
                self._ledger.move_out(block.owner, block.num_bytes)
            self.tier.tidy()

    def load(self, blocks: Sequence[Block]) -> None:
        """Evicted blocks come back, one after the other. Raises TrainingError; the failing one and the rest do not."""
        with self._timed(is_load=True):
            for block in blocks:
                assert not block.is_resident, block.parameter.name
                self.tier.load(block.parameter)
                block.is_resident = True
                self._ledger.move_in(block.owner, block.num_bytes)

    def load_ahead(self, blocks: Sequence[Block]) -> None:
        """Begin to load in another thread. The bytes are booked at once; `finish` makes the blocks resident."""
        assert self._ahead is None, "two loads ahead at a time"
        self._coming, self._arrived = list(blocks), []
        for block in blocks:
            self._ledger.move_in(block.owner, block.num_bytes)
        self._ahead = self._background.submit(self._load_coming)

    def finish(self) -> None:
        """Wait for `load_ahead`, if there was one. Raises its TrainingError; what came before it is resident."""
        if self._ahead is None:
            return
        with self._timed(is_load=True):
            error = self._ahead.result()
        self._ahead = None
        for block in self._arrived:
            block.is_resident = True
        for block in self._coming[len(self._arrived) :]:
            self._ledger.cancel_move_in(block.owner, block.num_bytes)
        if error:
            raise error

    def lacking_bytes(self, blocks: Sequence[Block]) -> int:
        """Bytes by which the memory that is free now falls short of `blocks`."""
        free = self.tier.free_bytes()
        return 0 if free is None else max(0, sum(block.num_bytes for block in blocks) - free)

    def close(self) -> None:
        """Move nothing any more. Raises what a load ahead left to say."""
        try:
            self.finish()
        finally:
            self._background.shutdown()
            self.tier.close()

    def _load_coming(self) -> TrainingError | None:
        for block in self._coming:
            try:
                self.tier.load(block.parameter)
            except TrainingError as error:
                return error
            self._arrived.append(block)
        return None

    @contextmanager
    def _timed(self, *, is_load: bool) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._ledger.wait(time.perf_counter() - started, is_load=is_load)
