"""What is resident in which phase of a step, and the ledger of bytes and moves. Pure Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from mindgspo.text import aligned

_MIB = 2**20


class Holding(Enum):
    """Parameters that are moved together. The order is that of eviction: first what is given up for nothing."""

    KV_CACHE = "KV cache"
    GRADIENTS = "gradients"
    MOMENTS = "moments"
    REFERENCE_WEIGHTS = "reference weights"
    ROLLOUT_WEIGHTS = "rollout weights"
    ACTOR_WEIGHTS = "actor weights"


class Phase(Enum):
    """A stretch of a step during which the same holdings are read."""

    ROLLOUT = "rollout"
    EVALUATE = "evaluate"
    SCORE = "score"
    UPDATE = "update"
    RESHARD = "reshard"
    SAVE = "save"


_GENERATION = (Holding.ROLLOUT_WEIGHTS, Holding.KV_CACHE)

# In the order of loading. RESHARD is memory level 0; level 1 holds one step's parameters of both sides instead.
NEEDS: Mapping[Phase, tuple[Holding, ...]] = MappingProxyType(
    {
        Phase.ROLLOUT: _GENERATION,
        Phase.EVALUATE: _GENERATION,
        Phase.SCORE: (Holding.ACTOR_WEIGHTS, Holding.REFERENCE_WEIGHTS),
        Phase.UPDATE: (Holding.ACTOR_WEIGHTS, Holding.GRADIENTS, Holding.MOMENTS),
        Phase.RESHARD: (Holding.ACTOR_WEIGHTS, Holding.ROLLOUT_WEIGHTS),
        Phase.SAVE: (Holding.ACTOR_WEIGHTS, Holding.MOMENTS),
    }
)


@dataclass(slots=True, kw_only=True)
class PhaseRecord:
    """One phase over all of its entries so far. Moves at its entry count for it; so do those within a reshard."""

    entries: int = 0
    peak_bytes: Counter[Holding] = field(default_factory=Counter)
    """Most bytes of each holding, not necessarily at the same time."""
    peak_total: int = 0
    """Most bytes of all holdings together."""
    bytes_in: int = 0
    bytes_out: int = 0
    seconds_in: float = 0.0
    """What the step waited for loading; what went on behind another phase's computation is not in it."""
    seconds_out: float = 0.0


class SwapLedger:
    """Booked by one `Swap`. Phase None stands for what happens before the first phase."""

    def __init__(self) -> None:
        self.held: Counter[Holding] = Counter()
        """Bytes of each holding, resident or not."""
        self.resident: Counter[Holding] = Counter()
        """Bytes that are resident now, or on their way in."""
        self.shared: Counter[tuple[Holding, Holding]] = Counter()
        """{(holding, other): bytes of the first that are booked under the other}."""
        self._records: dict[Phase | None, PhaseRecord] = {None: PhaseRecord()}
        self._phase: Phase | None = None

    @property
    def records(self) -> Mapping[Phase | None, PhaseRecord]:
        """By phase, in the order of their first entry."""
        return self._records

    @property
    def resident_total(self) -> int:
        """Bytes resident now, all holdings together."""
        return self.resident.total()

    def register(self, holding: Holding, owner: Holding, num_bytes: int) -> None:
        """A parameter of `holding`, resident at first. owner: the holding that registered it before, or `holding`."""
        if holding is not owner:
            self.shared[holding, owner] += num_bytes
            return
        self.held[holding] += num_bytes
        self.resident[holding] += num_bytes
        self._note_peak()

    def enter(self, phase: Phase) -> None:
        """What comes next belongs to `phase`; `settle` follows when its moves are done."""
        self._phase = phase
        self._records.setdefault(phase, PhaseRecord()).entries += 1

    def settle(self) -> None:
        """Note as peaks what an entry has left or made resident."""
        self._note_peak()

    def move_in(self, holding: Holding, num_bytes: int) -> None:
        """Here, or on its way in."""
        self.resident[holding] += num_bytes
        self._records[self._phase].bytes_in += num_bytes
        self._note_peak()

    def cancel_move_in(self, holding: Holding, num_bytes: int) -> None:
        """It did not come."""
        self.resident[holding] -= num_bytes
        self._records[self._phase].bytes_in -= num_bytes

    def move_out(self, holding: Holding, num_bytes: int) -> None:
        """Gone."""
        self.resident[holding] -= num_bytes
        self._records[self._phase].bytes_out += num_bytes

    def wait(self, seconds: float, *, is_load: bool) -> None:
        """Time that the step spent on moves."""
        record = self._records[self._phase]
        if is_load:
            record.seconds_in += seconds
        else:
            record.seconds_out += seconds

    def _note_peak(self) -> None:
        record = self._records[self._phase]
        record.peak_bytes |= self.resident
        record.peak_total = max(record.peak_total, self.resident_total)

    def table(self) -> str:
        """One line per phase: most MiB resident by holding and together, MiB moved and seconds waited, all entries
        together."""
        holdings = [holding for holding in reversed(Holding) if self.held[holding]]
        heads = ["phase", "entered", *(holding.value for holding in holdings)]
        heads += ["together", "MiB in", "MiB out", "s in", "s out"]
        lines = [heads]
        for phase, record in self._records.items():
            lines.append(
                [
                    phase.value if phase else "set-up",
                    str(record.entries) if phase else "",
                    *(_mib(record.peak_bytes[holding]) for holding in holdings),
                    _mib(record.peak_total),
                    _mib(record.bytes_in),
                    _mib(record.bytes_out),
                    f"{record.seconds_in:.2f}",
                    f"{record.seconds_out:.2f}",
                ]
            )
        text = aligned(lines, left=1)
        text += [
            f"{_mib(num_bytes)} MiB of {holding.value} are {owner.value}: the same parameters, counted once"
            for (holding, owner), num_bytes in self.shared.items()
        ]
        return "\n".join(text)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:,.1f}"
