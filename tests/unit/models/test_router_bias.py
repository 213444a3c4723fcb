"""Correction biases of routers that are moved by load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_plans import drawn_model, small_model

from mindgspo.batches.micro_batches import BatchLayout, micro_batches
from mindgspo.batches.rows import TrainingSample
from mindgspo.config import AlgorithmSection, OptimizerSection, with_recipe
from mindgspo.errors import NonFiniteError
from mindgspo.types import Batch

pytestmark = pytest.mark.usefixtures("cpu_runtime")

EXPERTS, CHOSEN, RATE = 8, 3, 0.125
SECTION = small_model(
    architecture="glm4_moe", head_dim=12, num_hidden_layers=3, num_experts=EXPERTS, num_experts_per_tok=CHOSEN,
    moe_intermediate_size=16, norm_topk_prob=True, n_shared_experts=1, first_k_dense_replace=1, initializer_range=0.2,
)  # fmt: skip
WIDTH = 2 * CHOSEN  # of the two layers with a router


def batches() -> list[Batch]:
    """Micro-batches of two rows, one sample in each."""
    rng = np.random.default_rng(3)
    samples = [
        TrainingSample(
            prompt_ids=rng.integers(0, 61, rng.integers(2, 6)).astype(np.int32),
            response_ids=(ids := rng.integers(0, 61, rng.integers(2, 9)).astype(np.int32)),
            rollout_logp=np.full(ids.size, -4.0, np.float32),
            number=number,
        )
        for number in range(6)
    ]
    made = micro_batches(samples, BatchLayout(samples_per_micro_batch=2, length_multiple=8, pad_id=0))
    return [
        replace(batch, old_logp_NK=batch.rollout_logp_NK, advantages_NK=batch.mask_NK.astype(np.float32))
        for batch in made
    ]


def updater_of(model, rate: float, **kinds):
    from mindgspo.algorithms.losses.registry import build_policy_loss
    from mindgspo.algorithms.optim.updater import Updater
    from mindgspo.models.policy import PolicyLogProbs

    loss = build_policy_loss(with_recipe(AlgorithmSection(name="gspo"), max_new_tokens=8))
    policy = PolicyLogProbs(model, temperature=1.0, with_entropy=False, **kinds)
    return Updater(policy, loss, OptimizerSection(lr=1e-3, router_bias_update_rate=rate))


def biases(model) -> np.ndarray:
    """[L, E]"""
    return np.stack([layer.mlp.bias.asnumpy() for layer in list(model.layers)[1:]])


def loads(routed: list[Batch]) -> np.ndarray:
    """[L, E], counted token by token: all but padding and the last one of each row."""
    found = np.zeros((2, EXPERTS))
    for batch in routed:
        for experts_TX, segments_T in zip(batch.experts_RTX, batch.segments_RT, strict=True):
            for x in experts_TX[: int((segments_T > 0).sum()) - 1]:
                for layer, expert in zip(np.repeat([0, 1], CHOSEN), x, strict=True):
                    found[layer, expert] += 1
    return found


def test_a_step_by_hand() -> None:
    from mindgspo.algorithms.optim.router_bias import RouterBiases
    from mindgspo.parallel.platform.parameter_memory import set_values

    model = drawn_model(SECTION, seed=1)
    before = np.array([0.5, 0, 0, 0, -1, 0, 0, 0], np.float32)
    for layer in list(model.layers)[1:]:
        set_values(layer.mlp.bias, before)
    # Means of 3 and of 1.
    RouterBiases(model, RATE).step(np.array([[9, 2, 3, 4, 0, 0, 3, 3], [1] * 8]))
    np.testing.assert_array_equal(biases(model)[0], before + RATE * np.array([-1, 1, 0, -1, 1, 1, 0, 0]))
    np.testing.assert_array_equal(biases(model)[1], before)


@pytest.mark.parametrize("is_replayed", [False, True], ids=["chosen", "replayed"])
def test_an_update_moves_biases_by_the_experts_that_it_uses(is_replayed: bool) -> None:
    from mindgspo.models.scoring import PolicyScorer

    model, made, kinds = drawn_model(SECTION, seed=5), batches(), {"returns_routing": True}
    found = PolicyScorer(model, temperature=1.0, returns_routing=True).score(made)
    routed = [replace(batch, experts_RTX=score.experts_RTX) for batch, score in zip(made, found, strict=True)]
    if is_replayed:
        rng, kinds = np.random.default_rng(4), {"replays_experts": True}
        draw = [[rng.permuted(np.arange(EXPERTS))[:CHOSEN] for _ in range(2 * batch.ids_RT.size)] for batch in made]
        made = routed = [
            replace(batch, experts_RTX=np.array(drawn, np.uint8).reshape(*batch.ids_RT.shape, WIDTH))
            for batch, drawn in zip(made, draw, strict=True)
        ]
    before, counted = biases(model), loads(routed)
    assert (counted != counted.mean(axis=1, keepdims=True)).any(axis=1).all()
    updater = updater_of(model, RATE, **kinds)
    result = updater.step(made, lr=1e-3)
    wanted = before + RATE * np.sign(counted.mean(axis=1, keepdims=True) - counted)
    np.testing.assert_allclose(biases(model), wanted, rtol=0, atol=1e-7)
    assert result.drift is None, "nothing was recorded"
    again = biases(model)
    broken = [replace(one, advantages_NK=one.advantages_NK * np.float32(np.nan)) for one in made]
    with pytest.raises(NonFiniteError):
        updater.step(broken, lr=1e-3)
    np.testing.assert_array_equal(biases(model), again)
