"""Responses of several turns, made up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mindgspo.batches.rows import TrainingSample
from mindgspo.types import Episode, EpisodeEnd, FinishReason, Response, TurnSpan


def turns_of(*spans: tuple[int, int]) -> tuple[TurnSpan, ...]:
    return tuple(TurnSpan(start=start, stop=stop) for start, stop in spans)


def episode_of(*spans: tuple[int, int], **fields: Any) -> Episode:
    own = {"end": EpisodeEnd.DONE, "reward": None, "is_correct": None, "info": {}}
    return Episode(turns=turns_of(*spans), **own | fields)


def response_of(ids: Sequence[int], episode: Episode | None, *, sample: int = 0, **fields: Any) -> Response:
    """Its log-probs are -0.5, -1, -1.5, ..."""
    ids = np.array(ids, np.int32)
    count = ids.size if episode is None else episode.num_sampled
    own = {"prompt_index": 0, "finish_reason": FinishReason.STOP, "temperature": 1.0, "weight_version": 3}
    own["logprobs"] = -0.5 * np.arange(1, count + 1, dtype=np.float32)
    return Response(sample_index=sample, ids=ids, episode=episode, **own | fields)


def random_spans(rng: np.random.Generator, *, most_turns: int = 4, longest: int = 4) -> tuple[list, int]:
    """Spans of turns with observations between them, some of them empty, and the number of tokens in all."""
    spans, end = [], 0
    for _ in range(rng.integers(1, most_turns + 1)):
        stop = end + int(rng.integers(1, longest + 1))
        spans.append((end, stop))
        end = stop + int(rng.integers(0, longest + 1))
    return spans, end if rng.random() < 0.5 else spans[-1][1]


def training_sample(prompt_ids: np.ndarray, response: Response, number: int) -> TrainingSample:
    """As the trainer makes it, with turns."""
    from mindgspo.trainer.batches import turn_numbers

    return TrainingSample(
        prompt_ids=prompt_ids, response_ids=response.ids, rollout_logp=response.logprobs, number=number,
        actions=response.actions, turns=turn_numbers(response),
    )  # fmt: skip
