"""A reshard over simulated ranks in one process, for tests of reshard plans. A broadcast is a loop here."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from mindgspo.parallel.plans.layout import Layout
from mindgspo.reshard.plan import Bucket, ReshardPlan, Step
from mindgspo.reshard.resharder import copy_local, pack, unpack

RankSlices = dict[int, dict[str, np.ndarray]]
"""Every rank's slices by parameter name."""


def empty_buffer(bucket: Bucket) -> np.ndarray:
    """int32 [ceil(bytes / 4)]."""
    return np.empty(-(-bucket.num_bytes // 4), np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardCost:
    """What was measured while a plan ran, in bytes by rank."""

    received: Counter[int] = field(default_factory=Counter)
    sent: Counter[int] = field(default_factory=Counter)
    """A broadcast counted once."""
    copied: Counter[int] = field(default_factory=Counter)
    """Copied from an old to a new slice of the same rank."""
    peak_buffers: Counter[int] = field(default_factory=Counter)
    """Most bytes of buffers alive at once."""
    peak_total: Counter[int] = field(default_factory=Counter)
    """Most bytes of old slices, new slices and buffers alive at once; a kept slice is counted once."""


def scatter(full: Mapping[str, np.ndarray], layouts: Mapping[str, Layout]) -> RankSlices:
    """Cut full tensors: each rank's slices as contiguous arrays of its own."""
    slices: RankSlices = {rank: {} for layout in layouts.values() for rank in layout.rank_list}
    for name, layout in layouts.items():
        for rank in layout.rank_list:
            held = layout.slice_of(rank)
            assert held is not None
            slices[rank][name] = full[name][held.index].copy()
    return slices


def run_in_one_process(
    plan: ReshardPlan, old: RankSlices, *, free_old: bool = False, buffer_bytes: int = sys.maxsize
) -> tuple[RankSlices, ReshardCost]:
    """The new slices of every rank, and the cost. A kept slice is the same array as before.

    free_old: give up every old slice as soon as its step is done; `old` is empty afterwards. buffer_bytes: larger
    buckets travel in parts.
    """
    dtypes = {name: array.dtype for slices in old.values() for name, array in slices.items()}
    ranks = sorted(
        {rank for side in (plan.source, plan.destination) for layout in side.values() for rank in layout.rank_list}
    )
    resident = Counter({rank: sum(array.nbytes for array in slices.values()) for rank, slices in old.items()})
    world = _World(
        plan=plan,
        old={rank: old.get(rank, {}) for rank in ranks},
        new={rank: {} for rank in ranks},
        dtypes=dtypes,
        resident=resident,
        cost=ReshardCost(peak_total=resident.copy()),
    )
    for step in plan.steps:
        world.begin(step)
        for bucket in step.buckets:
            for part in bucket.parts(buffer_bytes):
                world.broadcast(part)
        if free_old:
            world.free(step)
    return world.new, world.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """All ranks between two steps."""

    plan: ReshardPlan
    old: RankSlices
    new: RankSlices
    dtypes: Mapping[str, np.dtype]
    resident: Counter[int]
    """Bytes of old and new slices by rank, a kept slice counted once."""
    cost: ReshardCost

    def begin(self, step: Step) -> None:
        """Make room for the step's new slices and fill in what is local."""
        for name in step.parameters:
            for rank in self.plan.destination[name].rank_list:
                self.new[rank][name] = self._new_slice(name, rank)

    def _new_slice(self, name: str, rank: int) -> np.ndarray:
        if self.plan.is_kept(name, rank):
            return self.old[rank][name]
        new = np.empty(self.plan.destination[name].slice_shape, self.dtypes[name])
        self.resident[rank] += new.nbytes
        self._note(rank, buffers=0)
        if name in self.old[rank]:
            self.cost.copied[rank] += copy_local(self.plan, name, rank, self.old[rank][name], new)
        return new

    def broadcast(self, bucket: Bucket) -> None:
        """One buffer from the sender to every receiver's own buffer, and into its slices."""
        sent = empty_buffer(bucket)
        pack(bucket, self.old[bucket.sender], sent)
        self.cost.sent[bucket.sender] += bucket.num_bytes
        self._note(bucket.sender, buffers=sent.nbytes)
        for rank in bucket.receivers:
            buffer = empty_buffer(bucket)
            buffer[...] = sent
            unpack(bucket, buffer, self.new[rank])
            self.cost.received[rank] += bucket.num_bytes
            self._note(rank, buffers=buffer.nbytes)

    def free(self, step: Step) -> None:
        """Give up the step's old slices."""
        for name in step.parameters:
            for rank in self.plan.source[name].rank_list:
                array = self.old[rank].pop(name)
                if not self.plan.is_kept(name, rank):
                    self.resident[rank] -= array.nbytes

    def _note(self, rank: int, *, buffers: int) -> None:
        self.cost.peak_buffers[rank] = max(self.cost.peak_buffers[rank], buffers)
        self.cost.peak_total[rank] = max(self.cost.peak_total[rank], self.resident[rank] + buffers)


def received_bytes(plan: ReshardPlan) -> Counter[int]:
    """{rank: bytes it receives}; ranks that receive nothing are left out."""
    received: Counter[int] = Counter()
    for bucket in plan.buckets():
        received.update(dict.fromkeys(bucket.receivers, bucket.num_bytes))
    return received


def sent_bytes(plan: ReshardPlan) -> Counter[int]:
    """{rank: bytes it sends}, a broadcast counted once; ranks that send nothing are left out."""
    sent: Counter[int] = Counter()
    for bucket in plan.buckets():
        sent[bucket.sender] += bucket.num_bytes
    return sent
