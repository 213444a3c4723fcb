"""Strategy files compared, and the optimizer shards of the compiler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_plans import TINY, compiled_layouts, plan, weights, weights_and_moments

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.errors import WeightsError
from mindgspo.models.names import parameter_shapes
from mindgspo.parallel.plans.layout import Layout, TensorSlice
from mindgspo.parallel.plans.parameter_layouts import moment_layouts, parameter_layouts
from mindgspo.strategy.commands import compare_strategies, same_placement
from mindgspo.strategy.file import merge_strategies, read_strategy, write_strategies
from mindgspo.strategy.layouts import check_fits, hsdp_shards, hsdp_size, stage_strategy, without_single_devices
from mindgspo.strategy.record import StoredLayout, Strategy


def of(device_matrix: tuple[int, ...], tensor_map: tuple, shape: tuple[int, ...] | None = None, **fields: int):
    return StoredLayout(device_matrix=device_matrix, tensor_map=tensor_map, shape=shape, **fields)


def record(**entries: StoredLayout) -> Strategy:
    return Strategy(stages={0: entries})


def shard(step: int, size: int) -> dict[str, int]:
    return {"opt_weight_shard_step": step, "opt_weight_shard_size": size}


SPELLINGS = [
    (of((4, 1), (1, -1)), of((4,), (0, -1))),
    (of((2, 2), ((1, 0),)), of((4,), (0,))),
    (of((2, 4), (-1, -1)), of((8,), (-1, -1))),
    (of((2, 4), (0, -1), **shard(4, -1)), of((2, 4), ((0, 1), -1))),
    (of((4, 2), (0,), **shard(2, 2)), of((2, 2, 2), ((0, 1),))),
    (of((), (-1,)), of((1,), (-1,))),
]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_two_spellings_of_one_placement_differ_on_request_only(one: StoredLayout, other: StoredLayout):
    assert same_placement(one, other) and same_placement(other, one)
    assert compare_strategies(record(w=one), record(w=other)) == []
    (line,) = compare_strategies(record(w=one), record(w=other), spelling=True)
    assert line.startswith("w: same placement, spelled as device matrix")
    assert compare_strategies(record(w=one), record(w=one), spelling=True) == []


@pytest.mark.parametrize(("one", "other"), [
    (of((2, 2), (0, -1)), of((2, 2), (1, -1))),
    (of((2, 2), ((1, 0),)), of((2, 2), ((0, 1),))),
    (of((2, 3), (0,)), of((2, 3), (1,))),
    (of((2, 4), (0, -1)), of((2, 4), (0, -1), **shard(4, -1))),
    (of((2,), (0,)), of((4,), (0,))),
    (of((2,), (0,)), of((2,), (0, -1))),
])  # fmt: skip
def test_other_placements_are_told_apart(one: StoredLayout, other: StoredLayout):
    assert not same_placement(one, other)
    (line,) = compare_strategies(record(w=one), record(w=other))
    assert line.startswith("w: device matrix ") and " in left, " in line and line.endswith(" in right")


def test_a_comparison_reads_well():
    left = record(
        gone=of((4,), (0,)), moved=of((2, 2), (0, -1)), same=of((2, 2), (-1,)), shaped=of((4,), (0,), (8,)),
        moment=of((2, 2), (0,), **shard(2, 2)), uneven=replace(of((4,), (0,)), field=3),
    )  # fmt: skip
    right = record(
        moved=of((4,), (0, -1)), same=of((4,), (-1,)), shaped=of((4,), (0,), (12,)), moment=of((2, 2), (0,)),
        uneven=of((4,), (0,)), new=of((4,), (0,)),
    )  # fmt: skip
    assert compare_strategies(left, right) == [
        "gone: missing in right",
        "moved: device matrix (2, 2), tensor map (0, -1) in left, device matrix (4,), tensor map (0, -1) in right",
        "shaped: shape (8,) in left, (12,) in right",
        "moment: device matrix (2, 2), tensor map (0,), opt_weight_shard step 2 size 2 in left, "
        "device matrix (2, 2), tensor map (0,), opt_weight_shard step 0 size 0 in right",
        "uneven: uneven slices: field, param_split_shape, indices_offset (3, (), ()) in left, (0, (), ()) in right",
        "new: missing in left",
    ]


def test_stages_are_compared_one_by_one(tmp_path: Path):
    train = plan(1, 4, 2)
    paths = write_strategies(tmp_path, weights(train), plan=train)
    merged, last = merge_strategies(paths), read_strategy(paths[7])
    # Twelve weights in each of two layers, the last norm and the output table; the first stage has one table.
    assert compare_strategies(merged, last) == ["stage 0: missing in right (25 parameters)"]
    changed = Strategy(stages={1: {**last.stages[1], "model.norm.weight": of((1, 4), (0,))}})
    assert compare_strategies(last, changed) == [
        "model.norm.weight (stage 1): device matrix (1, 4), tensor map (-1,) in left, "
        "device matrix (1, 4), tensor map (0,) in right"
    ]


def strategy_of(parallel_plan: ParallelPlan, model: ModelSection = TINY, rank: int = 0, prefix: str = "") -> Strategy:
    layouts = {f"{prefix}{name}": layout for name, layout in weights(parallel_plan, model).items()}
    return replace(stage_strategy(layouts, plan=parallel_plan, rank=rank), source="s.ckpt")


def refusal(strategy: Strategy, layouts: dict[str, Layout]) -> str:
    with pytest.raises(WeightsError) as error:
        check_fits(strategy, layouts)
    return str(error.value)


def test_files_of_the_model_fit_under_any_plan(tmp_path: Path):
    for written in (plan(2, 4, 1), plan(1, 1, 1), plan(2, 2, 2)):
        paths = write_strategies(tmp_path / str(written), weights(written), plan=written)
        for read in (plan(2, 4, 1), plan(4, 2, 1), plan(1, 4, 2)):
            check_fits(merge_strategies(paths), weights(read))


def test_a_file_of_one_stage_fits_the_plan_it_is_of():
    train = plan(1, 4, 2)
    check_fits(strategy_of(train, rank=0), weights(train))
    check_fits(strategy_of(train, rank=7), weights(train))
    message = refusal(strategy_of(train, rank=0), weights(plan(2, 4, 1)))
    assert message == (
        "s.ckpt: the strategy does not fit the model; 26 of 51 parameters of the model are not in it: "
        "model.layers.2.input_layernorm.weight, model.layers.3.input_layernorm.weight, "
        "model.layers.2.self_attn.q_proj.weight and 23 more; it has 2 of 4 layers: if it is of one pipeline stage (it "
        "says 0), merge the files of all stages first; if not, it is of a smaller model"
    )


def test_a_tied_table_is_expected_on_both_stages():
    tied, train = TINY.model_copy(update={"tie_word_embeddings": True}), plan(1, 4, 2)
    last = strategy_of(train, tied, rank=7)
    check_fits(last, weights(train, tied))
    without = {name: stored for name, stored in last.stages[1].items() if name != "model.embed_tokens.weight"}
    message = refusal(Strategy(stages={1: without}), weights(train, tied))
    assert "1 of 26 parameters of the model are not in it: model.embed_tokens.weight; give the file" in message


def test_optimizer_state_and_scalars_may_stand_beside_the_weights():
    train = plan(2, 2, optimizer_shard=True)
    entries = stage_strategy(weights_and_moments(train), plan=train, rank=0).stages[0]
    check_fits(Strategy(stages={0: {**entries, "global_step": of((4,), ())}}), weights(train))
    unknown = Strategy(stages={0: {**entries, "momentum": of((4,), (-1,))}})
    assert "1 of 103 names in it are not the model's: momentum; give the file" in refusal(unknown, weights(train))


def test_why_names_are_not_the_model_s():
    layouts = weights(plan(2, 2))
    message = refusal(strategy_of(plan(2, 2), prefix="network.backbone."), layouts)
    assert "51 of 51 parameters of the model are not in it" in message and "51 of 51 names in it are not" in message
    assert message.endswith(
        "its names begin with 'network.backbone.': give the file of the network without that wrapper"
    )
    message = refusal(strategy_of(plan(2, 2), TINY.model_copy(update={"num_hidden_layers": 6})), layouts)
    assert "24 of 75 names in it are not the model's: model.layers.4.input_layernorm.weight, " in message
    assert message.endswith("it has 6 layers, the model 4: give the file of the model in use")
    entries = {
        name.replace("lm_head", "lm_heads"): stored for name, stored in strategy_of(plan(2, 2)).stages[0].items()
    }
    message = refusal(Strategy(stages={0: entries}), layouts)
    assert message.endswith("lm_heads.weight is nearest to lm_head.weight: give the file of the model in use")


def test_other_shapes_are_named():
    layouts, few = weights(plan(2, 2)), "of 51 have another shape: "
    message = refusal(strategy_of(plan(2, 2), TINY.model_copy(update={"vocab_size": 128})), layouts)
    assert f"2 {few}model.embed_tokens.weight ((128, 32) in the file, (64, 32) in the model)" in message
    entries = {**strategy_of(plan(2, 2)).stages[0], "lm_head.weight": of((4,), (0,))}
    assert "lm_head.weight (1 axes in the file, 2 in the model)" in refusal(Strategy(stages={0: entries}), layouts)
    # Protobuf holds no shape; that a vocabulary of 62 does not divide into 4 slices still shows.
    odd = TINY.model_copy(update={"vocab_size": 62})
    entries = {name: replace(stored, shape=None) for name, stored in strategy_of(plan(1, 4)).stages[0].items()}
    message = refusal(Strategy(stages={0: entries}), weights(plan(1, 1), odd))
    assert f"1 {few}lm_head.weight ((62, 32) in the model does not divide into (4, 1) slices)" in message


# (our matrix, our map, shape, shard_size, threshold, the compiler's matrix, map, step, size)
COMPILED = [
    # 2 x 1: one axis, left out where it has one device.
    ((2, 1), (0, -1), (64, 64), -1, 0, (2,), (-1, -1), 1, -1),
    ((2, 1), (-1,), (63,), -1, 0, (2,), (-1,), 0, 0),
    ((2, 1), (-1, 0), (7, 64), 2, 0, (2,), (-1, -1), 0, 0),
    # 2 x 4: column, row, bias; norms count the model_parallel ranks.
    ((2, 4), (0, -1), (64, 64), 2, 0, (2, 4), (0, -1), 4, 2),
    ((2, 4), (-1, 0), (64, 64), 2, 0, (2, 4), (-1, 0), 4, 2),
    ((2, 4), (0, -1), (12, 64), 2, 0, (2, 4), (0, -1), 0, 0),  # three rows per slice
    ((2, 4), (-1,), (64,), -1, 0, (2, 4), (-1,), 1, -1),
    ((2, 4), (-1,), (6,), -1, 0, (2, 4), (-1,), 0, 0),  # not in eight, and not in fewer instead
    ((2, 4), (-1,), (6,), 2, 0, (2, 4), (-1,), 1, 2),
    # Two heads for four ranks.
    ((2, 2, 2), (1, -1), (32, 64), -1, 0, (2, 2, 2), (1, -1), 1, -1),
    ((2, 2, 2), (1, -1), (12, 64), 2, 0, (2, 2, 2), (1, -1), 1, 2),
    # shard_size above the replicas, not dividing them, and 1.
    ((4, 2), (0, -1), (64, 64), 8, 0, (4, 2), (0, -1), 2, 4),
    ((4, 2), (-1,), (64,), 8, 0, (4, 2), (-1,), 1, 8),
    ((4, 2), (-1,), (48,), 3, 0, (4, 2), (-1,), 0, 0),
    ((8, 2), (-1, 0), (12, 64), 4, 0, (8, 2), (-1, 0), 2, 4),
    ((2, 4), (0, -1), (64, 64), 1, 0, (2, 4), (0, -1), 4, -1),
    # One replica: nothing but norms to cut.
    ((1, 4), (0, -1), (64, 64), -1, 0, (4,), (0, -1), 0, 0),
    ((1, 4), (-1,), (64,), -1, 0, (4,), (-1,), 1, -1),
    ((1, 2, 2), (1, -1), (32, 64), -1, 0, (2, 2), (1, -1), 1, -1),
    # The threshold: 65,536 bytes of the whole tensor are enough for 64 KB.
    ((2, 4), (0, -1), (256, 64), 2, 64, (2, 4), (0, -1), 4, 2),
    ((2, 4), (0, -1), (256, 63), 2, 64, (2, 4), (0, -1), 0, 0),
    ((2, 4), (-1,), (16380,), 2, 32, (2, 4), (-1,), 1, 2),
    ((8, 64), (0, -1), (64, 64), 8, 0, (8, 64), (0, -1), 0, 0),
]


@pytest.mark.parametrize("row", COMPILED, ids=lambda row: "-".join(map(str, row[:5])))
def test_the_compiler_s_entries(row):
    matrix, tensor_map, shape, shard_size, threshold, *written = row
    found = without_single_devices(hsdp_shards(of(matrix, tensor_map, shape), shard_size, threshold=threshold))
    fields = (found.opt_weight_shard_step, found.opt_weight_shard_size)
    assert [found.device_matrix, found.tensor_map, *fields] == written


def test_bfloat16_a_scalar_and_a_stage_of_one_rank():
    for rows, size in ((512, 2), (256, 0)):  # bfloat16 parameters count two bytes
        assert hsdp_shards(of((2, 4), (0, -1), (rows, 64)), 2, element_bytes=2).opt_weight_shard_size == size
    scalar = of((2, 4), (), ())
    assert hsdp_shards(scalar, -1, threshold=0) == scalar
    assert without_single_devices(of((1, 1), (0, -1), (4, 4))) == of((1,), (-1, -1), (4, 4))
    # Two device axes on one tensor axis keep their order.
    found = without_single_devices(of((2, 1, 4, 2), ((3, 0), 1), (8, 8)))
    assert found == of((2, 4, 2), ((2, 0), 1), (8, 8))


@given(matrix=st.lists(st.sampled_from([1, 1, 2, 3, 4]), min_size=1, max_size=4).map(tuple), data=st.data())
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


SMALL = ModelSection(
    vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
    num_key_value_heads=2, tie_word_embeddings=True,
)  # fmt: skip
SHAPES = parameter_shapes(SMALL)


def test_which_plans_call_hsdp():
    assert hsdp_size(plan(4, 2, optimizer_shard=True)) == 4
    assert hsdp_size(plan(4, 2)) is None and hsdp_size(plan(1, 2, optimizer_shard=True)) is None


def test_cuts_over_data_parallel_alone_are_those_of_our_moments():
    sharded = plan(2, 2, 2, optimizer_shard=True, vocab_emb_dp=False)
    compiled = compiled_layouts(parameter_layouts(SHAPES, SMALL, sharded), plan=sharded)
    moments = moment_layouts(SHAPES, SMALL, sharded)
    matrices = [name for name, shape in SHAPES.items() if len(shape) == 2]
    assert len(matrices) == 1 + 4 * 7
    assert all(compiled[name].same_placement(moments[name]) for name in matrices)
