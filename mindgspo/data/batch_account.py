"""What the layout of a step's updates costs: tokens of each replica, padding, micro-batches.

What enters: the micro-batches of every update, in the order in which replicas take turns. What leaves: flat metrics,
the first six under verl's names. Called by the trainer's step metrics and tools/bench_batches.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindgspo.types import Batch


def batch_metrics(mini_batches: Sequence[Sequence[Batch]], replicas: int) -> dict[str, float]:
    """Means over the updates. global_seqlen/min, max, minmax_diff: tokens of a replica if each took as many samples, in
    the order of the step; balanced_min, balanced_max: as they are; mean: of both. padding_share: of all token slots."""
    if not mini_batches:
        return {}
    plain = [_extremes(_in_order(batches, replicas)) for batches in mini_batches]
    found = [_extremes(tokens_of_replicas(batches, replicas)) for batches in mini_batches]
    batches = [batch for batches in mini_batches for batch in batches]
    tokens = sum(num_tokens(batch) for batch in batches)
    smallest, largest = np.mean(plain, axis=0)
    balanced = np.mean(found, axis=0)
    return {
        "global_seqlen/min": float(smallest),
        "global_seqlen/max": float(largest),
        "global_seqlen/minmax_diff": float(largest - smallest),
        "global_seqlen/balanced_min": float(balanced[0]),
        "global_seqlen/balanced_max": float(balanced[1]),
        "global_seqlen/mean": tokens / len(mini_batches) / replicas,
        "training/padding_share": 1.0 - tokens / sum(batch.ids_RT.size for batch in batches),
        "training/micro_batches_per_update": len(batches) / len(mini_batches) / replicas,
    }


def num_tokens(batch: Batch) -> int:
    """Real tokens; 0 for a batch that only fills a round up."""
    return sum(sample_lengths(batch).values())


def tokens_of_replicas(batches: Sequence[Batch], replicas: int) -> list[int]:
    """Real tokens of each replica in one update."""
    return [sum(num_tokens(batch) for batch in batches[replica::replicas]) for replica in range(replicas)]


def sample_lengths(batch: Batch) -> dict[int, int]:
    """Tokens of prompt and response, by the samples' numbers."""
    real_N = batch.samples_N >= 0
    rows, columns = np.divmod(batch.predict_P[batch.place_NK[real_N, 0]], batch.ids_RT.shape[1])
    lengths = (batch.segments_RT[rows] == batch.segments_RT[rows, columns][:, None]).sum(axis=1)
    return dict(zip(batch.samples_N[real_N].tolist(), lengths.tolist(), strict=True))


def _in_order(batches: Sequence[Batch], replicas: int) -> list[int]:
    lengths: dict[int, int] = {}
    for batch in batches:
        lengths |= sample_lengths(batch)
    in_order = np.array([lengths[number] for number in sorted(lengths)])
    return [int(part.sum()) for part in np.array_split(in_order, replicas)]


def _extremes(tokens: Sequence[int]) -> tuple[int, int]:
    return min(tokens), max(tokens)
