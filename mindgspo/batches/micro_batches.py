"""Samples of one mini-batch -> its micro-batches: which replica, which micro-batch, which row; and what that costs.

Number i goes to replica i % replicas. All ranks call this with equal input, so they agree without communicating. The
result of an update does not depend on any of it; docs/batches.md says more.

Legend: R rows, T token slots per row, N samples, K response-token slots per sample, P predicted tokens.

Metrics:
  Batches of the updates:
    global_seqlen/min:
      meaning: tokens of the replica with fewest in an update, had each taken as many samples in the order of
        the step
      unit: tokens
    global_seqlen/max:
      meaning: the same of the replica with most
      unit: tokens
    global_seqlen/minmax_diff:
      meaning: 'the difference of the two: what balancing has to even out'
      unit: tokens
    global_seqlen/balanced_min:
      meaning: tokens of the replica with fewest in an update, as they are
      unit: tokens
      healthy: close to global_seqlen/mean
    global_seqlen/balanced_max:
      meaning: tokens of the replica with most, for which the others wait
      unit: tokens
      healthy: close to global_seqlen/mean
      action: trainer.balance_batches=true, more samples per update, or trainer.packing
    global_seqlen/mean:
      meaning: tokens of a replica in an update
      unit: tokens
    training/padding_share:
      meaning: computed token slots of the updates that hold no token
      unit: share
      healthy: 0 on CPU with the kernels, elsewhere below 0.1 with trainer.packing
      action: trainer.packing with trainer.max_tokens_per_micro_batch, see docs/batches.md
    training/micro_batches_per_update:
      meaning: forward and backward passes of a replica in an update
      unit: calls
      healthy: few
      action: raise trainer.max_tokens_per_micro_batch or trainer.samples_per_micro_batch while memory allows
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest

import numpy as np

from mindgspo.batches.partition import dealt, pack_rows, partition
from mindgspo.batches.rows import (
    BatchSize,
    TrainingSample,
    batch_of,
    denominators,
    in_one_row,
    lay_out,
    longest_first,
    round_up,
    unpacked_size,
)
from mindgspo.types import Batch

_Samples = Sequence[TrainingSample]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """Rules for laying out the samples of a mini-batch in micro-batches."""

    samples_per_micro_batch: int | None = None
    """Samples per micro-batch; None: `max_tokens_per_micro_batch` decides. Exactly one of the two is set."""
    max_tokens_per_micro_batch: int | None = None
    """Token slots of a micro-batch, padding included."""
    packing: bool = False
    """Several samples per row; goes with `max_tokens_per_micro_batch`."""
    in_one_row: bool = False
    """A packed micro-batch is one row. Otherwise its rows are little longer than the longest sample, since composed
    attention looks at all pairs of a row's slots."""
    costly_row: int = 640
    """Slots of a row from which on attention costs more than all the rest."""
    length_multiple: int
    """Row lengths are multiples of it, so that few graphs are compiled."""
    pad_id: int
    """Token id of slots without a token."""
    replicas: int = 1
    """Data-parallel replicas that share the micro-batches."""
    in_rounds: bool = False
    """Replicas compute one micro-batch each at the same time; these should have one shape."""
    round_size: int = 1
    """Under a token budget each replica gets a multiple of this many micro-batches."""
    balanced: bool = False
    """Replicas get equal shares of the work, instead of samples by turns."""
    one_shape: BatchSize | None = None
    """The shape of all batches, see `rows.in_one_row`; None: each has the shape its samples need."""


def micro_batches(samples: _Samples, layout: BatchLayout) -> list[Batch]:
    """Return micro-batches that hold every sample once, longest samples first where padding is computed.

    A sample longer than the budget is our own mistake: `config.rules` rejects such a budget.
    """
    batches = _packed(samples, layout) if layout.packing else _unpacked(samples, layout)
    return batches if layout.one_shape is None else [in_one_row(batch, layout.one_shape) for batch in batches]


