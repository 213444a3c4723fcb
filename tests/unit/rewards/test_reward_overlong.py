"""DAPO's overlong penalty: the formula over many lengths, and the reward function for one response."""

from __future__ import annotations

import numpy as np
import pytest

from mindgspo.config.reward import OverlongSection
from mindgspo.errors import DataError
from mindgspo.rewards.functions.shaping import Overlong, overlong_penalty
from mindgspo.rewards.verification import Candidate
from mindgspo.types import Verdict


def test_a_line_over_the_buffer_by_hand():
    lengths = [0, 15, 16, 18, 20]
    actual = overlong_penalty(lengths, max_len=20, buffer_len=5)
    np.testing.assert_allclose(actual, [0, 0, -0.2, -0.6, -1.0], rtol=1e-15)
    assert actual.dtype == np.float64


def test_beyond_the_longest_length_the_floor_decides():
    lengths = [20, 25, 100]
    assert overlong_penalty(lengths, max_len=20, buffer_len=5).tolist() == [-1, -2, -17]
    assert overlong_penalty(lengths, max_len=20, buffer_len=5, floor=-1.0).tolist() == [-1, -1, -1]
    assert overlong_penalty(lengths, max_len=20, buffer_len=5, factor=0.5, floor=-0.5).tolist() == [-0.5] * 3


def test_no_penalty_is_never_a_reward():
    for factor in (0.0, 1.0):
        actual = overlong_penalty(range(40), max_len=30, buffer_len=10, factor=factor)
        assert (actual <= 0).all() and not np.signbit(actual[:21]).any()


def test_a_buffer_of_the_whole_length_begins_at_once():
    assert overlong_penalty([0, 1, 8], max_len=8, buffer_len=8).tolist() == [0, -0.125, -1]


def test_without_a_buffer_the_penalty_is_a_step():
    assert overlong_penalty([7, 8, 9], max_len=8, buffer_len=0, floor=-1.0).tolist() == [0, 0, -1]


def test_no_lengths_no_penalties():
    assert overlong_penalty([], max_len=8, buffer_len=2).shape == (0,)


@pytest.mark.parametrize(
    ("lengths", "settings", "message"),
    [
        ([3, -1], {}, "lengths: -1 at 1"),
        ([2.5], {}, "lengths: 2.5 at 0"),
        ([np.nan], {}, "lengths: nan at 0"),
        ([[1, 2]], {}, r"lengths: expected shape \[any\], got \[1, 2\]"),
        ([1], {"buffer_len": 9}, "buffer_len 9 must lie between 0 and max_len 8"),
        ([1], {"buffer_len": -1}, "buffer_len -1"),
        ([1], {"factor": -1.0}, "factor -1"),
        ([1], {"floor": 0.5}, "floor 0.5"),
        ([1], {"buffer_len": 0}, "buffer_len 0 needs a floor"),
    ],
)
def test_bad_settings_are_refused(lengths, settings, message):
    with pytest.raises(DataError, match=message):
        overlong_penalty(lengths, **{"max_len": 8, "buffer_len": 2, **settings})


# ----- the reward function


def of_length(num_tokens: int | None) -> Candidate:
    return Candidate(text="", gold="", data_source="test", index=0, num_tokens=num_tokens)


def test_one_response_by_hand_and_never_below_the_factor():
    overlong = Overlong(OverlongSection(buffer_len=5, factor=0.5, max_len=20))
    values = [overlong.value(of_length(length), None) for length in (0, 1, 15, 16, 18, 20, 21, 10**9)]
    assert values == [0, 0, 0, -0.1, pytest.approx(-0.3), -0.5, -0.5, -0.5]
    assert all(type(value) is float for value in values)


@pytest.mark.parametrize(("max_len", "buffer_len", "factor"), [(20, 5, 1.0), (20, 20, 2.5), (7, 1, 0.3), (64, 16, 0)])
def test_one_response_is_paid_as_many_are(max_len, buffer_len, factor):
    overlong = Overlong(OverlongSection(buffer_len=buffer_len, factor=factor, max_len=max_len))
    lengths = range(2 * max_len + 2)
    many = overlong_penalty(lengths, max_len=max_len, buffer_len=buffer_len, factor=factor, floor=-factor)
    assert [overlong.value(of_length(length), None) for length in lengths] == many.tolist()


def test_the_verdict_does_not_matter():
    overlong = Overlong(OverlongSection(buffer_len=4, max_len=8))
    assert {overlong.value(of_length(6), verdict) for verdict in (*Verdict, None)} == {-0.5}


def test_a_buffer_longer_than_the_response_is_refused():
    with pytest.raises(DataError, match="buffer_len 9 must lie between 0 and max_len 8"):
        Overlong(OverlongSection(buffer_len=9, max_len=8))


def test_it_needs_the_length():
    with pytest.raises(AssertionError, match="max_len"):
        Overlong(OverlongSection())
    with pytest.raises(AssertionError, match="tokens"):
        Overlong(OverlongSection(max_len=5000)).value(of_length(None), None)
