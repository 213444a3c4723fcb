"""The three graphs of one optimizer update: gradient of a micro-batch, norm of the sum, step.

What enters: a policy cell, a loss cell, and the arrays of a `types.Batch` as tensors. What leaves: loss, metrics,
log-ratios, entropy, log-probs and their gradient per micro-batch, and changed weights. `update` drives them: it
looks at loss and norm before the step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindgspo.algorithms.adamw import short_runs, squared_rows
from mindgspo.parallel.parameter_memory import set_values, zeros_beside


class Objective(nn.Cell):
    """policy -> loss, in one forward graph.

    policy: construct(inputs, positions_RT, segments_RT, predict_P, targets_P, place_NK) -> (logp_NK, entropy_NK); its
    inputs are ids_RT, or on the last of several pipeline stages the hidden states of the stage before. loss: see
    `losses.body.PolicyLoss.construct`; `loss.metrics` is the table of its metrics vector.
    """

    def __init__(self, policy: nn.Cell, loss: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.policy = policy
        self.loss = loss

    def construct(
        self,
        probe_NK: Tensor,
        inputs: Tensor,
        positions_RT: Tensor,
        segments_RT: Tensor,
        predict_P: Tensor,
        targets_P: Tensor,
        place_NK: Tensor,
        mask_NK: Tensor,
        old_logp_NK: Tensor,
        ref_logp_NK: Tensor,
        advantages_NK: Tensor,
        correction_NK: Tensor,
        num_sequences: Tensor,
        num_tokens: Tensor,
        kl_coef: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Loss, metrics vector, log-ratios, entropy summed over real tokens, and log-probs [N, K]; only the loss is
        differentiated.

        probe_NK: zeros, added to the log-probs. The gradient with respect to it is d loss / d logp as it flowed.
        """
        logp_NK, entropy_NK = self.policy(inputs, positions_RT, segments_RT, predict_P, targets_P, place_NK)
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
        )
        entropy = ops.where(mask_NK, ops.stop_gradient(entropy_NK), 0.0).sum()
        return loss, metrics, log_ratio, entropy, ops.stop_gradient(logp_NK)


class GradientAccumulator(nn.Cell):
    """Gradient of one micro-batch, added to `gradients`, which `OptimizerStep` leaves at zero."""

    def __init__(self, objective: Objective, weights: ParameterTuple, gradients: ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        self.objective = objective
        self.weights = weights
        self.gradients = gradients
        self.runs = short_runs(len(weights))
        self.value_and_grad = ops.value_and_grad(objective, self.differentiated, weights, has_aux=True)

    differentiated: int | tuple[int, ...] = 0
    """Positions of the inputs whose gradients are returned: the probe's."""

    def construct(
        self,
        probe_NK: Tensor,
        inputs: Tensor,
        positions_RT: Tensor,
        segments_RT: Tensor,
        predict_P: Tensor,
        targets_P: Tensor,
        place_NK: Tensor,
        mask_NK: Tensor,
        old_logp_NK: Tensor,
        ref_logp_NK: Tensor,
        advantages_NK: Tensor,
        correction_NK: Tensor,
        num_sequences: Tensor,
        num_tokens: Tensor,
        kl_coef: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Takes what `Objective` does; returns that and, last, d loss / d logp [N, K], 0 where masked."""
        (loss, metrics, log_ratio, entropy, logp_NK), (input_gradients, gradients) = self.value_and_grad(
            probe_NK,
            inputs,
            positions_RT,
            segments_RT,
            predict_P,
            targets_P,
            place_NK,
            mask_NK,
            old_logp_NK,
            ref_logp_NK,
            advantages_NK,
            correction_NK,
            num_sequences,
            num_tokens,
            kl_coef,
        )
        for first, last in self.runs:
            self.add_run(gradients, first, last)
        return loss, metrics, log_ratio, entropy, logp_NK, input_gradients

    def add_run(self, gradients: tuple[Tensor, ...], first: int, last: int) -> None:
        """Add the gradients of the weights number `first` to `last` - 1."""
        for i in range(first, last):
            ops.assign_add(self.gradients[i], gradients[i])


class LastStageAccumulator(GradientAccumulator):
    """The same on the last of several pipeline stages: the last result is a pair, d loss / d logp and the gradient of
    the hidden states that entered, [R * T, H]."""

    differentiated = (0, 1)


def gradients_of(weights: ParameterTuple) -> ParameterTuple:
    """A zero Parameter beside every weight."""
    return zeros_beside(weights, "gradient")


def discard(gradients: Sequence[Parameter]) -> None:
    """Zero the gradients from the host, after an update that was not finished."""
    for gradient in gradients:
        set_values(gradient, np.zeros(gradient.shape, np.float32))


class GradientNorm(nn.Cell):
    """Global L2 norm of the accumulated gradients.

    gradients: those that count on this rank. group: the ranks that have the others; None for a rank that has all.
    """

    def __init__(self, gradients: Sequence[Parameter], group: str | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.gradients = ParameterTuple(gradients)
        self.runs = short_runs(len(self.gradients))
        self.sum = None if group is None else ops.AllReduce(group=group)
        self.zero = Tensor(np.float32(0))

    def construct(self) -> Tensor:
        """float32 scalar; not finite if any gradient is not, or if their squares overflow."""
        rows = ()
        for first, last in self.runs:
            rows += self.rows_of_run(first, last)
        total = ops.concat(rows).sum() if len(rows) > 0 else self.zero
        if self.sum is not None:
            total = self.sum(total.reshape(1))[0]
        return ops.sqrt(total)

    def rows_of_run(self, first: int, last: int) -> tuple[Tensor, ...]:
        rows = ()
        for i in range(first, last):
            rows += (squared_rows(self.gradients[i]),)
        return rows


class OptimizerStep(nn.Cell):
    """Applies the accumulated gradients and zeroes them for the next update."""

    def __init__(self, optimizer: nn.Cell, gradients: ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.gradients = gradients
        self.runs = short_runs(len(gradients))

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
            ops.assign_sub(self.gradients[i], self.gradients[i])
