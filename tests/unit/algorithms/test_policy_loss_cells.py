"""The float32 loss cells against their float64 twins: values, gradients, metrics, edges and refusals."""

import sys
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest

from mindgspo.algorithms.loss_metrics import POLICY_METRICS, summarize
from mindgspo.algorithms.losses.definition import Aggregation, KLTerm, LossDefinition
from mindgspo.config import AlgorithmSection, KLSection, with_recipe
from mindgspo.config.algorithm import POLICY_LOSSES
from mindgspo_conformance.twins.policy_loss import policy_loss

pytestmark = pytest.mark.usefixtures("cpu_runtime")

NAMES = sorted(POLICY_LOSSES)
CLIPPED_BY_TOKEN = ("grpo", "ppo", "dapo", "dr_grpo")
SEQUENCE = ("gspo", "gspo_token")


def section_of(name: str, **settings: object) -> AlgorithmSection:
    return with_recipe(AlgorithmSection(name=name, **settings), max_new_tokens=12)


def definition_of(name: str, **changes: object) -> LossDefinition:
    from mindgspo.algorithms.losses.registry import loss_definition

    return replace(loss_definition(section_of(name)), **changes)


def variants() -> dict[str, LossDefinition]:
    """Definitions with a part that no name has by default."""
    by_tokens = Aggregation(mode="token-mean")
    clamped = KLTerm(kind="k3", aggregation=by_tokens, arg_clamp=(-20.0, 20.0), value_clamp=(-10.0, 10.0))
    straight = KLTerm(kind="k1", aggregation=Aggregation(mode="seq-mean-token-mean"), straight_through_k2=True)
    weighted = replace(clamped, importance_weight=True, log_ratio_max=10.0)
    return {
        "gspo + k3": definition_of("gspo", kl=clamped),
        "gspo + k1 straight through": definition_of("gspo", kl=straight),
        "grpo + weighted k3": definition_of("grpo", kl=weighted),
        "dapo + abs": definition_of("dapo", kl=replace(clamped, kind="abs", arg_clamp=None)),
        "gmpo + k2": definition_of("gmpo", kl=replace(clamped, kind="k2", arg_clamp=None)),
        "gspo + entropy": definition_of("gspo", entropy_coef=0.3),
        "gmpo + entropy": definition_of("gmpo", entropy_coef=0.3),
        "gspo + dual clip": definition_of("gspo", clip_ratio_c=1.0003),
        "grpo + caps": definition_of("grpo", ratio_upper_clamp=1.4, clip_ratio_c=1.3, loss_upper_clamp=1.1),
        "grpo + lower bound": definition_of("grpo", log_ratio_min=-0.3, log_ratio_max=0.3),
        "cispo by sequence": definition_of("cispo", ratio_level="sequence", clip_low=1e-3, clip_high=1e-3),
        "gspo, sums": definition_of("gspo", aggregation=Aggregation(mode="token-sum")),
        "gspo, eps": definition_of(
            "gspo", ratio_len_eps=1e-8, aggregation=Aggregation(mode="seq-mean-token-mean", seq_len_eps=1e-8)
        ),
        "gmpo, own advantage": definition_of("gmpo", advantage_pool="none"),
    }


VARIANTS = (
    "gspo + k3", "gspo + k1 straight through", "grpo + weighted k3", "dapo + abs", "gmpo + k2", "gspo + entropy",
    "gmpo + entropy", "gspo + dual clip", "grpo + caps", "grpo + lower bound", "cispo by sequence", "gspo, sums",
    "gspo, eps", "gmpo, own advantage",
)  # fmt: skip


@dataclass(frozen=True)
class Inputs:
    """float32 arrays [N, K], as the cell gets them."""

    logp: np.ndarray
    entropy: np.ndarray
    old_logp: np.ndarray
    ref_logp: np.ndarray
    advantages: np.ndarray
    correction: np.ndarray
    mask: np.ndarray

    @property
    def num_sequences(self) -> int:
        return max(int(self.mask.any(axis=1).sum()), 1)

    @property
    def num_tokens(self) -> int:
        return max(int(self.mask.sum()), 1)


class Outcome(NamedTuple):
    loss: float
    gradient: np.ndarray
    metrics: np.ndarray
    log_ratio: np.ndarray


