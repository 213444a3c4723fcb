"""Log-probs of whole rows of token ids, and the token that greedy decoding would put behind each row.

What enters: a model and rows of ids. What leaves: one `RowScore` per row, in order. Called by the `logprobs` command.
It is the trainer's own path (transformer, then the chunked head): the [T, V] logits of a row never exist.

Legend: R rows, T token slots per row, H hidden units, V vocabulary entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.parallel.device_ops import attention_segments
from mindgspo.parallel.layers import VocabParallelLogProb
from mindgspo.types import Float32Array, Int32Array

# One graph is compiled per row length: powers of two up to _FINE, then multiples of it.
_SHORTEST, _FINE = 64, 1024
_TOKENS_PER_CALL = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RowScore:
    """logprobs: float32 [L - 1], of the row's ids but the first, each given those before it, at temperature 1.
    next_id: the likeliest id behind the row."""

    logprobs: Float32Array
    next_id: int


class LogProbsAndNext(nn.Cell):
    """Log-prob of a target at every position, and the likeliest id after one position per row."""

    def __init__(self, model: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        self.head = VocabParallelLogProb(temperature=1.0)
        self.gather = ops.Gather()
        self.logits = ops.MatMul(transpose_b=True)
        self.argmax = ops.Argmax(-1, ms.int32)

    def construct(
        self, ids_RT: Tensor, positions_RT: Tensor, segments_RT: Tensor, targets_RT: Tensor, last_R: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """logp_RT float32, next_R int32, and what the head returns beside log-probs, which the compiler must not
        cut off. last_R: int32, flattened [R * T] index of each row's last token."""
        hidden_MH = self.model(ids_RT, positions_RT, segments_RT)
        weight_VH = self.model.output_weight()
        logp_M, entropy_M = self.head(hidden_MH, weight_VH, targets_RT.reshape(-1))
        last_RH = self.gather(hidden_MH, last_R, 0)
        logits_RV = self.logits(last_RH, ops.cast(weight_VH, last_RH.dtype))
        next_R = self.argmax(ops.cast(logits_RV, ms.float32))
        return logp_M.reshape(ids_RT.shape), next_R, entropy_M


def score_rows(model: nn.Cell, rows: Sequence[Int32Array]) -> list[RowScore]:
    """Rows of 1 to max_position_embeddings ids below vocab_size; the result does not depend on their neighbours."""
    cell = LogProbsAndNext(model)
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        by_length[padded_length(row.size, model.config.max_position_embeddings)].append(number)
    scores: dict[int, RowScore] = {}
    for length, numbers in sorted(by_length.items()):
        width = min(len(numbers), max(1, _TOKENS_PER_CALL // length))
        for start in range(0, len(numbers), width):
            part = numbers[start : start + width]
            found = _score_padded(cell, [rows[number] for number in part], width=width, length=length)
            scores.update(zip(part, found, strict=True))
    return [scores[number] for number in range(len(rows))]


def padded_length(length: int, limit: int) -> int:
    """The row length of the graph that a row of `length` ids goes through."""
    if length > _FINE:
        return min(-(-length // _FINE) * _FINE, limit)
    return min(max(_SHORTEST, 1 << (length - 1).bit_length()), limit)


def _score_padded(cell: LogProbsAndNext, rows: Sequence[Int32Array], *, width: int, length: int) -> list[RowScore]:
    """`rows` in a graph of `width` rows of `length` ids; rows that are left over hold a single id 0."""
    ids_RT, targets_RT = np.zeros((width, length), np.int32), np.zeros((width, length), np.int32)
    segments_RT, last_R = np.zeros((width, length), np.int32), np.arange(width, dtype=np.int32) * length
    for index, row in enumerate(rows):
        ids_RT[index, : row.size], targets_RT[index, : row.size - 1] = row, row[1:]
        segments_RT[index, : row.size] = 1
        last_R[index] += row.size - 1
    positions_RT = np.tile(np.arange(length, dtype=np.int32), (width, 1))
    inputs = (ids_RT, positions_RT, attention_segments(segments_RT), targets_RT, last_R)
    logp, next_ids, _ = cell(*(Tensor(array) for array in inputs))
    logp_RT, next_R = logp.asnumpy(), next_ids.asnumpy()
    return [
        RowScore(logprobs=logp_RT[index, : row.size - 1].copy(), next_id=int(next_R[index]))
        for index, row in enumerate(rows)
    ]
