"""Swap of parameters: each phase declares the holdings that it needs; the rest is evicted at its entry.

    with swap.phase(Phase.UPDATE):          # evicts what UPDATE does not need, then loads what it needs
        swap.prefetch(Phase.RESHARD)        # optional: loads for the next phase in a thread
        ...
    with swap.phase(Phase.RESHARD):
        for step in plan.steps:
            with swap.reshard_step(step.parameters):    # memory level 1 moves here; at level 0 both sets are resident
                ...

Misuse (a phase inside another, a holding that is not resident, gradients that would be lost) is an assertion; errors
that the user can fix (a full disk, too little memory) raise ConfigError or TrainingError.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mindspore import Parameter

from mindgspo.config.schema import SwapSection
from mindgspo.errors import TrainingError
from mindgspo.parallel.platform.runtime import current_device, load_parameter, offload_parameter, synchronize_device
from mindgspo.swap.mapped_memory import MappedMemory
from mindgspo.swap.states import NEEDS, Holding, Phase, SwapLedger


class MemoryTier(Protocol):
    """Memory in which evicted parameters wait. A call that raises leaves its parameter where it was."""

    loads_in_background: bool
    """Whether `load` may run in another thread while graphs that read other parameters compute."""

    def take_over(self, parameters: Sequence[Parameter], *, keeps_content: bool) -> None:
        """Make room for `parameters` and manage them from now on; they are resident afterwards.

        keeps_content: False if `evict` may lose the values; they are then zero or unchanged after `load`. Raises
        ConfigError before touching any parameter if there is no room.
        """
        ...

    def evict(self, parameter: Parameter) -> None:
        """Free a parameter's device memory. If it raises TrainingError, the parameter is still resident."""
        ...

    def load(self, parameter: Parameter) -> None:
        """Load a parameter. If it raises TrainingError, the parameter is still evicted and its values are safe."""
        ...

    def tidy(self) -> None:
        """Return freed memory to the machine; called after every eviction."""
        ...

    def free_bytes(self) -> int | None:
        """Return the bytes that can be loaded now; None if the device itself refuses more."""
        ...

    def close(self) -> None:
        """Stop moving parameters; they stay usable."""
        ...


class OffloadedMemory:
    """`MemoryTier` on Ascend: evicted parameters wait in host memory.

    Their device memory is freed for the allocator of the same process. MindSpore cannot free a parameter's memory
    without saving it, so content that need not be kept (KV cache, gradients) takes host memory, too.
    """

    # Copies are issued on the stream of the computing thread; another thread has none.
    loads_in_background = False

    def take_over(self, parameters: Sequence[Parameter], *, keeps_content: bool) -> None:
        """See `MemoryTier`: nothing to prepare."""

    def evict(self, parameter: Parameter) -> None:
        """See `MemoryTier`. Waits for graphs that may still read or write the parameter."""
        try:
            synchronize_device()
            offload_parameter(parameter)
        except (RuntimeError, MemoryError) as error:
            raise TrainingError(
                f"swap: {parameter.name} could not be moved to the host ({_first_line(error)}); it is still on the "
                "device"
            ) from error

    def load(self, parameter: Parameter) -> None:
        """See `MemoryTier`."""
        try:
            load_parameter(parameter)
        except (RuntimeError, MemoryError) as error:
            raise TrainingError(
                f"swap: {parameter.name} could not be moved to the device ({_first_line(error)}); it is still on the "
                "host. Lower rollout.slots or trainer.samples_per_micro_batch, or use more cards"
            ) from error

    def tidy(self) -> None:
        """See `MemoryTier`: the device's allocator serves this process only."""

    def free_bytes(self) -> None:
        """See `MemoryTier`: the device refuses what does not fit."""

    def close(self) -> None:
        """See `MemoryTier`: nothing to close."""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@dataclass(slots=True, kw_only=True, eq=False)
class Block:
    """One parameter, shared by all holdings that contain it."""

    parameter: Parameter
    owner: Holding
    """The holding that registered it first, under which it is booked."""
    num_bytes: int
    is_resident: bool = True