def random_inputs(definition: LossDefinition, seed: int, num_samples: int = 6, num_slots: int = 7) -> Inputs:
    """Lengths 0 .. K, masks with holes, and ratios of which some are clipped on either side."""
    rng = np.random.default_rng(seed)
    mask = np.arange(num_slots) < rng.integers(0, num_slots + 1, size=(num_samples, 1))
    mask[0, :] = rng.random(num_slots) < 0.5
    mask[1], mask[2, :], mask[3, :] = True, False, np.arange(num_slots) == 0
    old_logp = -rng.exponential(size=mask.shape)
    logp = old_logp + (2e-3 if definition.ratio_level.startswith("sequence") else 0.4) * rng.normal(size=mask.shape)
    advantages = rng.normal(size=(num_samples, 1)) * np.ones(mask.shape)
    if definition.ratio_level != "sequence":  # per token where the loss is made for it
        advantages = advantages + 0.3 * rng.normal(size=mask.shape) * (definition.advantage_pool != "none")
    arrays = (
        logp, rng.exponential(size=mask.shape), old_logp, logp + 0.2 * rng.normal(size=mask.shape), advantages,
        np.exp(0.2 * rng.normal(size=mask.shape)),
    )  # fmt: skip
    return Inputs(*(array.astype(np.float32) for array in arrays), mask)


