"""The float32 loss cells against their float64 twins: values, gradients, metrics, edges and refusals; and what must not
matter: how a mini-batch is cut, padded, packed, ordered, or spread over ranks."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest

from mindgspo.algorithms.loss_metrics import OPSM_METRIC, POLICY_METRICS, summarize
from mindgspo.algorithms.losses.definition import Aggregation, KLTerm, LossDefinition
from mindgspo.batches.rows import BatchSize, TrainingSample, batch_of, denominators
from mindgspo.config import AlgorithmSection, KLSection, with_recipe
from mindgspo.config.algorithm import POLICY_LOSSES
from mindgspo_conformance.twins.policy_loss import PolicyLossResult, policy_loss

pytestmark = pytest.mark.usefixtures("cpu_runtime")

NAMES = sorted(POLICY_LOSSES)
CLIPPED_BY_TOKEN = ("grpo", "ppo", "dapo", "dr_grpo")
SEQUENCE = ("gspo", "gspo_token")


def section_of(name: str, **settings: object) -> AlgorithmSection:
    return with_recipe(AlgorithmSection(name=name, **settings), max_new_tokens=12)


BY_TOKENS = Aggregation(mode="token-mean")
CLAMPED = KLTerm(kind="k3", aggregation=BY_TOKENS, arg_clamp=(-20.0, 20.0), value_clamp=(-10.0, 10.0))
STRAIGHT = KLTerm(kind="k1", aggregation=Aggregation(mode="seq-mean-token-mean"), straight_through_k2=True)
PADDED = Aggregation(mode="seq-mean-token-mean", seq_len_eps=1e-8)
# Definitions with a part that no name has by default.
VARIANTS = {
    "gspo + k3": ("gspo", {"kl": CLAMPED}),
    "gspo + k1 straight through": ("gspo", {"kl": STRAIGHT}),
    "grpo + weighted k3": ("grpo", {"kl": replace(CLAMPED, importance_weight=True, log_ratio_max=10.0)}),
    "dapo + abs": ("dapo", {"kl": replace(CLAMPED, kind="abs", arg_clamp=None)}),
    "gmpo + k2": ("gmpo", {"kl": replace(CLAMPED, kind="k2", arg_clamp=None)}),
    "gspo + entropy": ("gspo", {"entropy_coef": 0.3}),
    "gmpo + entropy": ("gmpo", {"entropy_coef": 0.3}),
    "gspo + dual clip": ("gspo", {"clip_ratio_c": 1.0003}),
    "grpo + caps": ("grpo", {"ratio_upper_clamp": 1.4, "clip_ratio_c": 1.3, "loss_upper_clamp": 1.1}),
    "grpo + lower bound": ("grpo", {"log_ratio_min": -0.3, "log_ratio_max": 0.3}),
    "cispo by sequence": ("cispo", {"ratio_level": "sequence", "clip_low": 1e-3, "clip_high": 1e-3}),
    "gspo, sums": ("gspo", {"aggregation": Aggregation(mode="token-sum")}),
    "gspo, eps": ("gspo", {"ratio_len_eps": 1e-8, "aggregation": PADDED}),
    "gmpo, own advantage": ("gmpo", {"advantage_pool": "none"}),
    "gspo + opsm": ("gspo", {"opsm_threshold": 2e-4}),
    "gmpo + opsm": ("gmpo", {"opsm_threshold": 0.02}),
    "fipo, both sides": (
        "fipo",
        {"future_half_life": 3.0, "influence_low": 0.6, "clip_ratio_c": 1.5, "safety_ratio": 1.2},
    ),
    "gspo + kl + entropy": ("gspo", {"kl": replace(CLAMPED, value_clamp=None), "entropy_coef": 0.3}),
}


def definition_of(name: str, **changes: object) -> LossDefinition:
    from mindgspo.algorithms.losses.registry import loss_definition

    base, own = VARIANTS.get(name, (name, {}))
    return replace(loss_definition(section_of(base)), **own, **changes)


@dataclass(frozen=True)
class Inputs:
    """Arrays [N, K], as the cell gets them."""

    logp: np.ndarray
    entropy: np.ndarray
    old_logp: np.ndarray
    ref_logp: np.ndarray
    advantages: np.ndarray
    correction: np.ndarray
    sampler_logp: np.ndarray
    selected: np.ndarray
    mask: np.ndarray

    def rows(self, index: np.ndarray) -> "Inputs":
        return Inputs(*(array[index] for array in vars(self).values()))

    def padded(self, rows: int, slots: int) -> "Inputs":
        """Filler rows below and slots to the right, full of garbage."""
        fields = zip(vars(self).values(), (-7.0, np.nan, np.inf, 5.0, 9.0, -3.0, np.nan, 1.0, False), strict=True)
        return Inputs(*(np.pad(array, ((0, rows), (0, slots)), constant_values=value) for array, value in fields))

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


def random_inputs(definition: LossDefinition, seed: int) -> Inputs:
    """Lengths 0 .. K, masks with holes, and ratios of which some are clipped on either side."""
    rng = np.random.default_rng(seed)
    mask = np.arange(7) < rng.integers(0, 8, size=(6, 1))
    mask[0, :] = rng.random(7) < 0.5
    mask[1], mask[2, :], mask[3, :] = True, False, np.arange(7) == 0
    return filled(definition, mask, rng, np.float32)


def filled(definition: LossDefinition, mask: np.ndarray, rng: np.random.Generator, dtype: type) -> Inputs:
    num_samples = len(mask)
    old_logp = -rng.exponential(size=mask.shape)
    logp = old_logp + (2e-3 if definition.ratio_level.startswith("sequence") else 0.4) * rng.normal(size=mask.shape)
    advantages = rng.normal(size=(num_samples, 1)) * np.ones(mask.shape)
    if definition.ratio_level != "sequence":  # per token where the loss is made for it
        advantages = advantages + 0.3 * rng.normal(size=mask.shape) * (definition.advantage_pool != "none")
    arrays = (
        logp, rng.exponential(size=mask.shape), old_logp, logp + 0.2 * rng.normal(size=mask.shape), advantages,
        np.exp(0.2 * rng.normal(size=mask.shape)), old_logp + 1e-3 * rng.normal(size=mask.shape),
        rng.random(mask.shape) < 0.3,
    )  # fmt: skip
    return Inputs(*(array.astype(dtype) for array in arrays), mask)


def twin_of(definition: LossDefinition, inputs: Inputs, **whole: int) -> PolicyLossResult:
    """whole: denominators that are not those of the inputs."""
    arrays = {f"{name}_NK": array for name, array in vars(inputs).items()}
    own = {"num_sequences": inputs.num_sequences, "num_tokens": inputs.num_tokens}
    return policy_loss(definition, **arrays, **own | whole, kl_coef=0.2)


FURTHER = {"rollout_logp_NK": lambda inputs: inputs.sampler_logp, "selected_NK": lambda inputs: inputs.selected != 0}


def tensors_of(
    inputs: Inputs, num_sequences: object = None, num_tokens: object = None, kl_coef: float = 0.2, further: tuple = ()
) -> list:
    """What a cell takes; further: its `further_inputs`."""
    from mindspore import Tensor

    sequences = inputs.num_sequences if num_sequences is None else num_sequences
    scalars = (sequences, inputs.num_tokens if num_tokens is None else num_tokens, kl_coef)
    *arrays, _, _, mask = vars(inputs).values()
    own = [FURTHER[name](inputs) for name in further]
    return [*map(Tensor, (*arrays, mask)), *(Tensor(np.float32(scalar)) for scalar in scalars), *map(Tensor, own)]


@pytest.fixture(scope="module")
def run(cpu_runtime):
    """run(definition, inputs, num_sequences=None, num_tokens=None) -> Outcome of the compiled cell."""
    from mindspore import ops

    from mindgspo.algorithms.losses.registry import policy_loss_cell

    graphs = {}

    def run_cell(definition, inputs, **denominators: object) -> Outcome:
        if definition not in graphs:
            cell = policy_loss_cell(definition)
            graphs[definition] = ops.value_and_grad(cell, 0, None, has_aux=True), cell.further_inputs
        graph, further = graphs[definition]
        (loss, metrics, log_ratio), gradient = graph(*tensors_of(inputs, **denominators, further=further))
        return Outcome(float(loss.asnumpy()), gradient.asnumpy(), metrics.asnumpy(), log_ratio.asnumpy())

    return run_cell


def assert_agrees(definition: LossDefinition, outcome: Outcome, inputs: Inputs) -> None:
    """Loss, gradient and every metric within 1e-5 of the twin (relative to the largest element)."""
    twin = twin_of(definition, inputs)
    scale = np.abs(twin.grad_logp_NK).max()
    np.testing.assert_allclose(outcome.loss, twin.loss, rtol=1e-5, atol=1e-6 * max(1.0, inputs.num_tokens * scale))
    np.testing.assert_allclose(outcome.gradient, twin.grad_logp_NK, rtol=0, atol=1e-5 * scale)
    assert not outcome.gradient[~inputs.mask].any()
    table = POLICY_METRICS if definition.opsm_threshold is None else (*POLICY_METRICS, OPSM_METRIC)
    metrics = summarize(table, [outcome.metrics], num_sequences=inputs.num_sequences, num_tokens=inputs.num_tokens)
    assert set(metrics) == set(twin.metrics)
    for key, value in twin.metrics.items():
        np.testing.assert_allclose(metrics[key], value, rtol=2e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_cell_agrees_with_twin_on_random_inputs(run, name):
    definition = definition_of(name)
    for seed in range(8 if name in NAMES else 4):
        inputs = random_inputs(definition, seed)
        assert_agrees(definition, run(definition, inputs), inputs)


@pytest.mark.parametrize("name", [*CLIPPED_BY_TOKEN, *SEQUENCE, "gmpo"])
def test_random_inputs_reach_both_clip_sides(name):
    """Guards the tests above: without clipped ratios of either sign they would prove little."""
    definition = definition_of(name)
    found = [twin_of(definition, random_inputs(definition, seed)).metrics for seed in range(8)]
    for key in ("pg_clipfrac_pos", "pg_clipfrac_neg"):
        assert 0 < np.mean([metrics[key] for metrics in found]) < 1


@pytest.mark.parametrize("name", ["dppo_tv", "dppo_kl"])
def test_random_inputs_reach_both_sides_of_a_trust_region(name):
    definition = definition_of(name, clip_low=0.03, clip_high=0.02)
    found = [twin_of(definition, random_inputs(definition, seed)).metrics for seed in range(8)]
    for key in ("pg_clipfrac_pos", "pg_clipfrac_neg"):
        assert 0 < np.mean([metrics[key] for metrics in found]) < 1


@pytest.mark.parametrize("name", ["gspo + opsm", "gmpo + opsm"])
def test_random_inputs_reach_the_off_policy_mask(name):
    definition = definition_of(name)
    found = [twin_of(definition, random_inputs(definition, seed)).metrics["opsm_masked_seq"] for seed in range(4)]
    assert 0 < np.mean(found) < 0.5


def test_responses_at_the_dual_clip_are_dropped_by_fipo():
    definition = definition_of("fipo, both sides")
    kept = replace(definition, clip_ratio_c=1e3)
    inputs = [random_inputs(definition, seed) for seed in range(8)]
    dropped = [
        (
            (of_twin(definition, one)[1] == 0).all(axis=1)
            & one.mask.any(axis=1)
            & (of_twin(kept, one)[1] != 0).any(axis=1)
        )
        for one in inputs
    ]
    assert 0 < np.mean(dropped) < 0.5


@pytest.mark.parametrize("slots", [1, 5, 128, 129, 300])
def test_what_follows_a_token_is_added_up_with_its_decay(cpu_runtime, slots):
    from mindspore import Tensor

    from mindgspo.algorithms.losses.future import FutureSum

    values = np.random.default_rng(slots).standard_normal((3, slots)).astype(np.float32)
    expected, running = np.zeros((3, slots)), np.zeros(3)
    for t in reversed(range(slots)):
        expected[:, t] = running = values[:, t] + 2 ** (-1 / 40) * running
    np.testing.assert_allclose(FutureSum(40.0)(Tensor(values)).asnumpy(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["grpo + caps", "gspo + dual clip"])
def test_the_caps_of_the_variants_act(name):
    definition = definition_of(name)
    plain = replace(definition, clip_ratio_c=None, ratio_upper_clamp=None, loss_upper_clamp=None)
    inputs = [random_inputs(definition, seed) for seed in range(4)]
    assert any(twin_of(definition, each).loss != twin_of(plain, each).loss for each in inputs)
    assert any(twin_of(definition, each).metrics["pg_clipfrac_lower"] > 0 for each in inputs)


@pytest.mark.parametrize("name", [*NAMES, "gspo + k3", "grpo + weighted k3", "gspo + entropy"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_masked_slots_may_hold_anything(run, name, poison):
    definition = definition_of(name)
    inputs = random_inputs(definition, seed=1)
    clean = run(definition, inputs)
    *arrays, mask = vars(inputs).values()
    garbage = np.array([1, 1, -1, 1, -1, 1, -1, 1], np.float32) * np.float32(poison)
    poisoned = Inputs(*(np.where(mask, array, bad) for array, bad in zip(arrays, garbage, strict=True)), mask)
    outcome = run(definition, poisoned)
    assert outcome.loss == clean.loss
    np.testing.assert_array_equal(outcome.gradient, clean.gradient)
    np.testing.assert_array_equal(outcome.metrics, clean.metrics)


@pytest.mark.parametrize("name", [*NAMES, "gspo + k3", "grpo + weighted k3", "gspo + dual clip"])
def test_wild_log_ratios_stay_finite_and_agree(run, name):
    definition = definition_of(name)
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
    nothing = np.zeros((6, 7), np.float32)
    inputs = replace(random_inputs(definition, seed=3), advantages=nothing, selected=nothing)
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
    inputs = Inputs(-1.5 * ones, ones, -1.5 * ones, ones, sign * ones, ones, ones, 0 * ones, np.ones((1, 4), bool))
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
    mask = np.ones((2, 1), bool)
    inputs = Inputs(edges.astype(np.float32), ones, 0 * ones, ones, advantages, ones, ones, 0 * ones, mask)
    outcome = run(definition, inputs)
    assert (outcome.gradient == 0).all() == (relative > 0)
    assert (outcome.gradient != 0).all() == (relative < 0)
    assert_agrees(definition, outcome, inputs)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"dr_grpo", "gmpo"}))
def test_equal_policies_give_ratio_one_and_the_plain_policy_gradient(run, name):
    definition = definition_of(name)
    inputs = random_inputs(definition, seed=5)
    ones = np.ones((6, 7), np.float32)
    inputs = replace(inputs, logp=inputs.old_logp, correction=ones, selected=0 * ones)
    outcome = run(definition, inputs)
    lengths = np.maximum(inputs.mask.sum(axis=1, keepdims=True), 1)
    weight = {
        "token-mean": 1 / inputs.num_tokens,
        "seq-mean-token-mean": 1 / lengths / inputs.num_sequences,
        "seq-mean-token-sum": 1 / inputs.num_sequences,
    }[definition.aggregation.mode]
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
    from mindgspo.algorithms.losses.registry import build_policy_loss

    cell = build_policy_loss(section_of("gspo"))
    for seed, (num_sequences, coefficient) in enumerate([(6, 0.0), (5, 0.1), (64, 0.2)]):
        cell(*tensors_of(random_inputs(definition_of("gspo"), seed), num_sequences, 40 + seed, coefficient))
    assert len(cell.compile_cache) == 1


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_the_registry_has_a_cell_with_the_papers_settings(cpu_runtime, name):
    from mindgspo.algorithms.losses.registry import build_policy_loss, loss_definition

    section = section_of(name)
    cell, definition, recipe = build_policy_loss(section), loss_definition(section), POLICY_LOSSES[name]
    paper = recipe.source.partition(",")[0]
    assert paper in type(cell).__doc__ + sys.modules[type(cell).__module__].__doc__, "the paper stands in the docstring"
    assert (definition.clip_low, definition.clip_high) == (recipe.clip or (None, None))
    assert definition.aggregation.mode == recipe.agg_mode


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
    ({"num_sequences": np.ones(6)}, ValueError, r"num_sequences: expected a scalar, got shape \[6\]"),
])  # fmt: skip
def test_inputs_that_do_not_fit_are_named(run, changed, error, message):
    definition = definition_of("gspo")
    inputs = random_inputs(definition, seed=12)
    denominators = {"num_sequences": changed.pop("num_sequences", 5), "num_tokens": 20}
    with pytest.raises(error, match=message):
        run(definition, replace(inputs, **changed), **denominators)
    assert np.isfinite(run(definition, inputs).loss), "the cell must survive a refused call"


@pytest.mark.parametrize(
    "changes",
    [{"clip_low": -0.1}, {"clip_high": -1e-4}, {"clip_high": float("inf")}, {"clip_ratio_c": 0.0}, {"tau_pos": -1.0}],
)
def test_a_definition_refuses_impossible_numbers(changes):
    with pytest.raises(AssertionError, match=next(iter(changes))):
        definition_of("gspo", **changes)


# ----- what must not matter

ROWS, SLOTS = 8, 9
ALL = [*NAMES, "gspo + kl + entropy", "gspo + opsm"]


class Judge(NamedTuple):
    """Loss and gradient of the cells within 1e-6 of the largest element, those of the twins within 1e-12."""

    of: Callable[..., tuple[float, np.ndarray]]
    tolerance: float
    dtype: type


def of_twin(definition: LossDefinition, inputs: Inputs, **whole: int) -> tuple[float, np.ndarray]:
    twin = twin_of(definition, inputs, **whole)
    return twin.loss, twin.grad_logp_NK


@pytest.fixture(scope="module", params=["cells", "twins"])
def judge(request, run) -> Judge:
    if request.param == "twins":
        return Judge(of_twin, 1e-12, np.float64)
    return Judge(lambda *inputs, **whole: run(*inputs, **whole)[:2], 1e-6, np.float32)


def full_rows(definition: LossDefinition, seed: int, dtype: type = np.float32) -> Inputs:
    """Lengths 1 .. K."""
    rng = np.random.default_rng(seed)
    mask = np.arange(SLOTS) < rng.integers(1, SLOTS + 1, size=(ROWS, 1))
    return filled(definition, mask, rng, dtype)


def assert_same(judge, definition: LossDefinition, whole: Inputs, parts: Sequence[Inputs], restore) -> None:
    """The losses of `parts` add up to that of `whole`, and restore(gradients) is its gradient."""
    own = {"num_sequences": whole.num_sequences, "num_tokens": whole.num_tokens}
    loss, gradient = judge.of(definition, whole)
    found = [judge.of(definition, part, **own) for part in parts]
    # The loss is a sum whose terms cancel: what it is judged by is the largest of them, one response's share.
    shares = [abs(twin_of(definition, whole.rows([row]), **own).loss) for row in range(ROWS)]
    assert sum(part_loss for part_loss, _ in found) == pytest.approx(loss, rel=0, abs=judge.tolerance * max(shares))
    largest = np.abs(gradient).max()
    assert largest > 0
    np.testing.assert_allclose(restore([g for _, g in found]), gradient, rtol=0, atol=judge.tolerance * largest)


def assert_rows_may_be_dealt_out(judge, definition: LossDefinition, seed: int, shares: Sequence[np.ndarray]) -> None:
    """shares: numbers of rows, each in one of them."""
    inputs = full_rows(definition, seed, judge.dtype)
    order = np.argsort(np.concatenate(shares))
    parts = [inputs.rows(share) for share in shares]
    assert_same(judge, definition, inputs, parts, lambda gradients: np.concatenate(gradients)[order])


@pytest.mark.parametrize("name", ALL)
def test_every_micro_batch_size(judge, name):
    # Every size costs a compilation per definition: all of them for the project's own loss, divisors for the others.
    sizes = range(1, ROWS) if name == "gspo" else (1, 4)
    for seed, size in enumerate(sizes):
        shares = np.split(np.arange(ROWS), range(size, ROWS, size))
        assert_rows_may_be_dealt_out(judge, definition_of(name), seed, shares)


@pytest.mark.parametrize("name", ALL)
def test_padding_with_slots_and_filler_rows(judge, name):
    definition = definition_of(name)
    inputs = full_rows(definition, 20, judge.dtype)
    for rows, slots in ((0, 7), (8, 0), (8, 7)):
        restore = lambda gradients: gradients[0][:ROWS, :SLOTS]  # noqa: E731
        assert_same(judge, definition, inputs, [inputs.padded(rows, slots)], restore)


@pytest.mark.parametrize("name", ALL)
def test_the_order_of_rows_and_a_split_over_data_parallel_ranks(judge, name):
    """Rank r takes rows r, r + ranks, ...; the sum over ranks is the all-reduce. Lengths differ between ranks."""
    definition = definition_of(name)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(ROWS)
        assert_rows_may_be_dealt_out(judge, definition, 30 + seed, [order])
    mask = full_rows(definition, 40).mask
    for ranks in (2, 4):
        shares = [np.arange(rank, ROWS, ranks) for rank in range(ranks)]
        assert len({mask[share].sum() for share in shares}) == ranks, "equal shares would hide a local denominator"
        assert_rows_may_be_dealt_out(judge, definition, 40, shares)


VOCAB = 13


def bigram_objective(definition: LossDefinition):
    """A policy whose logits are a row of a table, so that only `predict_P` knows where a token stands."""
    import mindspore as ms
    from mindspore import Parameter, Tensor, nn, ops

    from mindgspo.algorithms.losses.registry import policy_loss_cell
    from mindgspo.algorithms.optim.gradients import Objective

    class Bigram(nn.Cell):
        def __init__(self):
            super().__init__()
            table = np.random.default_rng(0).normal(size=(VOCAB, VOCAB)).astype(np.float32)
            self.table = Parameter(Tensor(table), name="table")

        def construct(self, ids_RT, positions_RT, segments_RT, predict_P, targets_P, place_NK):
            log_probs = ops.log_softmax(ops.gather(self.table, ops.gather(ids_RT.reshape(-1), predict_P, 0), 0), -1)
            logp = ops.gather_elements(log_probs, 1, targets_P.reshape(-1, 1))
            entropy = -(ops.exp(log_probs) * log_probs).sum(-1)
            return ops.gather(logp.reshape(-1), place_NK, 0), ops.gather(entropy, place_NK, 0)

    policy = Bigram()
    weights = ms.ParameterTuple(policy.trainable_params())
    return ops.value_and_grad(Objective(policy, policy_loss_cell(definition)), 0, weights, has_aux=True)


@pytest.mark.parametrize(
    "name", ["gspo", "gspo_token", "dapo", "gmpo", "gspo + kl + entropy", "luspo", "dppo_kl", "vespo", "fipo", "kl_cov"]
)
def test_packed_rows(cpu_runtime, name):
    """Two and four samples per row against one: same loss, same gradient of the log-probs and of the weights."""
    from mindspore import Tensor

    definition = definition_of(name)
    inputs = full_rows(definition, 50)
    rng = np.random.default_rng(50)
    lengths = inputs.mask.sum(axis=1)
    samples = [
        TrainingSample(
            prompt_ids=rng.integers(0, VOCAB, 1 + n % 3, np.int32), rollout_logp=np.zeros(length, np.float32),
            response_ids=rng.integers(0, VOCAB, length, np.int32), number=n,
        ) for n, length in enumerate(lengths)
    ]  # fmt: skip
    # old and reference policy near the table's own log-probs, so that ratios stay near 1
    gradient = bigram_objective(definition)
    _, _, *arrays, _, selected, mask = vars(inputs).values()
    further = (selected != 0,) if name in ("clip_cov", "kl_cov") else ()
    scalars = (np.float32(ROWS), np.float32(lengths.sum()), np.float32(0.2))
    found = {}
    for per_row in (1, 2, 4):
        rows = [samples[first : first + per_row] for first in range(0, ROWS, per_row)]
        size = BatchSize(rows=len(rows), row_length=64, samples=ROWS, slots=SLOTS)
        packed = batch_of(rows, size, 0, denominators(samples))
        np.testing.assert_array_equal(packed.mask_NK, mask)
        rows = (packed.ids_RT, packed.positions_RT, packed.segments_RT, packed.predict_P, packed.targets_P)
        everything = (np.zeros(mask.shape, np.float32), *rows, packed.place_NK, *arrays, mask, *scalars, *further)
        (loss, _, _, _, _), (by_logp, by_weight) = gradient(*map(Tensor, everything))
        found[per_row] = (float(loss.asnumpy()), by_logp.asnumpy(), by_weight[0].asnumpy())
    for per_row in (2, 4):
        assert found[per_row][0] == pytest.approx(found[1][0], rel=1e-6)
        for array, expected in zip(found[per_row][1:], found[1][1:], strict=True):
            assert np.abs(expected).max() > 0
            np.testing.assert_allclose(array, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
