"""The layers that know how a model is laid over processes. Models are written with them and never ask.

Column-parallel layers compute a part of the output features on each rank, row-parallel ones take a part of the input
features and the ranks' results are added up; between the two a rank never sees the others' activations. There are two
paths to that, and the `Placement` chooses. Each process holds its slices and calls the collectives itself (spmd: the
CPU cluster, generation everywhere). Or the layers have full shapes and every op a strategy, by which MindSpore's
compiler cuts them and inserts the collectives (logical: training and scoring on Ascend). Parameter names are Hugging
Face's, shapes its ([out, in]) or a slice of that as `parallel.parameter_layouts` says. A rank that is alone compiles
the graph of a model without any of this, on either path.

Legend: M flattened tokens, V vocabulary entries (of this rank), H hidden units, I and O in- and output features.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from mindgspo.parallel.model_parallel_ops import leave_model_parallel
from mindgspo.parallel.parameter_memory import zero_parameter
from mindgspo.parallel.placement import Placement
from mindgspo.parallel.splits import DATA, KEY_VALUE, MODEL, SEQUENCE, WHOLE


class ColumnParallelLinear(nn.Cell):
    """x W^T (+ b) whose output features are split under model_parallel (q, k, v, gate, up).

    Its input is the same on all ranks and has passed `enter_model_parallel`, once for all layers that read it. It
    computes in `dtype`; master weights stay float32.
    units: indivisible pieces of the output features (key/value heads); see `Placement.share`.
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
    ) -> None:
        super().__init__(auto_prefix=False)
        own_features = place.share(out_features, units=units)
        self.weight = zero_parameter((own_features, in_features), f"{name}.weight")
        self.has_bias = bias
        features = MODEL if units is None else KEY_VALUE
        if bias:
            self.bias = zero_parameter((own_features,), f"{name}.bias")
            self.add = place.split(ops.Add(), (DATA, features), (features,))
        self.dtype = dtype
        self.matmul = place.split(ops.MatMul(transpose_b=True), (DATA, WHOLE), (features, WHOLE))

    def construct(self, x_MI: Tensor) -> Tensor:
        out_MO = self.matmul(x_MI, ops.cast(self.weight, self.dtype))
        if self.has_bias:
            out_MO = self.add(out_MO, ops.cast(self.bias, self.dtype))
        return out_MO


