"""Gradients of all ranks -> their sum on every rank that holds the weight, in flat buckets.

What enters: accumulated gradients and, for each, the ranks that add theirs up. What leaves: changed gradients. Called
by `update` once per optimizer update, whatever the number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from mindspore import ParameterTuple, Tensor, nn, ops

from mindgspo.parallel.process_groups import group_name
from mindgspo.parallel.ranks import Ranks

BUCKET_BYTES = 64 << 20
# Of a bucket; see `adamw.short_runs`.
_MOST_MEMBERS = 128
_FLOAT_BYTES = 4


class GradientSum(nn.Cell):
    """One AllReduce per bucket. Buckets of all groups follow each other in one order on all ranks.

    gradients: float32 parameters. ranks: for each, in the same order, the ranks of its sum.
    """

    def __init__(self, gradients: ParameterTuple, ranks: Sequence[Ranks]) -> None:
        super().__init__(auto_prefix=False)
        self.gradients = gradients
        by_ranks: dict[Ranks, list[int]] = {}
        for index, group in enumerate(ranks):
            if len(group) > 1:
                by_ranks.setdefault(group, []).append(index)
        sizes = {index: prod(gradient.shape) * _FLOAT_BYTES for index, gradient in enumerate(gradients)}
        buckets = [
            (group, bucket)
            for group, members in sorted(by_ranks.items())
            for bucket in runs_within(members, sizes, BUCKET_BYTES)
        ]
        self.buckets = tuple(bucket for _, bucket in buckets)
        self.sums = nn.CellList([_Sum(group_name(group)) for group, _ in buckets])

    @property
    def is_needed(self) -> bool:
        """Whether this rank shares any weight with another."""
        return bool(self.buckets)

    def construct(self) -> Tensor:
        """Replaces the gradients; returns the last bucket's first number, for the caller to wait on."""
        done = self.gradients[0].reshape(-1)[:1]
        for number in range(len(self.buckets)):
            done = self.sum_bucket(number, done)
        return done

    def sum_bucket(self, number: int, done: Tensor) -> Tensor:
        """One bucket, once `done` is; see `short_runs` for why it is a method."""
        bucket = self.buckets[number]
        parts = ()
        for i in bucket:
            parts += (self.gradients[i].reshape(-1),)
        flat = self.sums[number](ops.depend(ops.concat(parts), done))
        first = 0
        for i in bucket:
            shape = self.gradients[i].shape
            ops.assign(self.gradients[i], flat[first : first + self.gradients[i].size].reshape(shape))
            first += self.gradients[i].size
        return flat[:1]


class _Sum(nn.Cell):
    """AllReduce as a cell, because a tuple of primitives is no attribute a graph can index."""

    def __init__(self, group: str) -> None:
        super().__init__(auto_prefix=False)
        self.sum = ops.AllReduce(group=group)

    def construct(self, flat: Tensor) -> Tensor:
        return self.sum(flat)


def runs_within(members: Sequence[int], sizes: Mapping[int, int], limit: int) -> Iterator[tuple[int, ...]]:
    """Consecutive members, few enough for a compiled loop, whose sizes add up to at most `limit`; a larger member is a
    run of its own."""
    run: list[int] = []
    filled = 0
    for member in members:
        if run and (filled + sizes[member] > limit or len(run) == _MOST_MEMBERS):
            yield tuple(run)
            run, filled = [], 0
        run.append(member)
        filled += sizes[member]
    if run:
        yield tuple(run)