class SwapMover:
    """Moves of blocks through one tier, for one `Swap` and one thread."""

    def __init__(self, tier: MemoryTier, ledger: SwapLedger) -> None:
        self.tier, self._ledger = tier, ledger
        self._background = ThreadPoolExecutor(max_workers=1, thread_name_prefix="swap")
        self._ahead: Future[TrainingError | None] | None = None
        self._coming: list[Block] = []
        self._arrived: list[Block] = []

    def evict(self, blocks: Sequence[Block]) -> None:
        """Evict resident blocks in order. Raises TrainingError; the failing block and the rest stay resident."""
        with self._timed(is_load=False):
            for block in blocks:
                assert block.is_resident, block.parameter.name
                self.tier.evict(block.parameter)
                block.is_resident = False
                self._ledger.move_out(block.owner, block.num_bytes)
            self.tier.tidy()

    def load(self, blocks: Sequence[Block]) -> None:
        """Load evicted blocks in order. Raises TrainingError; the failing block and the rest stay evicted."""
        with self._timed(is_load=True):
            for block in blocks:
                assert not block.is_resident, block.parameter.name
                self.tier.load(block.parameter)
                block.is_resident = True
                self._ledger.move_in(block.owner, block.num_bytes)

    def load_ahead(self, blocks: Sequence[Block]) -> None:
        """Start loading in another thread. The bytes are booked at once; `finish` makes the blocks resident."""
        assert self._ahead is None, "two loads ahead at a time"
        self._coming, self._arrived = list(blocks), []
        for block in blocks:
            self._ledger.move_in(block.owner, block.num_bytes)
        self._ahead = self._background.submit(self._load_coming)

    def finish(self) -> None:
        """Wait for `load_ahead`, if called. Raises its TrainingError; blocks loaded before it are resident."""
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
        """Return the bytes by which free memory falls short of `blocks`."""
        free = self.tier.free_bytes()
        return 0 if free is None else max(0, sum(block.num_bytes for block in blocks) - free)

    def close(self) -> None:
        """Stop moving blocks. Raises the error of an unfinished load ahead."""
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


def open_swap(section: SwapSection, folder: Path) -> Swap:
    """Return the swap of this process. folder: for evicted memory on CPU if the section names none."""
    if not section.enabled:
        return Swap(section, None)
    if current_device() == "Ascend":
        return Swap(section, OffloadedMemory())
    return Swap(section, MappedMemory(section.path or folder))


