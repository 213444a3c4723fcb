"""An optimizer update as one graph of full shapes, which MindSpore's compiler divides over all ranks of a plan.

Pipeline, the sum over replicas and the shards of the optimizer are the compiler's work; in one process on CPU the same
graph runs as it is.

Legend: U micro-batches of a round; R rows and N samples of all of its micro-batches and replicas, of one micro-batch
inside the objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, lazy_inline, nn, ops
from mindspore.ops import constexpr

from mindgspo.algorithms.optim.adamw import AdamW, short_runs
from mindgspo.algorithms.optim.gradients import NUM_POLICY_INPUTS, gradients_of
from mindgspo.config.plan import ParallelPlan
from mindgspo.parallel.auto_parallel import pure
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.parameter_memory import zeros_beside
from mindgspo.parallel.runtime import world_group

_NUM_INPUTS = NUM_POLICY_INPUTS + 7


class MicroBatchObjective(nn.Cell):
    """policy -> loss of one micro-batch of all replicas, as a vector that may be added up over micro-batches."""

    def __init__(self, policy: nn.Cell, loss: nn.Cell, *, last_stage: int = 0) -> None:
        super().__init__(auto_prefix=False)
        self.policy = policy
        self.measured_loss = undivided_loss(loss)
        if last_stage > 0:
            self.policy.head.pipeline_stage = last_stage

    def construct(self, *inputs: Tensor) -> Tensor:
        """float32 [1 + 2 U N K]: the loss, and behind it [U, 2, N, K] with this micro-batch's log-probs and entropies
        in its own place. Only the loss is to be differentiated.

        inputs: as `gradients.inputs_of` without the probe and the scalars; then scalars_13 (num_sequences, num_tokens,
        kl_coef) and own_1U, 1 in this micro-batch's place, else 0; and where experts are given, given_RTX.
        """
        logp_NK, entropy_NK = self.policy(*inputs[:NUM_POLICY_INPUTS], *inputs[_NUM_INPUTS:])
        return self.measured_loss(logp_NK, entropy_NK, *inputs[NUM_POLICY_INPUTS:_NUM_INPUTS])


class SharedObjective(MicroBatchObjective):
    """The same as one sub-graph that all micro-batches call, instead of a copy for each. The compiler's pipeline asks
    for it; the CPU runtime cannot run it."""

    @lazy_inline
    def __init__(self, policy: nn.Cell, loss: nn.Cell, *, last_stage: int = 0) -> None:
        super().__init__(policy, loss, last_stage=last_stage)


def undivided_loss(loss: nn.Cell) -> Callable[..., Tensor]:
    """The loss as an op that every rank computes whole.

    Its many small ops have no strategies, and the compiler's guesses are refused. A `Morph` is one op to the pass that
    divides a graph, which gathers its inputs, and becomes the loss's own ops before the gradient is taken.
    """

    def whole(logp_NK, entropy_NK, old_logp_NK, ref_logp_NK, advantages_NK, correction_NK, mask_NK, scalars_13, own_1U):
        found, _, _ = loss(
            logp_NK,
            entropy_NK,
            old_logp_NK,
            ref_logp_NK,
            advantages_NK,
            correction_NK,
            mask_NK,
            scalars_13[0, 0],
            scalars_13[0, 1],
            scalars_13[0, 2],
        )
        # A loss may be infinite and its gradient not, where a clip holds the ratio. The norm must tell of it: nothing
        # else decides about the step.
        found = found * ops.where(ops.isfinite(ops.stop_gradient(found)), 1.0, math.nan)
        measured = ops.stop_gradient(ops.concat((logp_NK.reshape(1, -1), entropy_NK.reshape(1, -1)), 1))
        # No product: what is not finite would be so in the others' places too.
        placed = ops.where(own_1U.reshape(-1, 1) > 0, measured, 0.0)
        return ops.concat((found.reshape(1), placed.reshape(-1)))

    def infer_shape(*shapes):
        num_samples, num_slots = shapes[0]
        return [1 + 2 * shapes[8][1] * num_samples * num_slots]

    def infer_dtype(*dtypes):
        return dtypes[0]

    return pure(ops.Morph(whole, infer_shape, infer_dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """What the graph must know of the ranks that the compiler divides it over.

    copies: by weight the number of ranks that hold each part of its gradient, by which its part in the norm is divided.
    shards_gradients: the compiler hands out each rank's shard of the summed gradients, instead of leaving whole ones
    in the accumulators. group: of all ranks.
    """

    copies: Mapping[str, int]
    shards_gradients: bool
    group: str

    @classmethod
    def of(cls, layouts: Mapping[str, Layout], plan: ParallelPlan) -> Division:
        """layouts: of the gradients, by weight, those of all stages."""
        return cls(
            copies={name: _num_copies(layout) for name, layout in layouts.items()},
            shards_gradients=plan.optimizer_shard and plan.token_parts > 1,
            group=world_group(),
        )


def _num_copies(layout: Layout) -> int:
    holders = [layout.ranks_with_slice_of(rank) for rank in layout.rank_list]
    assert len({len(ranks) for ranks in holders}) == 1, f"{layout.parameter}: {layout}"
    return len(holders[0])


class UpdateGraph(nn.Cell):
    """Gradient of a round, added to `gradients`; behind the last round clipping by their norm and AdamW.

    A norm that is not finite changes no weight and no moment. num_micro_batches: U. division: None where nothing
    divides the graph.
    """

    def __init__(
        self,
        objective: MicroBatchObjective,
        weights: ParameterTuple,
        optimizer: AdamW,
        *,
        num_micro_batches: int,
        is_pipeline: bool,
        division: Division | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.network = objective
        if is_pipeline or num_micro_batches > 1:
            self.network = nn.PipelineCell(objective, num_micro_batches)
        # The compiler of a pipeline adds a round's gradients up in parameters named accu_grads. They cannot stay there
        # until the next round: those of weights that several ranks share would be summed over the ranks once more.
        self.accumulates = division is not None and is_pipeline
        self.network.set_grad()
        self.weights = weights
        self.runs = short_runs(len(weights))
        self.optimizer = optimizer
        self.gradients = gradients_of(weights)
        self.accu_grads = zeros_beside(weights, "accu_grads") if self.accumulates else ()
        self.takes_accumulators = self.accumulates and not division.shards_gradients
        # Parameters, because the compiler of pipelines takes every input of the graph for one of the network's.
        self.step_size, self.root_eps, self.decay, self.is_last = (
            Parameter(Tensor(np.float32(0)), name=f"adamw.{name}", requires_grad=False)
            for name in ("step_size", "root_eps", "decay", "is_last")
        )
        copies = {weight.name: 1 for weight in weights} if division is None else division.copies
        self.shares = tuple(1.0 / copies[weight.name] for weight in weights)
        self.sum = None if division is None else ops.AllReduce(group=division.group)
        self.reduce_sum, self.reduce_sum_keeping = ops.ReduceSum(), ops.ReduceSum(keep_dims=True)
        self.is_finite = ops.IsFinite()
        self.grad = ops.GradOperation(get_by_list=True, sens_param=True)
        self.max_grad_norm = optimizer.max_grad_norm

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """What `MicroBatchObjective` returns, added up over the micro-batches, and the norm of `gradients`.

        inputs: as `MicroBatchObjective` takes them, of all micro-batches: scalars_U3 has a row for each, own_UU is the
        unit matrix. The step's scalars, see `AdamW`, and whether this is the mini-batch's last round (1 or 0) are set
        before.
        """
        measured = self.network(*inputs)
        gradients = self.grad(self.network, self.weights)(*inputs, first_of(measured.shape[0]))
        if self.takes_accumulators:
            gradients = ops.depend(self.accu_grads, gradients)
        gradients = self.added(gradients)
        norm = self.norm(gradients)
        # A branch that only changes parameters might be dropped without a word; so a round that is not the last one and
        # an update that is refused compute with zeros in the place of gradients and step, and with betas of 1.
        applies = ops.logical_and(self.is_finite(norm), self.is_last > 0.5)
        clip_scale = ops.minimum(self.max_grad_norm / (norm + 1e-6), 1.0)
        done = self.optimizer.guarded(gradients, applies, clip_scale, self.step_size, self.root_eps, self.decay)
        return ops.depend(measured, self.cleared(done)), norm

    def added(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """`gradients` with those of the round, which the accumulators no longer hold."""
        totals = ()
        for first, last in self.runs:
            totals += self.added_run(gradients, first, last)
        return totals

    def added_run(self, gradients: tuple[Tensor, ...], first: int, last: int) -> tuple[Tensor, ...]:
        totals = ()
        for i in range(first, last):
            totals += (self.added_one(i, gradients[i]),)
        return totals

    def added_one(self, i: int, gradient: Tensor) -> Tensor:
        total = ops.assign_add(self.gradients[i], gradient)
        if self.accumulates:
            accumulated = ops.depend(self.accu_grads[i], total)
            total = ops.depend(total, ops.assign(self.accu_grads[i], accumulated * 0.0))
        return total

    def norm(self, gradients: tuple[Tensor, ...]) -> Tensor:
        """float32 scalar; not finite if any gradient is not. Without a reshape: the compiler takes those of the whole
        graph for the layers'."""
        squares = ()
        for first, last in self.runs:
            squares += self.squares_of_run(gradients, first, last)
        # One number for every stage, whatever the weights on it.
        total = self.reduce_sum_keeping(ops.stack(squares))
        if self.sum is not None:
            total = self.sum(total)
        return ops.sqrt(self.reduce_sum(total))

    def cleared(self, done: Tensor) -> tuple[Tensor, ...]:
        """Zero `gradients` behind the last round. Those of a refused update stay not finite: `discard` is for them."""
        keep = 1.0 - self.is_last
        zeroed = ()
        for first, last in self.runs:
            zeroed += self.cleared_run(keep, done, first, last)
        return zeroed

    def cleared_run(self, keep: Tensor, done: Tensor, first: int, last: int) -> tuple[Tensor, ...]:
        zeroed = ()
        for i in range(first, last):
            total = ops.depend(self.gradients[i], done)
            zeroed += (ops.assign(self.gradients[i], total * keep),)
        return zeroed

    def squares_of_run(self, gradients: tuple[Tensor, ...], first: int, last: int) -> tuple[Tensor, ...]:
        squares = ()
        for i in range(first, last):
            squares += (self.reduce_sum(ops.square(gradients[i])) * self.shares[i],)
        return squares


@constexpr
def first_of(length: int) -> Tensor:
    """float32 [length]: 1, 0, 0, ..."""
    return Tensor(np.arange(length) == 0, ms.float32)
