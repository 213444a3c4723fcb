"""What ranks that differ are told, over ranks that are threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from mindgspo.errors import ConfigError
from mindgspo.parallel.collectives import require_agreement

FIX = "Start all ranks alike."


@pytest.fixture
def answers(over_ranks) -> Callable[[Sequence[Mapping[str, object]]], list[str | None]]:
    """answers(facts by rank): what each rank is told, None where nothing."""

    def ask(facts: Sequence[Mapping[str, object]]) -> list[str | None]:
        def work(rank: int) -> str | None:
            try:
                require_agreement("settings", facts[rank], FIX)
            except ConfigError as error:
                return str(error)
            return None

        return over_ranks(len(facts), work)

    return ask


def test_a_process_that_is_alone_agrees_with_itself():
    require_agreement("settings", {"lr": 1.0}, FIX)


def test_equal_facts_pass_whatever_their_order(answers):
    assert answers([{"a": 1, "b": {"c": [1, 2], "d": None}}, {"b": {"d": None, "c": [1, 2]}, "a": 1}]) == [None, None]


def test_every_rank_is_told_the_key_both_values_and_the_fix(answers):
    found = answers([{"optimizer": {"lr": 0.5, "beta": 0.9}}, {"optimizer": {"lr": 0.25, "beta": 0.9}}])
    assert found == 2 * [
        "the ranks differ in their settings:\n  rank 1: optimizer.lr is 0.25, on rank 0 0.5\nStart all ranks alike."
    ]


def test_rank_0_is_the_measure_and_all_who_differ_are_named(answers):
    found = answers([{"seed": 7}, {"seed": 8}, {"seed": 7}, {"seed": 9}])
    assert found == 4 * [
        "the ranks differ in their settings:\n"
        "  rank 1: seed is 8, on rank 0 7\n"
        "  rank 3: seed is 9, on rank 0 7\n"
        "Start all ranks alike."
    ]


def test_keys_that_one_side_lacks_are_named(answers):
    found = answers([{"a": 1, "b": "x"}, {"a": 1, "c": [2]}])
    assert found[1].splitlines()[1:3] == [
        "  rank 1: b is 'missing', on rank 0 'x'",
        "  rank 1: c is [2], on rank 0 'missing'",
    ]


def test_a_value_of_another_type_is_another_value(answers):
    found = answers([{"steps": 1, "path": "1"}, {"steps": "1", "path": "1"}])
    assert found[0].splitlines()[1:-1] == ["  rank 1: steps is '1', on rank 0 1"]


def test_a_long_list_is_cut_after_five(answers):
    found = answers([dict.fromkeys("abcdefg", 0), dict.fromkeys("abcdefg", 1)])
    lines = found[0].splitlines()
    assert [line.split()[2] for line in lines[1:6]] == list("abcde")
    assert lines[6:] == ["  and 2 more", FIX]
    found = answers([dict.fromkeys("abcde", 0), dict.fromkeys("abcde", 1)])
    assert len(found[0].splitlines()) == 7, "five are no long list"
