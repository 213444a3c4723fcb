"""Graphs of one update: the gradients of a micro-batch, and their global norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindgspo.algorithms.loss_metrics import Metric
from mindgspo.algorithms.optim.adamw import short_runs, squared_rows
from mindgspo.batches.routing import RoutedTokens
from mindgspo.parallel.collectives.graph import all_reduce
from mindgspo.parallel.ops.device import PolicyInputs, has_kernels, policy_inputs
from mindgspo.parallel.ops.kernels import AccumulateKernel
from mindgspo.parallel.plans.placement import ALONE, Placement, Ranks
from mindgspo.parallel.platform.parameter_memory import set_values, zeros_beside
from mindgspo.types import Batch


class ObjectiveInputs(NamedTuple):
    """The inputs of `Objective` in the order of its `construct`: MindSpore passes tensors to a graph by position."""

    probe_NK: np.ndarray
    ids_RT: np.ndarray
    positions_RT: np.ndarray
    segments_RT: np.ndarray
    predict_P: np.ndarray
    targets_P: np.ndarray
    place_NK: np.ndarray
    old_logp_NK: np.ndarray
    ref_logp_NK: np.ndarray
    advantages_NK: np.ndarray
    correction_NK: np.ndarray
    mask_NK: np.ndarray
    num_sequences: np.float32
    num_tokens: np.float32
    kl_coef: np.float32

    @classmethod
    def of(cls, batch: Batch, kl_coef: float = 0.0) -> ObjectiveInputs:
        """Lay out a batch; the probe is zeros."""
        arrays = {name: getattr(batch, name) for name in cls._fields if name not in ("probe_NK", "kl_coef")}
        arrays |= {name: np.float32(arrays[name]) for name in ("num_sequences", "num_tokens")}
        return cls(probe_NK=np.zeros(batch.mask_NK.shape, np.float32), kl_coef=np.float32(kl_coef), **arrays)


NUM_INPUTS = len(ObjectiveInputs._fields) - 1
"""Inputs without the probe."""
NUM_POLICY_INPUTS = 6
"""ids_RT to place_NK, which the policy takes."""


def tensors_of(
    batch: Batch,
    kl_coef: float,
    *,
    is_packed: bool,
    replays: bool = False,
    further: Sequence[str] = (),
    place: Placement = ALONE,
) -> tuple[tuple[Tensor, ...], RoutedTokens]:
    """Return `ObjectiveInputs` as the graph of one micro-batch takes them on this device, and where the tokens of
    recorded routing stand in it. further: the `further_inputs` of loss and policy, which come next. replays: the
    batch's experts come last."""
    probe, *inputs = ObjectiveInputs.of(batch, kl_coef)
    of_policy = policy_inputs(batch, is_packed=is_packed, place=place)
    named = tuple(_further_input(name, batch, of_policy) for name in further)
    given = (of_policy.given(batch),) if replays else ()
    arrays = (probe, *of_policy.arrays, *inputs[NUM_POLICY_INPUTS:], *named, *given)
    return tuple(Tensor(array) for array in arrays), of_policy.routed


def _further_input(name: str, batch: Batch, of_policy: PolicyInputs) -> np.ndarray:
    if name == "turns_JNK":
        return turn_masks(batch)
    if name == "teacher_ids_PA":
        assert batch.teacher_ids_NKA is not None, "a batch without a teacher"
        return of_policy.by_prediction(batch, np.maximum(batch.teacher_ids_NKA, 0))
    return getattr(batch, name)


def turn_masks(batch: Batch) -> np.ndarray:
    """bool [J, N, K], the tokens of each turn; J is a power of 2, so that few graphs are compiled."""
    assert batch.turns_NK is not None, "a batch without turns"
    count = 1 << int(batch.turns_NK.max()).bit_length()
    return (batch.turns_NK == np.arange(count)[:, None, None]) & batch.mask_NK


_NUM_MEASURED = 5  # outputs of `Objective` up to the log-probs


