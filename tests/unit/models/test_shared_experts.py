"""Mixtures as DeepSeek-V3 and GLM-4.5 have them: sigmoids, corrected choice within groups, shared experts after dense
layers."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from small_plans import drawn_model, small_model

from mindgspo.config import ParallelPlan
from mindgspo.config.lora import LoraSection, narrowest_target
from mindgspo.models.names import (
    hugging_face_names,
    parameter_shapes,
    stored_shapes,
    to_hugging_face,
    trained_shapes,
    weight_shapes,
)
from mindgspo.models.operations import Operations
from mindgspo.parallel.plans.layout import TensorSlice
from mindgspo.parallel.plans.parameter_layouts import gradient_ranks, moment_layouts, parameter_layouts
from mindgspo.tensor_files.tensors import ArraySource

EXPERTS, CHOSEN, GROUPS, BEST, SCALE = 8, 3, 4, 2, 2.5
SECTION = small_model(
    architecture="glm4_moe", head_dim=12, num_hidden_layers=3, num_experts=EXPERTS, num_experts_per_tok=CHOSEN,
    moe_intermediate_size=16, norm_topk_prob=True, n_shared_experts=2, first_k_dense_replace=1, n_group=GROUPS,
    topk_group=BEST, routed_scaling_factor=SCALE, use_qk_norm=True, attention_bias=True, partial_rotary_factor=0.5,
)  # fmt: skip
CORRECTION = "mlp.gate.e_score_correction_bias"


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def route(x: np.ndarray, gate: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores [M, E] and the chosen experts [M, K], the best first."""
    scores = 1 / (1 + np.exp(-x @ gate.T))
    merits = (scores + bias).reshape(len(x), GROUPS, -1)
    of_groups = np.sort(merits, axis=2)[:, :, -2:].sum(axis=2)
    worst = np.argsort(-of_groups, axis=1)[:, BEST:]
    np.put_along_axis(merits, worst[:, :, None], -np.inf, axis=1)
    return scores, np.argsort(-merits.reshape(scores.shape), axis=1)[:, :CHOSEN]


def block_in_float64(x, gate, bias, experts, shared, given=None) -> tuple[np.ndarray, np.ndarray]:
    """Output [M, H] of a block and what its router chooses. experts, shared: gate, up and down."""
    scores, chosen = route(x, gate, bias)
    out = (silu(x @ shared[0].T) * (x @ shared[1].T)) @ shared[2].T
    for m, numbers in enumerate(chosen if given is None else given):
        own = scores[m, numbers]
        for weight, e in zip(own / own.sum() * SCALE, numbers, strict=True):
            out[m] += weight * experts[2][e] @ (silu(experts[0][e] @ x[m]) * (experts[1][e] @ x[m]))
    return out, chosen


