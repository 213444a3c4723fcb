"""Low-rank adapters (LoRA, arXiv 2106.09685) of linear layers: scale (x A^T) B^T, added to the frozen layer's output.

A [rank, in] and B [out, rank] are sliced as their layer is, so that no further collective is needed. A column-parallel
layer has its rows of B and all of A: each rank finds the part of A's gradient that comes through its own rows, and the
optimizer sums these parts over the ranks. A row-parallel layer has its columns of A and all of B: a rank's product is
its part of the sum that the layer forms anyway, and its gradient of B that of its own part.

Legend: M flattened tokens, I and O in- and output features.
"""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.config.lora import LoraSection
from mindgspo.parallel.ops.kernels import AdaptedLinearKernel
from mindgspo.parallel.platform.parameter_memory import zero_parameter


class Adapter(nn.Cell):
    """The adapter of one layer: construct(x_MI) -> [M, O], composed of matrix products."""

    def __init__(self, in_features: int, out_features: int, *, scale: float, rank: int, dtype: ms.Type, name: str):
        super().__init__(auto_prefix=False)
        self.lora_A = zero_parameter((rank, in_features), f"{name}.lora_A.weight")
        self.lora_B = zero_parameter((out_features, rank), f"{name}.lora_B.weight")
        self.scale, self.dtype = scale, dtype
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x_MI: Tensor) -> Tensor:
        low_MR = self.matmul(x_MI, ops.cast(self.scaled(), self.dtype))
        return self.matmul(low_MR, ops.cast(self.lora_B, self.dtype))

    def scaled(self) -> Tensor:
        """scale A: it has fewer elements than the product."""
        return self.lora_A * self.scale


def adapter(
    lora: LoraSection | None, in_features: int, out_features: int, *, dtype: ms.Type, name: str
) -> Adapter | None:
    """Return the adapter of the layer `name`, or None if it is no target. Features: of this rank's slice."""
    if lora is None or name.rpartition(".")[2] not in lora.projections:
        return None
    return Adapter(in_features, out_features, scale=lora.scale, rank=lora.rank, dtype=dtype, name=name)


def share_a(name: str, *adapters: Adapter | None) -> None:
    """Give the adapters of layers that are one matrix `name` in files the A that they have there."""
    present = [one for one in adapters if one is not None]
    if present:
        shared = zero_parameter(tuple(present[0].lora_A.shape), f"{name}.lora_A.weight")
        for one in present:
            one.lora_A = shared


class AdaptedLinears(nn.Cell):
    """Layers that share an input, with their adapters, as one kernel: construct(x_MI, tokens, weight_OI, [bias_O,] ...)
    -> their outputs.

    adapters: of each layer, None for one without. head_dim: as of `LinearKernel`.
    """

    def __init__(self, adapters: Sequence[Adapter | None], *, has_bias: bool, head_dim: int | None = None) -> None:
        super().__init__(auto_prefix=False)
        present = [one for one in adapters if one is not None]
        self.adapters = nn.CellList(present, auto_prefix=False)
        self.numbers = tuple(-1 if one is None else present.index(one) for one in adapters)
        self.step = 2 if has_bias else 1
        are_adapted = [one is not None for one in adapters]
        self.kernel = AdaptedLinearKernel(are_adapted, scale=present[0].scale, has_bias=has_bias, head_dim=head_dim)
        self.nothing = Tensor(np.zeros((1, 1), np.float32))

    def construct(self, x_MI: Tensor, tokens: Tensor, *weights: Tensor) -> Tensor | tuple[Tensor, ...]:
        layers = ()
        for i in range(len(self.numbers)):
            number = self.numbers[i]
            layers += weights[i * self.step : (i + 1) * self.step]
            if number < 0:
                layers += (self.nothing, self.nothing)
            else:
                layers += (self.adapters[number].lora_A, self.adapters[number].lora_B)
        return self.kernel(x_MI, tokens, *layers)
