"""Rows of given ids that wait to be scored by the model that a server has."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import numpy as np

from mindgspo.batches.rows import BatchSize, TrainingSample, batch_of, denominators
from mindgspo.models.model import Model
from mindgspo.models.scoring import PolicyScorer, padded_length
from mindgspo.rollout.completions import ScoringRequest
from mindgspo.types import Float32Array

_TOKENS_PER_PASS = 4096  # or those of one row; decoding waits while they are scored


class GivenRows:
    """A queue; log-probs are those of softmax(logits). All ranks of a replica add and score the same rows."""

    def __init__(self, model: Model) -> None:
        self._scorer = PolicyScorer(model, temperature=1.0)
        self._limit = model.config.max_position_embeddings
        self._waiting: deque[ScoringRequest] = deque()

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

    def score(self) -> list[tuple[ScoringRequest, Float32Array]]:
        """Score the oldest row and others for which the same graph has room: log-probs float32 [L - 1] of each, of its
        second id and those after it."""
        length = padded_length(self._waiting[0].ids.size, self._limit)
        width = max(1, _TOKENS_PER_PASS // length)
        taken = [one for one in self._waiting if padded_length(one.ids.size, self._limit) == length][:width]
        self._waiting = deque(one for one in self._waiting if one not in taken)
        # As responses to their first id; the graph always has `width` rows.
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
        (scores,) = self._scorer.score([batch])
        return [(one, scores.logp_NK[row, : one.ids.size - 1]) for row, one in enumerate(taken)]
