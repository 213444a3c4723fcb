"""MindSpore's Ascend backend, executed on emulated cards, makes the numbers of one process on CPU under every plan.

Recorded responses, float32, three updates: scores before each, losses, gradient norms, weights; then what the infer
plan samples from the weights that were brought to it, with a float16 cache.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from ascend.divisions import (
    DATA,
    EIGHT,
    FOUR,
    MODEL,
    ONE,
    SHARDED,
    TWO,
    case,
    check,
    named,
    shipped_in_miniature,
    some,
)


def check_all(figures_of_cards: Callable, figures_on_cpu: Callable, num_cards: int, cases: Mapping) -> None:
    found = figures_of_cards(num_cards, named(cases))
    for name, one in cases.items():
        kinds = {key: bool(one.get(key)) for key in ("replays", "tells")}
        check(found[name], figures_on_cpu(one["model"], **kinds), name)


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
def test_rounded_weights_beside_masters_make_the_numbers_of_float32_ones(figures_of_cards: Callable) -> None:
    """In bfloat16: float32 weights whole on both cards, or rows of them on each beside whole ones in bfloat16. Norms
    are sums in another order, so nothing is clipped."""
    kind = {"dtype": "bfloat16", "max_grad_norm": 1e3}
    trained = {"whole": DATA, "masters": DATA | SHARDED}
    cases = {name: case("experts", train, MODEL) | kind for name, train in trained.items()}
    found = figures_of_cards(2, named(cases))
    assert any(key.startswith("weight/") for key in found["whole"])
    for key, array in found["whole"].items():
        rtol = 1e-6 if key == "grad_norm" else 0
        np.testing.assert_allclose(found["masters"][key], array, rtol=rtol, atol=0, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_in_miniature())
def test_shipped_configurations_in_miniature(figures_of_cards: Callable, figures_on_cpu: Callable, name: str) -> None:
    """A job each: graphs of earlier cases stay in memory, and all of them on eight ranks are more than 24 GB."""
    check_all(figures_of_cards, figures_on_cpu, 8, some(shipped_in_miniature(), name))
