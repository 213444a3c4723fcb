"""Log-prob heads: log-probs of given tokens, and entropies, without ever holding the logits of all tokens.

    ChunkedLogProb         the whole output table, chunk by chunk
    VocabParallelLogProb   ranks hold rows of the table (tensor parallelism)

`log_prob_head` chooses.

Over ranks: a rank takes softmax over its own columns: log-probs l, and Z, the logarithm of its sum of exponentials.
From the others' Z (one number per token and rank) it gets the shift d = Z - log(sum of all ranks' exp Z), so that l + d
are the log-probs over the whole vocabulary, and exp(d) is its own share of the probability. Matrices [C, V] are never
multiplied by the shift: the [C, H] side of each product is.

Legend: M tokens, C tokens of one chunk, V vocabulary entries (of this rank), H hidden units, K ranks of the group.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from mindgspo.config import ModelSection
from mindgspo.parallel.collectives.graph import all_reduce
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform.runtime import current_device

# Graphs contain every chunk: if memory allows, few large chunks compile faster.
CHUNK_BYTES = {"CPU": 64 << 20, "Ascend": 512 << 20}

_NEVER = -1e30  # a logit whose probability is 0, and times which 0 is 0


def padding_mask(rows: int, vocab_size: int, first: int, count: int) -> Tensor | None:
    """Mask to add to the logits of a table's rows from `first` on, float32 [count], so that ids from `vocab_size` on
    have none; None if the table has no further rows."""
    if rows == vocab_size:
        return None
    return Tensor(np.where(np.arange(first, first + count) < vocab_size, 0.0, _NEVER).astype(np.float32))


@constexpr
def chunk_tokens(vocab_size: int, chunk_bytes: int) -> int:
    """Tokens whose float32 logits fit `chunk_bytes`, at least one; evaluated while the graph is compiled."""
    return max(1, chunk_bytes // (4 * vocab_size))


def own_rows(ids: Tensor, index: int, num_rows: int) -> tuple[Tensor, Tensor]:
    """Rows of the ids in part number `index` of the table, 0 if another rank has them; and 1.0 for own ids, else 0."""
    rows = ids - index * num_rows
    is_own = ops.logical_and(rows >= 0, rows < num_rows)
    return ops.where(is_own, rows, 0), ops.cast(is_own, ms.float32)


class NoTableGradient(nn.Cell):
    """Stands for an operator of the table's gradient where nobody reads that: construct(*inputs) -> 0, [1, 1]."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.zero = Tensor(np.zeros((1, 1), np.float32))

    def construct(self, *inputs: object) -> Tensor:
        return self.zero


class TableGradient(nn.Cell):
    """construct(weight_VH, dweight_VH) -> the gradient of the table that the head returns; zeros where it is
    frozen, which are never made."""

    def __init__(self, *, is_frozen: bool) -> None:
        super().__init__(auto_prefix=False)
        self.is_frozen = is_frozen

    def construct(self, weight_VH: Tensor, dweight_VH: Tensor) -> Tensor:
        return ops.zeros_like(weight_VH) if self.is_frozen else dweight_VH


