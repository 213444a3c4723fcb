"""KL to a teacher over its likeliest tokens: numbers by hand, a float64 twin, its gradient, and its place in a loss."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.config import AlgorithmSection, with_recipe

pytestmark = pytest.mark.usefixtures("cpu_runtime")

VOCAB_SIZE, LEAST = 11, 1e-5


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def twin(policy: np.ndarray, teacher: np.ndarray, count: int) -> np.ndarray:
    """Of log-probs over the whole vocabulary, float64: the teacher's `count` likeliest ids, and the sum of the rest."""
    ids = np.argsort(-teacher, axis=-1)
    p, q = (np.take_along_axis(np.exp(one), ids, -1) for one in (policy, teacher))
    p, q = (np.concatenate([one[..., :count], one[..., count:].sum(-1, keepdims=True)], -1) for one in (p, q))
    p[..., -1], q[..., -1] = np.maximum(p[..., -1], LEAST), np.maximum(q[..., -1], LEAST)
    return (p * np.log(p / q)).sum(-1)


@pytest.fixture(scope="module")
def found(cpu_runtime):
    """found(logits of the policy [N, K, V], ids, teacher's log-probs, mask) -> KL [N, K], gradient of its sum."""
    import mindspore as ms
    from mindspore import Tensor, nn, ops

    from mindgspo.algorithms.losses.distillation import TopKKL

    class OfLogits(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.kl, self.log_softmax = TopKKL(), ops.LogSoftmax(axis=-1)

        def construct(self, logits, ids, teacher, mask):
            of_ids = ops.maximum(ids, 0)
            logp = ops.gather_elements(self.log_softmax(logits), 2, of_ids)
            kl = self.kl(logp, ids, teacher, mask)
            return kl.sum(), kl

    compiled = ops.value_and_grad(OfLogits(), 0, has_aux=True)

    def run(logits, ids, teacher, mask):
        arrays = (logits.astype(np.float32), ids.astype(np.int32), teacher.astype(np.float32), mask)
        (_, kl), gradient = compiled(*map(Tensor, arrays))
        assert kl.dtype == ms.float32
        return kl.asnumpy(), gradient.asnumpy()

    return run


def test_by_hand(found) -> None:
    """p = (1/2, 1/4, 1/4), q = (5/8, 1/8, 1/4) and one likeliest token: 1/2 log 4/5 + 1/2 log 4/3; with two of them
    1/2 log 4/5 + 1/4 log 1 + 1/4 log 2."""
    logits, q = np.log([[[0.5, 0.25, 0.25]]]), np.log([0.625, 0.25, 0.125])
    mask = np.ones((1, 1), bool)
    (one,), (two,) = (found(logits, ids, q[None, None, : ids.size], mask)[0] for ids in map(as_NKA, ([0], [0, 2])))
    assert one[0] == pytest.approx(0.5 * np.log(4 / 5) + 0.5 * np.log(4 / 3), abs=1e-5)
    assert two[0] == pytest.approx(0.5 * np.log(4 / 5) + 0.25 * np.log(2), abs=1e-5)


def as_NKA(ids: list[int]) -> np.ndarray:  # noqa: N802
    return np.array(ids)[None, None]


def drawn(seed: int, scale: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs of policy and teacher [3, 4, V]."""
    rng = np.random.default_rng(seed)
    return tuple(log_softmax(scale * rng.normal(size=(3, 4, VOCAB_SIZE))) for _ in range(2))


def likeliest(teacher: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.argsort(-teacher, axis=-1)[..., :count]
    return ids, np.take_along_axis(teacher, ids, -1)


@pytest.mark.parametrize("count", [1, 4, VOCAB_SIZE])
def test_values_and_gradients(found, count: int) -> None:
    policy, teacher = drawn(count)
    kl, gradient = found(policy, *likeliest(teacher, count), np.ones((3, 4), bool))
    expected = twin(policy, teacher, count)
    np.testing.assert_allclose(kl, expected, rtol=0, atol=3e-5)
    step, numeric = 1e-6, np.zeros_like(policy)
    for v in range(VOCAB_SIZE):
        ahead, behind = (log_softmax(policy + way * step * np.eye(VOCAB_SIZE)[v]) for way in (1, -1))
        numeric[..., v] = (twin(ahead, teacher, count) - twin(behind, teacher, count)) / (2 * step)
    np.testing.assert_allclose(gradient, numeric, rtol=0, atol=3e-5)


@given(seed=st.integers(0, 10**6), count=st.integers(1, VOCAB_SIZE), scale=st.floats(0.1, 8))
def test_it_lies_between_0_and_the_kl_of_the_whole_vocabulary(found, seed: int, count: int, scale: float) -> None:
    policy, teacher = drawn(seed, scale)
    kl, gradient = found(policy, *likeliest(teacher, count), np.ones((3, 4), bool))
    whole = (np.exp(policy) * (policy - teacher)).sum(-1)
    assert (kl >= -1e-4).all() and (kl <= whole + 1e-4 * np.maximum(1, whole)).all()
    assert np.isfinite(gradient).all()
    same, slope = found(teacher, *likeliest(teacher, count), np.ones((3, 4), bool))
    np.testing.assert_allclose(same, 0, atol=1e-4)
    np.testing.assert_allclose(slope, 0, atol=1e-4)


def test_what_is_masked_or_has_no_teacher_counts_as_0(found) -> None:
    policy, teacher = drawn(5)
    ids, logp = likeliest(teacher, 4)
    mask = np.arange(4) < np.array([[4], [2], [0]])
    ids[0, 1] = -1
    logp[0, 1], logp[~mask] = np.nan, np.nan
    ids[0, 2, 2:], logp[0, 2, 2:] = -1, 0.0  # only two were given
    kl, gradient = found(np.where(mask[:, :, None], policy, np.nan), ids, logp, mask)
    expected = np.where(mask, twin(policy, teacher, 4), 0)
    expected[0, 1], expected[0, 2] = 0, twin(policy, teacher, 2)[0, 2]
    np.testing.assert_allclose(kl, expected, rtol=0, atol=3e-5)
    assert not gradient[0, 1].any() and np.isfinite(gradient[mask]).all()


def test_a_teacher_that_excludes_what_the_policy_does_pulls_with_a_bound(found) -> None:
    """Nearly all of the policy's mass is on a token that the teacher gives e^-40."""
    teacher = log_softmax(np.array([[[0.0, -1, -2, -40]]]))
    policy = log_softmax(np.array([[[-12.0, -12, -12, 0]]]))
    kl, gradient = found(policy, *likeliest(teacher, 3), np.ones((1, 1), bool))
    assert kl[0, 0] == pytest.approx(-np.log(LEAST), rel=0.01)
    assert np.isfinite(gradient).all() and gradient[0, 0, 3] > 0 > gradient[0, 0, :3].max()


@pytest.mark.parametrize(("name", "settings"), [
    ("gspo", {}), ("grpo", {}), ("gmpo", {}), ("dr_grpo", {}),
    ("gspo", {"rollout_correction": {"level": "none", "opsm_threshold": 1e-3}}), ("clip_cov", {}),
])  # fmt: skip
def test_a_loss_adds_it_aggregated_like_itself(name: str, settings: dict) -> None:
    from mindspore import Tensor, ops

    from mindgspo.algorithms.losses.distillation import DISTILLATION_METRIC
    from mindgspo.algorithms.losses.registry import loss_definition, policy_loss_cell

    rng = np.random.default_rng(9)
    mask = np.arange(4) < np.array([[4], [1], [2]])
    old = -rng.exponential(size=mask.shape).astype(np.float32)
    policy, teacher = drawn(9)
    ids, teacher_logp = likeliest(teacher, 3)
    batch = SimpleNamespace(
        turns_JNK=None, selected_NK=rng.random(mask.shape) < 0.3, rollout_logp_NK=old + np.float32(1e-3),
        teacher_ids_NKA=ids.astype(np.int32), teacher_logp_NKA=teacher_logp.astype(np.float32),
    )  # fmt: skip
    own = np.take_along_axis(policy, ids, -1).astype(np.float32)
    definition = loss_definition(with_recipe(AlgorithmSection(name=name, **settings), max_new_tokens=4))
    ones = np.ones(mask.shape, np.float32)
    advantages = (rng.normal(size=(3, 1)) * ones).astype(np.float32)

    def outcome(coef: float):
        cell = policy_loss_cell(replace(definition, distillation_coef=coef))
        further = [getattr(batch, one) for one in cell.further_inputs] + [own] * (coef > 0)
        scalars = (np.float32(3), np.float32(7), np.float32(1))
        arrays = (old + np.float32(1e-4), ones, old, ones, advantages, ones, mask, *scalars)
        graph = ops.value_and_grad(cell, (0, len(arrays) + len(further) - 1) if coef else 0, has_aux=True)
        (loss, metrics, _), gradients = graph(*map(Tensor, (*arrays, *further)))
        names = [one.name for one in cell.metrics]
        return float(loss.asnumpy()), dict(zip(names, metrics.asnumpy(), strict=True)), gradients

    loss, metrics, (slope, of_ids) = outcome(0.5)
    without, fewer, alone = outcome(0.0)
    kl = np.where(mask, twin(policy, teacher, 3), 0)
    length = mask.sum(1, keepdims=True)
    by_response = (kl / length).sum() / 3
    mean = {
        "token-mean": kl.sum() / 7, "seq-mean-token-mean": by_response, "batch-mean": by_response,
        "seq-mean-token-sum-norm": kl.sum() / 4 / 3,
    }[definition.aggregation.mode]  # fmt: skip
    assert loss - without == pytest.approx(0.5 * mean, rel=1e-4)
    assert metrics.pop(DISTILLATION_METRIC.name) == pytest.approx(kl.sum(), rel=1e-4)
    assert metrics == fewer
    np.testing.assert_array_equal(slope.asnumpy(), alone.asnumpy())
    assert of_ids.asnumpy()[mask].any() and not of_ids.asnumpy()[~mask].any()
