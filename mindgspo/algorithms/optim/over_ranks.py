"""One update over the ranks of a plan: gradients are summed, and with `optimizer_shard` each rank updates only its rows
of a weight, in float32, and hands them to the others in the type that they compute with.

Tensors travel in buckets of one collective each, [k, S]: a row per rank that gets one, so that a rank's row is its rows
of every weight in the bucket, one after the other. What a number becomes depends neither on its place in a bucket nor
on how many buckets there are.

Legend: k ranks that share a weight out, S elements of a bucket that each of them gets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindgspo.algorithms.optim.adamw import AdamW
from mindgspo.algorithms.optim.gradients import Accumulate, GradientNorm
from mindgspo.config.model import ModelSection
from mindgspo.config.schema import OptimizerSection
from mindgspo.models.names import trained_shapes
from mindgspo.parallel.collectives.graph import all_gather, all_reduce, reduce_scatter
from mindgspo.parallel.collectives.host import GraphOfRanks, wait_for_ranks, world_ranks
from mindgspo.parallel.plans.layout import Layout
from mindgspo.parallel.plans.parameter_layouts import gradient_ranks, moment_layouts, parameter_layouts
from mindgspo.parallel.plans.placement import ALONE, Placement, Ranks
from mindgspo.parallel.platform.parameter_memory import zero_parameter

BUCKET_BYTES = 64 << 20
"""Size of one collective; a tensor that is larger goes alone."""
_BUCKET_TENSORS = 32
"""At most, since the compiler unrolls the loop over them: see `adamw.short_runs`."""


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part in reducing the gradient of a weight."""

    shard_ranks: Ranks = ()
    """Ranks that divide the weight's rows among them, in row order, ascending; empty if the weight is kept whole."""
    sum_ranks: Ranks = ()
    """Ranks that then add up their results for the same rows, ascending; empty if nothing is left to add."""

    @property
    def parts(self) -> int:
        """k."""
        return max(1, len(self.shard_ranks))


def shares_of(
    layouts: Mapping[str, Layout], moments: Mapping[str, Layout], ranks: Mapping[str, Ranks], rank: int
) -> dict[str, Share]:
    """{weight: share} of what `rank` holds, in the order of `layouts`, which is the same on all ranks.

    layouts, moments: of the weights and of each moment, by weight. ranks: `gradient_ranks` of this rank.
    """
    return {name: _share(layouts[name], moments[name], ranks[name], rank) for name in layouts if name in ranks}


def _share(weight: Layout, moment: Layout, summed_over: Ranks, rank: int) -> Share:
    same_rows = moment.ranks_with_slice_of(rank)
    rest = tuple(other for other in same_rows if other in summed_over)
    sum_ranks = rest if len(rest) > 1 else ()
    by_rows: dict[tuple[int, ...], Ranks] = {
        moment.held_by(other).starts: () for other in weight.ranks_with_slice_of(rank)
    }
    if len(by_rows) == 1:
        return Share(sum_ranks=sum_ranks)
    # Of the ranks that have the same rows, the first ones of all rows belong together, the second ones, ...
    place = same_rows.index(rank)
    for other in weight.ranks_with_slice_of(rank):
        by_rows[moment.held_by(other).starts] += (other,)
    shard_ranks = tuple(by_rows[starts][place] for starts in sorted(by_rows))
    assert shard_ranks == tuple(sorted(shard_ranks)) and set(shard_ranks) <= set(summed_over), (weight, shard_ranks)
    return Share(shard_ranks, sum_ranks)


@dataclass(frozen=True, slots=True)
class _Shared:
    """One weight, its gradient, and this rank's rows of both, which are the same parameters where it is whole."""

    weight: Parameter
    gradient: Parameter
    rows: Parameter
    summed: Parameter

    @classmethod
    def of(cls, weight: Parameter, gradient: Parameter, master: Parameter | None) -> _Shared:
        if master is None:
            return cls(weight, gradient, weight, gradient)
        summed = zero_parameter(tuple(master.shape), f"gradient_rows.{weight.name}", requires_grad=False)
        return cls(weight, gradient, master, summed)


