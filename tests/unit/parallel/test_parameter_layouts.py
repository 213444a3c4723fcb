"""Layouts of every Qwen2 parameter under plans of the examples, worked by hand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import small_plans
from small_plans import QWEN_7B, plan

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.errors import ConfigError, WeightsError
from mindgspo.models.names import WEIGHT_NAMES, parameter_shapes
from mindgspo.parallel.plans.layout import Layout, TensorSlice
from mindgspo.parallel.plans.parameter_layouts import SPLITS, moment_layouts, parameter_layouts

TINY = small_plans.TIED.model_copy(update={"num_key_value_heads": 4})
# Numbers of the published config.json.
QWEN_3B = ModelSection(
    vocab_size=151936, hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip


def layouts(model: ModelSection, parallel_plan: ParallelPlan) -> dict[str, Layout]:
    return parameter_layouts(parameter_shapes(model), model, parallel_plan)


def starts(layout: Layout, ranks: Iterable[int]) -> list[tuple[int, ...]]:
    """Where the ranks' slices begin, all of `slice_shape`."""
    return [layout.slice_of(rank).starts for rank in ranks]


def layer(i: int) -> str:
    return f"model.layers.{i}."


@pytest.mark.parametrize("architecture", sorted(WEIGHT_NAMES))
def test_the_table_names_every_weight_of_the_architecture_and_no_other(architecture: str):
    ours = {row.ours.removeprefix("model.layers.{i}.") for row in WEIGHT_NAMES[architecture]}
    assert set(SPLITS[architecture]) == ours


def test_tiny_qwen2_trained_as_1_x_4_x_2():
    train = layouts(TINY, plan(1, 4, 2))
    assert list(train) == list(parameter_shapes(TINY))
    first, last = (0, 1, 2, 3), (4, 5, 6, 7)
    assert [train[layer(i) + "mlp.up_proj.weight"].rank_list for i in range(4)] == [first, first, last, last]
    assert train["model.norm.weight"].rank_list == last
    expected = {
        # 8 heads of 4: two heads, 8 rows per rank. Rank 6 is slice 2.
        "self_attn.q_proj.weight": TensorSlice((16, 0), (24, 32)),
        "self_attn.q_proj.bias": TensorSlice((16,), (24,)),
        # 4 kv heads of 4: one per rank.
        "self_attn.k_proj.weight": TensorSlice((8, 0), (12, 32)),
        "self_attn.v_proj.bias": TensorSlice((8,), (12,)),
        "self_attn.o_proj.weight": TensorSlice((0, 16), (32, 24)),
        "mlp.gate_proj.weight": TensorSlice((24, 0), (36, 32)),
        "mlp.down_proj.weight": TensorSlice((0, 24), (32, 36)),
        "input_layernorm.weight": TensorSlice((0,), (32,)),
        "post_attention_layernorm.weight": TensorSlice((0,), (32,)),
    }
    assert {name: train[layer(3) + name].slice_of(6) for name in expected} == expected
    assert train[layer(3) + "mlp.up_proj.weight"].slice_of(2) is None, "layer 3 is on the other stage"


def test_tiny_qwen2_generates_as_2_x_4_x_1():
    infer = layouts(TINY, plan(2, 4, 1))
    everyone = tuple(range(8))
    assert {layout.rank_list for layout in infer.values()} == {everyone}
    query = infer[layer(0) + "self_attn.q_proj.weight"]
    assert (query.device_matrix, query.tensor_map, query.replicas) == ((2, 4), (0, -1), 2)
    assert query.slice_of(2) == query.slice_of(6) == TensorSlice((16, 0), (24, 32))
    assert infer["model.embed_tokens.weight"].replicas == 8


