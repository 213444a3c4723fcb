"""A loss cell by itself: what it makes of log-probs that are already known.

What enters: a batch and the log-probs that its tokens had. What leaves: the arrays that `OwnPart.update` gives per
micro-batch. Used where the graph that trains cannot let them out.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.algorithms.accumulator import Objective
from mindgspo.algorithms.rank_part import inputs_of
from mindgspo.parallel.replicas import Arrays
from mindgspo.types import Batch, Float32Array


class _Known(nn.Cell):
    """A policy that returns what it is given."""

    def construct(
        self,
        logp_NK: Tensor,
        entropy_NK: Tensor,
        segments: Tensor,
        predict_P: Tensor,
        targets_P: Tensor,
        place_NK: Tensor,
    ) -> tuple[Tensor, Tensor]:
        return logp_NK, entropy_NK


class LossProbe:
    """The loss cell, differentiated by the log-probs alone, in one process."""

    def __init__(self, loss: nn.Cell) -> None:
        self._cell = _Differentiated(Objective(_Known(), loss))

    def __call__(self, batch: Batch, logp_NK: Float32Array, entropy_NK: Float32Array, kl_coef: float) -> Arrays:
        """(loss, metrics, log-ratios, entropy, log-probs, d loss / d logp [N, K]). logp_NK, entropy_NK: at least as
        large as the batch's arrays."""
        samples, slots = batch.mask_NK.shape
        probe, _, _, segments, *rest = inputs_of(batch, kl_coef)
        arrays = (probe, logp_NK[:samples, :slots], entropy_NK[:samples, :slots], segments, *rest)
        return tuple(tensor.asnumpy() for tensor in self._cell(*(Tensor(np.array(a)) for a in arrays)))


class _Differentiated(nn.Cell):
    def __init__(self, objective: Objective) -> None:
        super().__init__(auto_prefix=False)
        self.value_and_grad = ops.value_and_grad(objective, 0, None, has_aux=True)

    def construct(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        (loss, metrics, log_ratio, entropy, logp_NK), gradient_NK = self.value_and_grad(*inputs)
        return loss, metrics, log_ratio, entropy, logp_NK, gradient_NK
