"""The log-prob head over a vocabulary that is split under model_parallel: nobody ever holds [tokens, vocabulary].

What enters: hidden states (the same on all ranks of the group, behind `enter_model_parallel`), this rank's rows of the
output table, target ids over the whole vocabulary. What leaves: log-probs and entropies, the same on all ranks. Built
by `log_prob_head`.

A rank takes softmax over its own columns: log-probs l, and Z, the logarithm of its sum of exponentials. With the
others' Z (one number per token and rank) it knows the shift d = Z - log(sum of all ranks' exp Z), so that l + d are
the log-probs over the whole vocabulary, and exp(d) is the share of the probability that is its own. Matrices [C, V] are
never multiplied by the shift: the [C, H] side of each product is.

Legend: M tokens, C tokens of one chunk, V vocabulary entries of this rank, H hidden units, K ranks of the group.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.parallel.layers import VocabParallelLogProb, VocabParallelLogProbEntropy, chunk_tokens
from mindgspo.parallel.logical_logprob import LogicalLogProb
from mindgspo.parallel.placement import LogicalPlacement, Placement
from mindgspo.parallel.process_groups import group_name


class ShardedLogProb(VocabParallelLogProb):
    """As its parent, with the rank's rows of the table; entropy_M is 0."""

    def __init__(self, place: Placement, *, temperature: float, chunk_bytes: int = 64 << 20) -> None:
        super().__init__(temperature=temperature, chunk_bytes=chunk_bytes)
        self.sum = ops.AllReduce(group=group_name(place.model_ranks))
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


class ShardedLogProbEntropy(ShardedLogProb):
    """With the entropy of the whole distribution: sum over ranks of share * (own entropy - shift)."""

    def __init__(self, place: Placement, *, temperature: float, chunk_bytes: int = 64 << 20) -> None:
        super().__init__(place, temperature=temperature, chunk_bytes=chunk_bytes // 2)

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


def log_prob_head(place: Placement, *, temperature: float, with_entropy: bool) -> nn.Cell:
    """The head of a rank: (hidden_MH, weight_VH, targets_M) -> (logp_M, entropy_M); see `VocabParallelLogProb`."""
    if isinstance(place, LogicalPlacement):
        return LogicalLogProb(place, temperature=temperature, with_entropy=with_entropy)
    if place.model_parallel == 1:
        alone = VocabParallelLogProbEntropy if with_entropy else VocabParallelLogProb
        return alone(temperature=temperature)
    sharded = ShardedLogProbEntropy if with_entropy else ShardedLogProb
    return sharded(place, temperature=temperature)