def largest_shape(layout: BatchLayout, *, num_samples: int, longest: int, slots: int) -> BatchSize:
    """Return the value of `BatchLayout.one_shape` for micro-batches of a mini-batch of `num_samples` samples, whose
    longest one has `longest` tokens and `slots` response tokens.

    It costs memory in the inputs of graphs, and what the loss takes for its N * K slots: under a token budget N is that
    of samples of a quarter of the longest.
    """
    rows, row_length = layout.samples_per_micro_batch, round_up(longest, layout.length_multiple)
    slots = round_up(slots, layout.length_multiple)
    if rows is not None:
        rows = min(rows, num_samples)
        return BatchSize(rows=rows, row_length=row_length, samples=rows, slots=slots)
    assert layout.max_tokens_per_micro_batch is not None
    tokens = max(layout.max_tokens_per_micro_batch, row_length)
    samples = min(num_samples, 4 * tokens // row_length)
    predictions = min(tokens, num_samples * slots)
    return BatchSize(rows=1, row_length=tokens, samples=samples, slots=slots, predictions=predictions)


def few(number: int, *, multiple: int = 1, parts: int = 4) -> int:
    """Round `number` up to a multiple of `multiple` that is one of few values, so that few graphs are compiled.

    Each octave has `parts` of these values, so that at most 1 / parts of the result exceeds `number`.
    """
    octave = 1 << max(number - 1, 0).bit_length()
    return round_up(number, round_up(max(octave // (2 * parts), 1), multiple))


def _unpacked(samples: _Samples, layout: BatchLayout) -> list[Batch]:
    """One sample per row, cut longest first: rows of one micro-batch are of similar length."""
    if layout.samples_per_micro_batch is not None:
        batches = lay_out(
            samples,
            samples_per_micro_batch=layout.samples_per_micro_batch,
            length_multiple=layout.length_multiple,
            pad_id=layout.pad_id,
            keeps_order=layout.one_shape is not None,
        )
    else:
        batches = _budgeted(samples, layout)
    return _balanced(batches, layout.replicas) if layout.balanced and not layout.in_rounds else batches


def _balanced(batches: Sequence[Batch], replicas: int) -> list[Batch]:
    """Reorder micro-batches so that each replica gets equally many, of nearly equally many slots, longest first."""
    parts = partition([batch.ids_RT.size for batch in batches], replicas, equal_counts=True)
    parts.sort(key=lambda part: (-len(part), part))
    return [batches[index] for of_round in zip_longest(*parts) for index in of_round if index is not None]


def _budgeted(samples: _Samples, layout: BatchLayout) -> list[Batch]:
    """Micro-batches under a token budget. Replicas that do not work in rounds get equally many: the budget is lowered
    as far as the number stays at the next multiple of `round_size` each."""
    assert layout.max_tokens_per_micro_batch is not None
    whole, ordered, multiple = denominators(samples), longest_first(samples), layout.length_multiple
    all_at_once = layout.replicas * layout.round_size
    group = all_at_once if layout.in_rounds else 1
    budget = layout.max_tokens_per_micro_batch
    cut = _cut(ordered, budget, multiple, group)
    if group < all_at_once:
        most, lowest = round_up(len(cut), all_at_once), round_up(ordered[0].length, multiple) - 1
        enough = bisect_left(
            range(lowest + 1, budget), True, key=lambda less: len(_cut(ordered, less, multiple, 1)) <= most
        )
        cut = _cut(ordered, lowest + 1 + enough, multiple, 1)
    return [
        batch_of([[one] for one in part], size, layout.pad_id, whole)
        for parts, rows in cut
        for size in [unpacked_size([sample for part in parts for sample in part], rows, multiple)]
        for part in parts
    ]


def _cut(ordered: _Samples, budget: int, multiple: int, group: int) -> list[tuple[list[_Samples], int]]:
    """Runs of micro-batches that share a shape, `group` in each, and their rows: as many as the longest sample allows,
    fewer in the last run."""
    runs: list[tuple[list[_Samples], int]] = []
    start = 0
    while start < len(ordered):
        width = round_up(ordered[start].length, multiple)
        assert width <= budget, f"rows of {width} slots, {budget} are allowed"
        rows = min(budget // width, few(-(-(len(ordered) - start) // group)))
        firsts = range(start, start + rows * group, rows)
        runs.append(([ordered[first : first + rows] for first in firsts], rows))
        start += rows * group
    return runs


Rows = list[list[TrainingSample]]


def _packed(samples: _Samples, layout: BatchLayout) -> list[Batch]:
    """Several samples per row; all micro-batches of one shape."""
    lengths = [sample.length for sample in samples]
    spread = partition if layout.balanced else dealt
    shares = [[samples[index] for index in part] for part in spread(lengths, layout.replicas)]
    by_replica, size = (_long_rows if layout.in_one_row else _short_rows)(shares, layout)
    whole = denominators(samples)
    # The first micro-batch of every replica, then the second of every replica, ...
    return [
        batch_of(rows, size, layout.pad_id, whole) for of_round in zip(*by_replica, strict=True) for rows in of_round
    ]


def _long_rows(shares: Sequence[_Samples], layout: BatchLayout) -> tuple[list[list[Rows]], BatchSize]:
    """Per replica, micro-batches of one row each, with equal numbers of tokens, as few as the budget allows.

    Fused attention needs N segments, whatever the number n of samples, and none may be empty: N - n slots of padding
    are kept free. In other words, a sample counts as one slot less than it has, and N slots are set aside.
    """
    most = _most_slots(layout)
    most_tokens = max(sum(sample.length for sample in share) for share in shares)
    number = round_up(-(-most_tokens // most), layout.round_size)
    while True:
        parts = [partition([sample.length for sample in share], number) for share in shares]
        rows = [[[share[index] for index in part] for part in of] for share, of in zip(shares, parts, strict=True)]
        every = [row for of_replica in rows for row in of_replica]
        num_samples = few(max(map(len, every)))
        slots = max(sum(sample.length - 1 for sample in row) for row in every) + num_samples
        if slots <= most:
            break
        assert num_samples > 1, f"a sample of {slots} tokens, {most} are allowed"
        number += layout.round_size
    row_length = min(few(slots, multiple=layout.length_multiple, parts=16), most)
    by_replica = [[[row] for row in of_replica] for of_replica in rows]
    return by_replica, replace(_packed_size(by_replica, row_length, layout), samples=num_samples)


# In multiples of the longest sample: longer rows have less padding, and dearer attention.
_ROW_LENGTHS = (1.0, 1.125, 1.25, 1.5, 1.75, 2.0)


def _short_rows(shares: Sequence[_Samples], layout: BatchLayout) -> tuple[list[list[Rows]], BatchSize]:
    """Per replica, micro-batches of rows not much longer than the longest sample: of the length that costs least in
    total."""
    return min((_rows_of_length(shares, times, layout) for times in _ROW_LENGTHS), key=partial(_price, layout))


def _price(layout: BatchLayout, found: tuple[list[list[Rows]], BatchSize]) -> float:
    """Cost of a replica's micro-batches, in slots without attention."""
    by_replica, size = found
    return len(by_replica[0]) * size.rows * size.row_length * (1 + size.row_length / layout.costly_row)


def _rows_of_length(
    shares: Sequence[_Samples], times: float, layout: BatchLayout
) -> tuple[list[list[Rows]], BatchSize]:
    """Micro-batches of nearly equally many rows and response tokens."""
    most, longest = _most_slots(layout), max(sample.length for share in shares for sample in share)
    assert longest <= most, f"a sample of {longest} tokens, {most} are allowed"
    row_length = min(few(int(times * longest), multiple=layout.length_multiple), most)
    rows = [
        [[share[index] for index in row] for row in pack_rows([one.length for one in share], row_length=row_length)]
        for share in shares
    ]
    number = -(-max(map(len, rows)) // (most // row_length))
    by_replica = [_spread_rows(of_replica, number) for of_replica in rows]
    return by_replica, _packed_size(by_replica, row_length, layout)


def _spread_rows(rows: Rows, number: int) -> list[Rows]:
    costs = [sum(sample.num_trained for sample in row) for row in rows]
    return [[rows[index] for index in part] for part in partition(costs, number, equal_counts=True)]


def _most_slots(layout: BatchLayout) -> int:
    assert layout.max_tokens_per_micro_batch is not None
    return layout.max_tokens_per_micro_batch // layout.length_multiple * layout.length_multiple


def _packed_size(by_replica: Sequence[Sequence[Rows]], row_length: int, layout: BatchLayout) -> BatchSize:
    """Size that fits all of these micro-batches."""
    every = [rows for of_replica in by_replica for rows in of_replica]
    responses = [[sample.num_trained for row in rows for sample in row] for rows in every]
    multiple = layout.length_multiple
    return BatchSize(
        rows=max(map(len, every)),
        row_length=row_length,
        samples=few(max(map(len, responses)), parts=2),
        slots=few(max(max(own, default=1) for own in responses), multiple=multiple, parts=2),
        predictions=few(max(map(sum, responses)), multiple=multiple, parts=16),
    )


def batch_metrics(mini_batches: Sequence[Sequence[Batch]], layout: BatchLayout) -> dict[str, float]:
    """Means over the updates of the token counts per replica and of the padding.

    global_seqlen/min, max, minmax_diff: tokens of a replica if each took equally many samples, in the order of the
        step.
    global_seqlen/balanced_min, balanced_max: tokens of a replica in the batches as they are.
    global_seqlen/mean: mean tokens of a replica, the same in both.
    padding_share: share of padding in the token slots that are computed.

    layout: the layout that the batches were made with.
    """
    if not mini_batches:
        return {}
    replicas = layout.replicas
    batches = [batch for batches in mini_batches for batch in batches]
    tokens = sum(map(num_tokens, batches))
    computed = tokens if layout.one_shape is not None else sum(batch.ids_RT.size for batch in batches)
    smallest, largest = np.mean([_extremes(_in_order(batches, replicas)) for batches in mini_batches], axis=0)
    balanced = np.mean([_extremes(tokens_of_replicas(batches, replicas)) for batches in mini_batches], axis=0)
    return {
        "global_seqlen/min": float(smallest),
        "global_seqlen/max": float(largest),
        "global_seqlen/minmax_diff": float(largest - smallest),
        "global_seqlen/balanced_min": float(balanced[0]),
        "global_seqlen/balanced_max": float(balanced[1]),
        "global_seqlen/mean": tokens / len(mini_batches) / replicas,
        "training/padding_share": 1.0 - tokens / computed,
        "training/micro_batches_per_update": len(batches) / len(mini_batches) / replicas,
    }


def num_tokens(batch: Batch) -> int:
    """Real tokens; 0 for a batch that only fills a round up."""
    return sum(sample_lengths(batch).values())


def tokens_of_replicas(batches: Sequence[Batch], replicas: int) -> list[int]:
    """Real tokens of each replica in one update."""
    return [sum(map(num_tokens, batches[replica::replicas])) for replica in range(replicas)]


def sample_lengths(batch: Batch) -> dict[int, int]:
    """Tokens of prompt and response, by the samples' numbers."""
    real_N = batch.samples_N >= 0
    rows, columns = np.divmod(batch.predict_P[batch.place_NK[real_N, 0]], batch.ids_RT.shape[1])
    lengths = (batch.segments_RT[rows] == batch.segments_RT[rows, columns][:, None]).sum(axis=1)
    return dict(zip(batch.samples_N[real_N].tolist(), lengths.tolist(), strict=True))


def _in_order(batches: Sequence[Batch], replicas: int) -> list[int]:
    """Tokens of each replica if each took equally many samples, in the order of the step."""
    lengths = {number: length for batch in batches for number, length in sample_lengths(batch).items()}
    parts = np.array_split([lengths[number] for number in sorted(lengths)], replicas)
    return [int(part.sum()) for part in parts]


def _extremes(tokens: Sequence[int]) -> tuple[int, int]:
    return min(tokens), max(tokens)
