"""Graphs of one update: gradient of a micro-batch, global norm, optimizer step."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindgspo.algorithms.optim.adamw import short_runs, squared_rows
from mindgspo.batches.routing import RoutedTokens
from mindgspo.parallel.collectives.graph import all_reduce
from mindgspo.parallel.ops.device import has_kernels, policy_inputs
from mindgspo.parallel.ops.kernels import AccumulateKernel
from mindgspo.parallel.plans.placement import ALONE, Placement
from mindgspo.parallel.plans.ranks import Ranks
from mindgspo.parallel.platform.parameter_memory import set_values, zeros_beside
from mindgspo.types import Batch

NUM_POLICY_INPUTS = 6
"""ids_RT, positions_RT, segments_RT, predict_P, targets_P, place_NK."""
_MASK = NUM_POLICY_INPUTS + 4
NUM_INPUTS = NUM_POLICY_INPUTS + 8
"""They, and the loss's: old_logp_NK, ref_logp_NK, advantages_NK, correction_NK, mask_NK and three scalars."""


def inputs_of(batch: Batch, kl_coef: float = 0.0) -> tuple[np.ndarray, ...]:
    """A batch as the inputs of `Objective`: the probe, NUM_POLICY_INPUTS for the policy, and the loss's in the order of
    `PolicyLoss.construct` behind log-probs and entropies."""
    return (
        np.zeros(batch.mask_NK.shape, np.float32),
        batch.ids_RT,
        batch.positions_RT,
        batch.segments_RT,
        batch.predict_P,
        batch.targets_P,
        batch.place_NK,
        batch.old_logp_NK,
        batch.ref_logp_NK,
        batch.advantages_NK,
        batch.correction_NK,
        batch.mask_NK,
        np.float32(batch.num_sequences),
        np.float32(batch.num_tokens),
        np.float32(kl_coef),
    )


def tensors_of(
    batch: Batch, kl_coef: float, *, is_packed: bool, replays: bool = False, place: Placement = ALONE
) -> tuple[tuple[Tensor, ...], RoutedTokens]:
    """The same as the graph of one micro-batch takes them on this device, and where the tokens of recorded routing
    stand in it. replays: the batch's experts are taken; they come last."""
    probe, *inputs = inputs_of(batch, kl_coef)
    of_policy = policy_inputs(batch, is_packed=is_packed, place=place)
    given = (of_policy.given(batch),) if replays else ()
    arrays = (probe, *of_policy.arrays, *inputs[NUM_POLICY_INPUTS:], *given)
    return tuple(Tensor(array) for array in arrays), of_policy.routed


_NUM_MEASURED = 5


