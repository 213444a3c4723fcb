"""Linear layers and embeddings split over ranks; models are written with them and know nothing of ranks.

Column-parallel layers compute a part of the output features on each rank; row-parallel layers take a part of the input
features, and their results are summed over the ranks; between the two, no activations are exchanged. Parameter names
are Hugging Face's, shapes too ([out, in]), or slices as in `parallel.plans.parameter_layouts`. On a single rank the
graph contains no trace of this.

Legend: M flattened tokens, V vocabulary entries (of this rank), H hidden units, I and O in- and output features.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

from mindgspo.config.lora import LoraSection
from mindgspo.parallel.layers.adapters import AdaptedLinears, adapter
from mindgspo.parallel.layers.model_parallel import leave_model_parallel
from mindgspo.parallel.ops.device import has_kernels
from mindgspo.parallel.ops.kernels import LinearKernel, RowsKernel
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform.parameter_memory import zero_parameter


class ColumnParallelLinear(nn.Cell):
    """x W^T (+ b) with output features split under model_parallel (q, k, v, gate, up).

    The input is equal on all ranks and has passed `enter_model_parallel`, once for all layers that read it. dtype: of
    the computation; master weights stay float32. units: indivisible pieces of the output features (key/value heads),
    see `Placement.share`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        dtype: ms.Type,
        name: str,
        place: Placement,
        units: int | None = None,
        lora: LoraSection | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        own_features = place.share(out_features, units=units)
        self.adapter = adapter(lora, in_features, own_features, dtype=dtype, name=name)
        self.weight = zero_parameter((own_features, in_features), f"{name}.weight")
        self.has_bias = bias
        if bias:
            self.bias = zero_parameter((own_features,), f"{name}.bias")
            self.add = ops.Add()
        self.dtype = dtype
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x_MI: Tensor) -> Tensor:
        out_MO = self.matmul(x_MI, ops.cast(self.weight, self.dtype))
        if self.has_bias:
            out_MO = self.add(out_MO, ops.cast(self.bias, self.dtype))
        return out_MO if self.adapter is None else out_MO + self.adapter(x_MI)


class LinearGroup(nn.Cell):
    """Column-parallel layers that share an input: construct(x_MI, tokens) -> one output per layer; of one layer its
    output alone.

    head_dim: D if the outputs are heads, [M, O / D, D]. is_frozen: whether only adapters are trained.
    """

    def __init__(self, *layers: ColumnParallelLinear, head_dim: int | None = None, is_frozen: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.layers = nn.CellList(list(layers), auto_prefix=False)
        self.has_bias = layers[0].has_bias
        self.head_dim = head_dim
        self.kernel, adapters = None, [layer.adapter for layer in layers]
        if not has_kernels():
            return
        if any(one is not None for one in adapters):
            self.kernel = AdaptedLinears(adapters, has_bias=self.has_bias, head_dim=head_dim)
        else:
            self.kernel = LinearKernel(len(layers), has_bias=self.has_bias, head_dim=head_dim, is_frozen=is_frozen)

    def construct(self, x_MI: Tensor, tokens: Tensor) -> Tensor | tuple[Tensor, ...]:
        if self.kernel is None:
            first, others = self._by_head(self.layers[0](x_MI)), ()
            for i in range(1, len(self.layers)):
                others += (self._by_head(self.layers[i](x_MI)),)
            return (first, *others) if len(self.layers) > 1 else first
        weights = ()
        for i in range(len(self.layers)):
            weights += (self.layers[i].weight,)
            if self.has_bias:
                weights += (self.layers[i].bias,)
        return self.kernel(x_MI, tokens, *weights)

    def _by_head(self, out_MO: Tensor) -> Tensor:
        return out_MO if self.head_dim is None else out_MO.reshape(-1, out_MO.shape[-1] // self.head_dim, self.head_dim)


class RowParallelLinear(nn.Cell):
    """x W^T with input features split under model_parallel (o, down); outputs are summed over the ranks.

    If the sequence is split between layers, each rank keeps its tokens of the sum.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        dtype: ms.Type,
        name: str,
        place: Placement,
        lora: LoraSection | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        own_features = place.share(in_features)
        self.weight = zero_parameter((out_features, own_features), f"{name}.weight")
        self.adapter = adapter(lora, own_features, out_features, dtype=dtype, name=name)
        self.dtype = dtype
        self.matmul = ops.MatMul(transpose_b=True)
        self.leave = leave_model_parallel(place)
        self.kernel = None
        if has_kernels() and self.adapter is not None:
            self.kernel = AdaptedLinears([self.adapter], has_bias=False)
        elif has_kernels():
            self.kernel = LinearKernel(1, has_bias=False, is_frozen=lora is not None)

    def construct(self, x_MI: Tensor, tokens: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return the output [M, O]. tokens: see `TokensInUse`."""
        own, region, _ = tokens
        if self.kernel is not None:
            return self.leave(self.kernel(x_MI, region, self.weight), own)
        out_MO = self.matmul(x_MI, ops.cast(self.weight, self.dtype))
        return self.leave(out_MO if self.adapter is None else out_MO + self.adapter(x_MI), own)


class VocabParallelEmbedding(nn.Cell):
    """Embedding table [V, H], split over V under model_parallel unless the plan says vocab_emb_dp."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: ms.Type, name: str, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        self.is_split = place.model_parallel > 1 and not place.plan.vocab_emb_dp
        rows = place.share(vocab_size) if self.is_split else vocab_size
        self.weight = zero_parameter((rows, hidden_size), f"{name}.weight")
        self.first_row, self.num_rows = place.at.model * rows if self.is_split else 0, rows
        # All ranks of the group read the same rows of a whole table, or each those of its own tokens. If the table is
        # also the output table, its gradients are summed over the ranks, and those of reading must count once.
        self.parts = place.model_parallel if place.plan.use_seq_parallel and not self.is_split else 1
        self.number = place.at.model
        self.is_silent = not self.is_split and self.parts == 1 and place.at.model > 0
        self.dtype = dtype
        self.gather = ops.Gather()
        self.leave = leave_model_parallel(place)
        self.kernel = None
        if has_kernels():
            self.kernel = RowsKernel(ms.float32 if self.is_split else dtype)

    def rows(self, weight: Tensor, ids: Tensor, tokens: Tensor) -> Tensor:
        if self.kernel is not None:
            return self.kernel(ids, weight, tokens)
        return self.gather(weight, ids, 0)

    def construct(self, ids: Tensor, tokens: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return the embeddings [M, H]. tokens: see `TokensInUse`."""
        own, region, _ = tokens
        if self.is_split:
            rows = ids - self.first_row
            is_own = ops.logical_and(rows >= 0, rows < self.num_rows)
            found = self.rows(self.weight, ops.where(is_own, rows, 0), region)
            return ops.cast(self.leave(found * ops.cast(is_own, ms.float32).expand_dims(-1), own), self.dtype)
        weight = ops.stop_gradient(self.weight) if self.is_silent else self.weight
        if self.parts > 1:
            count = ids.shape[0] // self.parts
            ids = ids[self.number * count : (self.number + 1) * count]
        return ops.cast(self.rows(weight, ids, own), self.dtype)