class ChunkedLogProb(nn.Cell):
    """Log-prob of given tokens without ever holding the logits of all tokens.

    construct(hidden_MH, weight_VH, targets_M) -> (logp_M, entropy_M), both float32, under
    softmax(hidden W^T / temperature); here entropy_M is 0, the subclass computes it. Tokens are taken in chunks
    whose [chunk, V] logits fit `chunk_bytes`; the backward pass recomputes a chunk's logits instead of keeping them.
    Chunks are chained, so that the runtime cannot run two of them at once: forward and backward together add less
    than three times `chunk_bytes` to the process.

    With p = softmax(z): d logp_y / dz = onehot(y) - p. The one-hot part never becomes a [chunk, V] matrix: towards
    hidden it is a row of W, towards W a scattered row of hidden.
    """

    def __init__(self, *, temperature: float, chunk_bytes: int = 64 << 20, mask_V: Tensor | None = None) -> None:
        super().__init__(auto_prefix=False)
        assert temperature > 0, temperature
        self.inverse_temperature = 1.0 / temperature
        self.chunk_bytes = chunk_bytes
        self.mask_V = mask_V
        self.logits = ops.MatMul(transpose_b=True)
        self.times_weight = ops.MatMul()
        self.transposed_times = ops.MatMul(transpose_a=True)
        self.log_softmax = ops.LogSoftmax(axis=-1)
        self.gather = ops.Gather()
        # Needs no zeros to add to, which would be compiled in as a constant of the table's size, kept as long as the
        # graph.
        self.sum_by_row = ops.UnsortedSegmentSum()
        self.table_gradient = TableGradient(is_frozen=False)

    def freeze_table(self) -> None:
        """Leave out the products for the table's gradient."""
        self.sum_by_row = self.transposed_times = NoTableGradient()
        self.table_gradient = TableGradient(is_frozen=True)

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
        # No branches below; variants override methods, because a branch inside a loop that is never taken fails to
        # compile here.
        entropy_M = ops.depend(out[1], out[0])
        dhidden_MH, dweight_VH = self._backward(hidden_MH, weight_VH, targets_M, entropy_M, dout[0], dout[1])
        return dhidden_MH, self.table_gradient(weight_VH, dweight_VH), ops.zeros_like(targets_M)

    def _backward(
        self,
        hidden_MH: Tensor,
        weight_VH: Tensor,
        targets_M: Tensor,
        entropy_M: Tensor,
        dlogp_M: Tensor,
        dentropy_M: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Gradients of hidden [M, H] and weight [V, H]. The loop sums them without sign and temperature."""
        weight = ops.cast(weight_VH, hidden_MH.dtype)
        chunk = chunk_tokens(weight_VH.shape[0], self.chunk_bytes)
        dlogp_M1 = ops.cast(dlogp_M.reshape(-1, 1), hidden_MH.dtype)
        dentropy_M1 = ops.cast(dentropy_M.reshape(-1, 1), hidden_MH.dtype)
        slope_M1 = dlogp_M1 + dentropy_M1 * ops.cast(entropy_M.reshape(-1, 1), hidden_MH.dtype)
        onehot_MH = ops.cast(-dlogp_M1 * hidden_MH, ms.float32)
        dweight_VH = self.sum_by_row(onehot_MH, targets_M, weight_VH.shape[0])
        # Ordered after the whole forward pass, which the gradient of a loss linear in its outputs would not depend on.
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
        """Propagate a gradient slope * matrix of the logits to hidden [C, H] and to weight [V, H].

        The slope multiplies the [C, H] side of each product. On [C, V] it would cost another chunk, and a broadcast
        product of that size makes the CPU runtime keep the buffers of every chunk to the end.
        """
        matrix_CV = ops.cast(matrix_CV, hidden_CH.dtype)
        dhidden_CH = self.times_weight(matrix_CV, weight) * slope_C1
        return dhidden_CH, ops.cast(self.transposed_times(matrix_CV, hidden_CH * slope_C1), ms.float32)

    def _scaled_logits(self, hidden_CH: Tensor, weight: Tensor) -> Tensor:
        # The temperature, too, multiplies the [C, H] side: on [C, V] it would cost another chunk.
        logits_CV = ops.cast(self.logits(hidden_CH * self.inverse_temperature, weight), ms.float32)
        return logits_CV if self.mask_V is None else logits_CV + self.mask_V

    def _entropy(self, log_probs_CV: Tensor, logp_C: Tensor) -> Tensor:
        return logp_C * 0.0


class ChunkedLogProbEntropy(ChunkedLogProb):
    """Log-prob and entropy e of the whole distribution per token: d e / dz = -p (log p + e).

    It keeps twice as many [chunk, V] matrices alive, so its chunks are half as long for the same `chunk_bytes`.
    """

    def __init__(self, *, temperature: float, chunk_bytes: int = 64 << 20, mask_V: Tensor | None = None) -> None:
        super().__init__(temperature=temperature, chunk_bytes=chunk_bytes // 2, mask_V=mask_V)

    def _chunk_gradients(
        self, log_probs_CV: Tensor, weight: Tensor, hidden_CH: Tensor, slope_C1: Tensor, dentropy_C1: Tensor
    ) -> tuple[Tensor, Tensor]:
        probs_CV = ops.exp(log_probs_CV)
        dhidden_CH, product_VH = self._through_logits(probs_CV, weight, hidden_CH, slope_C1)
        more_CH, more_VH = self._through_logits(probs_CV * log_probs_CV, weight, hidden_CH, dentropy_C1)
        return dhidden_CH + more_CH, product_VH + more_VH

    def _entropy(self, log_probs_CV: Tensor, logp_C: Tensor) -> Tensor:
        return -(ops.exp(log_probs_CV) * log_probs_CV).sum(-1)


class VocabParallelLogProb(ChunkedLogProb):
    """Score with this rank's rows of the table; entropy_M is 0."""

    def __init__(
        self, place: Placement, *, temperature: float, chunk_bytes: int = 64 << 20, mask_V: Tensor | None = None
    ) -> None:
        super().__init__(temperature=temperature, chunk_bytes=chunk_bytes, mask_V=mask_V)
        self.sum = all_reduce(place.model_ranks)
        self.softmax = ops.Softmax(axis=-1)
        self.index = place.at.model
        own = np.zeros((1, place.model_parallel), np.float32)
        own[0, place.at.model] = 1.0
        self.own_1K = Tensor(own)

    def construct(self, hidden_MH: Tensor, weight_VH: Tensor, targets_M: Tensor) -> tuple[Tensor, Tensor]:
        weight = ops.cast(weight_VH, hidden_MH.dtype)
        chunk = chunk_tokens(weight_VH.shape[0], self.chunk_bytes)
        rows_M, is_own_M = own_rows(targets_M, self.index, weight_VH.shape[0])
        before = targets_M
        logp_parts = ()
        entropy_parts = ()
        for start in range(0, hidden_MH.shape[0], chunk):
            stop = start + chunk
            hidden_CH = ops.depend(hidden_MH[start:stop], before)
            log_probs_CV, shift_C, share_C = self._shifted(self._scaled_logits(hidden_CH, weight))
            found_C = ops.gather_elements(log_probs_CV, 1, rows_M[start:stop].reshape(-1, 1)).reshape(-1)
            logp_C = self.sum((found_C + shift_C) * is_own_M[start:stop])
            entropy_C = self._entropy_over_ranks(log_probs_CV, shift_C, share_C, logp_C)
            before = ops.depend(logp_C, entropy_C)
            logp_parts += (logp_C,)
            entropy_parts += (entropy_C,)
        return ops.concat(logp_parts, 0), ops.concat(entropy_parts, 0)

    def _backward(
        self,
        hidden_MH: Tensor,
        weight_VH: Tensor,
        targets_M: Tensor,
        entropy_M: Tensor,
        dlogp_M: Tensor,
        dentropy_M: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """This rank's part of hidden's gradient (`enter_model_parallel` sums the parts), and its rows of weight's
        gradient."""
        weight = ops.cast(weight_VH, hidden_MH.dtype)
        chunk = chunk_tokens(weight_VH.shape[0], self.chunk_bytes)
        rows_M, is_own_M = own_rows(targets_M, self.index, weight_VH.shape[0])
        dlogp_M1 = dlogp_M.reshape(-1, 1)
        dentropy_M1 = dentropy_M.reshape(-1, 1)
        slope_M1 = dlogp_M1 + dentropy_M1 * entropy_M.reshape(-1, 1)
        own_slope_M1 = ops.cast(dlogp_M1 * is_own_M.reshape(-1, 1), hidden_MH.dtype)
        onehot_MH = ops.cast(-own_slope_M1 * hidden_MH, ms.float32)
        dweight_VH = self.sum_by_row(onehot_MH, rows_M, weight_VH.shape[0])
        before = ops.depend(dweight_VH, entropy_M)
        dhidden_parts = ()
        for start in range(0, hidden_MH.shape[0], chunk):
            stop = start + chunk
            hidden_CH = ops.depend(hidden_MH[start:stop], before)
            log_probs_CV, shift_C, share_C = self._shifted(self._scaled_logits(hidden_CH, weight))
            shift_C1 = shift_C.reshape(-1, 1)
            share_C1 = share_C.reshape(-1, 1)
            own_dentropy_C1 = share_C1 * dentropy_M1[start:stop]
            dhidden_CH, product_VH = self._chunk_gradients(
                log_probs_CV,
                weight,
                hidden_CH,
                ops.cast(share_C1 * slope_M1[start:stop] + own_dentropy_C1 * shift_C1, hidden_MH.dtype),
                ops.cast(own_dentropy_C1, hidden_MH.dtype),
            )
            dhidden_parts += (dhidden_CH,)
            dweight_VH = dweight_VH + product_VH
            before = ops.depend(dhidden_CH, dweight_VH)
        dhidden_MH = own_slope_M1 * self.gather(weight, rows_M, 0) - ops.concat(dhidden_parts, 0)
        return dhidden_MH * self.inverse_temperature, dweight_VH * -self.inverse_temperature

    def _shifted(self, logits_CV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs over the own columns, the shift to add to them [C], and this rank's share of the probability
        [C]."""
        log_probs_CV = self.log_softmax(logits_CV)
        # At the largest column the difference is the logarithm of the sum, without another [C, V] matrix.
        own_C1 = (logits_CV.max(axis=-1) - log_probs_CV.max(axis=-1)).reshape(-1, 1)
        all_CK = self.sum(own_C1 * self.own_1K)
        # With the kernels, as for the columns: `exp` alone is off by 4e-6 on CPU.
        shift_C = (self.log_softmax(all_CK) * self.own_1K).sum(axis=-1)
        return log_probs_CV, shift_C, (self.softmax(all_CK) * self.own_1K).sum(axis=-1)

    def _entropy_over_ranks(self, log_probs_CV: Tensor, shift_C: Tensor, share_C: Tensor, logp_C: Tensor) -> Tensor:
        return logp_C * 0.0


class VocabParallelLogProbEntropy(VocabParallelLogProb):
    """Also computes the entropy of the whole distribution: the sum over ranks of share * (own entropy - shift)."""

    def __init__(
        self, place: Placement, *, temperature: float, chunk_bytes: int = 64 << 20, mask_V: Tensor | None = None
    ) -> None:
        super().__init__(place, temperature=temperature, chunk_bytes=chunk_bytes // 2, mask_V=mask_V)

    def _chunk_gradients(
        self, log_probs_CV: Tensor, weight: Tensor, hidden_CH: Tensor, slope_C1: Tensor, dentropy_C1: Tensor
    ) -> tuple[Tensor, Tensor]:
        probs_CV = ops.exp(log_probs_CV)
        dhidden_CH, product_VH = self._through_logits(probs_CV, weight, hidden_CH, slope_C1)
        more_CH, more_VH = self._through_logits(probs_CV * log_probs_CV, weight, hidden_CH, dentropy_C1)
        return dhidden_CH + more_CH, product_VH + more_VH

    def _entropy_over_ranks(self, log_probs_CV: Tensor, shift_C: Tensor, share_C: Tensor, logp_C: Tensor) -> Tensor:
        own_C = -(ops.exp(log_probs_CV) * log_probs_CV).sum(-1)
        # After the log-probs' sum: two independent sums might run in different orders on different ranks.
        return self.sum(ops.depend(share_C * (own_C - shift_C), logp_C))


def log_prob_head(model: ModelSection, place: Placement, *, temperature: float, with_entropy: bool) -> nn.Cell:
    """The head of a rank: (hidden_MH, weight_VH, targets_M) -> (logp_M, entropy_M); see `ChunkedLogProb`."""
    own = place.share(model.rows)
    mask_V = padding_mask(model.rows, model.vocab_size, place.at.model * own, own)
    form = {"temperature": temperature, "mask_V": mask_V}
    form["chunk_bytes"] = CHUNK_BYTES[current_device()]
    if place.model_parallel == 1:
        head = (ChunkedLogProbEntropy if with_entropy else ChunkedLogProb)(**form)
    else:
        head = (VocabParallelLogProbEntropy if with_entropy else VocabParallelLogProb)(place, **form)
    if model.lora is not None:
        head.freeze_table()
    return head