class Loss(Protocol):
    """A `PolicyLoss`, or another cell with its inputs and outputs."""

    metrics: tuple[Metric, ...]
    """The table of its metrics vector."""

    def __call__(self, logp_NK: Tensor, entropy_NK: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `PolicyLoss.construct`."""
        ...


class Objective(nn.Cell):
    """One micro-batch: log-probs of the policy -> ratio -> clip -> aggregate, in one forward graph.

    policy: construct(*the policy's inputs) -> (logp_NK, entropy_NK, *routing); one with `scores_ids` has the ids'
    log-probs before the routing.
    """

    def __init__(self, policy: nn.Cell, loss: Loss) -> None:
        super().__init__(auto_prefix=False)
        self.policy = policy
        self.loss = loss
        self.num_further = len(getattr(loss, "further_inputs", ()))
        self.scores_ids = getattr(policy, "scores_ids", False)

    def construct(
        self,
        probe_NK: Tensor,
        ids_RT: Tensor,
        positions_RT: Tensor,
        segments_RT: Tensor,
        predict_P: Tensor,
        targets_P: Tensor,
        place_NK: Tensor,
        old_logp_NK: Tensor,
        ref_logp_NK: Tensor,
        advantages_NK: Tensor,
        correction_NK: Tensor,
        mask_NK: Tensor,
        num_sequences: Tensor,
        num_tokens: Tensor,
        kl_coef: Tensor,
        *further: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the loss, its metrics vector, log-ratios, entropy summed over real tokens, log-probs [N, K], and what
        else the policy returns; only the loss is differentiated.

        probe_NK: zeros, added to the log-probs: the gradient by it is d loss / d logp. further: the `further_inputs` of
        the loss and of the policy; recorded experts [R, T, X], where routing is replayed. The other inputs are those of
        the policy and of `PolicyLoss.construct`.
        """
        of_loss, of_policy = further[: self.num_further], further[self.num_further :]
        found = self.policy(ids_RT, positions_RT, segments_RT, predict_P, targets_P, place_NK, *of_policy)
        logp_NK, entropy_NK, rest = found[0], found[1], found[2:]
        if self.scores_ids:
            of_loss, rest = (*of_loss, found[2]), found[3:]
        loss, metrics, log_ratio = self.loss(
            logp_NK + probe_NK,
            entropy_NK,
            old_logp_NK,
            ref_logp_NK,
            advantages_NK,
            correction_NK,
            mask_NK,
            num_sequences,
            num_tokens,
            kl_coef,
            *of_loss,
        )
        entropy = ops.where(mask_NK, ops.stop_gradient(entropy_NK), 0.0).sum()
        return loss, metrics, log_ratio, entropy, ops.stop_gradient(logp_NK), *rest


class Accumulate(nn.Cell):
    """Adds to `gradients`. Without the kernel they are zero before the first micro-batch, as `AdamW` leaves them; the
    kernel replaces what the update before has left.

    numbers: those of the gradients that are added to, without the kernel; None: all.
    """

    def __init__(self, gradients: ParameterTuple, numbers: Sequence[int] | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.gradients = gradients
        self.kernel = AccumulateKernel(gradients) if has_kernels() else None
        assert numbers is None or self.kernel is None, "the kernel adds to all"
        numbers = range(len(gradients)) if numbers is None else numbers
        self.runs = tuple(tuple(numbers[first:last]) for first, last in short_runs(len(numbers)))
        self.unknown = Tensor(np.zeros(1, np.float32))

    def construct(self, is_added: Tensor, gradients: tuple[Tensor, ...]) -> Tensor:
        """is_added: int32 [1], 0 for the first micro-batch of an update. By the kernel the sum of the squares so far,
        float32 [1]."""
        squares = self.unknown
        if self.kernel is not None:
            squares = self.kernel(is_added, *gradients)
        else:
            for run in self.runs:
                self.add_run(gradients, run)
        return squares

    def add_run(self, gradients: tuple[Tensor, ...], run: tuple[int, ...]) -> None:
        """Add the gradients of these numbers."""
        for i in run:
            ops.assign_add(self.gradients[i], ops.cast(gradients[i], ms.float32))


class GradientAccumulator(nn.Cell):
    """Gradient of one micro-batch, handed to `add`, an `Accumulate` or another cell with its inputs and output.
    is_first: whether ids come in; on a later stage of a pipeline hidden states do, which are differentiated, too."""

    def __init__(self, objective: Objective, weights: ParameterTuple, add: nn.Cell, *, is_first: bool = True) -> None:
        super().__init__(auto_prefix=False)
        self.objective, self.weights, self.add, self.is_first = objective, weights, add, is_first
        self.value_and_grad = ops.value_and_grad(objective, 0 if is_first else (0, 1), weights, has_aux=True)

    def construct(self, is_added: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Takes is_added (see `Accumulate`) and the inputs of `Objective`. Returns the outputs of `Objective` up
        to log-probs and d loss / d logp [N, K], 0 where masked; then the result of `add`, the policy's other outputs,
        and the gradient of hidden states that came in."""
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


class StageAccumulator(nn.Cell):
    """Accumulates the gradients of a stage that is not the last, like `GradientAccumulator`; recomputes its forward
    pass."""

    def __init__(self, policy: nn.Cell, weights: ParameterTuple, add: nn.Cell, *, is_first: bool = True) -> None:
        super().__init__(auto_prefix=False)
        self.weights, self.add, self.is_first = weights, add, is_first
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
        for first, last in self.runs:
            total = total + self.squares_of_run(self.gradients, first, last)
        for first, last in self.runs_of_others:
            other = self.squares_of_run(self.others, first, last)
            total = ops.where(ops.isfinite(other), total, other)
        if self.sum is not None:
            total = self.sum(total.reshape(1))[0]
        return ops.sqrt(total)

    def squares_of_run(self, gradients: tuple[Tensor, ...], first: int, last: int) -> Tensor:
        """The sum of the squares. A run's rows are joined at once, and a card joins no more than 32 tensors."""
        rows = ()
        for i in range(first, last):
            rows += (squared_rows(gradients[i]),)
        return ops.concat(rows).sum()