class Swap:
    """Residency of all holdings of a process.

    tier: memory for evicted parameters; None if and only if the section is not enabled. Everything then stays resident,
    while phases and the ledger work as usual.
    """

    def __init__(self, section: SwapSection, tier: MemoryTier | None) -> None:
        assert section.enabled == (tier is not None), (section, tier)
        self.ledger = SwapLedger()
        self._mover = SwapMover(tier, self.ledger) if tier else None
        self._moves_by_reshard_step = section.reshard_level == 1
        self._prefetches = section.prefetch and tier is not None and tier.loads_in_background
        self._blocks: dict[int, Block] = {}
        self._holdings: dict[Holding, tuple[Block, ...]] = {}
        self._gradients_are_zero: Callable[[], bool] = self._read_gradients
        self._open: Phase | None = None

    def register(
        self,
        holding: Holding,
        parameters: Iterable[Parameter],
        *,
        keeps_content: bool = True,
        is_zero: Callable[[], bool] | None = None,
    ) -> None:
        """Take charge of a holding's parameters, and evict them until a phase needs them.

        A parameter in several holdings is one block of memory, resident while any of them is needed. keeps_content:
        False if the content may become zeros (KV cache; gradients between two updates). is_zero: tells whether the
        gradients are zero or will be replaced by the next update; without it they are read. Raises ConfigError before
        moving anything.
        """
        assert self._open is None, f"{holding.value} registered during phase {self._open}"
        assert holding not in self._holdings, f"{holding.value} registered twice"
        assert is_zero is None or holding is Holding.GRADIENTS, holding
        distinct = {id(parameter): parameter for parameter in parameters}
        new = [parameter for key, parameter in distinct.items() if key not in self._blocks]
        if self._mover and new:
            self._mover.tier.take_over(new, keeps_content=keeps_content)
        added = [Block(parameter=parameter, owner=holding, num_bytes=parameter.nbytes) for parameter in new]
        self._blocks |= {id(block.parameter): block for block in added}
        self._holdings[holding] = tuple(self._blocks[key] for key in distinct)
        for block in self._holdings[holding]:
            self.ledger.register(holding, block.owner, block.num_bytes)
        self._gradients_are_zero = is_zero or self._gradients_are_zero
        if self._mover and added:
            self._mover.evict(added)

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """Evict everything that `phase` does not need, then load its needs; nothing moves at its end.

        Raises TrainingError if a move fails or memory is short: the phase is not entered, every parameter is either
        resident or evicted, as the ledger says, and the phase may be tried again.
        """
        assert self._open is None, f"phase {phase.value} inside phase {self._open}"
        self._open = phase
        try:
            self.ledger.enter(phase)
            if self._mover:
                self._mover.finish()
                self._switch(self._mover, phase)
            self.ledger.note_peak()
            yield
        finally:
            self._open = None

    @contextmanager
    def reshard_step(self, names: Collection[str]) -> Iterator[None]:
        """Keep the parameters of one step of the reshard resident, those of the actor and of the rollout.

        At memory level 1 they are loaded at the start and evicted at the end; at level 0 they are resident throughout.
        Names that this process does not hold are ignored. Raises as `phase`.
        """
        assert self._open is Phase.RESHARD, f"a step of the reshard during phase {self._open}"
        if not self._mover or not self._moves_by_reshard_step:
            yield
            return
        wanted = frozenset(names)
        step = [block for block in self._held_by(NEEDS[Phase.RESHARD]) if block.parameter.name in wanted]
        try:
            self._load(self._mover, step, f"a step of phase {self._open.value}")
            yield
        finally:
            self._mover.evict([block for block in step if block.is_resident])

    def prefetch(self, phase: Phase) -> None:
        """Start loading the needs of `phase` in a thread while the open phase computes; once per phase.

        The needs of both phases are then resident, and the ledger counts them from now on. Does nothing if the tier
        cannot load in the background, the section forbids it, memory is short, or steps of a reshard move parameters.
        Errors are raised by the next phase.
        """
        assert self._open is not None, "prefetch outside a phase"
        moves_by_step = self._open is Phase.RESHARD and self._moves_by_reshard_step
        if not self._mover or not self._prefetches or moves_by_step:
            return
        missing = [block for block in self._needed(phase) if not block.is_resident]
        if missing and not self._mover.lacking_bytes(missing):
            self._mover.load_ahead(missing)

    def require(self, holding: Holding) -> None:
        """Assert that a holding is resident; called before reading it."""
        away = [block.parameter.name for block in self._holdings.get(holding, ()) if not block.is_resident]
        assert not away, f"{holding.value} read in phase {self._open}: {len(away)} are evicted, e.g. {away[0]}"

    def close(self) -> None:
        """Stop moving parameters; they stay usable. Raises the error of a prefetch, if any."""
        assert self._open is None, f"closed during phase {self._open}"
        if self._mover:
            self._mover.close()

    def _needed(self, phase: Phase) -> list[Block]:
        """Return the blocks to be resident throughout `phase`, in the order of loading."""
        by_step = phase is Phase.RESHARD and self._moves_by_reshard_step
        return self._held_by(() if by_step else NEEDS[phase])

    def _held_by(self, holdings: Iterable[Holding]) -> list[Block]:
        """Return the blocks of several holdings, each once."""
        return list(dict.fromkeys(block for holding in holdings for block in self._holdings.get(holding, ())))

    def _switch(self, mover: SwapMover, phase: Phase) -> None:
        """Evict, then load: the old and the new state are never resident together."""
        needed = self._needed(phase)
        keep = frozenset(needed)
        unneeded = [block for block in self._held_by(Holding) if block.is_resident and block not in keep]
        if any(block.owner is Holding.GRADIENTS for block in unneeded):
            assert self._gradients_are_zero(), f"phase {phase.value} would lose gradients that are not zero"
        mover.evict(unneeded)
        self._load(mover, [block for block in needed if not block.is_resident], f"phase {phase.value}")

    def _load(self, mover: SwapMover, blocks: list[Block], purpose: str) -> None:
        if lacking := mover.lacking_bytes(blocks):
            num_bytes = sum(block.num_bytes for block in blocks)
            raise TrainingError(
                f"swap: {purpose} loads {num_bytes / 2**20:,.1f} MiB and {lacking / 2**20:,.1f} MiB of them find no "
                "free memory; stop other processes, lower rollout.slots (for the KV cache), set swap.reshard_level: 1 "
                "(for the reshard), or take a smaller model"
            )
        mover.load(blocks)

    def _read_gradients(self) -> bool:
        """Whether all gradients are zero."""
        return not any(block.parameter.asnumpy().any() for block in self._holdings.get(Holding.GRADIENTS, ()))
