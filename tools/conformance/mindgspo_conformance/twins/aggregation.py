"""Losses of tokens -> one number.

Every mode is a weighted sum, so that the gradient by a token's loss is its weight. Denominators are those of the
global mini-batch: they are worked out once by `denominators` and passed in, and micro-batches simply add up.

    N  responses    K  response-token slots    |y| real tokens of a response
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mindgspo.algorithms.losses.definition import Aggregation
from mindgspo_conformance.twins.inputs import BoolArray, Float64Array, read_mask, read_matrix


def aggregate(
    aggregation: Aggregation,
    loss_NK: ArrayLike,
    mask_NK: ArrayLike,
    *,
    num_sequences: float,
    num_tokens: float,
) -> tuple[float, Float64Array]:
    """The aggregated loss and its derivative [N, K] by every token's loss, exactly 0 in masked slots.

    loss_NK: anything may stand in masked slots. mask_NK: 0 and 1, or bool. Raises DataError where the shapes differ or
    the mask holds another value.
    """
    mask_NK = read_mask(mask_NK)
    loss_NK = np.where(mask_NK, read_matrix("loss_mat", loss_NK, mask_NK.shape), 0.0)
    weights_NK = token_weights(aggregation, mask_NK, num_sequences=num_sequences, num_tokens=num_tokens)
    return float((loss_NK * weights_NK).sum()), weights_NK


def denominators(
    mask_NK: ArrayLike,
    aggregation: Aggregation,
    *,
    norm_seqs: float | None = None,
    norm_tokens: float | None = None,
    dp_size: int = 1,
    token_mean_eps: float = 0.0,
) -> tuple[float, float]:
    """(num_sequences, num_tokens) of a mini-batch, as `aggregate` and `policy_loss` take them.

    num_sequences: rows with a real token (empty_rows: exclude) or all rows (include), or norm_seqs where that is given.
    num_tokens: real tokens, or norm_tokens, plus token_mean_eps. Both divided by dp_size: a loss that will be averaged
    over dp_size ranks is multiplied by it. A count of 0 becomes 1: there is nothing to divide.

    batch-mean is the plain mean of the rows at hand, empty ones too, in verl and in TRL: its num_sequences is N,
    whatever empty_rows, norm_seqs and dp_size say. So a KL term with an aggregation of its own next to it has another
    number of sequences, and `denominators` is called once for each of the two.
    """
    mask_NK = read_mask(mask_NK)
    num_rows = mask_NK.shape[0]
    num_tokens = (mask_NK.sum() if norm_tokens is None else norm_tokens) + token_mean_eps
    if aggregation.mode == "batch-mean":
        return float(num_rows or 1), float(num_tokens or 1) / dp_size
    num_sequences = mask_NK.any(axis=1).sum() if aggregation.empty_rows == "exclude" else num_rows
    if norm_seqs is not None:
        num_sequences = norm_seqs
    return float(num_sequences or 1) / dp_size, float(num_tokens or 1) / dp_size


def token_weights(
    aggregation: Aggregation, mask_NK: BoolArray, *, num_sequences: float, num_tokens: float
) -> Float64Array:
    """d loss / d token loss, [N, K].

    token-mean (DAPO, arXiv 2503.14476, eq. 8)              1 / N_tok
    token-sum                                               1
    seq-mean-token-sum                                      1 / N_seq
    seq-mean-token-mean (GRPO and GSPO's own)               1 / |y_i| / N_seq
    seq-mean-token-sum-norm (Dr.GRPO, arXiv 2503.20783)     1 / scale / N_seq
    batch-token-sum-norm (verl before 0.7.1)                1 / scale
    batch-mean (losses with one value per response)         1 / |y_i| / rows
    """
    scale = aggregation.loss_scale_factor or 1.0
    real_NK = mask_NK.astype(np.float64)
    if aggregation.mode == "token-mean":
        return real_NK / num_tokens
    if aggregation.mode == "token-sum":
        return real_NK
    if aggregation.mode == "seq-mean-token-sum":
        return real_NK / num_sequences
    if aggregation.mode == "seq-mean-token-sum-norm":
        return real_NK / scale / num_sequences
    if aggregation.mode == "batch-token-sum-norm":
        return real_NK / scale
    lengths_N = np.array([mean_length(aggregation, int(length)) for length in mask_NK.sum(axis=1)])
    return real_NK / lengths_N.reshape(-1, 1) / num_sequences


def response_weights(
    aggregation: Aggregation, mask_NK: BoolArray, *, num_sequences: float, num_tokens: float
) -> Float64Array:
    """d loss / d response's loss, [N], of losses with one value per response.

    batch-mean counts every row alike, rows without a real token too. Under the other modes a response's loss is taken
    as the loss of each of its tokens.
    """
    if aggregation.mode == "batch-mean":
        return np.full(mask_NK.shape[0], 1.0 / num_sequences)
    return token_weights(aggregation, mask_NK, num_sequences=num_sequences, num_tokens=num_tokens).sum(axis=1)


def mean_length(aggregation: Aggregation, length: int) -> float:
    """What a row's sum is divided by: |y| + seq_len_eps where that is set (verl: 1e-8), else max(|y|, 1)."""
    if aggregation.seq_len_eps:
        return length + aggregation.seq_len_eps
    return max(length, 1)