class Objective(nn.Cell):
    """policy -> loss, in one forward graph.

    policy: construct(*the policy's inputs) -> (logp_NK, entropy_NK). loss: see `PolicyLoss.construct`; `loss.metrics`
    is the table of its metrics vector.
    """

    def __init__(self, policy: nn.Cell, loss: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.policy = policy
        self.loss = loss

    def construct(self, probe_NK: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Loss, metrics vector, log-ratios, entropy summed over real tokens, log-probs [N, K], and what else the policy
        returns; only the loss is differentiated.

        probe_NK: zeros, added to the log-probs. The gradient with respect to it is d loss / d logp as it flowed.
        inputs: see `inputs_of`; behind them, where experts are given, given_RTX.
        """
        found = self.policy(*inputs[:NUM_POLICY_INPUTS], *inputs[NUM_INPUTS:])
        logp_NK, entropy_NK = found[0], found[1]
        loss, metrics, log_ratio = self.loss(logp_NK + probe_NK, entropy_NK, *inputs[NUM_POLICY_INPUTS:NUM_INPUTS])
        entropy = ops.where(inputs[_MASK], ops.stop_gradient(entropy_NK), 0.0).sum()
        return loss, metrics, log_ratio, entropy, ops.stop_gradient(logp_NK), *found[2:]


class Accumulator(nn.Cell):
    """Adds to `gradients`. Composed, they are zero before the first micro-batch, as `OptimizerStep` leaves them; the
    kernel replaces what the update before has left."""

    def __init__(self, gradients: ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        self.gradients = gradients
        self.runs = short_runs(len(gradients))
        self.kernel = AccumulateKernel(gradients) if has_kernels() else None
        self.unknown = Tensor(np.zeros(1, np.float32))

    def add(self, is_added: Tensor, gradients: tuple[Tensor, ...]) -> Tensor:
        """is_added: int32 [1], 0 for the first micro-batch of an update. By the kernel the sum of the squares so far,
        float32 [1]."""
        squares = self.unknown
        if self.kernel is not None:
            squares = self.kernel(is_added, *gradients)
        else:
            for first, last in self.runs:
                self.add_run(gradients, first, last)
        return squares

    def add_run(self, gradients: tuple[Tensor, ...], first: int, last: int) -> None:
        """Add the gradients of the weights number `first` to `last` - 1."""
        for i in range(first, last):
            ops.assign_add(self.gradients[i], ops.cast(gradients[i], ms.float32))


class GradientAccumulator(Accumulator):
    """Gradient of one micro-batch, added to `gradients`. is_first: whether ids come in; on a later stage of a pipeline
    hidden states do, which are differentiated, too."""

    def __init__(
        self, objective: Objective, weights: ParameterTuple, gradients: ParameterTuple, *, is_first: bool = True
    ) -> None:
        super().__init__(gradients)
        self.objective, self.weights, self.is_first = objective, weights, is_first
        self.value_and_grad = ops.value_and_grad(objective, 0 if is_first else (0, 1), weights, has_aux=True)

    def construct(self, is_added: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Takes what `Objective` does, behind is_added; see `Accumulator.add`. Returns what `Objective` does up to
        log-probs and d loss / d logp [N, K], 0 where masked; then what `add` returns, what else the policy returns, and
        the gradient of hidden states that came in."""
        found, (of_inputs, gradients) = self.value_and_grad(*inputs)
        squares = self.add(is_added, gradients)
        if self.is_first:
            return *found[:_NUM_MEASURED], of_inputs, squares, *found[_NUM_MEASURED:]
        return *found[:_NUM_MEASURED], of_inputs[0], squares, *found[_NUM_MEASURED:], of_inputs[1]


class StageObjective(nn.Cell):
    """0, whose gradient by what a stage returns is given.

    policy: of a stage that is not the last, construct(*the policy's inputs) -> (hidden states, ...)."""

    def __init__(self, policy: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.policy = policy
        self.given = GivenGradient()

    def construct(self, entering: Tensor, gradient_MH: Tensor, *inputs: Tensor) -> Tensor:
        """entering: the policy's first input, inputs: the others."""
        return self.given(self.policy(entering, *inputs)[0], gradient_MH)


class GivenGradient(nn.Cell):
    """construct(x, gradient) -> 0, whose gradient by x is `gradient`."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.zero = Tensor(np.float32(0))

    def construct(self, x: Tensor, gradient: Tensor) -> Tensor:
        return ops.depend(self.zero, x)

    def bprop(self, x, gradient, out, dout):
        return gradient, ops.zeros_like(gradient)


class StageAccumulator(Accumulator):
    """As `GradientAccumulator`, of a stage that is not the last. Its forward pass is computed again."""

    def __init__(
        self, policy: nn.Cell, weights: ParameterTuple, gradients: ParameterTuple, *, is_first: bool = True
    ) -> None:
        super().__init__(gradients)
        self.weights, self.is_first = weights, is_first
        self.grad = ops.grad(StageObjective(policy), None if is_first else 0, weights)

    def construct(self, is_added: Tensor, entering: Tensor, gradient_MH: Tensor, *inputs: Tensor) -> Tensor:
        """is_added: as of `add`; the others as of `StageObjective`. The gradient of hidden states that came in; on the
        first stage what `add` returns."""
        found = self.grad(entering, gradient_MH, *inputs)
        if self.is_first:
            return self.add(is_added, found)
        squares = self.add(is_added, found[1])
        return ops.depend(found[0], squares)


def gradients_of(weights: ParameterTuple) -> ParameterTuple:
    """A zero Parameter beside every weight."""
    return zeros_beside(weights, "gradient")


def discard(gradients: Sequence[Parameter]) -> None:
    """Zero the gradients from the host, after an update that was not finished."""
    for gradient in gradients:
        set_values(gradient, np.zeros(gradient.shape, np.float32))


class GradientNorm(nn.Cell):
    """Global L2 norm of the accumulated gradients.

    gradients: those that count on this rank. others: those of this rank that count on another one. ranks: that have all
    gradients together, this one among them.
    """

    def __init__(self, gradients: Sequence[Parameter], others: Sequence[Parameter] = (), ranks: Ranks = ()) -> None:
        super().__init__(auto_prefix=False)
        self.gradients, self.others = ParameterTuple(gradients), ParameterTuple(others)
        self.runs, self.runs_of_others = short_runs(len(gradients)), short_runs(len(others))
        self.sum = all_reduce(ranks) if len(ranks) > 1 else None
        self.zero = Tensor(np.float32(0))

    def construct(self) -> Tensor:
        """float32 scalar, the same on all ranks; not finite if any gradient is not, or if their squares overflow."""
        total = self.zero
        rows = ()
        for first, last in self.runs:
            rows += self.rows_of_run(self.gradients, first, last)
        if len(rows) > 0:
            total = ops.concat(rows).sum()
        rows = ()
        for first, last in self.runs_of_others:
            rows += self.rows_of_run(self.others, first, last)
        if len(rows) > 0:
            other = ops.concat(rows).sum()
            total = ops.where(ops.isfinite(other), total, other)
        if self.sum is not None:
            total = self.sum(total.reshape(1))[0]
        return ops.sqrt(total)

    def rows_of_run(self, gradients: tuple[Tensor, ...], first: int, last: int) -> tuple[Tensor, ...]:
        rows = ()
        for i in range(first, last):
            rows += (squared_rows(gradients[i]),)
        return rows


class OptimizerStep(nn.Cell):
    """Applies gradients and, where `GradientAccumulator` wants it, zeroes the accumulated ones for the next update.

    accumulated: where they are not what is applied, but what that was found from.
    """

    def __init__(
        self, optimizer: nn.Cell, gradients: ParameterTuple, accumulated: ParameterTuple | None = None
    ) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.gradients = gradients
        self.accumulated = gradients if accumulated is None else accumulated
        self.runs = () if has_kernels() else short_runs(len(gradients))

    def construct(self, clip_scale: Tensor, step_size: Tensor, root_eps: Tensor, decay: Tensor) -> Tensor:
        """Inputs as `AdamW.scalars`."""
        done = self.optimizer(self.gradients, clip_scale, step_size, root_eps, decay)
        for first, last in self.runs:
            self.clear_run(first, last)
        return done

    def clear_run(self, first: int, last: int) -> None:
        """Zero the gradients number `first` to `last` - 1."""
        for i in range(first, last):
            # Finite, as the norm has shown, so that the difference is 0. Zeros would be compiled in as constants, as
            # large as all weights together.
            ops.assign_sub(self.accumulated[i], self.accumulated[i])