def test_tied_table_is_on_the_first_and_the_last_stage():
    table = layouts(TINY, plan(1, 2, 4))["model.embed_tokens.weight"]
    assert table.rank_list == (0, 1, 6, 7)
    assert table.device_matrix == (2, 1, 2)
    assert {table.slice_of(rank) for rank in table.rank_list} == {TensorSlice((0, 0), (64, 32))}
    split = layouts(TINY, plan(1, 2, 4, vocab_emb_dp=False))["model.embed_tokens.weight"]
    assert starts(split, (0, 1, 6, 7)) == [(0, 0), (32, 0), (0, 0), (32, 0)] and split.slice_shape == (32, 32)


def test_qwen_7b_trained_as_1_x_4_x_2():
    train = layouts(QWEN_7B, plan(1, 4, 2))
    # 7 of 28 heads of 128, 1 of 4 kv heads.
    slice_shapes = {"self_attn.q_proj.weight": (896, 3584), "self_attn.k_proj.weight": (128, 3584)}
    assert {name: train[layer(13) + name].slice_shape for name in slice_shapes} == slice_shapes
    assert train[layer(13) + "self_attn.q_proj.weight"].rank_list == (0, 1, 2, 3)
    assert train[layer(14) + "self_attn.q_proj.weight"].rank_list == (4, 5, 6, 7)
    # Untied: the input table on the first stage, whole; the output table on the last, split.
    assert train["model.embed_tokens.weight"].rank_list == (0, 1, 2, 3)
    assert train["model.embed_tokens.weight"].slice_shape == (152064, 3584)
    assert train["lm_head.weight"].rank_list == (4, 5, 6, 7)
    assert train["lm_head.weight"].slice_of(5) == TensorSlice((38016, 0), (76032, 3584))
    table = layouts(QWEN_7B, plan(1, 4, 2, vocab_emb_dp=False))["model.embed_tokens.weight"]
    assert table.slice_of(1) == TensorSlice((38016, 0), (76032, 3584)), "split without vocab_emb_dp"


