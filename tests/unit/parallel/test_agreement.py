"""What ranks that differ are told, over ranks that are threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from mindgspo.errors import ConfigError
from mindgspo.parallel.collectives.host import require_agreement

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


def test_equal_facts_pass_whatever_their_order(answers):
    require_agreement("settings", {"lr": 1.0}, FIX)  # of a process that is alone
    assert answers([{"a": 1, "b": {"c": [1, 2], "d": None}}, {"b": {"d": None, "c": [1, 2]}, "a": 1}]) == [None, None]


@pytest.mark.parametrize(("facts", "told"), [
    ([{"optimizer": {"lr": 0.5, "beta": 0.9}}, {"optimizer": {"lr": 0.25, "beta": 0.9}}],
        ["rank 1: optimizer.lr is 0.25, on rank 0 0.5"]),
    # Rank 0 is the measure, and all who differ are named.
    ([{"seed": 7}, {"seed": 8}, {"seed": 7}, {"seed": 9}],
        ["rank 1: seed is 8, on rank 0 7", "rank 3: seed is 9, on rank 0 7"]),
    ([{"a": 1, "b": "x"}, {"a": 1, "c": [2]}],
        ["rank 1: b is 'missing', on rank 0 'x'", "rank 1: c is [2], on rank 0 'missing'"]),
    ([{"steps": 1, "path": "1"}, {"steps": "1", "path": "1"}], ["rank 1: steps is '1', on rank 0 1"]),
], ids=["key", "ranks", "missing", "type"])  # fmt: skip
def test_every_rank_is_told_the_key_both_values_and_the_fix(answers, facts: list[dict], told: list[str]):
    lines = ["the ranks differ in their settings:", *(f"  {line}" for line in told), FIX]
    assert answers(facts) == len(facts) * ["\n".join(lines)]


def test_a_long_list_is_cut_after_five(answers):
    found = answers([dict.fromkeys("abcdefg", 0), dict.fromkeys("abcdefg", 1)])
    lines = found[0].splitlines()
    assert [line.split()[2] for line in lines[1:6]] == list("abcde")
    assert lines[6:] == ["  and 2 more", FIX]
    found = answers([dict.fromkeys("abcde", 0), dict.fromkeys("abcde", 1)])
    assert len(found[0].splitlines()) == 7, "five are no long list"