def twin_of(definition: LossDefinition, inputs: Inputs, kl_coef: float = 0.2, **denominators: float):
    return policy_loss(
        definition, logp_NK=inputs.logp, old_logp_NK=inputs.old_logp, ref_logp_NK=inputs.ref_logp,
        advantages_NK=inputs.advantages, correction_NK=inputs.correction, entropy_NK=inputs.entropy,
        mask_NK=inputs.mask, kl_coef=kl_coef, num_sequences=denominators.get("num_sequences", inputs.num_sequences),
        num_tokens=denominators.get("num_tokens", inputs.num_tokens),
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(cpu_runtime):
    """run(definition, inputs, kl_coef=0.2, num_sequences=None, num_tokens=None) -> Outcome of the compiled cell."""
    from mindspore import Tensor, ops

    from mindgspo.algorithms.losses.registry import policy_loss_cell

    graphs = {}

    def run_cell(definition, inputs, kl_coef=0.2, num_sequences=None, num_tokens=None) -> Outcome:
        if definition not in graphs:
            graphs[definition] = ops.value_and_grad(policy_loss_cell(definition), 0, None, has_aux=True)
        arrays = (
            inputs.logp, inputs.entropy, inputs.old_logp, inputs.ref_logp, inputs.advantages, inputs.correction,
            inputs.mask, np.float32(inputs.num_sequences if num_sequences is None else num_sequences),
            np.float32(inputs.num_tokens if num_tokens is None else num_tokens), np.float32(kl_coef),
        )  # fmt: skip
        (loss, metrics, log_ratio), gradient = graphs[definition](*(Tensor(array) for array in arrays))
        return Outcome(float(loss.asnumpy()), gradient.asnumpy(), metrics.asnumpy(), log_ratio.asnumpy())

    return run_cell


def assert_agrees(definition: LossDefinition, outcome: Outcome, inputs: Inputs) -> None:
    """Loss, gradient and every metric within 1e-5 of the twin (relative to the largest element)."""
    twin = twin_of(definition, inputs)
    scale = np.abs(twin.grad_logp_NK).max()
    np.testing.assert_allclose(outcome.loss, twin.loss, rtol=1e-5, atol=1e-6 * max(1.0, inputs.num_tokens * scale))
    np.testing.assert_allclose(outcome.gradient, twin.grad_logp_NK, rtol=0, atol=1e-5 * scale)
    assert not outcome.gradient[~inputs.mask].any()
    metrics = summarize(
        POLICY_METRICS, [outcome.metrics], num_sequences=inputs.num_sequences, num_tokens=inputs.num_tokens
    )
    assert set(metrics) == set(twin.metrics)
    for key, value in twin.metrics.items():
        np.testing.assert_allclose(metrics[key], value, rtol=2e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_cell_agrees_with_twin_on_random_inputs(run, name):
    definition = definition_of(name)
    for seed in range(8):
        inputs = random_inputs(definition, seed)
        assert_agrees(definition, run(definition, inputs), inputs)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_part_of_a_definition_agrees_with_the_twin(run, name):
    definition = variants()[name]
    for seed in range(4):
        inputs = random_inputs(definition, seed)
        assert_agrees(definition, run(definition, inputs), inputs)


def test_no_variant_is_forgotten():
    assert set(VARIANTS) == set(variants())


@pytest.mark.parametrize("name", [*CLIPPED_BY_TOKEN, *SEQUENCE, "gmpo"])
def test_random_inputs_reach_both_clip_sides(name):
    """Guards the tests above: without clipped ratios of either sign they would prove little."""
    definition = definition_of(name)
    found = [twin_of(definition, random_inputs(definition, seed)).metrics for seed in range(8)]
    for key in ("pg_clipfrac_pos", "pg_clipfrac_neg"):
        assert 0 < np.mean([metrics[key] for metrics in found]) < 1


@pytest.mark.parametrize("name", ["grpo + caps", "gspo + dual clip"])
def test_the_caps_of_the_variants_act(name):
    definition = variants()[name]
    plain = replace(definition, clip_ratio_c=None, ratio_upper_clamp=None, loss_upper_clamp=None)
    inputs = [random_inputs(definition, seed) for seed in range(4)]
    assert any(twin_of(definition, each).loss != twin_of(plain, each).loss for each in inputs)
    assert any(twin_of(definition, each).metrics["pg_clipfrac_lower"] > 0 for each in inputs)


@pytest.mark.parametrize("name", [*NAMES, "gspo + k3", "grpo + weighted k3", "gspo + entropy"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_masked_slots_may_hold_anything(run, name, poison):
    definition = definition_of(name) if name in NAMES else variants()[name]
    inputs = random_inputs(definition, seed=1)
    clean = run(definition, inputs)
    garbage = np.float32(poison)
    poisoned = Inputs(
        *(
            np.where(inputs.mask, array, sign * garbage)
            for array, sign in zip(
                (inputs.logp, inputs.entropy, inputs.old_logp, inputs.ref_logp, inputs.advantages, inputs.correction),
                (1, 1, -1, 1, -1, 1),
                strict=True,
            )
        ),
        inputs.mask,
    )
    outcome = run(definition, poisoned)
    assert outcome.loss == clean.loss
    np.testing.assert_array_equal(outcome.gradient, clean.gradient)
    np.testing.assert_array_equal(outcome.metrics, clean.metrics)


@pytest.mark.parametrize("name", [*NAMES, "gspo + k3", "grpo + weighted k3", "gspo + dual clip"])
def test_wild_log_ratios_stay_finite_and_agree(run, name):
    definition = definition_of(name) if name in NAMES else variants()[name]
    for log_ratio in (-1e4, -50.0, -5.0, 5.0, 9.5, 10.5, 50.0, 1e4):
        for sign in (-1.0, 1.0):
            inputs = random_inputs(definition, seed=2)
            inputs.logp[1] = inputs.old_logp[1] + np.float32(log_ratio)
            inputs.advantages[1] = sign
            outcome = run(definition, inputs)
            assert np.isfinite(outcome.loss) and np.isfinite(outcome.gradient).all(), log_ratio
            assert np.isfinite(outcome.metrics).all(), log_ratio
            twin = twin_of(definition, inputs)
            np.testing.assert_allclose(outcome.loss, twin.loss, rtol=1e-5)
            scale = np.abs(twin.grad_logp_NK).max()
            np.testing.assert_allclose(outcome.gradient, twin.grad_logp_NK, atol=1e-5 * scale)


@pytest.mark.parametrize("name", NAMES)
def test_zero_advantages_give_no_loss_and_no_gradient(run, name):
    definition = definition_of(name)
    inputs = replace(random_inputs(definition, seed=3), advantages=np.zeros((6, 7), np.float32))
    outcome = run(definition, inputs)
    assert outcome.loss == 0 and not outcome.gradient.any()
    assert_agrees(definition, outcome, inputs)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_fillers_adds_nothing(run, name):
    definition = definition_of(name)
    inputs = replace(random_inputs(definition, seed=4), mask=np.zeros((6, 7), bool))
    outcome = run(definition, inputs, num_sequences=5, num_tokens=20)
    assert outcome.loss == 0 and not outcome.gradient.any()
    by_name = dict(zip([metric.name for metric in POLICY_METRICS], outcome.metrics, strict=True))
    assert by_name.pop("log_ratio_max") < -1e38, "a filler's extremes must lose against any real log-ratio"
    assert by_name.pop("log_ratio_min") > 1e38
    assert not any(by_name.values())


@pytest.mark.parametrize("name", [*CLIPPED_BY_TOKEN, *SEQUENCE])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_on_a_clip_edge_the_gradient_is_whole(run, name, sign):
    """A clip range of zero puts a ratio of 1 on both edges exactly, in any precision (torch's convention)."""
    definition = definition_of(name, clip_low=0.0, clip_high=0.0)
    ones = np.ones((1, 4), np.float32)
    inputs = Inputs(-1.5 * ones, ones, -1.5 * ones, ones, sign * ones, ones, np.ones((1, 4), bool))
    outcome = run(definition, inputs)
    scale = 4 / 12 if name == "dr_grpo" else 1.0  # its mean divides by the longest length
    np.testing.assert_allclose(outcome.gradient, np.full((1, 4), -sign / 4 * scale), rtol=1e-6)
    assert_agrees(definition, outcome, inputs)


@pytest.mark.parametrize("name", [*CLIPPED_BY_TOKEN, *SEQUENCE])
@pytest.mark.parametrize("relative", [-1e-3, 1e-3])
def test_just_inside_and_just_outside_the_clip_edges(run, name, relative):
    """Advantage and ratio on the side where clipping acts; one token, so log s is the difference itself."""
    definition = definition_of(name)
    edges = np.array([[np.log1p(definition.clip_high)], [np.log1p(-definition.clip_low)]]) * (1 + relative)
    ones = np.ones((2, 1), np.float32)
    advantages = np.array([[1], [-1]], np.float32)
    inputs = Inputs(edges.astype(np.float32), ones, 0 * ones, ones, advantages, ones, np.ones((2, 1), bool))
    outcome = run(definition, inputs)
    assert (outcome.gradient == 0).all() == (relative > 0)
    assert (outcome.gradient != 0).all() == (relative < 0)
    assert_agrees(definition, outcome, inputs)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"dr_grpo", "gmpo"}))
def test_equal_policies_give_ratio_one_and_the_plain_policy_gradient(run, name):
    definition = definition_of(name)
    inputs = random_inputs(definition, seed=5)
    inputs = replace(inputs, logp=inputs.old_logp, correction=np.ones((6, 7), np.float32))
    outcome = run(definition, inputs)
    lengths = np.maximum(inputs.mask.sum(axis=1, keepdims=True), 1)
    by_token = definition.aggregation.mode == "token-mean"
    weight = 1 / inputs.num_tokens if by_token else 1 / lengths / inputs.num_sequences
    np.testing.assert_allclose(outcome.gradient, -inputs.advantages * inputs.mask * weight, rtol=1e-6)
    metrics = summarize(POLICY_METRICS, [outcome.metrics], num_sequences=1, num_tokens=1)
    assert metrics["ratio_error_max"] == 0 and metrics["pg_clipfrac"] == 0


def test_the_log_ratios_that_leave_the_cell(run):
    definition = definition_of("gspo")
    inputs = random_inputs(definition, seed=10)
    masked = np.where(inputs.mask, inputs.logp - inputs.old_logp, 0)
    mean = masked.sum(axis=1, keepdims=True) / np.maximum(inputs.mask.sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(run(definition, inputs).log_ratio, mean, rtol=1e-5, atol=1e-8)
    assert run(definition_of("grpo"), inputs).log_ratio.shape == (6, 7)


def test_one_compilation_serves_all_batches_of_one_shape(cpu_runtime):
    from mindspore import Tensor

    from mindgspo.algorithms.losses.registry import build_policy_loss

    cell = build_policy_loss(section_of("gspo"))
    definition = definition_of("gspo")
    for seed, (num_sequences, coefficient) in enumerate([(6, 0.0), (5, 0.1), (64, 0.2)]):
        inputs = random_inputs(definition, seed)
        arrays = (inputs.logp, inputs.entropy, inputs.old_logp, inputs.ref_logp, inputs.advantages, inputs.correction)
        scalars = (np.float32(num_sequences), np.float32(40 + seed), np.float32(coefficient))
        cell(*(Tensor(array) for array in (*arrays, inputs.mask, *scalars)))
    assert len(cell.compile_cache) == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_registry_has_its_own_cell_with_the_papers_settings(cpu_runtime, name):
    from mindgspo.algorithms.losses.policy_loss import PolicyLoss
    from mindgspo.algorithms.losses.registry import build_policy_loss, loss_definition

    section = section_of(name)
    cell, definition, recipe = build_policy_loss(section), loss_definition(section), POLICY_LOSSES[name]
    assert isinstance(cell, PolicyLoss) and type(cell).__name__ == recipe.cell.partition(":")[2]
    paper = recipe.source.partition(",")[0]
    assert paper in type(cell).__doc__ + sys.modules[type(cell).__module__].__doc__, "the paper stands in the docstring"
    assert (definition.clip_low, definition.clip_high) == (recipe.clip or (None, None))
    assert definition.aggregation.mode == recipe.agg_mode


def test_a_named_cell_is_its_definition(cpu_runtime, run):
    """build_policy_loss takes the named class, the fixture pairs ratio and surrogate freely: one result."""
    from mindspore import Tensor

    from mindgspo.algorithms.losses.registry import build_policy_loss

    for name in NAMES:
        definition = definition_of(name)
        inputs = random_inputs(definition, seed=11)
        arrays = (inputs.logp, inputs.entropy, inputs.old_logp, inputs.ref_logp, inputs.advantages, inputs.correction)
        scalars = (np.float32(inputs.num_sequences), np.float32(inputs.num_tokens), np.float32(0.2))
        loss, _, _ = build_policy_loss(section_of(name))(*(Tensor(a) for a in (*arrays, inputs.mask, *scalars)))
        assert float(loss.asnumpy()) == pytest.approx(run(definition, inputs).loss, rel=1e-6), name


@pytest.mark.parametrize(("kl", "expected"), [
    (KLSection(placement="none"), None),
    (KLSection(placement="reward"), None),
    (KLSection(placement="loss"), ("k3", (-20, 20), (-10, 10), False)),
    (KLSection(placement="loss", estimator="low_var_kl", value_clamp=None), ("k3", (-20, 20), None, False)),
    (KLSection(placement="loss", estimator="k1", straight_through=True), ("k1", None, None, True)),
])  # fmt: skip
def test_the_kl_section_becomes_a_term_of_the_loss(cpu_runtime, kl, expected):
    from mindgspo.algorithms.losses.registry import loss_definition

    term = loss_definition(section_of("gspo", kl=kl)).kl
    assert (term and (term.kind, term.arg_clamp, term.value_clamp, term.straight_through_k2)) == expected
    assert term is None or term.aggregation.mode == "seq-mean-token-mean"


@pytest.mark.parametrize(("changed", "error", "message"), [
    ({"mask": np.ones((6, 7), np.float32)}, TypeError, "mask_NK: expected bool, got Float32"),
    ({"mask": np.ones(42, bool)}, ValueError, r"mask_NK: expected \[responses, tokens\], got shape \[42\]"),
    ({"advantages": np.ones(6, np.float32)}, ValueError, r"advantages_NK: expected shape \[6, 7\].*got \[6\]"),
    ({"old_logp": np.ones((6, 8), np.float32)}, ValueError, r"old_logp_NK: expected shape \[6, 7\].*got \[6, 8\]"),
    ({"ref_logp": np.ones((5, 7), np.float32)}, ValueError, r"ref_logp_NK: expected shape \[6, 7\]"),
])  # fmt: skip
def test_inputs_that_do_not_fit_are_named(run, changed, error, message):
    definition = definition_of("gspo")
    inputs = random_inputs(definition, seed=12)
    denominators = {"num_sequences": 5, "num_tokens": 20}
    with pytest.raises(error, match=message):
        run(definition, replace(inputs, **changed), **denominators)
    assert np.isfinite(run(definition, inputs).loss), "the cell must survive a refused call"


def test_a_denominator_that_is_no_scalar_is_named(run):
    definition = definition_of("gspo")
    with pytest.raises(ValueError, match=r"num_sequences: expected a scalar, got shape \[6\]"):
        run(definition, random_inputs(definition, seed=13), num_sequences=np.ones(6))


@pytest.mark.parametrize(
    "changes",
    [{"clip_low": -0.1}, {"clip_high": -1e-4}, {"clip_high": float("inf")}, {"clip_ratio_c": 0.0}, {"tau_pos": -1.0}],
)
def test_a_definition_refuses_impossible_numbers(changes):
    with pytest.raises(AssertionError, match=next(iter(changes))):
        definition_of("gspo", **changes)
