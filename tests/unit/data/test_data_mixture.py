"""Prompts of several sources: exact shares at any moment, whole epochs of each source, resumable at any point."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.config.data import TrainSource
from mindgspo.data.mixture import MixtureStream, most_drawn
from mindgspo.data.stream import PromptStream
from mindgspo.errors import DataError

weights = st.lists(st.integers(1, 50), min_size=1, max_size=6)
draws = st.lists(st.integers(0, 40), max_size=12)
seeds = st.integers(0, 2**64 - 1)


def sources_of(weights: list[int], rows: list[int] | int = 1000) -> list[TrainSource]:
    rows = [rows] * len(weights) if isinstance(rows, int) else rows
    return [
        TrainSource(name=f"s{number}", num_rows=num_rows, share=Fraction(weight, sum(weights)))
        for number, (weight, num_rows) in enumerate(zip(weights, rows, strict=True))
    ]


def source_numbers(drawn: list[int], rows: int = 1000) -> list[int]:
    return [index // rows for index in drawn]


@given(weights, st.integers(1, 300), seeds)
def test_shares_hold_after_every_prompt_and_in_every_run_of_prompts(weights, n, seed):
    numbers = source_numbers(MixtureStream(sources_of(weights), seed).take(n))
    bound = 1 - Fraction(1, max(2 * len(weights) - 2, 1))
    for number, weight in enumerate(weights):
        share = Fraction(weight, sum(weights))
        ahead, most, least = Fraction(0), Fraction(0), Fraction(0)
        for position in range(1, n + 1):
            ahead = numbers[:position].count(number) - position * share
            most, least = max(most, ahead), min(least, ahead)
            assert abs(ahead) <= bound < 1
        # The furthest that any run of prompts is from its share.
        assert most - least <= 2 * bound and (len(weights) > 2 or most - least <= 1)


def test_the_order_of_three_to_one_by_hand():
    # After t prompts the first source may have from 3t/4 - 1/2 to 3t/4 + 1/2: 1, 1 or 2, 2, 3.
    assert source_numbers(MixtureStream(sources_of([3, 1]), 1).take(8)) == [0, 0, 1, 0] * 2
    assert source_numbers(MixtureStream(sources_of([1, 1, 1]), 1).take(6)) == [0, 1, 2] * 2


@given(weights, seeds, draws, st.booleans(), st.data())
def test_every_source_has_whole_epochs_and_no_draw_a_prompt_twice(weights, seed, draws, shuffle, data):
    sources = sources_of(weights)
    rows = [most_drawn(source, len(weights), 40) + data.draw(st.integers(0, 9)) for source in sources]
    stream = MixtureStream(sources_of(weights, rows), seed, shuffle)
    starts = [0, *(sum(rows[: number + 1]) for number in range(len(rows)))]
    counts = Counter(dict.fromkeys(range(starts[-1]), 0))
    for n in draws:
        drawn = stream.take(n)
        assert len(set(drawn)) == len(drawn) == n
        counts.update(drawn)
    for number, (start, stop) in enumerate(pairwise(starts)):
        of_source = [counts[index] for index in range(start, stop)]
        assert max(of_source) - min(of_source) <= 2, "a row set aside is late by less than a draw"
        assert stream.epochs_by_source[f"s{number}"] == pytest.approx(sum(of_source) / rows[number])
    assert stream.epochs == pytest.approx(sum(draws) / starts[-1])


@given(weights, st.integers(0, 12), draws, seeds, st.booleans())
def test_resuming_at_any_draw_is_exact(weights, cut, draws, seed, shuffle):
    sources = sources_of(weights, [2 + 3 * number for number in range(len(weights))])
    whole = MixtureStream(sources, seed, shuffle)
    expected = [whole.take(n) for n in draws]
    first = MixtureStream(sources, seed, shuffle)
    got = [first.take(n) for n in draws[:cut]]
    second = MixtureStream(sources, seed, shuffle)
    second.take(5)
    second.load_json(json.loads(json.dumps(first.to_json())))
    assert second.to_json() == first.to_json()
    got += [second.take(n) for n in draws[cut:]]
    assert got == expected and second.to_json() == whole.to_json()


def test_sources_of_equal_size_have_orders_of_their_own():
    stream = MixtureStream(sources_of([1, 1], 50), seed=1)
    drawn = stream.take(100)
    first, second = ([index % 50 for index in drawn if index // 50 == number] for number in (0, 1))
    assert sorted(first) == sorted(second) == list(range(50)) and first != second
    assert MixtureStream(sources_of([1, 1], 50), seed=2).take(100) != drawn
    in_order = MixtureStream(sources_of([1, 1], 50), seed=1, shuffle=False)
    assert in_order.take(4) == [0, 50, 1, 51]


@pytest.mark.parametrize(("other", "message"), [
    (sources_of([1, 2]), r"the sources of data.train were s0 \(3/4\), s1 \(1/4\), are now s0 \(1/3\), s1 \(2/3\)"),
    (sources_of([3, 1, 1]), "are now s0"),
    (sources_of([3, 1], [1000, 999]), "number of prompts was 1000, is now 999"),
])  # fmt: skip
def test_the_position_in_another_mixture_is_refused(other: list[TrainSource], message: str):
    saved = MixtureStream(sources_of([3, 1]), seed=1).to_json()
    with pytest.raises(DataError, match=message):
        MixtureStream(other, seed=1).load_json(saved)


@pytest.mark.parametrize("drawn", [[3, 3], [-1, 0], [0.5, 0.5], [40, 1]], ids=str)
def test_a_forged_position_is_refused(drawn: list[Any]):
    stream = MixtureStream(sources_of([3, 1]), seed=1)
    with pytest.raises(DataError, match="is none"):
        stream.load_json({**stream.to_json(), "drawn": drawn})
    assert source_numbers(stream.take(4)) == [0, 0, 1, 0]


def test_one_source_alone_is_its_own_stream():
    assert most_drawn(sources_of([5], 7)[0], 1, 7) == 7
    of_list = MixtureStream(sources_of([5], 7), seed=3)
    alone = PromptStream(7, seed=3, source=0)
    assert [of_list.take(n) for n in (3, 3, 5, 20)] == [alone.take(n) for n in (3, 3, 5, 20)]
