"""Rows of given ids that wait to be scored by the model that a server has.

Legend: L ids of a row, A likeliest ids per position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import numpy as np

from mindgspo.batches.rows import BatchSize, TrainingSample, batch_of, denominators
from mindgspo.models.model import Model
from mindgspo.models.scoring import PolicyScorer, padded_length
from mindgspo.rollout.completions import ScoringRequest

_TOKENS_PER_PASS = 4096  # or those of one row; decoding waits while they are scored
_MOST_SCORERS = 4  # of different numbers of likeliest ids; each has graphs of its own
Entries = list[dict[str, dict[str, Any]] | None]
"""vLLM's prompt_logprobs, one entry per id of a row, without the texts of tokens; None for the first one."""


class GivenRows:
    """A queue; log-probs are those of softmax(logits). All ranks of a replica add and score the same rows."""

    def __init__(self, model: Model) -> None:
        config = model.config
        self._limit = config.max_position_embeddings
        self._waiting: deque[ScoringRequest] = deque()

        @lru_cache(maxsize=_MOST_SCORERS)
        def scorer(top_k: int) -> PolicyScorer:
            return PolicyScorer(model, temperature=1.0, likeliest=(top_k, config.vocab_size) if top_k else None)

        self._scorer = scorer

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: ScoringRequest) -> None:
        """Append a row."""
        self._waiting.append(request)

    def drop(self, numbers: Collection[int] | None) -> list[ScoringRequest]:
        """Remove these requests, or all, and return them."""
        dropped = [request for request in self._waiting if numbers is None or request.number in numbers]
        self._waiting = deque(request for request in self._waiting if request not in dropped)
        return dropped

    def score(self) -> list[tuple[ScoringRequest, Entries | None]]:
        """Score the oldest row, and others for which its graph has room. None: log-probs are NaN or infinite."""
        length, top_k = self._shape(self._waiting[0])
        width = max(1, _TOKENS_PER_PASS // length)
        taken = [one for one in self._waiting if self._shape(one) == (length, top_k)][:width]
        self._waiting = deque(one for one in self._waiting if one not in taken)
        # As responses to their first id. The graph always has `width` rows.
        samples = [
            TrainingSample(
                prompt_ids=one.ids[:1],
                response_ids=one.ids[1:],
                rollout_logp=np.zeros(one.ids.size - 1, np.float32),
                number=number,
            )
            for number, one in enumerate(taken)
        ]
        size = BatchSize(rows=width, row_length=length, samples=width, slots=length)
        batch = batch_of([[sample] for sample in samples], size, 0, denominators(samples))
        (scores,) = self._scorer(top_k).score([batch])
        none_NKA = np.zeros((width, length, 0), np.int32)
        ids_NKA, top_NKA = (scores.top_ids_NKA, scores.top_logp_NKA) if top_k else (none_NKA, none_NKA)
        assert ids_NKA is not None and top_NKA is not None, "no likeliest ids"
        return [
            (one, _entries(one.ids, *(array[row, : one.ids.size - 1] for array in (scores.logp_NK, ids_NKA, top_NKA))))
            for row, one in enumerate(taken)
        ]

    def _shape(self, request: ScoringRequest) -> tuple[int, int]:
        return padded_length(request.ids.size, self._limit), request.top_k


def _entries(ids: np.ndarray, logprobs: np.ndarray, top_ids: np.ndarray, top_logprobs: np.ndarray) -> Entries | None:
    """logprobs: float32 [L - 1]; top_ids, top_logprobs: [L - 1, A]."""
    if not (np.isfinite(logprobs).all() and np.isfinite(top_logprobs).all()):
        return None
    order = np.argsort(-top_logprobs, axis=1, kind="stable")
    top_ids, top_logprobs = (np.take_along_axis(array, order, 1).tolist() for array in (top_ids, top_logprobs))
    entries: Entries = [None]
    for token, own, likeliest, values in zip(ids[1:].tolist(), logprobs.tolist(), top_ids, top_logprobs, strict=True):
        named = {
            str(one): {"logprob": value, "rank": rank}
            for rank, (one, value) in enumerate(zip(likeliest, values, strict=True), start=1)
        }
        entries.append({str(token): {"logprob": own, "rank": None}} | named)
    return entries