@pytest.mark.parametrize(("size", "per_head"), [(4, 2), (8, 4)])
def test_qwen_3b_key_value_heads_are_shared(size: int, per_head: int):
    infer = layouts(QWEN_3B, plan(2, size, 1))
    key = infer[layer(0) + "self_attn.k_proj.weight"]
    assert (key.device_matrix, key.tensor_map) == ((2, 2, per_head), (1, -1))
    assert key.slice_shape == (128, 2048)
    # A rank's query heads belong to the key/value head that it holds: 8 query heads per kv head.
    query = infer[layer(0) + "self_attn.q_proj.weight"]
    for rank in range(2 * size):
        query_rows, key_rows = query.slice_of(rank), key.slice_of(rank)
        assert query_rows is not None and key_rows is not None
        query_heads = {row // 128 for row in range(query_rows.starts[0], query_rows.stops[0])}
        assert {head // 8 for head in query_heads} == {key_rows.starts[0] // 128}
    bias = infer[layer(0) + "self_attn.k_proj.bias"]
    assert (bias.device_matrix, bias.tensor_map) == ((2, 2, per_head), (1,))
    unshared = layouts(QWEN_3B, plan(1, 2, 2))[layer(0) + "self_attn.k_proj.weight"]
    assert (unshared.device_matrix, unshared.tensor_map) == ((1, 2), (0, -1))


def test_moments_are_cut_within_the_weights_slices():
    assert moment_layouts(parameter_shapes(TINY), TINY, plan(2, 2, 1)) == layouts(TINY, plan(2, 2, 1)), "not sharded"
    sharded = plan(2, 2, 2, optimizer_shard=True)
    weights, moments = layouts(TINY, sharded), moment_layouts(parameter_shapes(TINY), TINY, sharded)
    query = moments[layer(0) + "self_attn.q_proj.weight"]
    # Ranks 0 and 2 are the data-parallel replicas of rows 0 to 15, ranks 1 and 3 of rows 16 to 31.
    assert starts(query, range(4)) == [(0, 0), (16, 0), (8, 0), (24, 0)] and query.slice_shape == (8, 32)
    down = moments[layer(0) + "mlp.down_proj.weight"]
    assert down.slice_of(3) == TensorSlice((16, 24), (32, 48))
    for name, moment in moments.items():
        for rank in moment.rank_list:
            weight_slice, moment_slice = weights[name].slice_of(rank), moment.slice_of(rank)
            assert weight_slice is not None and moment_slice is not None
            assert weight_slice.intersection(moment_slice) == moment_slice
            assert moment_slice.size * 2 == weight_slice.size
        assert moment.remark == ""


def test_moments_of_shared_key_value_heads():
    moments = moment_layouts(parameter_shapes(QWEN_3B), QWEN_3B, plan(2, 4, 1, optimizer_shard=True))
    key = moments[layer(0) + "self_attn.k_proj.weight"]
    assert (key.device_matrix, key.tensor_map) == ((2, 2, 2), ((1, 2), -1))
    # Model ranks 0 and 1 share head 0; replica 1 (ranks 4 to 7) keeps the second half of each head.
    assert starts(key, (0, 1, 2, 4)) == [(0, 0), (0, 0), (128, 0), (64, 0)] and key.slice_shape == (64, 2048)


def test_a_moment_that_does_not_divide_is_kept_whole_and_says_so():
    three = plan(3, 2, 1, optimizer_shard=True)
    moments = moment_layouts(parameter_shapes(TINY), TINY, three)
    query = moments[layer(0) + "self_attn.q_proj.weight"]
    assert query == layouts(TINY, three)[layer(0) + "self_attn.q_proj.weight"]
    assert query.remark == "optimizer_shard: axis 0 of the slice, 16, does not divide over 3 replicas; kept whole"
    gate = moments[layer(0) + "mlp.gate_proj.weight"]
    assert (gate.slice_shape, gate.remark) == ((8, 32), "")


@pytest.mark.parametrize(("model", "parallel_plan", "message"), [
    (QWEN_7B, plan(1, 8, 1),
        "28 attention heads and 4 key/value heads do not divide over model_parallel 8; nearest legal: 4 or 28"),
    (QWEN_7B, plan(1, 14, 1), "do not divide over model_parallel 14; nearest legal: 4 or 28"),
    (QWEN_7B, plan(1, 1, 29), r"28 layers are fewer than pipeline_stage 29"),
    (TINY.model_copy(update={"intermediate_size": 50}), plan(1, 4, 1),
        r"model.layers.0.mlp.gate_proj.weight axis 0: 50 elements do not divide into 4 .* nearest legal: 2 or 5"),
    (TINY.model_copy(update={"vocab_size": 66, "tie_word_embeddings": False}), plan(1, 4, 1),
        r"lm_head.weight axis 0: 66 elements do not divide into 4 .* nearest legal: 3 or 6"),
    (TINY.model_copy(update={"vocab_size": 66}), plan(1, 4, 1, vocab_emb_dp=False),
        r"model.embed_tokens.weight axis 0: 66 elements"),
])  # fmt: skip
def test_a_plan_that_does_not_fit_names_the_nearest_legal_one(
    model: ModelSection, parallel_plan: ParallelPlan, message: str
):
    with pytest.raises(ConfigError, match=message):
        layouts(model, parallel_plan)


def test_a_tied_whole_table_may_have_any_vocabulary():
    odd = TINY.model_copy(update={"vocab_size": 67})
    assert layouts(odd, plan(1, 4, 1))["model.embed_tokens.weight"].slice_shape == (67, 32)


@pytest.mark.parametrize(("name", "message"), [
    ("model.layers.0.mlp.gate_porj.weight", r"did you mean model.layers.0.mlp.gate_proj.weight\?"),
    ("model.layers.4.mlp.gate_proj.weight", r"the model has 4 layers, 0 to 3"),
    ("vision", r"no parameter of qwen2; known: "),
])  # fmt: skip
def test_a_name_of_another_model_is_refused(name: str, message: str):
    with pytest.raises(WeightsError, match=message):
        parameter_layouts({name: (48, 32)}, TINY, plan(1, 1, 1))