@pytest.mark.parametrize("is_given", [False, True], ids=["chosen", "given"])
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "small_ops"])
def test_a_block_and_its_gradients_beside_its_twin(kernels: bool, is_given: bool, cpu_runtime: None) -> None:
    """Gradients by central differences of the float64 twin. The bias gets none."""
    import mindspore as ms
    from mindspore import Tensor, nn, ops

    from mindgspo.models.mixture_of_experts import MixtureOfExperts
    from mindgspo.parallel.ops.device import composed_ops
    from mindgspo.parallel.plans.placement import ALONE
    from mindgspo.parallel.platform.parameter_memory import set_values

    class Sum(nn.Cell):
        def __init__(self, block):
            super().__init__(auto_prefix=False)
            self.block, self.total = block, ops.ReduceSum()

        def construct(self, x_MH, d_MH, tokens, *given):
            out, chosen = self.block(x_MH, (tokens, tokens, tokens), *given)
            return self.total(out * d_MH), out, chosen

    rng, tokens = np.random.default_rng(4), 9
    with nullcontext() if kernels else composed_ops():
        block = MixtureOfExperts(SECTION, ms.float32, "mlp", ALONE)
    shared = block.shared
    weights = ms.ParameterTuple([
        block.gate, block.gate_proj, block.up_proj, block.down_proj,
        shared.gate_proj.weight, shared.up_proj.weight, shared.down_proj.weight,
    ])  # fmt: skip
    assert [one.name for one in block.trainable_params()] == [one.name for one in weights]
    values = [(rng.standard_normal(one.shape) * 0.4).astype(np.float32) for one in weights]
    bias = (rng.standard_normal(EXPERTS) * 0.5).astype(np.float32)
    for parameter, value in zip([*weights, block.bias], [*values, bias], strict=True):
        set_values(parameter, value)
    x, d = (rng.standard_normal((tokens, 32)).astype(np.float32) for _ in range(2))
    given = rng.permuted(np.tile(np.arange(EXPERTS), (tokens, 1)), axis=1)[:, :CHOSEN].astype(np.int32)
    inputs = (x, d, np.array([tokens], np.int32), *((given,) if is_given else ()))
    found = ms.value_and_grad(Sum(block), 0, weights, has_aux=True)(*map(Tensor, inputs))
    (_, out, chosen), (of_x, of_weights) = found

    def twin(x, gate, *matrices):
        return block_in_float64(x, gate, bias, matrices[:3], matrices[3:], given if is_given else None)

    exact = [array.astype(np.float64) for array in (x, *values)]
    wanted, wanted_choice = twin(*exact)
    np.testing.assert_array_equal(chosen.asnumpy(), wanted_choice)
    assert (wanted_choice != route(exact[0], exact[1], 0 * bias)[1]).any(), "the bias decides something"
    np.testing.assert_allclose(out.asnumpy(), wanted, rtol=1e-4, atol=1e-4)
    for number, found in enumerate([of_x, *of_weights]):
        found = found.asnumpy()
        for place in [tuple(rng.integers(0, size) for size in found.shape) for _ in range(12)]:
            ahead, behind = [array.copy() for array in exact], [array.copy() for array in exact]
            ahead[number][place] += 1e-6
            behind[number][place] -= 1e-6
            slope = ((twin(*ahead)[0] - twin(*behind)[0]) * d).sum() / 2e-6
            np.testing.assert_allclose(found[place], slope, rtol=2e-4, atol=2e-3)


def test_dense_layers_come_first_and_the_bias_is_kept_but_not_trained() -> None:
    shapes = parameter_shapes(SECTION)
    assert shapes["model.layers.0.mlp.gate_proj.weight"] == (48, 32) and "model.layers.0.mlp.gate.weight" not in shapes
    assert shapes["model.layers.2.mlp.shared_experts.down_proj.weight"] == (32, 32)
    assert shapes["model.layers.2.mlp.experts.down_proj.weight"] == (8, 32, 16)
    assert "model.layers.1.mlp.gate_proj.weight" not in shapes
    biases = {f"model.layers.{i}.{CORRECTION}" for i in (1, 2)}
    assert biases == shapes.keys() - trained_shapes(SECTION).keys() and stored_shapes(SECTION) == shapes
    without = SECTION.model_copy(update={"n_shared_experts": 0, "use_qk_norm": False, "attention_bias": False})
    assert {name.split(".", 3)[-1] for name in shapes.keys() - parameter_shapes(without).keys()} == {
        *(f"mlp.shared_experts.{name}_proj.weight" for name in ("gate", "up", "down")),
        *(f"self_attn.{name}_norm.weight" for name in "qk"), *(f"self_attn.{name}_proj.bias" for name in "qkv"),
    }  # fmt: skip


def test_names_in_files_are_there_and_back() -> None:
    rng = np.random.default_rng(0)
    arrays = {name: rng.random(shape, np.float32) for name, shape in parameter_shapes(SECTION).items()}
    files = to_hugging_face(SECTION, arrays)
    assert {name: array.shape for name, array in files.items()} == weight_shapes(SECTION)
    assert files["model.layers.1.mlp.experts.7.up_proj.weight"].base is not None
    assert f"model.layers.2.{CORRECTION}" in files and len(hugging_face_names(SECTION)) == len(arrays)


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    from mindgspo.errors import WeightsError
    from mindgspo.models.weight_check import require_weights

    arrays = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(SECTION).items()}
    more = arrays | {f"model.layers.3.{name}": np.zeros(2, np.float32) for name in ("eh_proj.weight", "hnorm.weight")}
    source = ArraySource(more, path=None)
    predicting = SECTION.model_copy(update={"num_nextn_predict_layers": 1})
    assert list(require_weights(predicting, source, {name: name for name in more})) == list(arrays)
    with pytest.raises(WeightsError, match="model.layers.3.eh_proj.weight"):
        require_weights(SECTION, source, {name: name for name in more})


