"""MindSpore's Ascend backend, executed on emulated cards, makes the numbers of one process on CPU under every plan.
So do CPU processes.

Recorded responses, float32, three updates: scores before each, losses, gradient norms, weights; then what the infer
plan samples from the weights that were brought to it, with a float16 cache on cards.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from ascend import divisions
from ascend.divisions import DATA, EIGHT, FOUR, MODEL, ONE, OVERLAPPED, SHARDED, SIX, STAGES, THREE, TWO, named, some


def check_all(found: Mapping, figures_on_cpu: Callable, cases: Mapping, device: str = "Ascend") -> None:
    for name, one in cases.items():
        kinds = {key: bool(one.get(key)) for key in ("replays", "tells")}
        wanted = figures_on_cpu(one["model"], **kinds)
        if "dtype" in one:
            divisions.check_bfloat16(found[name], figures_on_cpu(one["model"], dtype=one["dtype"]), wanted, name)
        else:
            divisions.check(found[name], wanted, name, device)


def test_one_card_equals_cpu(figures_of_cards: Callable, figures_on_cpu: Callable) -> None:
    cases = some(ONE, "one card")
    check_all(figures_of_cards(1, named(cases)), figures_on_cpu, cases)


@pytest.mark.smoke
def test_a_graph_divided_over_two_cards_equals_cpu(figures_of_cards: Callable, figures_on_cpu: Callable) -> None:
    cases = some(TWO, "1x2x1, tied", "context 2, packed")
    check_all(figures_of_cards(2, named(cases)), figures_on_cpu, cases)


@pytest.fixture(params=["Ascend", "CPU"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "Ascend":
        request.getfixturevalue("cards")
    return request.param


SIZES = {1: ONE, 2: TWO, 3: THREE, 4: FOUR, 6: SIX, 8: EIGHT}


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_every_division_equals_one_process(figures_of_ranks, figures_on_cpu, device: str, size: int) -> None:
    check_all(figures_of_ranks(device, size, named(SIZES[size])), figures_on_cpu, SIZES[size], device)


@pytest.mark.slow
def test_rounded_weights_beside_masters_make_the_numbers_of_float32_ones(figures_of_cards: Callable) -> None:
    """In bfloat16: float32 weights whole on both cards, or rows of them on each beside whole ones in bfloat16. Norms
    are sums in another order, so nothing is clipped."""
    kind = {"dtype": "bfloat16", "max_grad_norm": 1e3}
    trained = {"whole": DATA, "masters": DATA | SHARDED}
    cases = {name: divisions.case("experts", train, MODEL) | kind for name, train in trained.items()}
    found = figures_of_cards(2, named(cases))
    assert any(key.startswith("weight/") for key in found["whole"])
    for key, array in found["whole"].items():
        rtol = 1e-6 if key == "grad_norm" else 0
        np.testing.assert_allclose(found["masters"][key], array, rtol=rtol, atol=0, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "model", "train"), [(2, "experts", DATA | SHARDED), (4, "tied", DATA | STAGES)])
def test_sums_inside_the_backward_pass_make_the_same_bits(figures_of_cards: Callable, size, model, train) -> None:
    cases = {
        name: divisions.case(model, train | extra, {"data_parallel": size})
        for name, extra in (("apart", {}), ("inside", OVERLAPPED))
    }
    found = figures_of_cards(size, named(cases))
    assert any(key.startswith("weight/") for key in found["apart"])
    for key, array in found["apart"].items():
        np.testing.assert_array_equal(found["inside"][key], array, err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("name", divisions.shipped_in_miniature())
def test_shipped_configurations_in_miniature(figures_of_ranks, figures_on_cpu, device: str, name: str) -> None:
    """A job each: graphs of earlier cases stay in memory, and all of them on eight ranks are more than 24 GB."""
    cases = some(divisions.shipped_in_miniature(), name)
    check_all(figures_of_ranks(device, 8, named(cases)), figures_on_cpu, cases, device)
