"""Multi-head latent attention: the expansion and its absorption, names, plans, the cache, adapters and rules."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from small_plans import small_model

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.config.cache import cached_dims, cached_heads
from mindgspo.config.model_rules import model_problems
from mindgspo.models.names import parameter_shapes, to_hugging_face, weight_shapes
from mindgspo.models.operations import Operations
from mindgspo.models.rope import rope_tables, softmax_scale
from mindgspo.parallel.plans.layout import TensorSlice
from mindgspo.parallel.plans.parameter_layouts import gradient_ranks, parameter_layouts

HEADS, LATENT, NOPE, ROTATED, VALUE, QUERY_LATENT = 4, 24, 12, 8, 10, 20
SECTION = small_model(
    architecture="deepseek_v3", num_key_value_heads=HEADS, kv_lora_rank=LATENT, qk_nope_head_dim=NOPE,
    qk_rope_head_dim=ROTATED, v_head_dim=VALUE, q_lora_rank=QUERY_LATENT, num_experts=4, num_experts_per_tok=2,
    moe_intermediate_size=16, n_shared_experts=1, first_k_dense_replace=1,
)  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 0.5,
}  # fmt: skip


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def rotated(x: np.ndarray) -> np.ndarray:
    """[M, heads, R] at positions 0 to M - 1, neighbours in pairs."""
    cos, sin = (table[: len(x), None, :].astype(np.float64) for table in rope_tables(SECTION))
    turned = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    return x * cos + turned * sin


def attention_in_float64(x: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    """Output [M, H] of one sequence of M tokens, every key and value expanded."""
    tokens = len(x)
    query = norm(x @ weights["q_a_proj"].T, weights["q_a_layernorm"]) @ weights["q_b_proj"].T
    query = query.reshape(tokens, HEADS, NOPE + ROTATED)
    query = np.concatenate([query[..., :NOPE], rotated(query[..., NOPE:])], -1)
    compressed = x @ weights["kv_a_proj_with_mqa"].T
    key = np.repeat(rotated(compressed[:, None, LATENT:]), HEADS, axis=1)
    expanded = norm(compressed[:, :LATENT], weights["kv_a_layernorm"]) @ weights["kv_b_proj"].T
    expanded = expanded.reshape(tokens, HEADS, NOPE + VALUE)
    key, value = np.concatenate([expanded[..., :NOPE], key], -1), expanded[..., NOPE:]
    scores = np.einsum("qad,kad->aqk", query, key) * (NOPE + ROTATED) ** -0.5
    scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return np.einsum("aqk,kae->qae", shares, value).reshape(tokens, -1) @ weights["o_proj"].T


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "small_ops"])
def test_expanded_and_absorbed_beside_a_twin(kernels: bool, cpu_runtime: None) -> None:
    """The last token of a sequence, attended by whole rows, and by its absorbed query over latents as they are
    cached."""
    import mindspore as ms
    from mindspore import Tensor, nn, ops

    from mindgspo.models.latent_attention import LatentAttention
    from mindgspo.parallel.ops.device import RotationOp, SegmentMask, attention_segments, composed_ops, has_kernels
    from mindgspo.parallel.plans.placement import ALONE
    from mindgspo.parallel.platform.parameter_memory import set_values

    class Both(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.attention = LatentAttention(SECTION, ms.float32, "self_attn", ALONE)
            self.rotation = RotationOp(*rope_tables(SECTION), ROTATED, is_interleaved=True)
            self.mask, self.softmax, self.product = SegmentMask(), ops.Softmax(-1), ops.MatMul()
            self.transposed = ops.MatMul(transpose_b=True)

        def construct(self, x_MH, positions_M, segments):
            mask = self.mask(segments)
            tokens = (mask, mask, mask)
            query, key, latent = self.attention.project(x_MH, self.rotation(positions_M), tokens)
            whole = self.attention.attend(query, key, latent, tokens)
            absorbed = self.attention.absorb(query[-1:])[0]
            shares = self.softmax(self.transposed(absorbed, key[:, 0]) * (NOPE + ROTATED) ** -0.5)
            last = self.attention.release(self.product(shares, latent[:, 0]).reshape(1, -1))
            return self.attention.o_proj(whole, tokens), whole[-1:], last

    rng, size = np.random.default_rng(3), 9
    with nullcontext() if kernels else composed_ops():
        cell, is_packed = Both(), has_kernels()
    weights = {}
    for parameter in cell.get_parameters():
        value = (rng.standard_normal(parameter.shape) * 0.3 + (parameter.ndim == 1)).astype(np.float32)
        set_values(parameter, value)
        weights[parameter.name.split(".")[1]] = value.astype(np.float64)
    x = rng.standard_normal((size, 32)).astype(np.float32)
    segments = attention_segments(np.ones((1, size), np.int32), is_packed=is_packed)
    out, expanded, absorbed = cell(Tensor(x), Tensor(np.arange(size, dtype=np.int32)), Tensor(segments))
    np.testing.assert_allclose(out.asnumpy(), attention_in_float64(x.astype(np.float64), weights), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(absorbed.asnumpy(), expanded.asnumpy(), rtol=1e-4, atol=1e-5)


def test_names_and_shapes_are_hugging_faces() -> None:
    shapes = parameter_shapes(SECTION)
    own = {name.removeprefix("model.layers.1.self_attn."): shape for name, shape in shapes.items() if ".1.self" in name}
    assert own == {
        "q_a_proj.weight": (QUERY_LATENT, 32), "q_a_layernorm.weight": (QUERY_LATENT,),
        "q_b_proj.weight": (HEADS * 20, QUERY_LATENT), "kv_a_proj_with_mqa.weight": (LATENT + ROTATED, 32),
        "kv_a_layernorm.weight": (LATENT,), "kv_b_proj.weight": (HEADS * (NOPE + VALUE), LATENT),
        "o_proj.weight": (32, HEADS * VALUE),
    }  # fmt: skip
    assert (SECTION.head_dim, SECTION.rotary_dim, SECTION.value_dim) == (20, 8, 10)
    direct = parameter_shapes(SECTION.model_copy(update={"q_lora_rank": None}))
    assert direct["model.layers.1.self_attn.q_proj.weight"] == (80, 32)
    assert not any("q_a_" in name or "q_b_" in name for name in direct)
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    assert {name: array.shape for name, array in to_hugging_face(SECTION, arrays).items()} == weight_shapes(SECTION)


def test_plans_split_heads_and_leave_latents_whole() -> None:
    attention = "model.layers.0.self_attn."
    shapes = {name: shape for name, shape in parameter_shapes(SECTION).items() if name.startswith(attention)}
    plan = ParallelPlan(data_parallel=2, model_parallel=2)
    layouts = parameter_layouts(shapes, SECTION, plan)
    assert layouts[f"{attention}kv_b_proj.weight"].slice_of(1) == TensorSlice((44, 0), (88, LATENT))
    assert layouts[f"{attention}q_b_proj.weight"].slice_of(1) == TensorSlice((40, 0), (80, QUERY_LATENT))
    assert layouts[f"{attention}o_proj.weight"].slice_of(1) == TensorSlice((0, 20), (32, 40))
    whole = ("q_a_proj", "q_a_layernorm", "kv_a_proj_with_mqa", "kv_a_layernorm")
    found = gradient_ranks(layouts, SECTION, plan, 1)
    for name in whole:  # each rank finds the part that comes through its own heads
        assert layouts[f"{attention}{name}.weight"].slice_of(1).shape == shapes[f"{attention}{name}.weight"]
        assert found[f"{attention}{name}.weight"] == (0, 1, 2, 3)
    assert found[f"{attention}kv_b_proj.weight"] == (1, 3)


def test_one_head_of_latents_is_cached() -> None:
    assert cached_heads(SECTION) == 1
    assert cached_dims(SECTION, is_fused=False) == (LATENT + ROTATED, LATENT)
    assert cached_dims(SECTION, is_fused=True) == (LATENT + ROTATED,)


def test_yarn_scales_the_softmax_by_the_square_of_its_growth() -> None:
    """As transformers' yarn_apply_mscale: 0.1 mscale_all_dim ln(factor) + 1."""
    assert softmax_scale(SECTION) == 20**-0.5
    stretched = ModelSection(**SECTION.model_dump() | {"rope_scaling": YARN})
    assert softmax_scale(stretched) == pytest.approx(20**-0.5 * (1 + 0.05 * np.log(4)) ** 2)
    assert softmax_scale(small_model(rope_scaling=YARN)) == 8**-0.5


