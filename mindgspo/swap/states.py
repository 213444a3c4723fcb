"""Holdings that each phase of a step needs, and the ledger of bytes and moves. Pure Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from mindgspo.text import aligned

_MIB = 2**20


class Holding(Enum):
    """Parameters that are moved together, in the order of eviction: first those whose values need not be saved."""

    KV_CACHE = "KV cache"
    GRADIENTS = "gradients"
    MOMENTS = "moments"
    REFERENCE_WEIGHTS = "reference weights"
    ROLLOUT_WEIGHTS = "rollout weights"
    ACTOR_WEIGHTS = "actor weights"


class Phase(Enum):
    """Part of a step that reads the same holdings throughout."""

    ROLLOUT = "rollout"
    EVALUATE = "evaluate"
    SCORE = "score"
    UPDATE = "update"
    RESHARD = "reshard"
    SAVE = "save"


_GENERATION = (Holding.ROLLOUT_WEIGHTS, Holding.KV_CACHE)

# In the order of loading. RESHARD is that of memory level 0; at level 1 only one step's parameters are resident.
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
    """Totals of one phase over all its entries, including the moves at its entry and within a reshard."""

    entries: int = 0
    peak_bytes: Counter[Holding] = field(default_factory=Counter)
    """Peak bytes of each holding, not necessarily at the same time."""
    peak_total: int = 0
    """Peak bytes of all holdings together."""
    bytes_in: int = 0
    bytes_out: int = 0
    seconds_in: float = 0.0
    """Seconds that the step waited for loading; prefetching during another phase does not count."""
    seconds_out: float = 0.0


class SwapLedger:
    """Ledger of one `Swap`. Phase None is the time before the first phase."""

    def __init__(self) -> None:
        self.held: Counter[Holding] = Counter()
        """Bytes of each holding, resident or not."""
        self.resident: Counter[Holding] = Counter()
        """Bytes of each holding that are resident or being loaded."""
        self.shared: Counter[tuple[Holding, Holding]] = Counter()
        """{(holding, other): bytes of the first that are booked under the other}."""
        self.records: dict[Phase | None, PhaseRecord] = {None: PhaseRecord()}
        """By phase, in the order of their first entry."""
        self._phase: Phase | None = None

    def register(self, holding: Holding, owner: Holding, num_bytes: int) -> None:
        """Add a resident parameter of `holding`. owner: the holding that registered it first."""
        if holding is not owner:
            self.shared[holding, owner] += num_bytes
            return
        self.held[holding] += num_bytes
        self.resident[holding] += num_bytes
        self.note_peak()

    def enter(self, phase: Phase) -> None:
        """Enter `phase`; call `note_peak` after its first moves."""
        self._phase = phase
        self.records.setdefault(phase, PhaseRecord()).entries += 1

    def move_in(self, holding: Holding, num_bytes: int) -> None:
        """Book a load that is done or has begun."""
        self.resident[holding] += num_bytes
        self.records[self._phase].bytes_in += num_bytes
        self.note_peak()

    def cancel_move_in(self, holding: Holding, num_bytes: int) -> None:
        """Take back the booking of a load that failed."""
        self.resident[holding] -= num_bytes
        self.records[self._phase].bytes_in -= num_bytes

    def move_out(self, holding: Holding, num_bytes: int) -> None:
        """Book an eviction."""
        self.resident[holding] -= num_bytes
        self.records[self._phase].bytes_out += num_bytes

    def wait(self, seconds: float, *, is_load: bool) -> None:
        """Book time that the step spent on moves."""
        record = self.records[self._phase]
        if is_load:
            record.seconds_in += seconds
        else:
            record.seconds_out += seconds

    def note_peak(self) -> None:
        """Update the peaks of the phase with the bytes resident now."""
        record = self.records[self._phase]
        record.peak_bytes |= self.resident
        record.peak_total = max(record.peak_total, self.resident.total())

    def table(self) -> str:
        """Return one line per phase over all entries: peak MiB per holding and together, MiB moved, seconds waited."""
        holdings = [holding for holding in reversed(Holding) if self.held[holding]]
        heads = ["phase", "entered", *(holding.value for holding in holdings)]
        heads += ["together", "MiB in", "MiB out", "s in", "s out"]
        lines = [heads]
        for phase, record in self.records.items():
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
