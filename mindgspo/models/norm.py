"""The norm of hidden states, of heads and of latents, with its weight."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

from mindgspo.parallel.ops.device import RMSNormOp
from mindgspo.parallel.platform.parameter_memory import zero_parameter


class RMSNorm(nn.Cell):
    """Root-mean-square norm over the last axis, with a learned scale."""

    def __init__(self, size: int, eps: float, dtype: ms.Type, name: str) -> None:
        super().__init__(auto_prefix=False)
        self.weight = zero_parameter((size,), f"{name}.weight")
        self.norm = RMSNormOp(eps)
        self.has_kernel = self.norm.kernel is not None
        self.dtype = dtype
        self.is_again = False
        """Whether it is computed again for gradients. MindSpore lets the weight wait for a gradient then; and of equal
        types it makes one operator of a norm and the sum that it reads, so that the first pass would wait with it."""

    def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.norm(x, self._scale(), tokens)

    def of_sum(self, x: Tensor, delta: Tensor | None, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return norm(x + delta) and x + delta; norm(x) and x without a delta."""
        return self.norm.of_sum(x, delta, self._scale(), tokens)

    def _scale(self) -> Tensor:
        """Kernels round the weight themselves, and its gradient stays float32."""
        if self.has_kernel:
            return self.weight
        rounded = ops.cast(self.weight, self.dtype)
        return ops.cast(rounded, ms.float32) if self.is_again else rounded
