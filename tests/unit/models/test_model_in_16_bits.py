"""A model that computes in bfloat16 or float16 on CPU: the float32 one up to rounding, and refused without kernels."""

from __future__ import annotations

import numpy as np
import pytest
from small_plans import MIXTURE, drawn_model, small_model

from mindgspo.config.plan import ParallelPlan
from mindgspo.errors import ConfigError

pytestmark = pytest.mark.usefixtures("cpu_runtime")

FAMILIES = {"qwen2": {"tie_word_embeddings": True}, "qwen3_moe": MIXTURE}
UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
# Of a token on its way: the embedding, 10 in each of two layers, the final norm; and as many weights.
ROUNDINGS = 2 * (1 + 2 * 10 + 1)
ENDS = (9, 17, 30)


def log_probs_and_gradients(family: str, dtype: str, recompute: str = "none", scale: float = 1.0):
    """Log-probs float32 [30], and the gradients of a sum of them by name, float32. scale: of the sum's weights; the
    gradients are divided by it."""
    import mindspore as ms
    from mindspore import Tensor

    from mindgspo.models.policy import PolicyLogProbs
    from mindgspo.parallel.ops.device import takes_packed
    from mindgspo.parallel.plans.placement import Placement

    section = small_model(**FAMILIES[family], initializer_range=0.15, dtype=dtype)
    model = drawn_model(section, seed=2, place=Placement(plan=ParallelPlan(recompute=recompute), rank=0))
    if not takes_packed(model):
        pytest.skip("there are no kernels")
    policy = PolicyLogProbs(model, temperature=1.0, with_entropy=False)
    rng, count = np.random.default_rng(3), ENDS[-1]
    ids, targets = rng.integers(0, 61, (2, count)).astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in np.diff([0, *ENDS])]).astype(np.int32)
    every, slope = np.arange(count, dtype=np.int32), rng.standard_normal((1, count)).astype(np.float32)
    inputs = (ids[None], positions[None], np.array(ENDS, np.int32), every, targets, every[None])
    weights = model.trainable_params()

    def loss(*given):
        logp_NK, _ = policy(*given)
        return (logp_NK * Tensor(slope * np.float32(scale))).sum(), logp_NK

    (_, logp), found = ms.value_and_grad(loss, None, weights, has_aux=True)(*(Tensor(array) for array in inputs))
    assert {str(gradient.dtype) for gradient in found} == {"Float32"}
    gradients = {weight.name: gradient.asnumpy() / scale for weight, gradient in zip(weights, found, strict=True)}
    return logp.asnumpy()[0], gradients


def distance(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> float:
    """Of all gradients, relative to their norm."""
    difference = sum(float(((ours[name] - theirs[name]) ** 2).sum()) for name in theirs)
    return (difference / sum(float((array**2).sum()) for array in theirs.values())) ** 0.5


@pytest.fixture(scope="module", params=list(FAMILIES))
def exact(request: pytest.FixtureRequest, cpu_runtime):
    return request.param, *log_probs_and_gradients(request.param, "float32")


@pytest.mark.parametrize("dtype", list(UNITS))
def test_log_probs_and_gradients_are_those_of_float32_up_to_rounding(exact, dtype: str) -> None:
    family, logp, gradients = exact
    ours, of_ours = log_probs_and_gradients(family, dtype)
    off = np.abs(ours - logp).max() / np.abs(logp).max()
    assert UNITS[dtype] / 64 < off < ROUNDINGS * UNITS[dtype], "nothing is rounded, or too much"
    assert UNITS[dtype] / 64 < distance(of_ours, gradients) < ROUNDINGS * UNITS[dtype]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "scale", "least", "most"), [
    ("float16", 1e-4, 0, 0.01), ("float16", 1e-5, 0.01, 0.1), ("float16", 1e-6, 0.1, 0.5), ("float16", 1e-7, 0.5, 1),
    ("bfloat16", 1e-7, 0, 0.03),
])  # fmt: skip
def test_float16_loses_small_gradients_and_bfloat16_does_not(
    dtype: str, scale: float, least: float, most: float
) -> None:
    """There is no loss scaling: a token of N responses of L tokens has a gradient of about 1 / (N L)."""
    _, exact = log_probs_and_gradients("qwen2", "float32")
    _, found = log_probs_and_gradients("qwen2", dtype, scale=scale)
    assert least < distance(found, exact) < most


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_what_is_computed_again_is_rounded_alike(recompute: str) -> None:
    logp, gradients = log_probs_and_gradients("qwen2", "bfloat16")
    ours, of_ours = log_probs_and_gradients("qwen2", "bfloat16", recompute)
    np.testing.assert_array_equal(ours, logp)
    assert distance(of_ours, gradients) < ROUNDINGS * UNITS["bfloat16"]


def test_bfloat16_without_kernels_is_refused() -> None:
    from mindgspo.models.policy import build_model
    from mindgspo.parallel.ops.device import composed_ops
    from mindgspo.rollout.cache import PagedCache

    with composed_ops():
        with pytest.raises(ConfigError, match=r"model.dtype: bfloat16 on CPU .* install g\+\+ .* model.dtype=float32"):
            build_model(small_model(dtype="bfloat16"))
        model = build_model(small_model())
        with pytest.raises(ConfigError, match=r"rollout.cache_dtype: bfloat16 on CPU .* install g\+\+"):
            PagedCache(model, num_blocks=2, num_columns=8, dtype="bfloat16")
