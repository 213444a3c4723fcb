"""The float32 loss cells against their float64 twins, gradients and metrics included."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest

from mindgspo.algorithms import reference
from mindgspo.algorithms.loss_metrics import POLICY_METRICS, summarize
from mindgspo.algorithms.reference import Clip
from mindgspo.config.schema import AlgorithmSection

pytestmark = pytest.mark.usefixtures("cpu_runtime")

CLIP = {
    "gspo": Clip(low=3e-4, high=4e-4, log_ratio_max=10.0),
    "grpo": Clip(low=0.2, high=0.27, log_ratio_max=10.0),
}
TWIN = {"gspo": reference.gspo, "grpo": reference.grpo}
NAMES = sorted(TWIN)


@dataclass(frozen=True)
class Inputs:
    """float32 arrays, as the cell gets them, and the global denominators."""

    logp: np.ndarray
    old_logp: np.ndarray
    advantages: np.ndarray
    mask: np.ndarray

    @property
    def num_sequences(self) -> int:
        return max(int(self.mask.any(axis=1).sum()), 1)

    @property
    def num_tokens(self) -> int:
        return max(int(self.mask.sum()), 1)

    def rows(self, index) -> Inputs:
        return Inputs(self.logp[index], self.old_logp[index], self.advantages[index], self.mask[index])


class Outcome(NamedTuple):
    loss: float
    gradient: np.ndarray
    metrics: np.ndarray


def random_inputs(name: str, seed: int, num_samples: int = 6, num_slots: int = 7) -> Inputs:
    """Lengths 0 .. K, masks with holes, and ratios of which some are clipped on either side."""
    rng = np.random.default_rng(seed)
    mask = np.arange(num_slots) < rng.integers(0, num_slots + 1, size=(num_samples, 1))
    mask[0, :] = rng.random(num_slots) < 0.5
    mask[1], mask[2, :], mask[3, :] = True, False, np.arange(num_slots) == 0
    old_logp = -rng.exponential(size=mask.shape)
    spread = {"gspo": 2e-3, "grpo": 0.4}[name]
    logp = old_logp + spread * rng.normal(size=mask.shape)
    arrays = (logp, old_logp, rng.normal(size=num_samples))
    return Inputs(*(array.astype(np.float32) for array in arrays), mask)


@pytest.fixture(scope="module")
def run(cpu_runtime):
    """run(name, inputs, clip=None, num_sequences=None, num_tokens=None) -> Outcome of the compiled cell."""
    from mindspore import Tensor, ops

    from mindgspo.algorithms.registry import POLICY_LOSSES

    graphs = {}

    def run_cell(name, inputs, clip=None, num_sequences=None, num_tokens=None) -> Outcome:
        clip = clip or CLIP[name]
        if (name, clip) not in graphs:
            cell = POLICY_LOSSES[name](clip_low=clip.low, clip_high=clip.high, log_ratio_max=clip.log_ratio_max)
            graphs[name, clip] = ops.value_and_grad(cell, 0, None, has_aux=True)
        (loss, metrics), gradient = graphs[name, clip](
            Tensor(inputs.logp),
            Tensor(inputs.old_logp),
            Tensor(inputs.advantages),
            Tensor(inputs.mask),
            Tensor(np.float32(num_sequences or inputs.num_sequences)),
            Tensor(np.float32(num_tokens or inputs.num_tokens)),
        )
        return Outcome(float(loss.asnumpy()), gradient.asnumpy(), metrics.asnumpy())

    return run_cell


def assert_agrees(name: str, outcome: Outcome, inputs: Inputs, clip: Clip | None = None) -> None:
    """Loss, gradient and every metric within 1e-5 of the twin (relative to the largest element)."""
    twin = TWIN[name](inputs.logp, inputs.old_logp, inputs.advantages, inputs.mask, clip or CLIP[name])
    np.testing.assert_allclose(outcome.loss, twin.loss, rtol=1e-5, atol=1e-6)
    scale = np.abs(twin.grad_logp_NK).max()
    np.testing.assert_allclose(outcome.gradient, twin.grad_logp_NK, rtol=0, atol=1e-5 * scale)
    assert not outcome.gradient[~inputs.mask].any()
    metrics = summarize(
        POLICY_METRICS, [outcome.metrics], num_sequences=inputs.num_sequences, num_tokens=inputs.num_tokens
    )
    assert set(metrics) == set(twin.metrics)
    for key, value in twin.metrics.items():
        np.testing.assert_allclose(metrics[key], value, rtol=1e-5, atol=2e-7, err_msg=key)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(8))
def test_cell_agrees_with_twin_on_random_inputs(run, name, seed):
    inputs = random_inputs(name, seed)
    assert_agrees(name, run(name, inputs), inputs)


@pytest.mark.parametrize("name", NAMES)
def test_random_inputs_reach_both_clip_sides(name):
    """Guards the tests above: without clipped ratios of either sign they would prove little."""
    all_metrics = []
    for seed in range(8):
        inputs = random_inputs(name, seed)
        all_metrics.append(TWIN[name](inputs.logp, inputs.old_logp, inputs.advantages, inputs.mask, CLIP[name]).metrics)
    for key in ("pg_clipfrac_pos", "pg_clipfrac_neg"):
        assert 0 < np.mean([metrics[key] for metrics in all_metrics]) < 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_masked_slots_may_hold_anything(run, name, poison):
    inputs = random_inputs(name, seed=1)
    clean = run(name, inputs)
    poisoned = replace(
        inputs,
        logp=np.where(inputs.mask, inputs.logp, np.float32(poison)),
        old_logp=np.where(inputs.mask, inputs.old_logp, np.float32(-poison)),
        advantages=np.where(inputs.mask.any(axis=1), inputs.advantages, np.float32(poison)),
    )
    outcome = run(name, poisoned)
    assert outcome.loss == clean.loss
    np.testing.assert_array_equal(outcome.gradient, clean.gradient)
    np.testing.assert_array_equal(outcome.metrics, clean.metrics)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("log_ratio", [-1e4, -50.0, -5.0, 5.0, 9.5, 10.5, 50.0, 1e4])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_wild_log_ratios_stay_finite_and_agree(run, name, log_ratio, sign):
    inputs = random_inputs(name, seed=2)
    inputs.logp[1] = inputs.old_logp[1] + np.float32(log_ratio)
    inputs.advantages[1] = sign
    outcome = run(name, inputs)
    assert np.isfinite(outcome.loss) and np.isfinite(outcome.gradient).all() and np.isfinite(outcome.metrics).all()
    twin = TWIN[name](inputs.logp, inputs.old_logp, inputs.advantages, inputs.mask, CLIP[name])
    np.testing.assert_allclose(outcome.loss, twin.loss, rtol=1e-5)
    np.testing.assert_allclose(outcome.gradient, twin.grad_logp_NK, atol=1e-5 * np.abs(twin.grad_logp_NK).max())


@pytest.mark.parametrize("name", NAMES)
def test_zero_advantages_give_no_loss_and_no_gradient(run, name):
    inputs = replace(random_inputs(name, seed=3), advantages=np.zeros(6, np.float32))
    outcome = run(name, inputs)
    assert outcome.loss == 0 and not outcome.gradient.any()
    assert_agrees(name, outcome, inputs)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_fillers_adds_nothing(run, name):
    inputs = replace(random_inputs(name, seed=4), mask=np.zeros((6, 7), bool))
    outcome = run(name, inputs, num_sequences=5, num_tokens=20)
    assert outcome.loss == 0 and not outcome.gradient.any()
    assert not outcome.metrics[:10].any()
    highest, lowest = outcome.metrics[10:]
    assert highest < -1e38 and lowest > 1e38, "a filler's extremes must lose against any real log-ratio"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_on_a_clip_edge_the_gradient_is_whole(run, name, sign):
    """A clip range of zero puts a ratio of 1 on both edges exactly, in any precision (torch's convention)."""
    clip = Clip(low=0.0, high=0.0, log_ratio_max=10.0)
    logp = np.full((1, 4), -1.5, np.float32)
    inputs = Inputs(logp, logp, np.array([sign], np.float32), np.ones((1, 4), bool))
    outcome = run(name, inputs, clip)
    np.testing.assert_allclose(outcome.gradient, np.full((1, 4), -sign / 4), rtol=1e-6)
    assert_agrees(name, outcome, inputs, clip)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("relative", [-1e-3, 1e-3])
def test_just_inside_and_just_outside_the_clip_edges(run, name, relative):
    """Advantage and ratio on the side where clipping acts; one token, so log s is the difference itself."""
    clip = CLIP[name]
    edges = np.array([np.log1p(clip.high), np.log1p(-clip.low)]) * (1 + relative)
    inputs = Inputs(
        edges.astype(np.float32).reshape(2, 1),
        np.zeros((2, 1), np.float32),
        np.array([1, -1], np.float32),
        np.ones((2, 1), bool),
    )
    outcome = run(name, inputs)
    assert (outcome.gradient == 0).all() == (relative > 0)
    assert (outcome.gradient != 0).all() == (relative < 0)
    assert_agrees(name, outcome, inputs)


@pytest.mark.parametrize("name", NAMES)
def test_equal_policies_give_ratio_one_and_the_plain_policy_gradient(run, name):
    inputs = random_inputs(name, seed=5)
    inputs = replace(inputs, logp=inputs.old_logp)
    outcome = run(name, inputs)
    lengths = np.maximum(inputs.mask.sum(axis=1, keepdims=True), 1)
    expected = -inputs.advantages[:, None] * inputs.mask / lengths / inputs.num_sequences
    np.testing.assert_allclose(outcome.gradient, expected, rtol=1e-6)
    metrics = summarize(POLICY_METRICS, [outcome.metrics], num_sequences=1, num_tokens=1)
    assert metrics["ratio_error_max"] == 0 and metrics["pg_clipfrac"] == 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_micro_batches_add_up_to_the_whole(run, name, size):
    inputs = random_inputs(name, seed=6)
    whole = run(name, inputs)
    parts = [
        run(name, inputs.rows(slice(start, start + size)), None, inputs.num_sequences, inputs.num_tokens)
        for start in range(0, 6, size)
    ]
    scale = np.abs(whole.gradient).max()
    np.testing.assert_allclose(sum(part.loss for part in parts), whole.loss, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([part.gradient for part in parts]), whole.gradient, atol=1e-6 * scale)
    denominators = {"num_sequences": inputs.num_sequences, "num_tokens": inputs.num_tokens}
    together = summarize(POLICY_METRICS, [whole.metrics], **denominators)
    summed = summarize(POLICY_METRICS, [part.metrics for part in parts], **denominators)
    assert summed == pytest.approx(together, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_padding_and_row_order_do_not_matter(run, name):
    inputs = random_inputs(name, seed=7)
    whole = run(name, inputs)
    order = np.array([3, 0, 5, 1, 4, 2])
    # 3 more slots on the right and 2 filler rows below, both full of garbage.
    moved = inputs.rows(order)
    padded = Inputs(
        np.pad(moved.logp, ((0, 2), (0, 3)), constant_values=-7.0),
        np.pad(moved.old_logp, ((0, 2), (0, 3)), constant_values=np.nan),
        np.pad(moved.advantages, (0, 2), constant_values=9.0),
        np.pad(moved.mask, ((0, 2), (0, 3))),
    )
    outcome = run(name, padded)
    scale = np.abs(whole.gradient).max()
    np.testing.assert_allclose(outcome.loss, whole.loss, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(outcome.gradient[:6, :7], whole.gradient[order], atol=1e-6 * scale)
    np.testing.assert_allclose(outcome.metrics, whole.metrics, rtol=1e-5, atol=1e-6)


def test_gspo_gives_every_token_of_a_response_the_same_gradient(run):
    inputs = random_inputs("gspo", seed=8)
    gradient = run("gspo", inputs).gradient
    for row, mask in zip(gradient, inputs.mask, strict=True):
        assert np.ptp(row[mask]) <= 1e-9 if mask.any() else not row.any()


def test_registry_builds_by_name_with_the_papers_clip_ranges():
    from mindgspo.algorithms.registry import build_policy_loss

    gspo = build_policy_loss(AlgorithmSection())
    assert (gspo.ratio_low, gspo.ratio_high) == (1 - 3e-4, 1 + 4e-4)
    grpo = build_policy_loss(AlgorithmSection(name="grpo", clip_high=0.5))
    assert (grpo.ratio_low, grpo.ratio_high) == (0.8, 1.5)
    assert type(gspo) is not type(grpo)


def test_every_algorithm_of_the_schema_is_registered():
    from mindgspo.algorithms.registry import POLICY_LOSSES

    assert set(AlgorithmSection.model_fields["name"].annotation.__args__) == set(POLICY_LOSSES)
