"""The dense feed-forward block, SwiGLU: of a layer, or of the shared experts of a mixture.

Legend: M flattened tokens, H hidden. `tokens`: what `TokensInUse` returns.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn

from mindgspo.config import ModelSection
from mindgspo.config.model import FAMILIES
from mindgspo.parallel.layers.adapters import share_a
from mindgspo.parallel.layers.linear import ColumnParallelLinear, LinearGroup, RowParallelLinear
from mindgspo.parallel.layers.model_parallel import enter_model_parallel
from mindgspo.parallel.ops.device import SwiGLUOp
from mindgspo.parallel.plans.placement import Placement

Tokens = tuple[Tensor, Tensor, Tensor]


class FeedForward(nn.Cell):
    """down(silu(gate(x)) * up(x)). inner: features of gate and up."""

    def __init__(self, config: ModelSection, inner: int, dtype: ms.Type, name: str, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        hidden = config.hidden_size
        column = {"bias": False, "dtype": dtype, "place": place, "lora": config.lora}
        self.enter = enter_model_parallel(place)
        self.gate_proj = ColumnParallelLinear(hidden, inner, name=f"{name}.gate_proj", **column)
        self.up_proj = ColumnParallelLinear(hidden, inner, name=f"{name}.up_proj", **column)
        if FAMILIES[config.architecture].joins_gate_and_up:
            share_a(f"{name}.gate_up_proj", self.gate_proj.adapter, self.up_proj.adapter)
        self.projections = LinearGroup(self.gate_proj, self.up_proj, is_frozen=config.lora is not None)
        self.down_proj = RowParallelLinear(
            inner, hidden, dtype=dtype, name=f"{name}.down_proj", place=place, lora=config.lora
        )
        self.swiglu = SwiGLUOp()

    def construct(self, x_MH: Tensor, tokens: Tokens) -> Tensor:
        """Return the block's output, to be added to x."""
        own, region, _ = tokens
        gate, up = self.projections(self.enter(x_MH, own), region)
        return self.down_proj(self.swiglu(gate, up, region), tokens)

    def cheap_cells(self) -> tuple[nn.Cell, ...]:
        """Return the cells that `recompute: selective` computes again."""
        return (self.swiglu,)
