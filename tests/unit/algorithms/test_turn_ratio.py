"""GSPO with one ratio per turn: against numbers by hand, a float64 twin, and the ratio of whole responses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mindgspo.config import AlgorithmSection, with_recipe

pytestmark = pytest.mark.usefixtures("cpu_runtime")

LOW, HIGH = 3e-4, 4e-4
MOST_TURNS = 8
_graphs: dict[tuple, Any] = {}


def loss_and_gradient(ratio_over: str, arrays: dict[str, np.ndarray], turns_NK: np.ndarray | None = None, **settings):
    """(loss, gradient by logp, log-ratios, metrics) of the cell as an update builds it."""
    from mindspore import Tensor, ops

    from mindgspo.algorithms.losses.registry import build_policy_loss

    key, mask = (ratio_over, *settings.items()), arrays["mask"]
    if key not in _graphs:
        section = with_recipe(AlgorithmSection(name="gspo", ratio_over=ratio_over, **settings), max_new_tokens=12)
        cell = build_policy_loss(section)
        assert cell.reads_turns == (ratio_over == "turn")
        _graphs[key] = ops.value_and_grad(cell, 0, None, has_aux=True)
    turns = ()
    if turns_NK is not None:
        assert turns_NK.max() < MOST_TURNS
        turns = (Tensor((turns_NK == np.arange(MOST_TURNS)[:, None, None]) & mask),)
    nothing, one = np.zeros(mask.shape, np.float32), np.ones(mask.shape, np.float32)
    inputs = (
        arrays["logp"], nothing, arrays["old"], nothing, arrays["advantages"], arrays.get("correction", one), mask,
        np.float32(len(mask)), np.float32(mask.sum()), np.float32(0),
    )  # fmt: skip
    (loss, metrics, log_ratio), gradient = _graphs[key](*map(Tensor, inputs), *turns)
    return tuple(tensor.asnumpy() for tensor in (loss, gradient, log_ratio, metrics))


def twin(arrays: dict[str, np.ndarray], turns_NK: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The documented formula, turn by turn, in float64: -mean_i sum_j |y_ij|/|y_i| min(s_ij A, clip(s_ij) A)."""
    wide = {name: array.astype(np.float64) if array.dtype != bool else array for name, array in arrays.items()}
    loss, gradient = 0.0, np.zeros(turns_NK.shape)
    log_ratio = np.zeros(turns_NK.shape)
    for i, mask in enumerate(wide["mask"]):
        for turn in set(turns_NK[i, mask].tolist()):
            own = mask & (turns_NK[i] == turn)
            s, share = np.exp((wide["logp"] - wide["old"])[i, own].mean()), own.sum() / mask.sum()
            advantage = wide["advantages"][i, own][0]
            objective, bounded = s * advantage, np.clip(s, 1 - LOW, 1 + HIGH) * advantage
            loss -= share * min(objective, bounded) / len(turns_NK)
            if objective <= bounded:
                gradient[i, own] = -share * objective / own.sum() / len(turns_NK)
            log_ratio[i, own] = np.log(s)
    return loss, gradient, log_ratio


def random_arrays(seed: int, rows: int = 12, slots: int = 15) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Turns of 2 to 5 tokens, but for the last; log-ratios of turns on both sides of the clip range."""
    rng = np.random.default_rng(seed)
    mask = np.arange(slots) < rng.integers(1, slots + 1, (rows, 1))
    turns = np.stack([np.repeat(np.arange(slots), rng.integers(2, 6, slots))[:slots] for _ in range(rows)])
    old = -rng.exponential(size=mask.shape)
    arrays = {
        "logp": np.where(mask, old + 6e-4 * rng.normal(size=mask.shape), np.nan), "old": old,
        "advantages": rng.normal(size=(rows, 1)) * np.ones(mask.shape),
    }  # fmt: skip
    return {name: array.astype(np.float32) for name, array in arrays.items()} | {"mask": mask}, turns.astype(np.int32)


def test_two_turns_by_hand() -> None:
    """s = e^0.001 above the range in the first turn, e^-0.0001 within it in the second; A = 2, so the first is cut."""
    d = np.array([[0.0015, 0.0005, -0.0001]])
    arrays = {
        "logp": d.astype(np.float32), "old": np.zeros((1, 3), np.float32), "advantages": np.full((1, 3), 2, np.float32),
        "mask": np.ones((1, 3), bool),
    }  # fmt: skip
    loss, gradient, log_ratio, _ = loss_and_gradient("turn", arrays, np.array([[0, 0, 1]], np.int32))
    assert loss == pytest.approx(-(2 / 3 * 1.0004 + 1 / 3 * np.exp(-1e-4)) * 2, rel=1e-6)
    np.testing.assert_allclose(gradient, [[0, 0, -2 / 3 * np.exp(-1e-4)]], rtol=1e-6)
    np.testing.assert_allclose(log_ratio, [[1e-3, 1e-3, -1e-4]], rtol=1e-6)
    # As one sequence of mean 6.3e-4 all of it is cut.
    loss, gradient, _, _ = loss_and_gradient("response", arrays)
    assert loss == pytest.approx(-2 * 1.0004, rel=1e-6) and not gradient.any()


@pytest.mark.parametrize("seed", range(4))
def test_turns_agree_with_the_twin(seed: int) -> None:
    arrays, turns = random_arrays(seed)
    loss, gradient, log_ratio, metrics = loss_and_gradient("turn", arrays, turns)
    expected, by_logp, ratios = twin(arrays, turns)
    assert loss == pytest.approx(expected, rel=1e-5, abs=1e-6)
    np.testing.assert_allclose(gradient, by_logp, rtol=0, atol=1e-5 * np.abs(by_logp).max())
    np.testing.assert_allclose(np.where(arrays["mask"], log_ratio, 0), ratios, rtol=0, atol=3e-7)
    cut = (by_logp == 0) & arrays["mask"]
    assert cut.any() and (by_logp != 0).any() and any(0 < row.mean() < 1 for row in cut)
    assert metrics[6] == cut.sum(), "pg_clipfrac, before it is divided"


@pytest.mark.parametrize("settings", [{}, {"clip_ratio_c": 1.0003}, {"loss_agg_mode": "token-mean"}], ids=str)
def test_responses_of_one_turn_have_the_bits_of_a_sequence(settings: dict) -> None:
    if "loss_agg_mode" in settings:
        settings = settings | {"allow_token_weighting": True}
    for seed in range(3):
        arrays, turns = random_arrays(seed, slots=67)
        found = loss_and_gradient("turn", arrays, np.zeros_like(turns), **settings)
        loss, gradient, log_ratio, metrics = loss_and_gradient("response", arrays, **settings)
        np.testing.assert_array_equal(found[0], loss)
        np.testing.assert_array_equal(found[1], gradient)
        np.testing.assert_array_equal(found[3], metrics)
        np.testing.assert_array_equal(found[2], np.where(arrays["mask"], log_ratio, 0))
