"""Strategy records compared with each other and with a model, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.errors import WeightsError
from mindgspo.models.names import weight_shapes
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.parameter_layouts import moment_layouts, parameter_layouts
from mindgspo.parallel.strategy.compare import check_fits, compare_strategies, same_placement
from mindgspo.parallel.strategy.file import merge_strategies, read_strategy, write_strategies
from mindgspo.parallel.strategy.layouts import stage_strategy
from mindgspo.parallel.strategy.record import StoredLayout, Strategy

TINY = ModelSection(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
)


def plan(data: int, model: int, stages: int, **changes: Any) -> ParallelPlan:
    return ParallelPlan(data_parallel=data, model_parallel=model, pipeline_stage=stages, **changes)


def weights(parallel_plan: ParallelPlan, model: ModelSection = TINY) -> dict[str, Layout]:
    return parameter_layouts(weight_shapes(model), model, parallel_plan)


def of(device_matrix: tuple[int, ...], tensor_map: tuple, shape: tuple[int, ...] | None = None, **fields: int):
    return StoredLayout(device_matrix=device_matrix, tensor_map=tensor_map, shape=shape, **fields)


def record(**entries: StoredLayout) -> Strategy:
    return Strategy(stages={0: entries})


def shard(step: int, size: int) -> dict[str, int]:
    return {"opt_weight_shard_step": step, "opt_weight_shard_size": size}


# ----- two records


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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (of((2, 2), (0, -1)), of((2, 2), (1, -1))),
        (of((2, 2), ((1, 0),)), of((2, 2), ((0, 1),))),
        (of((2, 3), (0,)), of((2, 3), (1,))),
        (of((2, 4), (0, -1)), of((2, 4), (0, -1), **shard(4, -1))),
        (of((2,), (0,)), of((4,), (0,))),
        (of((2,), (0,)), of((2,), (0, -1))),
    ],
)
def test_other_placements_are_told_apart(one: StoredLayout, other: StoredLayout):
    assert not same_placement(one, other)
    (line,) = compare_strategies(record(w=one), record(w=other))
    assert line.startswith("w: device matrix ") and " in left, " in line and line.endswith(" in right")


def test_a_comparison_reads_well():
    left = record(
        gone=of((4,), (0,)),
        moved=of((2, 2), (0, -1)),
        same=of((2, 2), (-1,)),
        shaped=of((4,), (0,), (8,)),
        moment=of((2, 2), (0,), **shard(2, 2)),
        uneven=replace(of((4,), (0,)), field=3),
    )
    right = record(
        moved=of((4,), (0, -1)),
        same=of((4,), (-1,)),
        shaped=of((4,), (0,), (12,)),
        moment=of((2, 2), (0,)),
        uneven=of((4,), (0,)),
        new=of((4,), (0,)),
    )
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


def test_files_of_two_plans_differ_where_their_layouts_do():
    one, other = plan(2, 4, 1), plan(2, 4, 1, vocab_emb_dp=False)
    lines = compare_strategies(*(stage_strategy(weights(each), plan=each, rank=0) for each in (one, other)))
    assert [line.split(":")[0] for line in lines] == ["model.embed_tokens.weight"]


# ----- a record and a model


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
    train = plan(2, 2, 1, optimizer_shard=True)
    moments = moment_layouts(weight_shapes(TINY), TINY, train)
    layouts = {**weights(train), **{f"adam_m.{name}": layout for name, layout in moments.items()}}
    strategy = stage_strategy(layouts, plan=train, rank=0)
    scalar = of((4,), ())
    check_fits(Strategy(stages={0: {**strategy.stages[0], "global_step": scalar}}), weights(train))
    unknown = Strategy(stages={0: {**strategy.stages[0], "momentum": of((4,), (-1,))}})
    assert "1 of 103 names in it are not the model's: momentum; give the file" in refusal(unknown, weights(train))


def test_a_wrapper_s_prefix_is_named():
    message = refusal(strategy_of(plan(2, 2, 1), prefix="network.backbone."), weights(plan(2, 2, 1)))
    assert "51 of 51 parameters of the model are not in it" in message and "51 of 51 names in it are not" in message
    assert message.endswith(
        "its names begin with 'network.backbone.': give the file of the network without that wrapper"
    )


def test_another_number_of_layers_is_named():
    larger = TINY.model_copy(update={"num_hidden_layers": 6})
    message = refusal(strategy_of(plan(2, 2, 1), larger), weights(plan(2, 2, 1)))
    assert "24 of 75 names in it are not the model's: model.layers.4.input_layernorm.weight, " in message
    assert message.endswith("it has 6 layers, the model 4: give the file of the model in use")


def test_a_name_that_is_nearly_right_is_named():
    strategy = strategy_of(plan(2, 2, 1))
    entries = {name.replace("lm_head", "lm_heads"): stored for name, stored in strategy.stages[0].items()}
    message = refusal(Strategy(stages={0: entries}), weights(plan(2, 2, 1)))
    assert message.endswith("lm_heads.weight is nearest to lm_head.weight: give the file of the model in use")


def test_other_shapes_are_named():
    wider = TINY.model_copy(update={"vocab_size": 128})
    message = refusal(strategy_of(plan(2, 2, 1), wider), weights(plan(2, 2, 1)))
    assert (
        "2 of 51 have another shape: model.embed_tokens.weight ((128, 32) in the file, (64, 32) in the model)"
        in message
    )
    entries = {**strategy_of(plan(2, 2, 1)).stages[0], "lm_head.weight": of((4,), (0,))}
    assert "lm_head.weight (1 axes in the file, 2 in the model)" in refusal(
        Strategy(stages={0: entries}), weights(plan(2, 2, 1))
    )
    # Protobuf holds no shape; that a vocabulary of 62 does not divide into 4 slices still shows.
    odd = TINY.model_copy(update={"vocab_size": 62})
    entries = {name: replace(stored, shape=None) for name, stored in strategy_of(plan(1, 4, 1)).stages[0].items()}
    message = refusal(Strategy(stages={0: entries}), weights(plan(1, 1, 1), odd))
    assert (
        "1 of 51 have another shape: lm_head.weight ((62, 32) in the model does not divide into (4, 1) slices)"
        in message
    )
