"""Log-probs of further tokens beside the target of each position, by their log-odds against it:

    log p(id) = log p(target) + (z_id - z_target) / temperature

So a head that yields the log-prob of the target alone, kernel or not, stays as it is, and a further token costs one row
of the output table. `LogOdds` takes ids and is differentiated; `LikeliestTokens` finds them.

The logits are rounded to the type of the hidden states, as the heads' own are where a product rounds: with other
logits than those in the head's sum of exponentials, probabilities would not add up to 1.

Legend: M tokens, C tokens of one chunk, A further tokens of each, B tokens of each, S = C * B, V vocabulary entries (of
this rank), H hidden units.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.ops import constexpr

from mindgspo.config import ModelSection
from mindgspo.models.log_prob import (
    CHUNK_BYTES,
    NoTableGradient,
    TableGradient,
    chunk_tokens,
    own_rows,
    padding_mask,
)
from mindgspo.parallel.collectives.graph import all_gather, all_reduce
from mindgspo.parallel.ops.device import aclnn_on_cards
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform.runtime import current_device

_COPIES = 3  # float32 [S, H] that exist at once


@constexpr
def repeated(count: int, times: int) -> Tensor:
    """0, 0, .., 1, 1, .., int32 [count * times]; evaluated while the graph is compiled."""
    return Tensor(np.repeat(np.arange(count, dtype=np.int32), times))


class LogOdds(nn.Cell):
    """construct(hidden_MH, weight_VH, targets_M, ids_MA) -> log p(id) - log p(target), float32 [M, A], under
    softmax(hidden W^T / temperature).

    Of the table only the rows of these tokens are read, in chunks of tokens that need `chunk_bytes` in the forward and
    in the backward pass. Over ranks each has its rows of the table, and its part of hidden's gradient, which
    `enter_model_parallel` sums. is_frozen: the table has no gradient.
    """

    def __init__(
        self, place: Placement, *, temperature: float, chunk_bytes: int | None = None, is_frozen: bool = False
    ) -> None:
        super().__init__(auto_prefix=False)
        assert temperature > 0, temperature
        self.inverse_temperature = 1.0 / temperature
        self.chunk_bytes = chunk_bytes or CHUNK_BYTES[current_device()]
        self.index = place.at.model
        self.sum = all_reduce(place.model_ranks) if place.model_parallel > 1 else None
        self.gather = ops.Gather()
        self.sum_by_row = NoTableGradient() if is_frozen else ops.UnsortedSegmentSum()
        self.table_gradient = TableGradient(is_frozen=is_frozen)

    def construct(self, hidden_MH: Tensor, weight_VH: Tensor, targets_M: Tensor, ids_MA: Tensor) -> Tensor:
        rows_M1, is_own_M1 = own_rows(targets_M.reshape(-1, 1), self.index, weight_VH.shape[0])
        rows_MA, is_own_MA = own_rows(ids_MA, self.index, weight_VH.shape[0])
        chunk = chunk_tokens(_COPIES * ids_MA.shape[1] * hidden_MH.shape[1], self.chunk_bytes)
        before = self._logits(hidden_MH, weight_VH, rows_M1)
        target_M1 = before * is_own_M1
        parts = ()
        for start in range(0, hidden_MH.shape[0], chunk):
            hidden_CH = ops.depend(hidden_MH[start : start + chunk], before)
            before = self._logits(hidden_CH, weight_VH, rows_MA[start : start + chunk])
            parts += (before,)
        odds_MA = ops.concat(parts, 0) * is_own_MA - target_M1
        return odds_MA if self.sum is None else self.sum(odds_MA)

    def bprop(self, hidden_MH, weight_VH, targets_M, ids_MA, out, dout):
        dhidden_MH, dweight_VH = self._backward(hidden_MH, weight_VH, targets_M, ids_MA, ops.depend(dout, out))
        dtable_VH = self.table_gradient(weight_VH, dweight_VH)
        return dhidden_MH, dtable_VH, ops.zeros_like(targets_M), ops.zeros_like(ids_MA)

    def _backward(
        self, hidden_MH: Tensor, weight_VH: Tensor, targets_M: Tensor, ids_MA: Tensor, dodds_MA: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows_M1, is_own_M1 = own_rows(targets_M.reshape(-1, 1), self.index, weight_VH.shape[0])
        rows_MA, is_own_MA = own_rows(ids_MA, self.index, weight_VH.shape[0])
        chunk = chunk_tokens(_COPIES * ids_MA.shape[1] * hidden_MH.shape[1], self.chunk_bytes)
        dtarget_M1 = -dodds_MA.sum(1, keepdims=True) * is_own_M1
        dlogits_MA = dodds_MA * is_own_MA
        dtarget_MH, dweight_VH = self._through_logits(hidden_MH, weight_VH, rows_M1, dtarget_M1)
        before = ops.depend(dtarget_MH, dweight_VH)
        dhidden_parts = ()
        for start in range(0, hidden_MH.shape[0], chunk):
            stop = start + chunk
            hidden_CH = ops.depend(hidden_MH[start:stop], before)
            dhidden_CH, more_VH = self._through_logits(
                hidden_CH, weight_VH, rows_MA[start:stop], dlogits_MA[start:stop]
            )
            dhidden_parts += (dhidden_CH,)
            dweight_VH = dweight_VH + more_VH
            before = ops.depend(dhidden_CH, dweight_VH)
        dhidden_MH = (dtarget_MH + ops.concat(dhidden_parts, 0)) * self.inverse_temperature
        return ops.cast(dhidden_MH, hidden_MH.dtype), dweight_VH

    def _logits(self, hidden_CH: Tensor, weight_VH: Tensor, rows_CB: Tensor) -> Tensor:
        """Logits [C, B] of rows of the table at the temperature."""
        table_SH, states_SH = self._factors(hidden_CH, weight_VH, rows_CB)
        logits_S = ops.cast((table_SH * states_SH).sum(-1), hidden_CH.dtype)
        return ops.cast(logits_S, ms.float32).reshape(rows_CB.shape)

    def _through_logits(
        self, hidden_CH: Tensor, weight_VH: Tensor, rows_CB: Tensor, dlogits_CB: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Propagate a gradient of the logits to hidden [C, H], without the temperature, and to the table [V, H]."""
        table_SH, states_SH = self._factors(hidden_CH, weight_VH, rows_CB)
        dlogits_S1 = dlogits_CB.reshape(-1, 1)
        dhidden_CH = (dlogits_S1 * table_SH).reshape((*rows_CB.shape, -1)).sum(1)
        return dhidden_CH, self.sum_by_row(dlogits_S1 * states_SH, rows_CB.reshape(-1), weight_VH.shape[0])

    def _factors(self, hidden_CH: Tensor, weight_VH: Tensor, rows_CB: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the table and the scaled hidden states that they are multiplied with, float32 [S, H]."""
        table_SH = ops.cast(self.gather(weight_VH, rows_CB.reshape(-1), 0), hidden_CH.dtype)
        states_SH = self.gather(hidden_CH * self.inverse_temperature, repeated(rows_CB.shape[0], rows_CB.shape[1]), 0)
        return ops.cast(table_SH, ms.float32), ops.cast(states_SH, ms.float32)


class LikeliestTokens(nn.Cell):
    """construct(hidden_MH, weight_VH, targets_M) -> (odds_MA float32, ids_MA int32): the `count` likeliest ids below
    `vocab_size`, the likeliest first, and their log-odds against the target, without gradient.

    Over ranks each proposes the likeliest of its rows of the table, and all choose among the proposals of all.
    """

    def __init__(
        self, model: ModelSection, place: Placement, *, count: int, vocab_size: int, temperature: float
    ) -> None:
        super().__init__(auto_prefix=False)
        assert 0 < count <= vocab_size <= model.vocab_size, (count, vocab_size, model.vocab_size)
        num_rows = place.share(model.rows)
        self.index, self.first = place.at.model, place.at.model * num_rows
        self.mask_V = padding_mask(model.rows, vocab_size, self.first, num_rows)
        self.count, self.own_count = count, min(count, num_rows)
        self.inverse_temperature = 1.0 / temperature
        self.chunk_bytes = CHUNK_BYTES[current_device()]
        self.logits = ops.MatMul(transpose_b=True)
        self.top = aclnn_on_cards(ops.TopK(sorted=True), mint.topk)
        self.num_ranks = place.model_parallel
        if self.num_ranks > 1:
            self.sum, self.join = all_reduce(place.model_ranks), all_gather(place.model_ranks)

    def construct(self, hidden_MH: Tensor, weight_VH: Tensor, targets_M: Tensor) -> tuple[Tensor, Tensor]:
        weight = ops.cast(weight_VH, hidden_MH.dtype)
        rows_M1, is_own_M1 = own_rows(targets_M.reshape(-1, 1), self.index, weight_VH.shape[0])
        chunk = chunk_tokens(weight_VH.shape[0], self.chunk_bytes)
        before = targets_M
        highest_parts, column_parts, target_parts = (), (), ()
        for start in range(0, hidden_MH.shape[0], chunk):
            hidden_CH = ops.depend(hidden_MH[start : start + chunk], before)
            logits_CV = ops.cast(self.logits(hidden_CH * self.inverse_temperature, weight), ms.float32)
            highest_CA, columns_CA = self.top(self._eligible(logits_CV), self.own_count)
            target_C1 = ops.gather_elements(logits_CV, 1, rows_M1[start : start + chunk])
            before = ops.depend(highest_CA, target_C1)
            highest_parts += (highest_CA,)
            column_parts += (ops.cast(columns_CA, ms.int32),)
            target_parts += (target_C1,)
        highest_MA, ids_MA = ops.concat(highest_parts, 0), ops.concat(column_parts, 0) + self.first
        target_M1 = ops.concat(target_parts, 0) * is_own_M1
        if self.num_ranks > 1:
            target_M1 = self.sum(ops.depend(target_M1, highest_MA))
            proposed_MB = self._of_all_ranks(ops.depend(highest_MA, target_M1))
            proposed_ids_MB = self._of_all_ranks(ops.depend(ids_MA, proposed_MB))
            highest_MA, places_MA = self.top(proposed_MB, self.count)
            ids_MA = ops.gather_elements(proposed_ids_MB, 1, ops.cast(places_MA, ms.int32))
        return highest_MA - target_M1, ids_MA

    def _eligible(self, logits_CV: Tensor) -> Tensor:
        """The logits, those of ids that are not asked for far below all others."""
        return logits_CV if self.mask_V is None else logits_CV + self.mask_V

    def _of_all_ranks(self, own_MA: Tensor) -> Tensor:
        """The columns of all ranks side by side, [M, ranks * A]."""
        joined = self.join(own_MA).reshape((self.num_ranks, *own_MA.shape))
        return joined.transpose((1, 0, 2)).reshape((own_MA.shape[0], -1))
