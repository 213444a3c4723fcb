"""Strategy files: written, read, merged; properties of random plans."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import imported_by
from small_plans import TIED, TINY, plan, weights, weights_and_moments, write_strategy

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.errors import CheckpointError, WeightsError
from mindgspo.models.names import weight_shapes
from mindgspo.parallel.plans.placement import RankGrid
from mindgspo.strategy.file import merge_strategies, read_strategy, save_strategy, write_strategies
from mindgspo.strategy.layouts import check_fits, stage_strategy, strategy_layouts
from mindgspo.strategy.record import StoredLayout, Strategy

Q, K = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"
OUT, NORM = "model.layers.0.self_attn.o_proj.weight", "model.norm.weight"


def without_shapes(strategy: Strategy) -> Strategy:
    """What protobuf can hold of a record."""
    stages = strategy.stages.items()
    return Strategy(
        stages={stage: {k: replace(v, shape=None) for k, v in entries.items()} for stage, entries in stages}
    )


def test_a_file_of_2_x_4_x_1_by_hand(tmp_path: Path):
    write_strategy(tmp_path / "strategy_3.ckpt", weights(plan(2, 4, 1)), plan=plan(2, 4, 1), rank=3)
    strategy = read_strategy(tmp_path / "strategy_3.ckpt")
    assert list(strategy.stages) == [0] and list(strategy.stages[0]) == list(weight_shapes(TINY))
    entries = strategy.stages[0]
    assert entries[Q] == StoredLayout(device_matrix=(2, 4), tensor_map=(0, -1))
    assert entries[OUT] == StoredLayout(device_matrix=(2, 4), tensor_map=(-1, 0))
    # Two kv heads for four ranks: pairs of ranks share one.
    assert entries[K] == StoredLayout(device_matrix=(2, 2, 2), tensor_map=(1, -1))
    assert entries[NORM] == StoredLayout(device_matrix=(2, 4), tensor_map=(-1,))
    assert strategy.stage_size == 8


def test_a_json_file_by_hand(tmp_path: Path):
    path = tmp_path / "strategy.json"
    write_strategy(path, {Q: weights(plan(1, 4, 2))[Q]}, plan=plan(1, 4, 2), rank=2)
    assert json.loads(path.read_text()) == {
        "current_stage": 1,
        "parallel_strategy_item": {"stage_0": {"stage": 0, "parallel_strategy": []}},
        "parallel_layout_item": {Q: {"dev_matrix": [1, 4], "tensor_map": [0, -1], "tensor_shape": [32, 32], "field": 0,
            "opt_weight_shard_step": 0, "opt_weight_shard_size": 0}},
    }  # fmt: skip


def test_a_tied_table_is_on_both_stages_with_the_matrix_of_one(tmp_path: Path):
    layouts, train = weights(plan(1, 4, 2), TIED), plan(1, 4, 2)
    paths = write_strategies(tmp_path, layouts, plan=train)
    table = "model.embed_tokens.weight"
    assert layouts[table].device_matrix == (2, 1, 4)
    assert [read_strategy(paths[rank]).stages[rank // 4][table].device_matrix for rank in (0, 7)] == [(1, 4)] * 2
    back = strategy_layouts(merge_strategies(paths), weight_shapes(TIED))
    assert back[table] == layouts[table]


@pytest.mark.parametrize("suffix", [".ckpt", ".json"])
@pytest.mark.parametrize("model", [TINY, TIED], ids=["untied", "tied"])
def test_what_is_written_or_merged_reads_back_equal(tmp_path: Path, suffix: str, model: ModelSection):
    train = plan(2, 2, 2)
    layouts, path = weights_and_moments(train, model), tmp_path / f"s{suffix}"
    for rank in range(train.world_size):
        write_strategy(path, layouts, plan=train, rank=rank)
        written = stage_strategy(layouts, plan=train, rank=rank)
        assert read_strategy(path) == (written if suffix == ".json" else without_shapes(written))
    whole = plan(2, 2, 2)
    paths = write_strategies(tmp_path / "ranks", weights(whole, model), plan=whole, suffix=suffix)
    merged = merge_strategies(paths)
    save_strategy(path, merged)
    assert read_strategy(path) == merged and merged.stages.keys() == {0, 1}


def test_the_kind_is_told_by_the_content(tmp_path: Path):
    for written, name in (("a.json", "a.ckpt"), ("b.ckpt", "b.json")):
        write_strategy(tmp_path / written, weights(plan(2, 2)), plan=plan(2, 2), rank=0)
        (tmp_path / written).rename(tmp_path / name)
    assert without_shapes(read_strategy(tmp_path / "a.ckpt")) == read_strategy(tmp_path / "b.json")


def test_uneven_tables_survive_but_have_no_layout(tmp_path: Path):
    stored = StoredLayout(
        device_matrix=(2,), tensor_map=(0, -1), shape=(10, 4), param_split_shape=(4, 6), indices_offset=(0, 4)
    )
    for name in ("s.ckpt", "s.json"):
        save_strategy(tmp_path / name, Strategy(stages={0: {"table": stored}}))
        strategy = read_strategy(tmp_path / name)
        assert replace(strategy.stages[0]["table"], shape=(10, 4)) == stored
        with pytest.raises(CheckpointError, match=r"table is split unevenly"):
            strategy_layouts(strategy, {"table": (10, 4)})


def test_without_mindspore_and_numpy():
    assert not {"mindspore", "numpy"} & imported_by("from mindgspo.strategy import commands, file, layouts")


def test_layouts_need_shapes_that_fit(tmp_path: Path):
    train = plan(2, 2, 1)
    for suffix in ("ckpt", "json"):
        write_strategy(tmp_path / f"s.{suffix}", {Q: weights(train)[Q]}, plan=train, rank=0)
    protobuf, document = read_strategy(tmp_path / "s.ckpt"), read_strategy(tmp_path / "s.json")
    assert strategy_layouts(document) == {Q: weights(train)[Q]}
    with pytest.raises(WeightsError, match=r"s.ckpt: a protobuf strategy file holds no shapes, so model.*give the sha"):
        strategy_layouts(protobuf)
    with pytest.raises(WeightsError, match=r"s.json: .*q_proj.weight has the shapes \(32, 32\) and \(32, 64\)"):
        strategy_layouts(document, {Q: (32, 64)})
    with pytest.raises(WeightsError, match=r"s.ckpt: .* axis 0: 33 elements do not divide into 2 equal slices"):
        strategy_layouts(protobuf, {Q: (33, 32)})


def test_a_parameter_that_two_stages_split_differently_has_no_layout():
    stored = [StoredLayout(device_matrix=(2,), tensor_map=tensor_map, shape=(4,)) for tensor_map in ((0,), (-1,))]
    with pytest.raises(CheckpointError, match=r"w is on the stages 0, 1 and split differently there"):
        strategy_layouts(Strategy(stages={stage: {"w": entry} for stage, entry in enumerate(stored)}))


def test_merging_refuses_gaps_and_contradictions(tmp_path: Path):
    train, other = plan(1, 2, 4), plan(2, 2, 4)
    paths = write_strategies(tmp_path / "one", weights(train), plan=train)
    others = write_strategies(tmp_path / "other", weights(other), plan=other)
    for files, said in (
        ([], r"no strategy files to merge"),
        ([paths[0], paths[7]], r"of the stages 0 to 3, 1, 2 is missing in 2 file\(s\); add the file"),
        ([paths[0], others[0]],
            r"one/ckpt_strategy_rank_0.ckpt and .*other/ckpt_strategy_rank_0.ckpt describe stage 0 diff"),
        ([paths[0], others[4]], r"stages of different sizes: 2 ranks in .*, 4 ranks in .*strategy_rank_4"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=said):
            merge_strategies(files)


def section(kv_heads: int, tied: bool) -> ModelSection:
    """A small Qwen2 whose sizes divide by 16 and whose heads are few."""
    heads = {"num_attention_heads": 16, "num_key_value_heads": kv_heads}
    return TINY.model_copy(update={"vocab_size": 96, "hidden_size": 64, "tie_word_embeddings": tied, **heads})


@st.composite
def plans(draw: st.DrawFn) -> ParallelPlan:
    model, stages = draw(st.sampled_from([1, 2, 4, 8, 16])), draw(st.sampled_from([1, 2, 4]))
    return ParallelPlan(
        data_parallel=draw(st.integers(1, 64 // (model * stages))),
        model_parallel=model,
        pipeline_stage=stages,
        optimizer_shard=draw(st.booleans()),
        vocab_emb_dp=draw(st.booleans()),
    )


@given(plan=plans(), kv_heads=st.sampled_from([1, 2, 4, 8, 16]), tied=st.booleans(), data=st.data())
@settings(max_examples=40)
def test_written_and_read_layouts_place_alike(plan: ParallelPlan, kv_heads: int, tied: bool, data: st.DataObject):
    model, grid = section(kv_heads, tied), RankGrid(plan)
    layouts = weights_and_moments(plan, model)
    shapes = {name: layout.shape for name, layout in layouts.items()}
    with tempfile.TemporaryDirectory() as folder:
        paths = write_strategies(folder, layouts, plan=plan)
        # The file of one rank says what its stage holds, and that for every rank of it.
        rank = data.draw(st.integers(0, plan.world_size - 1), label="rank")
        alone = Path(folder, "alone.ckpt")
        write_strategy(alone, layouts, plan=plan, rank=rank)
        assert alone.read_bytes() == paths[rank].read_bytes()
        of_stage = strategy_layouts(read_strategy(alone), shapes)
        merged = merge_strategies(paths)
    assert set(of_stage) == {name for name, layout in layouts.items() if rank in layout.rank_list}
    for name, layout in of_stage.items():
        for other in grid.stage_ranks(grid.coordinates(rank).stage):
            assert layout.slice_of(other) == layouts[name].slice_of(other), (name, other)
    check_fits(merged, layouts)
    back = strategy_layouts(merged, shapes)
    assert list(back) == list(layouts)
    assert all(back[name].same_placement(layout) for name, layout in layouts.items())