def test_adapters_of_every_projection() -> None:
    from mindgspo.models.lora import peft_config

    section = ModelSection(**SECTION.model_dump() | {"lora": {"rank": 2, "targets": ("attention",)}})
    assert list(model_problems(section)) == []
    targets = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    assert peft_config(section)["target_modules"] == targets
    (problem,) = model_problems(ModelSection(**SECTION.model_dump() | {"lora": {"rank": 2, "targets": ("k_proj",)}}))
    assert problem.startswith("model.lora.targets: no projection 'k_proj'")
    (problem,) = model_problems(small_model(lora={"rank": 2, "targets": ("kv_b_proj",)}))
    assert problem.startswith("model.lora.targets: no projection 'kv_b_proj'")


@pytest.mark.parametrize(("changes", "said"), [
    ({"kv_lora_rank": None}, "model.kv_lora_rank: missing; deepseek_v3 needs it, and its config.json has it"),
    ({"qk_rope_head_dim": 7}, "model.qk_rope_head_dim: 7 must be even (RoPE turns pairs); nearest legal: 6 or 8"),
    ({"v_head_dim": 24}, "model.v_head_dim: 24 is more than qk_nope_head_dim + qk_rope_head_dim; largest legal: 20"),
    ({"num_key_value_heads": 2},
     "model.num_key_value_heads: 2; every head of deepseek_v3 has its own keys and values: 4"),
])  # fmt: skip
def test_sizes_that_no_model_has(changes: dict, said: str) -> None:
    assert said in list(model_problems(ModelSection(**SECTION.model_dump() | changes)))


def test_other_families_have_no_latents() -> None:
    (problem,) = model_problems(small_model(kv_lora_rank=8))
    assert problem == "model.kv_lora_rank: qwen2 has none; remove it, or set model.architecture=deepseek_v3"


# Numbers of the published config.json files.
DEEPSEEK_V3 = ModelSection(
    architecture="deepseek_v3", vocab_size=129_280, hidden_size=7168, intermediate_size=18_432, num_hidden_layers=61,
    num_attention_heads=128, num_key_value_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128,
    qk_rope_head_dim=64, v_head_dim=128, num_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048,
    norm_topk_prob=True, n_shared_experts=1, first_k_dense_replace=3, n_group=8, topk_group=4,
    routed_scaling_factor=2.5,
)  # fmt: skip


def test_the_published_number_of_parameters() -> None:
    """DeepSeek-V3: 671 billion, of which 37 billion compute a token (arXiv 2412.19437)."""
    assert sum(int(np.prod(shape)) for shape in parameter_shapes(DEEPSEEK_V3).values()) == 671_026_419_200
    of = Operations.of(DEEPSEEK_V3)
    assert (of.trunk + of.head) / 2 == pytest.approx(37e9, rel=0.02)


def test_operations_of_a_pair_by_hand() -> None:
    assert Operations.of(SECTION).pair == 2 * 2 * HEADS * (20 + VALUE)
