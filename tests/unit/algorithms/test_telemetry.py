"""Telemetry of an update: worked by hand, then the algebra that lets it be summed in any order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.algorithms.loss_metrics import collect_telemetry, telemetry_metrics
from mindgspo.metrics.glossary import LOG_RATIO_BINS, LOG_RATIO_EDGES, unknown_names


def mask_of(lengths: list[int], slots: int) -> np.ndarray:
    return np.arange(slots) < np.array(lengths)[:, None]


def of_gradient(gradient_NK: np.ndarray, mask_NK: np.ndarray) -> dict[str, float]:
    ratios = np.zeros((len(mask_NK), 1))
    return telemetry_metrics([collect_telemetry(log_ratio=ratios, grad_logp_NK=gradient_NK, mask_NK=mask_NK)])


def deciles(metrics: dict[str, float]) -> list[float]:
    return [metrics[f"grad_share_length_decile/{number}"] for number in range(1, 11)]


def histogram(metrics: dict[str, float]) -> dict[str, float]:
    """The bins that are not empty."""
    shares = {name: metrics[f"log_ratio_hist/{name}"] for name in LOG_RATIO_BINS}
    return {name: share for name, share in shares.items() if share}


def random_batch(seed: int, rows: int, slots: int = 12) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask_NK = mask_of(rng.integers(1, slots + 1, rows).tolist(), slots)
    return {
        "log_ratio": rng.normal(0, 0.01, (rows, 1)).astype(np.float32),
        "grad_logp_NK": rng.normal(0, 1, mask_NK.shape).astype(np.float32),
        "mask_NK": mask_NK,
    }


def rows_of(batch: dict[str, np.ndarray], rows: np.ndarray | slice) -> dict[str, np.ndarray]:
    return {name: array[rows] for name, array in batch.items()}


@pytest.mark.parametrize(("value", "name"), [
    (0.0, "within_1e-4"), (9e-5, "within_1e-4"), (-9e-5, "within_1e-4"),
    (3e-4, "1e-4_to_1e-3"), (0.005, "1e-3_to_1e-2"), (0.05, "1e-2_to_1e-1"),
    (-3e-4, "-1e-3_to_-1e-4"), (-0.005, "-1e-2_to_-1e-3"), (-0.05, "-1e-1_to_-1e-2"),
    (0.5, "above_1e-1"), (np.inf, "above_1e-1"), (-30.0, "below_-1e-1"), (-np.inf, "below_-1e-1"),
])  # fmt: skip
def test_bin_of_a_log_ratio(value: float, name: str) -> None:
    telemetry = collect_telemetry(
        log_ratio=np.array([[value]], np.float32), grad_logp_NK=np.ones((1, 3), np.float32), mask_NK=mask_of([2], 3)
    )
    assert histogram(telemetry_metrics([telemetry])) == {name: 1.0}


@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_on_an_edge_belongs_to_the_outer_bin(sign: int) -> None:
    edges = sign * np.array([LOG_RATIO_EDGES])  # float64: the float32 neighbours of an edge lie on either side of it
    telemetry = collect_telemetry(log_ratio=edges, grad_logp_NK=np.ones((1, 4)), mask_NK=mask_of([4], 4))
    outer = LOG_RATIO_BINS[len(LOG_RATIO_EDGES) + 1 :] if sign > 0 else LOG_RATIO_BINS[: len(LOG_RATIO_EDGES)]
    assert histogram(telemetry_metrics([telemetry])) == dict.fromkeys(outer, 0.25)


def test_responses_are_counted_where_the_ratio_is_one_per_response_else_tokens() -> None:
    mask_NK = mask_of([1, 4], 4)
    log_ratio_N1 = np.array([[0.05], [0.0]], np.float32)
    for log_ratio, share in ((log_ratio_N1, 1 / 2), (np.repeat(log_ratio_N1, 4, axis=1), 1 / 5)):
        telemetry = collect_telemetry(log_ratio=log_ratio, grad_logp_NK=np.ones((2, 4), np.float32), mask_NK=mask_NK)
        assert histogram(telemetry_metrics([telemetry])) == {"1e-2_to_1e-1": share, "within_1e-4": 1 - share}


def test_ten_responses_of_different_length_are_the_ten_deciles() -> None:
    lengths = [7, 3, 10, 1, 5, 2, 9, 4, 8, 6]
    mask_NK = mask_of(lengths, 10)
    token_mean = np.full((10, 10), -0.25, np.float32)  # every token weighs the same
    metrics = of_gradient(token_mean, mask_NK)
    assert deciles(metrics) == pytest.approx([length / 55 for length in range(1, 11)])
    sequence_mean = (token_mean / np.array(lengths)[:, None]).astype(np.float32)  # every response weighs the same
    metrics = of_gradient(sequence_mean, mask_NK)
    assert deciles(metrics) == pytest.approx([0.1] * 10)


def test_equal_lengths_share_their_weight_evenly() -> None:
    # Ranks 1 to 15 have length 2 and weigh 3 in all, ranks 16 to 20 have length 5 and weigh 1.
    gradient_NK = np.zeros((20, 5), np.float32)
    gradient_NK[3, 1], gradient_NK[9, 0], gradient_NK[17, 4] = 2.0, -1.0, 1.0
    mask_NK = mask_of([2] * 15 + [5] * 5, 5)
    metrics = of_gradient(gradient_NK, mask_NK)
    # Each of the 15 has 3/15/4 = 0.05 of the total, each of the 5 has 1/5/4 = 0.05 too; the eighth part is mixed.
    assert deciles(metrics) == pytest.approx([0.1] * 10)
    gradient_NK[17, 4] = 13.0  # now the short ones have 3/16/15 = 1/80 each, the long ones 13/16/5 = 13/80
    metrics = of_gradient(gradient_NK, mask_NK)
    assert deciles(metrics) == pytest.approx([2 / 80] * 7 + [14 / 80] + [26 / 80] * 2)


def test_fewer_responses_than_deciles_are_spread() -> None:
    metrics = of_gradient(np.array([[1, 0, 0], [1, 1, 1]], np.float32), mask_of([1, 3], 3))
    assert deciles(metrics) == pytest.approx([0.05] * 5 + [0.15] * 5)


def test_no_gradient_has_no_deciles_and_no_response_nothing() -> None:
    mask_NK = mask_of([1, 3], 3)
    silent = collect_telemetry(log_ratio=np.zeros((2, 1)), grad_logp_NK=np.zeros((2, 3), np.float32), mask_NK=mask_NK)
    metrics = telemetry_metrics([silent])
    assert histogram(metrics) == {"within_1e-4": 1.0}
    assert not any(name.startswith("grad_share") for name in metrics)
    fillers = collect_telemetry(
        log_ratio=np.ones((2, 1)), grad_logp_NK=np.ones((2, 3), np.float32), mask_NK=mask_of([0, 0], 3)
    )
    assert telemetry_metrics([fillers]) == telemetry_metrics([]) == {}
    assert telemetry_metrics([fillers, silent]) == metrics


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_masked_slots_may_hold_anything(poison: float) -> None:
    batch = random_batch(3, 9)
    batch["log_ratio"] = np.where(batch["mask_NK"], batch["log_ratio"], 0).astype(np.float32)
    clean = telemetry_metrics([collect_telemetry(**batch)])
    for name in ("log_ratio", "grad_logp_NK"):
        batch[name] = np.where(batch["mask_NK"], batch[name], poison).astype(np.float32)
    assert telemetry_metrics([collect_telemetry(**batch)]) == clean


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 40), cut=st.integers(0, 40), padding=st.integers(0, 5))
def test_order_micro_batches_and_padding_do_not_matter(seed: int, rows: int, cut: int, padding: int) -> None:
    batch = random_batch(seed, rows)
    whole = telemetry_metrics([collect_telemetry(**batch)])
    assert sum(whole[f"log_ratio_hist/{name}"] for name in LOG_RATIO_BINS) == pytest.approx(1)
    assert sum(deciles(whole)) == pytest.approx(1)
    assert min(deciles(whole)) >= 0
    assert unknown_names(f"actor/{name}" for name in whole) == []
    shuffled = rows_of(batch, np.random.default_rng(seed).permutation(rows))
    parts = [rows_of(shuffled, slice(0, cut)), rows_of(shuffled, slice(cut, None))]
    for name in ("grad_logp_NK", "mask_NK"):
        parts[1][name] = np.pad(parts[1][name], ((0, 0), (0, padding)))
    again = telemetry_metrics([collect_telemetry(**part) for part in parts])
    assert again.keys() == whole.keys()
    assert [again[name] for name in whole] == pytest.approx(list(whole.values()), abs=1e-12)


def test_against_a_slow_count(seed: int = 11) -> None:
    """Ranks and shares by sorting copies: each response ten times, so that every cut falls between two copies."""
    batch = random_batch(seed, 23)
    lengths = batch["mask_NK"].sum(axis=1)
    weights = np.abs(np.where(batch["mask_NK"], batch["grad_logp_NK"], 0)).sum(axis=1, dtype=np.float64)
    even = {length: weights[lengths == length].mean() for length in np.unique(lengths)}
    ranked = np.repeat([even[length] for length in np.sort(lengths)], 10)
    expected = ranked.reshape(10, -1).sum(axis=1) / ranked.sum()
    assert deciles(telemetry_metrics([collect_telemetry(**batch)])) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("log_ratio", "gradient"), [((4, 2), (4, 3)), ((3, 1), (4, 3)), ((4,), (4, 3)), ((4, 1), (4, 2)), ((4, 1), (4,))]
)
def test_shapes_that_do_not_match_are_refused(log_ratio: tuple[int, ...], gradient: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError, match="for a mask"):
        collect_telemetry(log_ratio=np.zeros(log_ratio), grad_logp_NK=np.zeros(gradient), mask_NK=mask_of([3] * 4, 3))


def test_a_gradient_that_is_not_finite_is_a_defect_of_ours() -> None:
    gradient_NK = np.full((2, 3), np.nan, np.float32)
    telemetry = collect_telemetry(log_ratio=np.zeros((2, 1)), grad_logp_NK=gradient_NK, mask_NK=mask_of([2, 3], 3))
    with pytest.raises(AssertionError, match="not finite"):
        telemetry_metrics([telemetry])
