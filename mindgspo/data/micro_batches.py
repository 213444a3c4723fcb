"""Samples of one mini-batch -> its micro-batches: which replica, which micro-batch, which row.

What enters: samples, and a `BatchLayout`. What leaves: `types.Batch`es in the order in which `parallel.replicas` deals
them out: number i goes to replica i % replicas. Called by the trainer's step and warm-up, with equal input on all
ranks, which so agree without a word. The result of an update does not depend on any of it; docs/batches.md says more.

Legend: R rows, T token slots per row, N samples, K response-token slots per sample, P predicted tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from mindgspo.data.partition import dealt, partition
from mindgspo.data.row_packing import packed
from mindgspo.data.rows import (
    BatchSize,
    TrainingSample,
    batch_of,
    denominators,
    lay_out,
    longest_first,
    round_up,
    unpacked_size,
)
from mindgspo.types import Batch

Samples = Sequence[TrainingSample]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """How samples are laid out.

    samples_per_micro_batch, max_tokens_per_micro_batch: one of them, the other is None. packing: several samples per
    row, with max_tokens_per_micro_batch. in_one_row: a packed micro-batch is one row; else its rows are hardly longer
    than the longest sample, since composed attention looks at all pairs of a row's slots. length_multiple: row lengths
    are multiples of it. replicas: data-parallel ones. in_rounds: they compute `round_size` micro-batches each in one
    graph, which should have one shape. balanced: replicas get equal shares of the work, instead of what comes by turns.
    """

    samples_per_micro_batch: int | None = None
    max_tokens_per_micro_batch: int | None = None
    packing: bool = False
    in_one_row: bool = False
    length_multiple: int
    pad_id: int
    replicas: int = 1
    in_rounds: bool = False
    round_size: int = 1
    balanced: bool = False


def micro_batches(samples: Samples, layout: BatchLayout) -> list[Batch]:
    """Every sample in one of them. Longest samples first where they are not packed. Raises nothing: a sample longer
    than the budget is a mistake of ours, for `config.batch_rules` refuses the budget."""
    return _packed(samples, layout) if layout.packing else _unpacked(samples, layout)


def few(number: int, *, multiple: int = 1, parts: int = 4) -> int:
    """At least `number`, a multiple of `multiple`, and one of few values, so that few graphs are compiled: each octave
    has `parts` of them, so that at most 1 / parts of it is more than was asked for."""
    octave = 1 << max(number - 1, 0).bit_length()
    return round_up(number, round_up(max(octave // (2 * parts), 1), multiple))


def _unpacked(samples: Samples, layout: BatchLayout) -> list[Batch]:
    """One sample per row, cut longest first: rows of one micro-batch are of similar length."""
    if layout.samples_per_micro_batch is not None:
        batches = lay_out(
            samples,
            samples_per_micro_batch=layout.samples_per_micro_batch,
            length_multiple=layout.length_multiple,
            pad_id=layout.pad_id,
        )
    else:
        batches = _budgeted(samples, layout)
    return _balanced(batches, layout.replicas) if layout.balanced and not layout.in_rounds else batches


def _balanced(batches: Sequence[Batch], replicas: int) -> list[Batch]:
    """In another order: each replica gets equally many, of equally many token slots, longest rows first."""
    parts = partition([batch.ids_RT.size for batch in batches], replicas, equal_counts=True)
    parts.sort(key=lambda part: (-len(part), part))
    return [batches[index] for of_round in zip_longest(*parts) for index in of_round if index is not None]


def _budgeted(samples: Samples, layout: BatchLayout) -> list[Batch]:
    """Where replicas do not work in rounds, each gets equally many micro-batches: the budget is lowered as far as it
    takes no more of them."""
    assert layout.max_tokens_per_micro_batch is not None
    whole, ordered, multiple = denominators(samples), longest_first(samples), layout.length_multiple
    group = layout.replicas * layout.round_size if layout.in_rounds else 1
    budget = layout.max_tokens_per_micro_batch
    cut = _cut(ordered, budget, multiple, group)
    if group < layout.replicas:
        most, lowest = round_up(len(cut), layout.replicas), round_up(ordered[0].length, multiple) - 1
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


def _cut(ordered: Samples, budget: int, multiple: int, group: int) -> list[tuple[list[Samples], int]]:
    """Runs of micro-batches that share a shape, `group` in each, and their rows: as many as the longest sample allows,
    fewer in the last run."""
    runs: list[tuple[list[Samples], int]] = []
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


def _packed(samples: Samples, layout: BatchLayout) -> list[Batch]:
    """Several samples per row. All micro-batches of the mini-batch have one shape."""
    lengths = [sample.length for sample in samples]
    spread = partition if layout.balanced else dealt
    shares = [[samples[index] for index in part] for part in spread(lengths, layout.replicas)]
    by_replica, row_length, samples_per_row = (_one_row_each if layout.in_one_row else _rows_each)(shares, layout)
    every = [rows for batches in by_replica for rows in batches]
    num_rows = max(map(len, every))
    responses = [[sample.response_ids.size for row in rows for sample in row] for rows in every]
    multiple = layout.length_multiple
    size = BatchSize(
        rows=num_rows,
        row_length=row_length,
        samples=num_rows * samples_per_row,
        slots=few(max(max(own, default=1) for own in responses), multiple=multiple),
        predictions=few(max(map(sum, responses)), multiple=multiple, parts=16),
    )
    whole = denominators(samples)
    # The first micro-batch of every replica, then the second of every replica, ...
    return [
        batch_of(rows, size, layout.pad_id, whole) for of_round in zip(*by_replica, strict=True) for rows in of_round
    ]


def _one_row_each(shares: Sequence[Samples], layout: BatchLayout) -> tuple[list[list[Rows]], int, int]:
    """By replica the micro-batches, of equal numbers of tokens and of one row each; token slots and samples of a row.

    As few micro-batches as the budget allows. Segments of padding, see `row_packing.packed`, need their slots too.
    """
    budget, multiple = layout.max_tokens_per_micro_batch, layout.length_multiple
    assert budget is not None
    most_tokens = max(sum(sample.length for sample in share) for share in shares)
    number = round_up(-(-most_tokens // budget), layout.round_size)
    while True:
        parts = [partition([sample.length for sample in share], number) for share in shares]
        rows = [[[share[index] for index in part] for part in of] for share, of in zip(shares, parts, strict=True)]
        every = [row for of_replica in rows for row in of_replica]
        samples_per_row = few(max(map(len, every)))
        slots = max(sum(sample.length - 1 for sample in row) for row in every) + samples_per_row
        if slots <= budget // multiple * multiple:
            length = min(few(slots, multiple=multiple, parts=16), budget // multiple * multiple)
            return [[[row] for row in of_replica] for of_replica in rows], length, samples_per_row
        assert samples_per_row > 1, f"a sample of {slots} tokens, {budget} are allowed"
        number += layout.round_size


def _rows_each(shares: Sequence[Samples], layout: BatchLayout) -> tuple[list[list[Rows]], int, int]:
    """By replica the micro-batches, of nearly equally many rows and response tokens; token slots and samples of a
    row."""
    assert layout.max_tokens_per_micro_batch is not None
    lengths = [[sample.length for sample in share] for share in shares]
    row_length, samples_per_row = _row_shape(lengths, layout)
    rows = [
        [[share[index] for index in row] for row in packed(own, row_length=row_length, samples_per_row=samples_per_row)]
        for share, own in zip(shares, lengths, strict=True)
    ]
    most = layout.max_tokens_per_micro_batch // row_length
    number = round_up(-(-max(map(len, rows)) // most), layout.round_size)
    return [_spread_rows(of_replica, number) for of_replica in rows], row_length, samples_per_row


def _row_shape(lengths: Sequence[Sequence[int]], layout: BatchLayout) -> tuple[int, int]:
    """Token slots and samples of a row, hardly more than the longest sample needs."""
    assert layout.max_tokens_per_micro_batch is not None
    multiple = layout.length_multiple
    most, longest = layout.max_tokens_per_micro_batch // multiple * multiple, max(map(max, filter(None, lengths)))
    assert longest <= most, f"a sample of {longest} tokens, {most} are allowed"
    row_length = min(few(longest, multiple=multiple, parts=8), most)
    samples_per_row = few(max(len(row) for own in lengths for row in packed(own, row_length=row_length)))
    # Beside the longest sample there must be slots for segments of padding.
    row_length = min(max(row_length, round_up(longest + samples_per_row - 1, multiple)), most)
    return row_length, min(samples_per_row, row_length - longest + 1)


def _spread_rows(rows: Rows, number: int) -> list[Rows]:
    costs = [sum(sample.response_ids.size for sample in row) for row in rows]
    return [[rows[index] for index in part] for part in partition(costs, number, equal_counts=True)]
