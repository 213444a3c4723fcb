"""Heterogeneous memory: what is resident in which phase of a step is declared, moved at the phase's entry, and booked.

    with swap.phase(Phase.UPDATE):          # evicts what UPDATE does not need, then loads what it needs
        swap.prefetch(Phase.RESHARD)        # optional: loads for the next phase meanwhile
        ...
    with swap.phase(Phase.RESHARD):
        for step in plan.steps:
            with swap.reshard_step(step.parameters):    # memory level 1 moves here; level 0 holds both sets already
                ...

A mistake of ours (a phase inside another, a holding that is not there, gradients that would be lost) is an assertion;
what the user can fix (a full disk, too little memory) raises ConfigError or TrainingError.
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
from mindgspo.parallel.platform.runtime import current_device
from mindgspo.swap.mapped_memory import MappedMemory
from mindgspo.swap.offloaded_memory import OffloadedMemory
from mindgspo.swap.states import NEEDS, Holding, Phase, SwapLedger


class MemoryTier(Protocol):
    """Moves single parameters. A call that raises has left its parameter where it was."""

    loads_in_background: bool
    """Whether `load` may run in another thread while graphs that read other parameters compute."""

    def take_over(self, parameters: Sequence[Parameter], *, keeps_content: bool) -> None:
        """Make room for all of `parameters` and manage them from now on; they are resident afterwards.

        keeps_content: False where `evict` may lose the values, which are zero after `load` or as they were. Raises
        ConfigError, before any parameter was touched, where there is no room.
        """
        ...

    def evict(self, parameter: Parameter) -> None:
        """Free its memory on the device. Raises TrainingError; the parameter is then still resident."""
        ...

    def load(self, parameter: Parameter) -> None:
        """Bring it back. Raises TrainingError; the parameter is then still evicted, its values safe."""
        ...

    def tidy(self) -> None:
        """Give memory that the process has freed back to the machine; called behind every eviction."""
        ...

    def free_bytes(self) -> int | None:
        """Bytes that can be loaded now; None where the device itself keeps watch."""
        ...

    def close(self) -> None:
        """Move nothing any more. The parameters stay usable."""
        ...


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


def open_swap(section: SwapSection, folder: Path) -> Swap:
    """The swap of this process. folder: on CPU, where evicted memory waits if the section names none."""
    if not section.enabled:
        return Swap(section, None)
    if current_device() == "Ascend":
        return Swap(section, OffloadedMemory())
    return Swap(section, MappedMemory(section.path or folder))


class Swap:
    """Who is resident. tier: where evicted memory waits; None if and only if the section is not enabled: then all that
    is registered stays resident, phases and ledger are kept all the same."""

    def __init__(self, section: SwapSection, tier: MemoryTier | None) -> None:
        assert section.enabled == (tier is not None), (section, tier)
        self.ledger = SwapLedger()
        self._mover = SwapMover(tier, self.ledger) if tier else None
        self._moves_by_reshard_step = section.reshard_level == 1
        self._prefetches = section.prefetch and tier is not None and tier.loads_in_background
        self._blocks: dict[int, Block] = {}
        self._holdings: dict[Holding, tuple[Block, ...]] = {}
        self._gradients_are_zero: Callable[[], bool] = self._look_at_gradients
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

        A parameter that another holding has, too, is one block of memory: resident while either is needed.
        keeps_content: False for what may come back as zeros (KV cache; gradients between two updates). is_zero: for
        gradients, whether they are, or the next update replaces them; without it they are read. Raises ConfigError
        before anything has moved.
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
        """Evict what `phase` does not need, then load what it needs; nothing moves at its end.

        Raises TrainingError where a move fails or memory is short: the phase is not entered, every parameter is either
        resident or evicted, as the ledger says, and a phase may be tried again.
        """
        assert self._open is None, f"phase {phase.value} inside phase {self._open}"
        self._open = phase
        try:
            self.ledger.enter(phase)
            if self._mover:
                self._mover.finish()
                self._switch(self._mover, phase)
            self.ledger.settle()
            yield
        finally:
            self._open = None

    @contextmanager
    def reshard_step(self, names: Collection[str]) -> Iterator[None]:
        """Around one step of the reshard: its parameters of actor and rollout are resident inside.

        At memory level 1 they come at the start and go at the end; at level 0 they are there all along. Names that
        this process does not hold are passed over. Raises as `phase`.
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
        """Begin to load what `phase` needs, in a thread, while the open phase computes. A hint, once per phase.

        At most the needs of both phases are resident then, and the ledger books them from now on. Nothing happens
        where the tier cannot, the section forbids it, memory is too short, or steps of a reshard move parameters. What
        fails is raised by the next phase.
        """
        assert self._open is not None, "prefetch outside a phase"
        moves_by_step = self._open is Phase.RESHARD and self._moves_by_reshard_step
        if not self._mover or not self._prefetches or moves_by_step:
            return
        missing = [block for block in self._needed(phase) if not block.is_resident]
        if missing and not self._mover.lacking_bytes(missing):
            self._mover.load_ahead(missing)

    def require(self, holding: Holding) -> None:
        """Assert that a holding is resident; called by whoever is about to read it."""
        away = [block.parameter.name for block in self._holdings.get(holding, ()) if not block.is_resident]
        assert not away, f"{holding.value} read in phase {self._open}: {len(away)} are evicted, e.g. {away[0]}"

    def close(self) -> None:
        """Move nothing any more; parameters stay usable. Raises what a prefetch left to say."""
        assert self._open is None, f"closed during phase {self._open}"
        if self._mover:
            self._mover.close()

    def _needed(self, phase: Phase) -> list[Block]:
        """Blocks to be resident throughout `phase`, in the order of loading."""
        by_step = phase is Phase.RESHARD and self._moves_by_reshard_step
        return self._held_by(() if by_step else NEEDS[phase])

    def _held_by(self, holdings: Iterable[Holding]) -> list[Block]:
        """Blocks of several holdings, each once."""
        return list(dict.fromkeys(block for holding in holdings for block in self._holdings.get(holding, ())))

    def _switch(self, mover: SwapMover, phase: Phase) -> None:
        """Evict first: the old and the new state are never resident together."""
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

    def _look_at_gradients(self) -> bool:
        return not any(block.parameter.asnumpy().any() for block in self._holdings.get(Holding.GRADIENTS, ()))
