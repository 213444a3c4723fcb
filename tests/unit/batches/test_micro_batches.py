"""Micro-batches of every layout, their costs, and numbers spread over parts: by hand, and what must hold for any."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo.batches.micro_batches import (
    BatchLayout,
    batch_metrics,
    few,
    largest_shape,
    micro_batches,
    sample_lengths,
    tokens_of_replicas,
)
from mindgspo.batches.partition import dealt, pack_rows, partition
from mindgspo.batches.rows import (
    TrainingSample,
    evened,
    filler_like,
    gathered,
    lay_out,
    packed_tokens,
    scattered,
)
from mindgspo.parallel.ops.device import segment_ends
from mindgspo.types import Batch

PAD = 77


def sample_of(prompt: int, response: int, number: int) -> TrainingSample:
    """Its tokens tell which sample and which place they are from."""
    ids = (1000 * (number + 1) + np.arange(prompt + response)).astype(np.int32)
    return TrainingSample(
        prompt_ids=ids[:prompt], response_ids=ids[prompt:], rollout_logp=-ids[prompt:].astype(np.float32), number=number
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
    assert pack_rows([3, 7, 1, 6, 4], row_length=10) == [[1, 0], [3, 4], [2]]
    with pytest.raises(AssertionError, match="8 tokens, rows of 7"):
        pack_rows([8], row_length=7)


def test_a_packed_micro_batch_worked_by_hand() -> None:
    # Lengths 5, 4, 3, 2 in rows of 8: 5 + 3, 4 + 2.
    samples = [sample_of(2, 3, 0), sample_of(2, 2, 1), sample_of(1, 2, 2), sample_of(1, 1, 3)]
    layout = BatchLayout(max_tokens_per_micro_batch=16, packing=True, length_multiple=8, pad_id=PAD)
    (batch,) = micro_batches(samples, layout)
    assert batch.ids_RT.tolist() == [[1000, 1001, 1002, 1003, 1004, 3000, 3001, 3002],
                                     [2000, 2001, 2002, 2003, 4000, 4001, PAD, PAD]]  # fmt: skip
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


LAYOUTS = st.builds(BatchLayout, samples_per_micro_batch=st.none(), max_tokens_per_micro_batch=st.integers(24, 100),
                    packing=st.booleans(), in_one_row=st.booleans(), length_multiple=st.sampled_from([1, 4, 8]),
                    pad_id=st.just(PAD), replicas=st.integers(1, 4), in_rounds=st.booleans(), round_size=st.just(1),
                    balanced=st.booleans())  # fmt: skip
COUNTED = st.builds(BatchLayout, samples_per_micro_batch=st.integers(1, 5), length_multiple=st.sampled_from([1, 4, 8]),
                    pad_id=st.just(PAD), replicas=st.integers(1, 4), balanced=st.booleans())  # fmt: skip
SIZES = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=30)


@settings(max_examples=300)
@given(sizes=SIZES, layout=LAYOUTS | COUNTED, round_size=st.integers(1, 3))
def test_every_token_stands_once_and_is_predicted_from_the_one_before(sizes, layout, round_size) -> None:
    layout = replace(layout, round_size=round_size)
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


# Tokens of prompt and response.
COSTED = [(2, 6), (1, 6), (1, 2), (1, 1)]


def samples() -> list[TrainingSample]:
    return [replace(sample, number=10 + sample.number) for sample in samples_of(COSTED)]


@pytest.mark.parametrize("packing", [False, True])
def test_lengths_are_found_in_every_layout(packing: bool) -> None:
    layout = BatchLayout(max_tokens_per_micro_batch=24, packing=packing, length_multiple=4, pad_id=1)
    lengths: dict[int, int] = {}
    for batch in micro_batches(samples(), layout):
        lengths |= sample_lengths(batch)
        assert sample_lengths(filler_like(batch)) == {}
    assert lengths == {10: 8, 11: 7, 12: 3, 13: 2}


def test_metrics_worked_by_hand() -> None:
    # 8 + 7 and 3 + 2 in the order of the step; 8 + 2 and 7 + 3 balanced, each in a row of 12 slots.
    layout = BatchLayout(max_tokens_per_micro_batch=12, packing=True, in_one_row=True, length_multiple=4, pad_id=1,
                         replicas=2, balanced=True)  # fmt: skip
    batches = micro_batches(samples(), layout)
    assert sorted(tokens_of_replicas(batches, 2)) == [10, 10]
    assert [batch.ids_RT.shape for batch in batches] == [(1, 12), (1, 12)]
    lengths = {"min": 5, "max": 15, "minmax_diff": 10, "balanced_min": 10, "balanced_max": 10, "mean": 10}
    expected = {f"global_seqlen/{name}": length for name, length in lengths.items()}
    expected |= {"training/padding_share": 4 / 24, "training/micro_batches_per_update": 1}
    assert batch_metrics([batches], layout) == pytest.approx(expected)
    assert batch_metrics([], layout) == {}


def test_one_shape_for_batches_of_all_lengths() -> None:
    """The same samples and numbers in one row; padding behind them is not computed."""
    layout = BatchLayout(samples_per_micro_batch=3, length_multiple=4, pad_id=1)
    size = largest_shape(layout, num_samples=8, longest=9, slots=6)
    assert (size.rows, size.row_length, size.samples, size.slots) == (3, 12, 3, 8)
    fixed = replace(layout, one_shape=size)
    for batch, same in zip(micro_batches(samples(), layout), micro_batches(samples(), fixed), strict=True):
        assert same.ids_RT.shape == (1, 36) and same.mask_NK.shape == (3, 8) and same.predict_P.shape == (24,)
        assert sample_lengths(batch) == sample_lengths(same)
        is_real = batch.segments_RT > 0
        np.testing.assert_array_equal(same.ids_RT[0, : is_real.sum()], batch.ids_RT[is_real])
        np.testing.assert_array_equal(same.positions_RT[0, : is_real.sum()], batch.positions_RT[is_real])
        assert not same.segments_RT[0, is_real.sum() :].any()
        before, after = packed_tokens(batch), packed_tokens(same)
        np.testing.assert_array_equal(before.segments_E2, after.segments_E2)
        for name in ("targets_P", "rollout_logp_NK"):
            own, mask = getattr(batch, name), batch.mask_NK
            places = batch.place_NK[mask] if name.endswith("_P") else mask
            same_places = same.place_NK[same.mask_NK] if name.endswith("_P") else same.mask_NK
            np.testing.assert_array_equal(getattr(same, name)[same_places], own[places])
        np.testing.assert_array_equal(
            after.predict_P[same.place_NK[same.mask_NK]], before.predict_P[batch.place_NK[batch.mask_NK]]
        )
        assert (same.samples_N == batch.samples_N).all()
    assert batch_metrics([micro_batches(samples(), fixed)], fixed)["training/padding_share"] == 0


def test_the_shape_under_a_budget_does_not_grow_with_the_mini_batch() -> None:
    layout = BatchLayout(max_tokens_per_micro_batch=36, packing=True, in_one_row=True, length_multiple=4, pad_id=1)
    size = largest_shape(layout, num_samples=1000, longest=9, slots=6)
    assert (size.samples, size.slots, size.predictions) == (12, 8, 36)
    assert largest_shape(layout, num_samples=8, longest=9, slots=6).samples == 8
    for number, padded in ((5, 12), (13, 24), (25, 48)):
        short = [
            TrainingSample(
                prompt_ids=np.array([1], np.int32),
                response_ids=np.array([2], np.int32),
                rollout_logp=np.zeros(1, np.float32),
                number=index,
            )
            for index in range(number)
        ]
        (batch,) = micro_batches(short, replace(layout, max_tokens_per_micro_batch=80, one_shape=size))
        assert batch.samples_N.shape == (padded,) and (batch.samples_N >= 0).sum() == number


def test_packed_tokens_share_prompts_and_leave_out_what_predicts_nothing() -> None:
    def sample(prompt: list[int], response: list[int], number: int) -> TrainingSample:
        return TrainingSample(
            prompt_ids=np.array(prompt, np.int32),
            response_ids=np.array(response, np.int32),
            rollout_logp=np.zeros(len(response), np.float32),
            number=number,
        )

    given = [sample([5, 6], [1, 2, 3], 0), sample([7], [8, 9], 1), sample([5, 6], [4], 2), sample([5], [6], 3)]
    (batch,) = lay_out(given, samples_per_micro_batch=5, length_multiple=4, pad_id=0, keeps_order=True)
    packed = packed_tokens(batch)
    # Prompt 5 6, what follows it: 1 2 and nothing; 7 and 8; 5.
    assert packed.ids_1M[0].tolist() == [5, 6, 1, 2, 7, 8, 5] + [0] * 33
    assert packed.positions_1M[0, :7].tolist() == [0, 1, 2, 3, 0, 1, 0]
    assert packed.segments_E2.tolist() == [[-1, 2], [0, 4], [0, 4], [-1, 6], *[[-1, 7]] * 6]
    assert [packed.predict_P[batch.place_NK[n, batch.mask_NK[n]]].tolist() for n in range(5)] == [
        [1, 2, 3], [4, 5], [1], [6], [],
    ]  # fmt: skip
    assert (packed.predict_P >= 0).sum() == 7


def sums(costs: list[int], parts: list[list[int]]) -> list[int]:
    return [sum(costs[index] for index in part) for part in parts]


def spread(costs: list[int], parts: list[list[int]]) -> int:
    return max(sums(costs, parts)) - min(sums(costs, parts))


def test_textbook_cases() -> None:
    # 8, 7, 6, 5, 4: differencing takes 8 - 7 = 1 and 6 - 5 = 1, then 4 - 1 = 3, then 3 - 1 = 2: sums 16 and 14. Dealing
    # gives 8 + 6 + 4 = 18 and 12.
    costs = [8, 7, 6, 5, 4]
    assert sorted(sums(costs, partition(costs, 2))) == [14, 16]
    assert sums(costs, dealt(costs, 2)) == [18, 12]
    # The two widest solutions are joined crosswise: (9, 0, 0) with (8, 0, 0) is (9, 8, 0), with 7 it is (9, 8, 7); then
    # (6, 0, 0) goes to the 7, (5, 0, 0) to the 8, (4, 0, 0) to the 9: 13 each.
    costs = [4, 9, 6, 8, 5, 7]
    assert sums(costs, partition(costs, 3)) == [13, 13, 13]
    assert spread(costs, dealt(costs, 3)) == 4


@given(costs=st.lists(st.integers(0, 1000), max_size=40), num_parts=st.integers(1, 9), equal_counts=st.booleans())
def test_every_index_once_and_never_worse_than_dealing(costs, num_parts, equal_counts) -> None:
    parts = partition(costs, num_parts, equal_counts=equal_counts)
    assert len(parts) == num_parts
    assert sorted(index for part in parts for index in part) == list(range(len(costs)))
    assert all(part == sorted(part) for part in parts)
    assert spread(costs, parts) <= spread(costs, dealt(costs, num_parts))
    if equal_counts:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert partition(costs, num_parts, equal_counts=equal_counts) == parts, "ranks that disagree would hang"


@pytest.mark.parametrize("equal_counts", [False, True])
def test_many_lengths_come_out_nearly_even(equal_counts: bool) -> None:
    costs = np.random.default_rng(0).integers(50, 2000, 4096).tolist()
    found = partition(costs, 32, equal_counts=equal_counts)
    assert spread(costs, found) < 0.001 * sum(costs) / 32
    assert spread(costs, dealt(costs, 32)) > 0.01 * sum(costs) / 32


@pytest.mark.parametrize("form", [{}, {"packing": True, "in_one_row": True}], ids=["padded", "packed"])
def test_a_pipeline_gets_a_multiple_of_its_micro_batches(form: dict) -> None:
    # Twelve samples of 8 tokens: a budget of 40 holds five, so three micro-batches, or four of three samples each.
    layout = BatchLayout(max_tokens_per_micro_batch=40, length_multiple=8, pad_id=PAD, **form)
    samples = samples_of([(3, 5)] * 12)

    def sizes(**changes: int) -> list[int]:
        return [int((batch.samples_N >= 0).sum()) for batch in micro_batches(samples, replace(layout, **changes))]

    assert len(sizes()) == 3
    assert sizes(round_size=2) == [3, 3, 3, 3]
    assert sizes(round_size=3, replicas=2) == [2] * 6
