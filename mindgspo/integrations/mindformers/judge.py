"""Log-probs by MindFormers' whole forward pass, transformer and head, for `mindgspo logprobs --backend mindformers`.

What enters: a Hugging Face folder's architecture and rows of ids. What leaves: what `models.row_scores` gives. None of
our cells takes part, so that the two can disagree; the softmax is numpy's, in float64.

Legend: T token slots of a row, V vocabulary entries, L ids of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mindgspo.config import ModelSection
from mindgspo.types import Float32Array, Int32Array

if TYPE_CHECKING:
    from mindgspo.models.scoring import RowScore

_ROWS_AT_ONCE = 256


def log_probs_by_mindformers(section: ModelSection, folder: Path, rows: Sequence[Int32Array]) -> Iterable[RowScore]:
    """One result per row, in order. Raises ConfigError and WeightsError before the first."""
    from mindspore import Tensor

    from mindgspo.integrations.mindformers.model import build_mindformers_model
    from mindgspo.models.scoring import RowScore, padded_length
    from mindgspo.models.weights import load_huggingface

    lengths = [padded_length(row.size, section.max_position_embeddings) for row in rows]
    model = build_mindformers_model(section, longest_row=max(lengths))
    load_huggingface(model, section, folder)

    def scored(row: Int32Array, length: int) -> RowScore:
        ids_1T = np.zeros((1, length), np.int32)
        ids_1T[0, : row.size] = row
        logits_TV = model.net(Tensor(ids_1T))[0].asnumpy()[0]
        return RowScore(
            logprobs=chosen_logprobs(logits_TV[: row.size - 1], row[1:]),
            next_id=int(logits_TV[row.size - 1].argmax()),
        )

    return map(scored, rows, lengths)


def chosen_logprobs(logits_LV: np.ndarray, targets_L: Int32Array) -> Float32Array:
    """float32 [L]: log-prob of each target, by a softmax in float64 over a few rows at a time."""
    chosen = np.zeros(len(targets_L), np.float32)
    for start in range(0, len(targets_L), _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        logits = logits_LV[rows].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        own = np.take_along_axis(logits, targets_L[rows, None], axis=1)[:, 0]
        chosen[rows] = own - np.log(np.exp(logits).sum(axis=1))
    return chosen
