"""Micro-batches of every layout: hand-worked ones, and what must hold for any mini-batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo.data.micro_batches import BatchLayout, few, micro_batches
from mindgspo.data.partition import packed
from mindgspo.data.rows import TrainingSample, evened, gathered, lay_out, scattered, stackable
from mindgspo.parallel.device_ops import segment_ends
from mindgspo.types import Batch

PAD = 77


def sample_of(prompt: int, response: int, number: int) -> TrainingSample:
    """Its tokens tell which sample and which place they are from."""
    ids = (1000 * (number + 1) + np.arange(prompt + response)).astype(np.int32)
    return TrainingSample(
        prompt_ids=ids[:prompt],
        response_ids=ids[prompt:],
        rollout_logp=-ids[prompt:].astype(np.float32),
        number=number,
    )


def samples_of(sizes: list[tuple[int, int]]) -> list[TrainingSample]:
    return [sample_of(prompt, response, number) for number, (prompt, response) in enumerate(sizes)]


def test_few_numbers_are_few_and_not_much_larger() -> None:
    assert [few(n) for n in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 17, 33)] == [1, 2, 3, 4, 5, 7, 8, 10, 10, 12, 20, 40]
    assert [few(n, multiple=32, parts=16) for n in (1, 33, 600, 1025, 5000)] == [32, 64, 608, 1088, 5120]
    for parts in (4, 16):
        values = {few(n, parts=parts) for n in range(1, 5000)}
        assert all(n <= few(n, parts=parts) <= n * (1 + 1 / parts) for n in range(1, 5000))
        assert len(values) <= 13 * parts


def test_rows_are_packed_best_fit() -> None:
    # 7 opens a row of 10, 6 another; 4 fits behind 6 alone, 3 behind 7 alone; 1 opens a third.
    assert packed([3, 7, 1, 6, 4], row_length=10) == [[1, 0], [3, 4], [2]]
    with pytest.raises(AssertionError, match="8 tokens, rows of 7"):
        packed([8], row_length=7)


def test_a_packed_micro_batch_worked_by_hand() -> None:
    # Lengths 5, 4, 3, 2 in rows of 8: 5 + 3, 4 + 2.
    samples = [sample_of(2, 3, 0), sample_of(2, 2, 1), sample_of(1, 2, 2), sample_of(1, 1, 3)]
    layout = BatchLayout(max_tokens_per_micro_batch=16, packing=True, length_multiple=8, pad_id=PAD)
    (batch,) = micro_batches(samples, layout)
    assert batch.ids_RT.tolist() == [
        [1000, 1001, 1002, 1003, 1004, 3000, 3001, 3002],
        [2000, 2001, 2002, 2003, 4000, 4001, PAD, PAD],
    ]
    assert batch.positions_RT.tolist() == [[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 2, 3, 0, 1, 0, 0]]
    assert batch.segments_RT.tolist() == [[1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 2, 2, 0, 0]]
    # 3 + 2 + 2 + 1 response tokens, each predicted by the slot in front of it; no slot of a shorter response is.
    assert batch.predict_P.tolist() == [1, 2, 3, 5, 6, 9, 10, 12]
    assert batch.targets_P.tolist() == [1002, 1003, 1004, 3001, 3002, 2002, 2003, 4001]
    assert batch.samples_N.tolist() == [0, 2, 1, 3]
    assert batch.mask_NK.sum(axis=1).tolist() == [3, 2, 2, 1]
    assert batch.place_NK[batch.mask_NK].tolist() == list(range(8))
    assert not batch.place_NK[~batch.mask_NK].any()
    assert segment_ends(batch.segments_RT, num_segments=4).tolist() == [5, 8, 12, 16]


def test_under_a_budget_short_samples_share_larger_micro_batches() -> None:
    # Rows of 8, then of 4: two and four of them are 16 slots.
    samples = samples_of([(4, 4), (4, 3), (1, 1), (1, 2), (2, 2), (1, 3)])
    layout = BatchLayout(max_tokens_per_micro_batch=16, length_multiple=4, pad_id=PAD)
    first, second = micro_batches(samples, layout)
    assert (first.ids_RT.shape, second.ids_RT.shape) == ((2, 8), (4, 4))
    assert first.samples_N.tolist() == [0, 1] and second.samples_N.tolist() == [5, 4, 3, 2]


def test_without_a_budget_and_alone_nothing_is_changed() -> None:
    samples = samples_of([(4, 4), (4, 3), (1, 1), (1, 2), (2, 2)])
    plain = lay_out(samples, samples_per_micro_batch=2, length_multiple=4, pad_id=PAD)
    for balanced in (False, True):
        layout = BatchLayout(samples_per_micro_batch=2, length_multiple=4, pad_id=PAD, balanced=balanced)
        for found, expected in zip(micro_batches(samples, layout), plain, strict=True):
            for name in Batch.__slots__:
                np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


LAYOUTS = st.builds(
    BatchLayout,
    samples_per_micro_batch=st.none(),
    max_tokens_per_micro_batch=st.integers(24, 100),
    packing=st.booleans(),
    in_one_row=st.booleans(),
    length_multiple=st.sampled_from([1, 4, 8]),
    pad_id=st.just(PAD),
    replicas=st.integers(1, 4),
    in_rounds=st.booleans(),
    round_size=st.just(1),
    balanced=st.booleans(),
)
COUNTED = st.builds(
    BatchLayout,
    samples_per_micro_batch=st.integers(1, 5),
    length_multiple=st.sampled_from([1, 4, 8]),
    pad_id=st.just(PAD),
    replicas=st.integers(1, 4),
    balanced=st.booleans(),
)
SIZES = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=30)


@settings(max_examples=300)
@given(sizes=SIZES, layout=LAYOUTS | COUNTED, round_size=st.integers(1, 3))
def test_every_token_stands_once_and_is_predicted_from_the_one_before(sizes, layout, round_size) -> None:
    layout = replace(layout, round_size=round_size if layout.in_rounds else 1)
    if layout.packing and layout.in_rounds:
        layout = replace(layout, in_one_row=True)
    samples = samples_of(sizes)
    batches = micro_batches(samples, layout)
    seen = []
    for batch in batches:
        rows, width = batch.ids_RT.shape
        assert width % layout.length_multiple == 0
        if layout.max_tokens_per_micro_batch is not None:
            assert batch.ids_RT.size <= layout.max_tokens_per_micro_batch
        assert (batch.num_sequences, batch.num_tokens) == (len(sizes), sum(response for _, response in sizes))
        assert ((batch.ids_RT == PAD) == (batch.segments_RT == 0)).all()
        # Each run of one segment is one sample, whole, at positions of its own.
        starts = np.flatnonzero((batch.positions_RT.reshape(-1) == 0) & (batch.segments_RT.reshape(-1) > 0))
        assert len(starts) == (batch.samples_N >= 0).sum()
        for row, number in enumerate(batch.samples_N):
            mask = batch.mask_NK[row]
            if number < 0:
                assert not mask.any()
                continue
            seen.append(number)
            sample, before = samples[number], batch.predict_P[batch.place_NK[row][mask]]
            np.testing.assert_array_equal(batch.targets_P[batch.place_NK[row][mask]], sample.response_ids)
            np.testing.assert_array_equal(batch.ids_RT.reshape(-1)[before], sample.response_ids - 1)
            start = before[0] - sample.prompt_ids.size + 1
            span = slice(start, start + sample.length)
            whole = np.concatenate([sample.prompt_ids, sample.response_ids])
            np.testing.assert_array_equal(batch.ids_RT.reshape(-1)[span], whole)
            np.testing.assert_array_equal(batch.positions_RT.reshape(-1)[span], np.arange(sample.length))
            assert len(set(batch.segments_RT.reshape(-1)[span])) == 1 and start // width == (span.stop - 1) // width
        if layout.packing and not layout.in_one_row:
            continue
        # As many segments as sample slots, whatever is in them: one graph on Ascend.
        ends = segment_ends(batch.segments_RT, num_segments=batch.samples_N.size)
        assert len(ends) == batch.samples_N.size and (np.diff([0, *ends]) > 0).all() and ends[-1] == batch.ids_RT.size
    assert sorted(seen) == list(range(len(sizes)))
    if layout.in_rounds:
        assert len(batches) % (layout.replicas * layout.round_size) == 0
    if layout.packing:
        assert len(batches) % layout.replicas == 0
    if layout.packing and layout.in_one_row:
        assert len({(b.ids_RT.shape, b.mask_NK.shape, b.predict_P.shape) for b in batches}) == 1
    rows = [np.arange(sample.response_ids.size, dtype=np.float32) + sample.number for sample in samples]
    back = gathered(batches, [scattered(batch, rows) for batch in batches], len(samples))
    assert all((found == expected).all() for found, expected in zip(back, rows, strict=True))


def test_runs_for_one_graph_have_equally_many_rows() -> None:
    samples = samples_of([(4, 4), (4, 3), (1, 1), (1, 2), (2, 2), (1, 3)])
    two, four = micro_batches(samples, BatchLayout(max_tokens_per_micro_batch=16, length_multiple=4, pad_id=PAD))
    assert stackable([two, two, two, four, four], 2) == [[0, 1], [2], [3, 4]]
    assert stackable([], 2) == []


@given(sizes=SIZES, layout=LAYOUTS)
def test_batches_of_different_sizes_can_be_evened(sizes, layout) -> None:
    samples = samples_of(sizes)
    batches = micro_batches(samples, replace(layout, in_rounds=False))
    for batch, even in zip(batches, evened(batches), strict=True):
        assert even.ids_RT.shape == evened(batches)[0].ids_RT.shape
        count, slots = batch.mask_NK.shape
        np.testing.assert_array_equal(even.targets_NK[:count, :slots], batch.targets_NK)
        assert not even.mask_NK[count:].any() and (even.samples_N[count:] == -1).all()
        tokens = even.ids_RT.reshape(-1)[even.predict_NK[even.mask_NK]]
        np.testing.assert_array_equal(tokens, even.targets_NK[even.mask_NK] - 1)


@given(sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=48, max_size=96))
def test_balanced_replicas_have_nearly_equal_numbers_of_tokens(sizes) -> None:
    samples = samples_of(sizes)
    layout = BatchLayout(
        max_tokens_per_micro_batch=400, packing=True, length_multiple=8, pad_id=PAD, replicas=4, balanced=True
    )
    tokens = {}
    for balanced in (False, True):
        batches = micro_batches(samples, replace(layout, balanced=balanced))
        tokens[balanced] = [sum(int((b.segments_RT > 0).sum()) for b in batches[i::4]) for i in range(4)]
        assert sum(tokens[balanced]) == sum(map(sum, sizes))
    assert np.ptp(tokens[True]) <= np.ptp(tokens[False])
