"""AdamW with global-norm clipping, as graph code over all weights at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from mindgspo.config.schema import OptimizerSection
from mindgspo.parallel.ops.device import has_kernels
from mindgspo.parallel.ops.kernels import AdamWKernel
from mindgspo.parallel.platform.parameter_memory import zeros_beside


class StepScalars(NamedTuple):
    """Values that change from update to update, as float32 scalars, so that no graph is compiled again."""

    clip_scale: Tensor
    step_size: Tensor
    root_eps: Tensor
    decay: Tensor


class AdamW(nn.Cell):
    """Decoupled weight decay (arXiv 1711.05101) with torch's conventions.

    p -= lr wd p                                        (matrices only, see `decays`)
    p -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)

    The second line is `ops.Adam` with step_size = lr sqrt(1 - b2^t) / (1 - b1^t) and root_eps = eps sqrt(1 - b2^t): the
    same fraction, with numerator and denominator multiplied by sqrt(1 - b2^t).

    weights: the weights to train.
    gradients: float32, in the order of the weights.
    section: betas, eps, weight decay and max_grad_norm; its schedule is not read here.
    names: names of the weights, if not their own.
    accumulated: the gradients that the applied ones were summed from over ranks, if those differ; zeroed for the next
        update if `GradientAccumulator` adds to them.

    Moments are float32 Parameters named adamw.m.<weight>, adamw.v.<weight>.
    """

    def __init__(
        self,
        weights: ParameterTuple,
        gradients: ParameterTuple,
        section: OptimizerSection,
        *,
        names: Sequence[str] | None = None,
        accumulated: ParameterTuple | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.weights, self.gradients = weights, gradients
        self.accumulated = gradients if accumulated is None else accumulated
        self.first_moments = zeros_beside(weights, "adamw.m", names=names, requires_grad=False)
        self.second_moments = zeros_beside(weights, "adamw.v", names=names, requires_grad=False)
        self.count = len(weights)
        self.runs = short_runs(len(weights))
        self.decays = tuple(section.weight_decay > 0 and decays(weight) for weight in weights)
        self.max_grad_norm = section.max_grad_norm
        self.weight_decay = section.weight_decay
        self.eps = section.eps
        # The kernel computes 1 - beta in float32. With bias corrections from the same rounded betas the
        # weights of past gradients still sum to 1; with 0.999 the mismatch would be 1e-5.
        self.beta1 = float(np.float32(section.beta1))
        self.beta2 = float(np.float32(section.beta2))
        self.beta1_tensor = Tensor(self.beta1, ms.float32)
        self.beta2_tensor = Tensor(self.beta2, ms.float32)
        self.zero = Tensor(0.0, ms.float32)
        self.adam = ops.Adam()
        self.kernel = None
        if has_kernels():
            moments, betas = (self.first_moments, self.second_moments), (self.beta1, self.beta2)
            self.kernel = AdamWKernel(weights, moments, decays=self.decays, betas=betas)

    def scalars(self, step: int, lr: float, grad_norm: float) -> StepScalars:
        """Inputs of update number `step` (1, 2, ...) at learning rate `lr`.

        grad_norm: global norm of the gradients, finite. They are scaled by
        min(1, max_grad_norm / (grad_norm + 1e-6)), as torch's clip_grad_norm_ does.
        """
        assert step >= 1 and math.isfinite(grad_norm), f"step {step}, gradient norm {grad_norm}"
        correction1 = 1.0 - self.beta1**step
        correction2 = math.sqrt(1.0 - self.beta2**step)
        return StepScalars(
            clip_scale=_scalar(min(1.0, self.max_grad_norm / (grad_norm + 1e-6))),
            step_size=_scalar(lr * correction2 / correction1),
            root_eps=_scalar(self.eps * correction2),
            decay=_scalar(lr * self.weight_decay),
        )

    def construct(
        self,
        clip_scale: Tensor,
        step_size: Tensor,
        root_eps: Tensor,
        decay: Tensor,
    ) -> Tensor:
        """Update every weight from its gradient; inputs as `scalars`. Return what to wait for.

        There is no branch on the norm in here: MindSpore 2.10 may drop a run-time branch that only changes
        Parameters, without a word. The caller checks the norm first.
        """
        if self.kernel is not None:
            return self.kernel(clip_scale, step_size, root_eps, decay, *self.gradients)
        for first, last in self.runs:
            clip_scale = self.update_run(first, last, clip_scale, step_size, root_eps, decay)
        for first, last in self.runs:
            self.clear_run(first, last)
        return clip_scale

    def update_run(
        self,
        first: int,
        last: int,
        clip_scale: Tensor,
        step_size: Tensor,
        root_eps: Tensor,
        decay: Tensor,
    ) -> Tensor:
        """Weights number `first` to `last` - 1 of `construct`; clip_scale, once they are updated."""
        for i in range(first, last):
            clip_scale = self.update_one(i, self.gradients[i], clip_scale, step_size, root_eps, decay)
        return clip_scale

    def update_one(
        self, i: int, gradient: Tensor, clip_scale: Tensor, step_size: Tensor, root_eps: Tensor, decay: Tensor
    ) -> Tensor:
        """Update weight number i and its moments; clip_scale, for what comes after it: each product waits for it, so
        that one's memory serves the next."""
        if self.decays[i]:
            # p - (lr wd) p, not p (1 - lr wd): for lr = 1e-6 float32 would round the factor by a fifth.
            decayed = ops.assign_sub(self.weights[i], self.weights[i] * ops.depend(decay, clip_scale))
            clip_scale = ops.depend(clip_scale, decayed)
        gradient = gradient * clip_scale
        # Bias corrections are in step_size, so the kernel's own are switched off by powers of 0.
        updated = self.adam(
            self.weights[i],
            self.first_moments[i],
            self.second_moments[i],
            self.zero,
            self.zero,
            step_size,
            self.beta1_tensor,
            self.beta2_tensor,
            root_eps,
            gradient,
        )
        return ops.depend(clip_scale, updated[0])

    def clear_run(self, first: int, last: int) -> None:
        """Zero the accumulated gradients number `first` to `last` - 1."""
        for i in range(first, last):
            # Finite, as the norm has shown, so that the difference is 0. Zeros would be compiled in as constants, as
            # large as all weights together.
            ops.assign_sub(self.accumulated[i], self.accumulated[i])


def decays(weight: Parameter) -> bool:
    """Whether weight decay applies: to matrices, the embedding included; not to biases and norm weights."""
    return len(weight.shape) >= 2


def short_runs(count: int, length: int = 32) -> tuple[tuple[int, int], ...]:
    """(first, last + 1) of runs of at most `length` numbers below `count`.

    The compiler unrolls a loop into calls within calls and stops at a thousand; a loop over runs, each in a method of
    its own, stays shallow for the 771 weights of a 32B model, and compiles faster.
    """
    return tuple((first, min(first + length, count)) for first in range(0, count, length))


def squared_rows(tensor: Tensor) -> Tensor:
    """The squares of a tensor, summed over its last axis, flat; a vector's as they are.

    All rows of all tensors are then joined and summed at once: on CPU five times faster than a full sum per tensor, as
    exact.
    """
    square = ops.square(tensor)
    if len(tensor.shape) > 1:
        square = square.sum(axis=-1).reshape(-1)
    return square


def _scalar(value: float) -> Tensor:
    return Tensor(np.float32(value))