class StepOverRanks:
    """Optimizer step over all ranks, from each rank's gradients of a mini-batch: sums, one norm, AdamW.

    All ranks call the same methods in the same order. In a single process the sums cost nothing.

    weights: this rank's slices.
    gradients: the gradient of each of them, in the same order.
    model: the model of these weights; not read in a single process.
    masters: master weights by name, see `weights.hold_masters`.
    bucket_bytes: bytes of one collective; it changes no number.
    """

    def __init__(
        self,
        weights: ParameterTuple,
        gradients: ParameterTuple,
        section: OptimizerSection,
        place: Placement = ALONE,
        model: ModelSection | None = None,
        masters: Mapping[str, Parameter] = MappingProxyType({}),
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        rank, plan = place.rank, place.plan
        self._is_alone = plan.world_size == 1
        self.moments: dict[str, Layout] = {}
        """Layout of each moment, by weight; empty for a process that is alone."""
        shares: dict[str, Share] = {}
        if not self._is_alone:
            assert model is not None
            shapes = trained_shapes(model)
            layouts, self.moments = (make(shapes, model, plan) for make in (parameter_layouts, moment_layouts))
            shares = shares_of(layouts, self.moments, gradient_ranks(layouts, model, plan, rank), rank)
        names = [weight.name for weight in weights]
        everything = {
            name: _Shared.of(weight, gradient, masters.get(name))
            for name, weight, gradient in zip(names, weights, gradients, strict=True)
        }
        self.gradients = ParameterTuple([one.summed for one in everything.values()])
        """Gradients of the whole mini-batch, once `norm` has added them up: whole, or this rank's rows."""
        self.own = tuple(one.summed for one in everything.values() if one.summed is not one.gradient)
        """This rank's rows of gradients, beside the whole ones; they mean nothing between two updates."""
        rows = ParameterTuple([one.rows for one in everything.values()])
        self.optimizer = AdamW(rows, self.gradients, section, names=names, accumulated=gradients)
        buckets = list(buckets_of(everything, shares, bucket_bytes))
        scattered = [bucket for bucket in buckets if bucket[1].shard_ranks]
        # The backward pass ends with the first weights. Sums over several stages come last: no backward pass of a
        # stage may wait for another one's, which waits for it.
        sums = [_Sum(*bucket) for bucket in reversed(buckets)]
        stages = [{place.grid.coordinates(other).stage for other in one.ranks} for one in sums]
        self._inside = [one for one, spanned in zip(sums, stages, strict=True) if len(spanned) == 1]
        left = [one for one in sums if one not in self._inside]
        # Of the ranks that hold the same numbers, the first one counts them.
        counts = {
            name: self._is_alone or self.moments[name].ranks_with_slice_of(rank)[0] == rank for name in everything
        }
        counted, others = (
            [one.summed for name, one in everything.items() if counts[name] is its] for its in (True, False)
        )
        self._ranks = world = (rank,) if self._is_alone else world_ranks()
        self._sum = GraphOfRanks(_Chain([*self._inside, *left]), world)
        self._sum_left = GraphOfRanks(_Chain(left), world) if left else None
        self._norm = GraphOfRanks(GradientNorm(counted, others, world), world)
        self.apply = GraphOfRanks(self.optimizer, world)
        """Takes `AdamW.scalars`."""
        self._gather = GraphOfRanks(_Chain([_Gather(*bucket) for bucket in scattered]), world)
        self._has_rows = plan.optimizer_shard and plan.token_parts > 1

    def graphs(self) -> dict[str, tuple[nn.Cell, tuple[Tensor, ...]]]:
        """Each with its inputs: the sums over the ranks, AdamW, and the gathering of the weights from rows."""
        scalars = self.optimizer.scalars(1, 0.0, 1.0)
        return {
            "sum": (self._sum.cell, (_START,)),
            "step": (self.apply.cell, scalars),
            "gather": (self._gather.cell, (_START,)),
        }

    def accumulate_and_sum(self) -> nn.Cell:
        """Return a cell for the place of `Accumulate`, for the last micro-batch if sums overlap with its backward
        pass."""
        return _AccumulateAndSum(self.optimizer.accumulated, self._inside)

    def norm(self, *, has_summed: bool = False) -> float:
        """Add the gradients up over the ranks, and return their global L2 norm, the same on all ranks.

        has_summed: this rank ran `accumulate_and_sum`, so that only the sums over several stages are left.
        """
        if not self._is_alone:
            # Replicas may have had micro-batches of other shapes, hence graphs to compile.
            self.meet()
            graph = self._sum_left if has_summed else self._sum
            if graph is not None:
                graph(_START)
        return float(self._norm().asnumpy())

    def meet(self) -> None:
        """Wait until all ranks call this, so that none waits inside a collective for one that compiles."""
        wait_for_ranks(self._ranks)

    def step(self, number: int, lr: float, grad_norm: float) -> None:
        """Apply update number `number` (1, 2, ...) to the weights. grad_norm: result of `norm`."""
        self.apply(*self.optimizer.scalars(number, lr, grad_norm))
        if self._has_rows:
            self._gather(_START)


def buckets_of(
    by_name: Mapping[str, _Shared], shares: Mapping[str, Share], bucket_bytes: int
) -> Iterator[tuple[list[_Shared], Share]]:
    """Weights of equal shares and types in runs of one collective, in an order that is the same on all ranks: shares by
    their first weight. Nothing for those that are not shared."""
    by_share: dict[tuple[Share, ms.Type], list[_Shared]] = {}
    for name, share in shares.items():  # in the order of the layouts, whatever the model's own is
        if share.shard_ranks or share.sum_ranks:
            by_share.setdefault((share, by_name[name].weight.dtype), []).append(by_name[name])
    for (share, _), members in by_share.items():
        bucket: list[_Shared] = []
        num_bytes = 0
        for one in members:
            if bucket and (num_bytes + one.gradient.nbytes > bucket_bytes or len(bucket) == _BUCKET_TENSORS):
                yield bucket, share
                bucket, num_bytes = [], 0
            bucket.append(one)
            num_bytes += one.gradient.nbytes
        yield bucket, share


_START = Tensor(np.zeros(1, np.float32))


class _Chain(nn.Cell):
    """One bucket after the other: ranks meet in one order, and one bucket's memory serves the next."""

    def __init__(self, buckets: Sequence[nn.Cell]) -> None:
        super().__init__(auto_prefix=False)
        self.buckets = nn.CellList(buckets, auto_prefix=False)

    def construct(self, before: Tensor) -> Tensor:
        for bucket in self.buckets:
            before = bucket(before)
        return before


def _columns(tensor: Tensor, rows: int, dtype: ms.Type, before: Tensor) -> Tensor:
    return ops.cast(ops.depend(tensor, before), dtype).reshape(rows, -1)


class _OfBucket(nn.Cell):
    """construct(before) -> what to wait for."""

    def __init__(self, bucket: Sequence[_Shared], share: Share) -> None:
        super().__init__(auto_prefix=False)
        self.count, self.parts = len(bucket), share.parts
        self.weights = ParameterTuple([one.weight for one in bucket])
        self.gradients = ParameterTuple([one.gradient for one in bucket])
        self.rows = ParameterTuple([one.rows for one in bucket])
        self.summed = ParameterTuple([one.summed for one in bucket])
        self.shapes = tuple(tuple(one.weight.shape) for one in bucket)
        self.row_shapes = tuple(tuple(one.rows.shape) for one in bucket)
        ends = np.cumsum([prod(shape) for shape in self.row_shapes]).tolist()
        self.columns = tuple(zip([0, *ends], ends, strict=False))

    def joined(self, tensors: tuple[Tensor, ...], rows: int, dtype: ms.Type, before: Tensor) -> Tensor:
        """[rows, S], after `before`; a single tensor of this type is not copied."""
        parts = (_columns(tensors[0], rows, dtype, before),)
        for i in range(1, self.count):
            parts += (_columns(tensors[i], rows, dtype, before),)
        return parts[0] if self.count == 1 else ops.concat(parts, 1)

    def part(self, found: Tensor, i: int) -> Tensor:
        """Return the columns of a bucket, [.., S], that belong to its weight number i."""
        first, last = self.columns[i]
        return found if self.count == 1 else found[:, first:last]


class _Sum(_OfBucket):
    """The gradients of a bucket, added up over the ranks; of each the rows that are this rank's."""

    def __init__(self, bucket: Sequence[_Shared], share: Share) -> None:
        super().__init__(bucket, share)
        self.ranks = (*share.shard_ranks, *share.sum_ranks)
        self.scatter = reduce_scatter(share.shard_ranks) if share.shard_ranks else None
        self.sum = all_reduce(share.sum_ranks) if share.sum_ranks else None

    def construct(self, before: Tensor) -> Tensor:
        return self.add_up(self.gradients, before)

    def with_more(self, more: tuple[Tensor, ...], before: Tensor) -> Tensor:
        """As `construct`, with a last micro-batch's gradients, which `gradients` do not hold yet. These are not
        written: a write would come after everything before it, and no sum could begin before the backward pass ends."""
        whole = ()
        for i in range(self.count):
            whole += (self.gradients[i] + ops.cast(more[i], ms.float32),)
        return self.add_up(whole, before)

    def add_up(self, gradients: tuple[Tensor, ...], before: Tensor) -> Tensor:
        found = self.joined(gradients, self.parts, ms.float32, before)
        if self.scatter is not None:
            found = self.scatter(found)
        if self.sum is not None:
            found = self.sum(found)
        for i in range(self.count):
            before = ops.depend(before, ops.assign(self.summed[i], self.part(found, i).reshape(self.row_shapes[i])))
        return before


class _AccumulateAndSum(nn.Cell):
    """construct like `Accumulate`'s without the kernel, which also adds up the gradients of a bucket over the ranks as
    soon as the backward pass has them.

    gradients: all.
    buckets: in the order in which the backward pass ends with them.
    """

    def __init__(self, gradients: ParameterTuple, buckets: Sequence[_Sum]) -> None:
        super().__init__(auto_prefix=False)
        numbers = {gradient.name: i for i, gradient in enumerate(gradients)}
        self.buckets, self.count = nn.CellList(buckets, auto_prefix=False), len(buckets)
        self.members = tuple(tuple(numbers[one.name] for one in bucket.gradients) for bucket in buckets)
        summed = {i for members in self.members for i in members}
        self.accumulate_others = Accumulate(gradients, [i for i in range(len(gradients)) if i not in summed])
        self.start = Tensor(np.zeros(1, np.float32))

    def construct(self, is_added: Tensor, gradients: tuple[Tensor, ...]) -> Tensor:
        before = self.start
        for i in range(self.count):
            before = self.buckets[i].with_more(self.of_bucket(gradients, i), before)
        return ops.depend(before, self.accumulate_others(is_added, gradients))

    def of_bucket(self, gradients: tuple[Tensor, ...], number: int) -> tuple[Tensor, ...]:
        """The gradients of a bucket."""
        found = ()
        for i in self.members[number]:
            found += (gradients[i],)
        return found


class _Gather(_OfBucket):
    """The weights of a bucket, in their type, from every rank's rows."""

    def __init__(self, bucket: Sequence[_Shared], share: Share) -> None:
        super().__init__(bucket, share)
        self.dtype = bucket[0].weight.dtype
        self.gather = all_gather(share.shard_ranks)

    def construct(self, before: Tensor) -> Tensor:
        found = self.gather(self.joined(self.rows, 1, self.dtype, before))
        for i in range(self.count):
            before = ops.depend(before, ops.assign(self.weights[i], self.part(found, i).reshape(self.shapes[i])))
        return before