class RowParallelLinear(nn.Cell):
    """x W^T whose input features are split under model_parallel (o, down); the ranks' outputs are added up, and where
    the sequence is split between layers each rank keeps its tokens of the sum."""

    def __init__(self, in_features: int, out_features: int, *, dtype: ms.Type, name: str, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        self.weight = zero_parameter((out_features, place.share(in_features)), f"{name}.weight")
        self.dtype = dtype
        self.matmul = place.split(ops.MatMul(transpose_b=True), (DATA, MODEL), (WHOLE, MODEL), output=(SEQUENCE, WHOLE))
        self.leave = leave_model_parallel(place)

    def construct(self, x_MI: Tensor) -> Tensor:
        return self.leave(self.matmul(x_MI, ops.cast(self.weight, self.dtype)))


class VocabParallelEmbedding(nn.Cell):
    """Embedding table [V, H], split over V under model_parallel unless the plan says vocab_emb_dp."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: ms.Type, name: str, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        self.is_split = place.model_parallel > 1 and not place.plan.vocab_emb_dp
        rows = place.share(vocab_size) if self.is_split else vocab_size
        self.weight = zero_parameter((rows, hidden_size), f"{name}.weight")
        self.first_row, self.num_rows = place.at.model * rows if self.is_split else 0, rows
        # A whole table is read alike by all ranks of the group. Where it is the output table too, its gradients are
        # summed over them, and reading must count once.
        self.is_silent = place.model_parallel > 1 and not self.is_split and place.at.model > 0
        self.dtype = dtype
        if place.is_embedding_whole:
            self.gather = place.split(ops.Gather(), (WHOLE, WHOLE), (DATA,))
        else:
            self.gather = place.split(ops.Gather(), (MODEL, WHOLE), (DATA,), output=(SEQUENCE, WHOLE))
        self.leave = leave_model_parallel(place)

    def construct(self, ids: Tensor) -> Tensor:
        if self.is_split:
            rows = ids - self.first_row
            is_own = ops.logical_and(rows >= 0, rows < self.num_rows)
            found = self.gather(self.weight, ops.where(is_own, rows, 0), 0)
            return ops.cast(self.leave(found * ops.cast(is_own, ms.float32).expand_dims(-1)), self.dtype)
        weight = ops.stop_gradient(self.weight) if self.is_silent else self.weight
        return ops.cast(self.gather(weight, ids, 0), self.dtype)


@constexpr
def chunk_tokens(vocab_size: int, chunk_bytes: int) -> int:
    """Tokens whose float32 logits fit `chunk_bytes`, at least one; evaluated while the graph is compiled."""
    return max(1, chunk_bytes // (4 * vocab_size))


class VocabParallelLogProb(nn.Cell):
    """Log-prob of given tokens without ever holding the logits of all tokens.

    construct(hidden_MH, weight_VH, targets_M) -> (logp_M, entropy_M), both float32, under
    softmax(hidden W^T / temperature); here entropy_M is 0, the subclass computes it. Tokens are taken in chunks
    whose [chunk, V] logits fit `chunk_bytes`; the backward pass recomputes a chunk's logits instead of keeping them.
    Chunks are chained, so that the runtime cannot run two of them at once: forward and backward together add less
    than three times `chunk_bytes` to the process.

    With p = softmax(z): d logp_y / dz = onehot(y) - p. The one-hot part never becomes a [chunk, V] matrix: towards
    hidden it is a row of W, towards W a scattered row of hidden.
    """

    def __init__(self, *, temperature: float, chunk_bytes: int = 64 << 20) -> None:
        super().__init__(auto_prefix=False)
        assert temperature > 0, temperature
        self.inverse_temperature = 1.0 / temperature
        self.chunk_bytes = chunk_bytes
        self.logits = ops.MatMul(transpose_b=True)
        self.times_weight = ops.MatMul()
        self.transposed_times = ops.MatMul(transpose_a=True)
        self.log_softmax = ops.LogSoftmax(axis=-1)
        self.gather = ops.Gather()

    def construct(self, hidden_MH: Tensor, weight_VH: Tensor, targets_M: Tensor) -> tuple[Tensor, Tensor]:
        weight = ops.cast(weight_VH, hidden_MH.dtype)
        chunk = chunk_tokens(weight_VH.shape[0], self.chunk_bytes)
        before = targets_M
        logp_parts = ()
        entropy_parts = ()
        for start in range(0, hidden_MH.shape[0], chunk):
            hidden_CH = ops.depend(hidden_MH[start : start + chunk], before)
            log_probs_CV = self.log_softmax(self._scaled_logits(hidden_CH, weight))
            targets_C1 = targets_M[start : start + chunk].reshape(-1, 1)
            logp_C = ops.gather_elements(log_probs_CV, 1, targets_C1).reshape(-1)
            entropy_C = self._entropy(log_probs_CV, logp_C)
            before = ops.depend(logp_C, entropy_C)
            logp_parts += (logp_C,)
            entropy_parts += (entropy_C,)
        return ops.concat(logp_parts, 0), ops.concat(entropy_parts, 0)

    def bprop(self, hidden_MH, weight_VH, targets_M, out, dout):
        # No branches below, variants override methods: one that is never taken inside a loop fails to compile here.
        entropy_M = ops.depend(out[1], out[0])
        dhidden_MH, dweight_VH = self._backward(hidden_MH, weight_VH, targets_M, entropy_M, dout[0], dout[1])
        return dhidden_MH, dweight_VH, ops.zeros_like(targets_M)

    def _backward(
        self,
        hidden_MH: Tensor,
        weight_VH: Tensor,
        targets_M: Tensor,
        entropy_M: Tensor,
        dlogp_M: Tensor,
        dentropy_M: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Gradients of hidden [M, H] and weight [V, H]. In the loop they are summed without sign and temperature."""
        weight = ops.cast(weight_VH, hidden_MH.dtype)
        chunk = chunk_tokens(weight_VH.shape[0], self.chunk_bytes)
        dlogp_M1 = ops.cast(dlogp_M.reshape(-1, 1), hidden_MH.dtype)
        dentropy_M1 = ops.cast(dentropy_M.reshape(-1, 1), hidden_MH.dtype)
        slope_M1 = dlogp_M1 + dentropy_M1 * ops.cast(entropy_M.reshape(-1, 1), hidden_MH.dtype)
        zeros_VH = ops.zeros(weight_VH.shape, ms.float32)
        onehot_MH = ops.cast(-dlogp_M1 * hidden_MH, ms.float32)
        dweight_VH = ops.tensor_scatter_add(zeros_VH, targets_M.reshape(-1, 1), onehot_MH)
        # After the whole forward pass, on which a loss that is linear in its outputs would not depend.
        before = ops.depend(dweight_VH, entropy_M)
        dhidden_parts = ()
        for start in range(0, hidden_MH.shape[0], chunk):
            stop = start + chunk
            hidden_CH = ops.depend(hidden_MH[start:stop], before)
            log_probs_CV = self.log_softmax(self._scaled_logits(hidden_CH, weight))
            dhidden_CH, product_VH = self._chunk_gradients(
                log_probs_CV, weight, hidden_CH, slope_M1[start:stop], dentropy_M1[start:stop]
            )
            dhidden_parts += (dhidden_CH,)
            dweight_VH = dweight_VH + product_VH
            before = ops.depend(dhidden_CH, dweight_VH)
        dhidden_MH = dlogp_M1 * self.gather(weight, targets_M, 0) - ops.concat(dhidden_parts, 0)
        return dhidden_MH * self.inverse_temperature, dweight_VH * -self.inverse_temperature

    def _chunk_gradients(
        self, log_probs_CV: Tensor, weight: Tensor, hidden_CH: Tensor, slope_C1: Tensor, dentropy_C1: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self._through_logits(ops.exp(log_probs_CV), weight, hidden_CH, slope_C1)

    def _through_logits(
        self, matrix_CV: Tensor, weight: Tensor, hidden_CH: Tensor, slope_C1: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A gradient slope * matrix of the logits, taken on to hidden [C, H] and to weight [V, H].

        The slope multiplies the [C, H] side of each product. On [C, V] it would cost another chunk, and a broadcast
        product of that size makes the CPU runtime keep the buffers of every chunk to the end.
        """
        matrix_CV = ops.cast(matrix_CV, hidden_CH.dtype)
        dhidden_CH = self.times_weight(matrix_CV, weight) * slope_C1
        return dhidden_CH, ops.cast(self.transposed_times(matrix_CV, hidden_CH * slope_C1), ms.float32)

    def _scaled_logits(self, hidden_CH: Tensor, weight: Tensor) -> Tensor:
        # The temperature, too, multiplies the [C, H] side: on [C, V] it would cost another chunk.
        return ops.cast(self.logits(hidden_CH * self.inverse_temperature, weight), ms.float32)

    def _entropy(self, log_probs_CV: Tensor, logp_C: Tensor) -> Tensor:
        return logp_C * 0.0


class VocabParallelLogProbEntropy(VocabParallelLogProb):
    """Log-prob and entropy e of the whole distribution per token: d e / dz = -p (log p + e).

    It keeps twice as many [chunk, V] matrices alive, so its chunks are half as long for the same `chunk_bytes`.
    """

    def __init__(self, *, temperature: float, chunk_bytes: int = 64 << 20) -> None:
        super().__init__(temperature=temperature, chunk_bytes=chunk_bytes // 2)

    def _chunk_gradients(
        self, log_probs_CV: Tensor, weight: Tensor, hidden_CH: Tensor, slope_C1: Tensor, dentropy_C1: Tensor
    ) -> tuple[Tensor, Tensor]:
        probs_CV = ops.exp(log_probs_CV)
        dhidden_CH, product_VH = self._through_logits(probs_CV, weight, hidden_CH, slope_C1)
        more_CH, more_VH = self._through_logits(probs_CV * log_probs_CV, weight, hidden_CH, dentropy_C1)
        return dhidden_CH + more_CH, product_VH + more_VH

    def _entropy(self, log_probs_CV: Tensor, logp_C: Tensor) -> Tensor:
        return -(ops.exp(log_probs_CV) * log_probs_CV).sum(-1)
