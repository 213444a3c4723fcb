"""Log-prob heads: log-probs of given tokens, and entropies, without ever holding the logits of all tokens.

    ChunkedLogProb         the whole output table in one process, chunk by chunk
    VocabParallelLogProb   a CPU cluster whose ranks hold rows of the table (tensor parallelism, called by hand)
    AutoParallelLogProb    a graph that MindSpore's compiler divides over data and vocabulary

`log_prob_head` chooses.

Over ranks: a rank takes softmax over its own columns: log-probs l, and Z, the logarithm of its sum of exponentials.
With the others' Z (one number per token and rank) it knows the shift d = Z - log(sum of all ranks' exp Z), so that l +
d are the log-probs over the whole vocabulary, and exp(d) is its own share of the probability. Matrices [C, V] are never
multiplied by the shift: the [C, H] side of each product is.

The head that the compiler divides is composed of ops that can be cut along the vocabulary (softmax kernels are not
among them), with derivatives of their own: the compiler does not look into a hand-written backward pass. Its chunks'
logits are computed again in the backward pass. MindSpore's order of execution is breadth first and would compute the
logits of all chunks before it is done with the first, so chunks are chained in both passes.

Legend: M tokens, D parts into which ranks split them, C tokens of one chunk (and part), V vocabulary entries (of this
rank), H hidden units, K ranks of the group.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from mindgspo.config import ModelSection
from mindgspo.parallel.collective_ops import all_reduce
from mindgspo.parallel.placement import AutoParallelPlacement, Placement
from mindgspo.parallel.ranks import DATA, MODEL, WHOLE

_TOKENS = (DATA, WHOLE)
_LOGITS = (DATA, MODEL)


_NEVER = -1e30  # a logit whose probability is 0, and times which 0 is 0


def _padding_mask(model: ModelSection, first: int, count: int) -> Tensor | None:
    """What is added to the logits of rows of a table from `first` on, float32 [count]; None without padding."""
    if model.rows == model.vocab_size:
        return None
    return Tensor(np.where(np.arange(first, first + count) < model.vocab_size, 0.0, _NEVER).astype(np.float32))


@constexpr
def chunk_tokens(vocab_size: int, chunk_bytes: int) -> int:
    """Tokens whose float32 logits fit `chunk_bytes`, at least one; evaluated while the graph is compiled."""
    return max(1, chunk_bytes // (4 * vocab_size))


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
        self.is_padded, self.mask_V = mask_V is not None, mask_V
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
        logits_CV = ops.cast(self.logits(hidden_CH * self.inverse_temperature, weight), ms.float32)
        return logits_CV + self.mask_V if self.is_padded else logits_CV

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
    """As its parent, with the rank's rows of the table; entropy_M is 0."""

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
        rows_M, is_own_M = self._own_targets(targets_M, weight_VH.shape[0])
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
        """This rank's part of hidden's gradient (`enter_model_parallel` adds the parts up), and its rows of
        weight's."""
        weight = ops.cast(weight_VH, hidden_MH.dtype)
        chunk = chunk_tokens(weight_VH.shape[0], self.chunk_bytes)
        rows_M, is_own_M = self._own_targets(targets_M, weight_VH.shape[0])
        dlogp_M1 = dlogp_M.reshape(-1, 1)
        dentropy_M1 = dentropy_M.reshape(-1, 1)
        slope_M1 = dlogp_M1 + dentropy_M1 * entropy_M.reshape(-1, 1)
        own_slope_M1 = ops.cast(dlogp_M1 * is_own_M.reshape(-1, 1), hidden_MH.dtype)
        zeros_VH = ops.zeros(weight_VH.shape, ms.float32)
        onehot_MH = ops.cast(-own_slope_M1 * hidden_MH, ms.float32)
        dweight_VH = ops.tensor_scatter_add(zeros_VH, rows_M.reshape(-1, 1), onehot_MH)
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

    def _own_targets(self, targets_M: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        """Rows of the targets in this rank's part of the table, 0 where they are another's; 1.0 where they are ours."""
        rows_M = targets_M - self.index * num_rows
        is_own_M = ops.logical_and(rows_M >= 0, rows_M < num_rows)
        return ops.where(is_own_M, rows_M, 0), ops.cast(is_own_M, ms.float32)

    def _shifted(self, logits_CV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs over the own columns, what to add to them [C], and the share of the probability that is own [C]."""
        log_probs_CV = self.log_softmax(logits_CV)
        # At the largest column the difference is the logarithm of the sum, without another [C, V] matrix.
        own_C1 = (logits_CV.max(axis=-1) - log_probs_CV.max(axis=-1)).reshape(-1, 1)
        all_CK = self.sum(own_C1 * self.own_1K)
        # By the kernels, as for the columns: `exp` alone is off by 4e-6 on CPU.
        shift_C = (self.log_softmax(all_CK) * self.own_1K).sum(axis=-1)
        return log_probs_CV, shift_C, (self.softmax(all_CK) * self.own_1K).sum(axis=-1)

    def _entropy_over_ranks(self, log_probs_CV: Tensor, shift_C: Tensor, share_C: Tensor, logp_C: Tensor) -> Tensor:
        return logp_C * 0.0


class VocabParallelLogProbEntropy(VocabParallelLogProb):
    """With the entropy of the whole distribution: sum over ranks of share * (own entropy - shift)."""

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
        # Behind the log-probs' sum: two sums that do not wait for each other might cross between ranks.
        return self.sum(ops.depend(share_C * (own_C - shift_C), logp_C))


class AutoParallelLogProb(nn.Cell):
    """construct(hidden_MH, weight_VH, targets_M) -> (logp_M, entropy_M), float32, under
    softmax(hidden W^T / temperature); a part's tokens are consecutive. Without `with_entropy` entropy_M is no
    entropy. chunk_bytes: of one rank's logits of a chunk; larger than elsewhere, since the graph holds every chunk."""

    def __init__(
        self,
        place: Placement,
        *,
        temperature: float,
        with_entropy: bool,
        chunk_bytes: int = 512 << 20,
        mask_V: Tensor | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        assert temperature > 0, temperature
        self.num_parts = place.parts(DATA)
        self.vocabulary_parts = place.parts(MODEL)
        self.chunk_bytes = chunk_bytes
        self.chunk = ChunkLogProb(place, temperature=temperature, with_entropy=with_entropy, mask_V=mask_V)
        self.chunk.recompute()
        self.hidden_in_turn = place.split_function(in_turn, (DATA, WHOLE, WHOLE), _TOKENS, gradient=in_turn_gradient)
        self.weight_in_turn = place.split_function(in_turn, (MODEL, WHOLE), _TOKENS, gradient=in_turn_gradient)
        self.take_hidden = place.split(ops.StridedSlice(), (DATA, WHOLE, WHOLE))
        self.take_targets = place.split(ops.StridedSlice(), (DATA, WHOLE))
        self.join = place.split(ops.Concat(axis=1), _TOKENS, _TOKENS)

    def construct(self, hidden_MH: Tensor, weight_VH: Tensor, targets_M: Tensor) -> tuple[Tensor, Tensor]:
        parts, hidden_size = self.num_parts, hidden_MH.shape[1]
        own = hidden_MH.shape[0] // parts
        chunk = chunk_tokens(weight_VH.shape[0] // self.vocabulary_parts, self.chunk_bytes)
        hidden_DMH = hidden_MH.reshape(parts, own, hidden_size)
        targets_DM = targets_M.reshape(parts, own)
        logp_DM, entropy_DM, done = None, None, targets_DM
        for start in range(0, own, chunk):
            stop = min(start + chunk, own)
            # Also before the first: the compiler sums each use of a parameter over the parts by itself.
            hidden_DMH = self.hidden_in_turn(hidden_DMH, done)
            weight_VH = self.weight_in_turn(weight_VH, done)
            hidden_DCH = self.take_hidden(hidden_DMH, (0, start, 0), (parts, stop, hidden_size), (1, 1, 1))
            targets_DC = self.take_targets(targets_DM, (0, start), (parts, stop), (1, 1))
            logp, entropy = self.chunk(hidden_DCH.reshape(-1, hidden_size), weight_VH, targets_DC.reshape(-1, 1))
            logp, entropy = logp.reshape(parts, -1), entropy.reshape(parts, -1)
            # A strategy names every input, and how many chunks there are is known here alone: one by one.
            logp_DM = logp if logp_DM is None else self.join((logp_DM, logp))
            entropy_DM = entropy if entropy_DM is None else self.join((entropy_DM, entropy))
            done = logp_DM
        return logp_DM.reshape(-1), entropy_DM.reshape(-1)


def in_turn(x: Tensor, done: Tensor) -> Tensor:
    """x, when `done` has been computed."""
    return ops.depend(x, done)


def in_turn_gradient(x: Tensor, done: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    """Of x, and zeros for `done` when that of x has been computed: the backward pass of what made `done` waits."""
    return dout, ops.depend(ops.zeros_like(done), dout)


class ChunkLogProb(nn.Cell):
    """Log-prob of the target and entropy of one chunk, each float32 [C, 1]."""

    def __init__(
        self, place: Placement, *, temperature: float, with_entropy: bool, mask_V: Tensor | None = None
    ) -> None:
        super().__init__(auto_prefix=False)
        self.inverse_temperature = 1.0 / temperature
        self.with_entropy = with_entropy
        self.is_padded, self.mask_V = mask_V is not None, mask_V
        self.mask = place.split(ops.Add(), _LOGITS, (MODEL,))
        self.scale = place.split(ops.Mul(), _TOKENS, ())
        self.matmul = place.split(ops.MatMul(transpose_b=True), _TOKENS, (MODEL, WHOLE))
        self.widen = place.split(ops.Cast(), _LOGITS)
        self.highest = place.split(ops.ReduceMax(keep_dims=True), _LOGITS)
        self.shift = place.split(ops.Sub(), _LOGITS, _TOKENS)
        self.exp = place.split(ops.Exp(), _LOGITS)
        self.sum = place.split(ops.ReduceSum(keep_dims=True), _LOGITS)
        self.log = place.split(ops.Log(), _TOKENS)
        self.take = place.split(ops.GatherD(), _LOGITS, _TOKENS)
        self.minus = place.split(ops.Sub(), _TOKENS, _TOKENS)
        self.times = place.split(ops.Mul(), _LOGITS, _LOGITS)
        self.over = place.split(ops.RealDiv(), _TOKENS, _TOKENS)

    def construct(self, hidden_CH: Tensor, weight_VH: Tensor, targets_C1: Tensor) -> tuple[Tensor, Tensor]:
        logits_CV = self.matmul(self.scale(hidden_CH, self.inverse_temperature), ops.cast(weight_VH, hidden_CH.dtype))
        logits_CV = self.widen(logits_CV, ms.float32)
        if self.is_padded:
            logits_CV = self.mask(logits_CV, self.mask_V)
        shifted_CV = self.shift(logits_CV, ops.stop_gradient(self.highest(logits_CV, -1)))
        exp_CV = self.exp(shifted_CV)
        total_C1 = self.sum(exp_CV, -1)
        log_total_C1 = self.log(total_C1)
        logp_C1 = self.minus(self.take(shifted_CV, 1, targets_C1), log_total_C1)
        if not self.with_entropy:
            unmoved_C1 = ops.stop_gradient(log_total_C1)
            return logp_C1, self.minus(unmoved_C1, unmoved_C1)
        mean_C1 = self.over(self.sum(self.times(exp_CV, shifted_CV), -1), total_C1)
        return logp_C1, self.minus(log_total_C1, mean_C1)


def log_prob_head(model: ModelSection, place: Placement, *, temperature: float, with_entropy: bool) -> nn.Cell:
    """The head of a rank: (hidden_MH, weight_VH, targets_M) -> (logp_M, entropy_M); see `ChunkedLogProb`."""
    if isinstance(place, AutoParallelPlacement):
        mask_V = _padding_mask(model, 0, model.rows)
        return AutoParallelLogProb(place, temperature=temperature, with_entropy=with_entropy, mask_V=mask_V)
    own = place.share(model.rows)
    mask_V = _padding_mask(model, place.at.model * own, own)
    if place.model_parallel == 1:
        alone = ChunkedLogProbEntropy if with_entropy else ChunkedLogProb
        return alone(temperature=temperature, mask_V=mask_V)
    sharded = VocabParallelLogProbEntropy if with_entropy else VocabParallelLogProb
    return sharded(place, temperature=temperature, mask_V=mask_V)
