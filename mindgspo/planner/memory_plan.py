"""The memory that a run is expected to need: by rank class, memory level, phase and part. In bytes, pure Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mindgspo.parallel.plans.placement import Ranks
from mindgspo.swap.states import Phase

GIB = 2**30
MIB = 2**20


class Part(Enum):
    """Uses of memory. The order is that of the printed table."""

    WEIGHTS = "trained weights (float32)"
    FROZEN_WEIGHTS = "frozen weights"
    GRADIENTS = "gradients (float32)"
    MOMENTS = "AdamW's moments"
    REFERENCE_WEIGHTS = "reference weights"
    ROLLOUT_WEIGHTS = "rollout weights"
    PACKED_WEIGHTS = "matrices packed for decoding"
    KV_CACHE = "key/value cache"
    COMPUTE_WEIGHTS = "weights in the compute type"
    NEW_GRADIENTS = "gradients of one micro-batch"
    ACTIVATIONS = "activations"
    LOGITS = "logits chunk, its gradient"
    STEP = "sums over ranks, optimizer's step"
    CONSTANTS = "rotary tables, masks"
    WORKSPACE = "attention's workspace"
    BUCKET = "reshard bucket"
    COPIES = "copies for a checkpoint"
    GRAPHS = "compiled graphs"
    RESERVE = "framework"
    BUFFERS = "HCCL buffers beyond what the pool leaves"


Parts = Mapping[Part, int]
"""Bytes by part; what is missing is 0."""


class SwapLevel(Enum):
    """Amount of memory that stays resident although a phase does not read it: section `swap`."""

    EVERYTHING = "swap off"
    BY_PHASE = "swap, reshard_level 0"
    BY_STEP = "swap, reshard_level 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """One phase of one rank at its peak."""

    phase: Phase
    parts: Parts

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Ranks that need the same memory. layers: number of their decoder layers in training."""

    ranks: Ranks
    layers: range
    levels: Mapping[SwapLevel, tuple[PhaseMemory, ...]]

    def at(self, level: SwapLevel, phase: Phase) -> PhaseMemory:
        """One phase at one level."""
        return next(memory for memory in self.levels[level] if memory.phase is phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The memory of a whole run."""

    device: str
    capacity: int
    """Bytes of one card's pool; on CPU, of the machine, which all ranks share."""
    level: SwapLevel
    """The configured swap level."""
    classes: tuple[RankMemory, ...]
    """In the order of their first ranks."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a step, in order."""
        return tuple(memory.phase for memory in self.classes[0].levels[self.level])

    def needed(self, level: SwapLevel, phase: Phase) -> int:
        """Bytes to compare with the capacity: those of the fullest card; on CPU, those of all ranks together."""
        totals = [(each.at(level, phase).total, len(each.ranks)) for each in self.classes]
        if self.device == "CPU":
            return sum(total * count for total, count in totals)
        return max(total for total, _ in totals)

    def peak(self, level: SwapLevel | None = None) -> tuple[Phase, int]:
        """The phase that needs most at a level (None: the configured one), and what it needs."""
        level = level or self.level
        phase = max(self.phases, key=lambda phase: self.needed(level, phase))
        return phase, self.needed(level, phase)

    def fits(self, level: SwapLevel | None = None) -> bool:
        """Whether every phase does."""
        return self.peak(level)[1] <= self.capacity
