"""Which weights the compiler cuts under hsdp(): its own files, entry by entry, and what every rank then holds.

The rows are from the Ascend front end of MindSpore 2.10.0: small networks compiled without devices, with float32
weights unless said otherwise.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.names import parameter_shapes
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.parameter_layouts import moment_layouts, parameter_layouts
from mindgspo.parallel.strategy.compare import compare_strategies
from mindgspo.parallel.strategy.layouts import (
    HsdpCall,
    compiled_layouts,
    compiled_strategy,
    hsdp_call,
    hsdp_shards,
    stage_strategy,
    without_single_devices,
)
from mindgspo.parallel.strategy.record import StoredLayout
from mindgspo.parallel.tensor_slice import TensorSlice

# (our matrix, our map, shape, shard_size, threshold, the compiler's matrix, map, step, size)
COMPILED = [
    # 2 x 1: one axis, left out where it has one device.
    ((2, 1), (0, -1), (64, 64), -1, 0, (2,), (-1, -1), 1, -1),
    ((2, 1), (0, -1), (64, 64), 2, 0, (2,), (-1, -1), 1, 2),
    ((2, 1), (-1,), (63,), -1, 0, (2,), (-1,), 0, 0),
    ((2, 1), (-1, 0), (7, 64), 2, 0, (2,), (-1, -1), 0, 0),
    # 2 x 4: column, row, bias; norms count the model_parallel ranks.
    ((2, 4), (0, -1), (64, 64), -1, 0, (2, 4), (0, -1), 4, -1),
    ((2, 4), (0, -1), (64, 64), 2, 0, (2, 4), (0, -1), 4, 2),
    ((2, 4), (-1, 0), (64, 64), 2, 0, (2, 4), (-1, 0), 4, 2),
    ((2, 4), (0,), (64,), 2, 0, (2, 4), (0,), 4, 2),
    ((2, 4), (0, -1), (12, 64), 2, 0, (2, 4), (0, -1), 0, 0),  # three rows per slice
    ((2, 4), (-1,), (64,), -1, 0, (2, 4), (-1,), 1, -1),
    ((2, 4), (-1,), (6,), -1, 0, (2, 4), (-1,), 0, 0),  # not in eight, and not in fewer instead
    ((2, 4), (-1,), (6,), 2, 0, (2, 4), (-1,), 1, 2),
    ((2, 4), (-1, -1), (128, 64), 2, 0, (2, 4), (-1, -1), 1, 2),
    # Two heads for four ranks.
    ((2, 2, 2), (1, -1), (32, 64), -1, 0, (2, 2, 2), (1, -1), 1, -1),
    ((2, 2, 2), (1, -1), (12, 64), -1, 0, (2, 2, 2), (1, -1), 0, 0),
    ((2, 2, 2), (1, -1), (12, 64), 2, 0, (2, 2, 2), (1, -1), 1, 2),
    # shard_size above the replicas, not dividing them, and 1.
    ((4, 2), (0, -1), (64, 64), 8, 0, (4, 2), (0, -1), 2, 4),
    ((4, 2), (-1,), (64,), 8, 0, (4, 2), (-1,), 1, 8),
    ((4, 2), (-1,), (48,), 3, 0, (4, 2), (-1,), 0, 0),
    ((8, 2), (-1, 0), (12, 64), 8, 0, (8, 2), (-1, 0), 0, 0),
    ((8, 2), (-1, 0), (12, 64), 4, 0, (8, 2), (-1, 0), 2, 4),
    ((2, 4), (0, -1), (64, 64), 1, 0, (2, 4), (0, -1), 4, -1),
    # One replica: nothing but norms to cut.
    ((1, 4), (0, -1), (64, 64), -1, 0, (4,), (0, -1), 0, 0),
    ((1, 4), (-1,), (64,), -1, 0, (4,), (-1,), 1, -1),
    ((1, 2, 2), (1, -1), (32, 64), -1, 0, (2, 2), (1, -1), 1, -1),
    # The threshold: 65,536 bytes of the whole tensor are enough for 64 KB.
    ((2, 4), (0, -1), (256, 64), 2, 64, (2, 4), (0, -1), 4, 2),
    ((2, 4), (0, -1), (256, 63), 2, 64, (2, 4), (0, -1), 0, 0),
    ((2, 4), (-1,), (16384,), 2, 64, (2, 4), (-1,), 1, 2),
    ((2, 4), (-1,), (16380,), 2, 64, (2, 4), (-1,), 0, 0),
    ((2, 4), (-1,), (16380,), 2, 32, (2, 4), (-1,), 1, 2),
    ((8, 64), (0, -1), (64, 64), 8, 0, (8, 64), (0, -1), 0, 0),
]


@pytest.mark.parametrize("row", COMPILED, ids=lambda row: "-".join(map(str, row[:5])))
def test_the_compiler_s_entries(row):
    matrix, tensor_map, shape, shard_size, threshold, *written = row
    stored = StoredLayout(device_matrix=matrix, tensor_map=tensor_map, shape=shape)
    found = without_single_devices(hsdp_shards(stored, HsdpCall(shard_size=shard_size, threshold=threshold)))
    assert [
        found.device_matrix,
        found.tensor_map,
        found.opt_weight_shard_step,
        found.opt_weight_shard_size,
    ] == written


@pytest.mark.parametrize(("rows", "size"), [(512, 2), (256, 0)])
def test_bfloat16_parameters_count_two_bytes(rows: int, size: int):
    stored = StoredLayout(device_matrix=(2, 4), tensor_map=(0, -1), shape=(rows, 64))
    call = HsdpCall(shard_size=2, element_bytes=2)
    assert hsdp_shards(stored, call).opt_weight_shard_size == size


def test_a_scalar_and_a_stage_of_one_rank():
    scalar = StoredLayout(device_matrix=(2, 4), tensor_map=(), shape=())
    assert hsdp_shards(scalar, HsdpCall(threshold=0)) == scalar
    alone = StoredLayout(device_matrix=(1, 1), tensor_map=(0, -1), shape=(4, 4))
    assert without_single_devices(alone) == StoredLayout(device_matrix=(1,), tensor_map=(-1, -1), shape=(4, 4))


def test_two_device_axes_on_one_tensor_axis_keep_their_order():
    stored = StoredLayout(device_matrix=(2, 1, 4, 2), tensor_map=((3, 0), 1), shape=(8, 8))
    assert without_single_devices(stored) == StoredLayout(device_matrix=(2, 4, 2), tensor_map=((2, 0), 1), shape=(8, 8))


@given(
    matrix=st.lists(st.sampled_from([1, 1, 2, 3, 4]), min_size=1, max_size=4).map(tuple),
    data=st.data(),
)
@settings(max_examples=100)
def test_leaving_out_single_devices_moves_nothing(matrix: tuple[int, ...], data: st.DataObject):
    shape = (4**4 * 3**4, 2)  # which every such matrix divides
    axes = data.draw(st.permutations(range(len(matrix))))
    cut = data.draw(st.integers(0, len(axes)))
    stored = StoredLayout(device_matrix=matrix, tensor_map=(tuple(axes[:cut]), -1), shape=shape)
    found = without_single_devices(stored)

    def held(one: StoredLayout) -> list[TensorSlice | None]:
        layout = Layout(
            parameter="w",
            shape=shape,
            device_matrix=one.device_matrix,
            tensor_map=one.tensor_map,
            rank_list=tuple(range(stored.num_devices)),
        )
        return [layout.slice_of(rank) for rank in layout.rank_list]

    assert held(found) == held(stored)
    assert found.device_matrix == (1,) or 1 not in found.device_matrix


# ----- whole plans

SMALL = ModelSection(
    vocab_size=1024,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
SHAPES = parameter_shapes(SMALL)
LAYER = "model.layers.0."


def plan(data: int, model: int, stages: int = 1, **changes: object) -> ParallelPlan:
    return ParallelPlan(data_parallel=data, model_parallel=model, pipeline_stage=stages, **changes)


def test_which_plans_call_hsdp():
    assert hsdp_call(plan(4, 2, optimizer_shard=True)) == HsdpCall(shard_size=4, threshold=64)
    assert hsdp_call(plan(4, 2)) is None and hsdp_call(plan(1, 2, optimizer_shard=True)) is None


def test_what_ranks_hold_of_a_compiled_plan():
    sharded = plan(2, 4, 2, optimizer_shard=True)
    weights = parameter_layouts(SHAPES, SMALL, sharded)
    found = compiled_layouts(weights, plan=sharded)
    assert list(found) == list(weights)
    # Slice 1 of q has rows 64 to 127: replicas 1 and 5 keep a half each.
    query = found[f"{LAYER}self_attn.q_proj.weight"]
    assert (query.slice_of(1), query.slice_of(5)) == (TensorSlice((64, 0), (96, 256)), TensorSlice((96, 0), (128, 256)))
    # Ranks 0, 1, 4, 5 share head 0, rows 0 to 31: consecutive ones split it.
    key = found[f"{LAYER}self_attn.k_proj.weight"]
    assert [key.slice_of(rank).starts[0] for rank in (0, 1, 4, 5, 2)] == [0, 16, 0, 16, 32]
    # The whole table, on both stages; biases and norms are below 64 KB.
    table = found["model.embed_tokens.weight"]
    assert [table.slice_of(rank).starts[0] for rank in (0, 1, 2, 7, 8, 15)] == [0, 512, 0, 512, 0, 512]
    assert found[f"{LAYER}self_attn.q_proj.bias"].slice_of(5).shape == (64,)
    assert found[f"{LAYER}input_layernorm.weight"].slice_of(5).shape == (256,)


def test_cuts_over_data_parallel_alone_are_those_of_our_moments():
    sharded = plan(2, 2, 2, optimizer_shard=True, vocab_emb_dp=False)
    compiled = compiled_layouts(parameter_layouts(SHAPES, SMALL, sharded), plan=sharded)
    moments = moment_layouts(SHAPES, SMALL, sharded)
    matrices = [name for name, shape in SHAPES.items() if len(shape) == 2]
    assert len(matrices) == 1 + 4 * 7
    assert all(compiled[name].same_placement(moments[name]) for name in matrices)


@pytest.mark.parametrize("small_plan", [plan(1, 4, 2), plan(2, 2), plan(4, 1), plan(1, 1)])
def test_without_optimizer_shards_only_the_spelling_differs(small_plan: ParallelPlan):
    weights = parameter_layouts(SHAPES, SMALL, small_plan)
    ours, compiled = (of(weights, plan=small_plan, rank=0) for of in (stage_strategy, compiled_strategy))
    assert compare_strategies(ours, compiled) == []
    has_single = small_plan.data_parallel == 1 or small_plan.model_parallel == 1
    assert bool(compare_strategies(ours, compiled, spelling=True)) == has_single