def test_plans_split_shared_experts_as_dense_blocks_and_the_bias_not_at_all() -> None:
    section = SECTION.model_copy(update={"vocab_size": 64})
    shapes, trained = parameter_shapes(section), trained_shapes(section)
    plan = ParallelPlan(data_parallel=2, model_parallel=2, expert_parallel=4, expert_tensor_parallel=1)
    layouts, mlp = parameter_layouts(shapes, section, plan), "model.layers.1.mlp."
    assert layouts[f"{mlp}shared_experts.up_proj.weight"].slice_of(3) == TensorSlice((16, 0), (32, 32))
    assert layouts[f"{mlp}shared_experts.down_proj.weight"].slice_of(3) == TensorSlice((0, 16), (32, 32))
    assert layouts[f"{mlp}experts.up_proj.weight"].slice_of(3) == TensorSlice((6, 0, 0), (8, 16, 32))
    assert layouts[f"{mlp}gate.e_score_correction_bias"].slice_of(3) == TensorSlice((0,), (8,))
    found = gradient_ranks(parameter_layouts(trained, section, plan), section, plan, 3)
    assert found[f"{mlp}shared_experts.up_proj.weight"] == (1, 3) and found[f"{mlp}experts.up_proj.weight"] == (3,)
    sharded = moment_layouts(trained, section, plan.model_copy(update={"optimizer_shard": True}))
    assert sharded[f"{mlp}shared_experts.up_proj.weight"].slice_of(3).shape == (8, 32)


def test_operations_of_a_token_by_hand() -> None:
    attention = 2 * 32 * 12 * (4 + 2)
    dense, mixture = 3 * 32 * 48, 32 * (3 * (CHOSEN + 2) * 16 + EXPERTS)
    assert Operations.of(SECTION).trunk == 2 * (3 * attention + dense + 2 * mixture)


def test_adapters_are_those_of_experts_shared_experts_dense_layers_and_the_router(cpu_runtime: None) -> None:
    section = SECTION.model_copy(update={"lora": LoraSection(rank=4, targets=("mlp", "router"))})
    shapes = trained_shapes(section)
    for name, shape in {
        "0.mlp.down_proj.lora_A": (4, 48), "1.mlp.shared_experts.down_proj.lora_A": (4, 32),
        "1.mlp.experts.down_proj.lora_A": (8, 4, 16), "1.mlp.gate.lora_B": (8, 4),
    }.items():  # fmt: skip
        assert shapes[f"model.layers.{name}.weight"] == shape
    assert len(shapes) == 2 * (3 + 2 * (3 + 3 + 1)) and narrowest_target(section, section.lora) == 8
    model = drawn_model(section, seed=1)
    assert {one.name for one in model.get_parameters()} == parameter_shapes(section).keys()
    assert {one.name for one in model.trainable_params()} == shapes.keys()


def test_the_sampler_records_layers_with_routers_alone(cpu_runtime: None) -> None:
    from mindgspo.rollout.engine import NativeEngine
    from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
    from mindgspo.types import Prompt

    model = drawn_model(SECTION.model_copy(update={"initializer_range": 0.2}), seed=5)
    engine = NativeEngine(
        model, eos_ids=(), num_slots=2, prefill_width=1, max_prompt_length=8, max_new_tokens=6, length_multiple=4,
        records_experts=True,
    )  # fmt: skip
    engine.load_weights(1)
    prompt = Prompt(index=0, ids=np.arange(5, dtype=np.int32), text="", answer="", data_source="test")
    stream = RandomStream(seed=9, purpose=Purpose.TRAINING, step=2)
    settings = SamplingSettings(num_samples=1, temperature=1.0, max_new_tokens=6, stream=stream)
    (((response,),)) = engine.generate([prompt], settings, weight_version=1).responses
    assert response.routing.whole.shape == (4 + 6, 2 * CHOSEN)
    by_layer = response.routing.whole.reshape(-1, 2, CHOSEN)
    assert all(len(set(row)) == CHOSEN and len({e // 2 for e in row}) <= BEST for layer in by_layer for row in layer)
