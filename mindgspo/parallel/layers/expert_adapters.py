"""Low-rank adapters of experts: A [E, rank, in] and B [E, out, rank] stacked and sliced as the experts' matrices are.

Each slot is multiplied with the matrices of its expert, as by its frozen one; see `adapters` for what a rank holds.

Legend: S slots, E own experts, I and O in- and output features.
"""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
from mindspore import Tensor, nn, ops

from mindgspo.config.lora import LoraSection
from mindgspo.parallel.layers.experts import grouped_matmul
from mindgspo.parallel.ops.device import fork_op
from mindgspo.parallel.ops.kernels import GroupedLinearKernel
from mindgspo.parallel.platform.parameter_memory import zero_parameter


class ExpertAdapter(nn.Cell):
    """The matrices of one projection of all own experts."""

    def __init__(self, shape: tuple[int, int, int], *, lora: LoraSection, name: str) -> None:
        """shape: of the projection's stacked weights, [E, O, I]."""
        super().__init__(auto_prefix=False)
        held, out_features, in_features = shape
        self.lora_A = zero_parameter((held, lora.rank, in_features), f"{name}.lora_A.weight")
        self.lora_B = zero_parameter((held, out_features, lora.rank), f"{name}.lora_B.weight")
        self.scale = lora.scale

    def scaled(self) -> Tensor:
        """scale A: it has fewer elements than the product."""
        return self.lora_A * self.scale


def expert_adapter(lora: LoraSection | None, shape: tuple[int, int, int], name: str) -> ExpertAdapter | None:
    """Return the adapter of the experts' projection `name`, or None if it is no target."""
    if lora is None or name.rpartition(".")[2] not in lora.projections:
        return None
    return ExpertAdapter(shape, lora=lora, name=name)


class ExpertProduct(nn.Cell):
    """construct(x_SI, weight_EOI, groups) -> [S, O]: the product of `grouped_matmul` in `dtype`, with what an adapter
    adds."""

    def __init__(self, dtype: ms.Type, adapter: ExpertAdapter | None) -> None:
        super().__init__(auto_prefix=False)
        self.dtype, self.adapter, self.product = dtype, adapter, grouped_matmul()

    def construct(self, x_SI: Tensor, weight_EOI: Tensor, groups: Tensor) -> Tensor:
        out_SO = self.product(x_SI, ops.cast(weight_EOI, self.dtype), groups)
        if self.adapter is None:
            return out_SO
        low_SR = self.product(x_SI, ops.cast(self.adapter.scaled(), self.dtype), groups)
        return out_SO + self.product(low_SR, ops.cast(self.adapter.lora_B, self.dtype), groups)


class ExpertLinearGroup(nn.Cell):
    """Projections of experts that share an input, by kernels, with what their adapters add: construct(x_SI, ends_E,
    *weights_EOI) -> one [S, O] per projection.

    adapters: of each projection, None for one without. is_frozen: whether the weights get no gradients.
    """

    def __init__(self, adapters: Sequence[ExpertAdapter | None], *, is_frozen: bool) -> None:
        super().__init__(auto_prefix=False)
        self.kernel = GroupedLinearKernel(len(adapters), is_frozen=is_frozen)
        present = [one for one in adapters if one is not None]
        self.numbers = tuple(present.index(one) if one is not None else -1 for one in adapters)
        self.has_adapters = len(present) > 0
        if present:
            self.adapters, self.fork = nn.CellList(present, auto_prefix=False), fork_op()
            self.down, self.up = GroupedLinearKernel(len(present)), GroupedLinearKernel(1)
            self.add = ops.Add()

    def construct(self, x_SI: Tensor, ends_E: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        if not self.has_adapters:
            return self.kernel(x_SI, ends_E, *weights)
        x_SI, again_SI = self.fork(x_SI)
        scaled = ()
        for one in self.adapters:
            scaled += (one.scaled(),)
        outs, lows, sums = self.kernel(x_SI, ends_E, *weights), self.down(again_SI, ends_E, *scaled), ()
        for i in range(len(outs)):
            number = self.numbers[i]
            if number < 0:
                sums += (outs[i],)
            else:
                sums += (self.add(outs[i], self.up(lows[number], ends_E, self.adapters[number].lora_B)[0]),)
        return sums
