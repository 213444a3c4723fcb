"""MindSpore's Ascend backend, executed on emulated cards, makes the numbers of one process on CPU under every plan.

Recorded responses, float32, three updates: scores before each, losses, gradient norms, weights; then what the infer
plan samples from the weights that were brought to it, with a float16 cache.
"""

from collections.abc import Callable, Mapping

import pytest
from ascend.divisions import EIGHT, FOUR, ONE, TWO, check, named, shipped_in_miniature, some


def check_all(figures_of_cards: Callable, figures_on_cpu: Callable, num_cards: int, cases: Mapping) -> None:
    found = figures_of_cards(num_cards, named(cases))
    for name, case in cases.items():
        kinds = {key: bool(case.get(key)) for key in ("replays", "tells")}
        check(found[name], figures_on_cpu(case["model"], **kinds), name)


def test_one_card_equals_cpu(figures_of_cards: Callable, figures_on_cpu: Callable) -> None:
    check_all(figures_of_cards, figures_on_cpu, 1, some(ONE, "one card"))


@pytest.mark.smoke
def test_a_graph_divided_over_two_cards_equals_cpu(figures_of_cards: Callable, figures_on_cpu: Callable) -> None:
    check_all(figures_of_cards, figures_on_cpu, 2, some(TWO, "1x2x1, tied", "context 2, packed"))


@pytest.mark.slow
@pytest.mark.parametrize(("num_cards", "cases"), [(1, ONE), (2, TWO), (4, FOUR), (8, EIGHT)])
def test_every_division_equals_cpu(figures_of_cards, figures_on_cpu, num_cards, cases):
    check_all(figures_of_cards, figures_on_cpu, num_cards, cases)


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_in_miniature())
def test_shipped_configurations_in_miniature(figures_of_cards: Callable, figures_on_cpu: Callable, name: str) -> None:
    """A job each: graphs of earlier cases stay in memory, and all of them on eight ranks are more than 24 GB."""
    check_all(figures_of_cards, figures_on_cpu, 8, some(shipped_in_miniature(), name))
