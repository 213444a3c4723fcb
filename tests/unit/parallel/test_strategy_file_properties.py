"""Strategy files of random plans of up to 64 ranks: what comes back places every parameter on every rank as before."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo.config import ModelSection, ParallelPlan
from mindgspo.models.names import weight_shapes
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.parameter_layouts import moment_layouts, parameter_layouts
from mindgspo.parallel.ranks import RankGrid
from mindgspo.parallel.strategy.compare import check_fits, compare_strategies
from mindgspo.parallel.strategy.file import merge_strategies, read_strategy, write_strategies, write_strategy
from mindgspo.parallel.strategy.layouts import strategy_layouts


def section(kv_heads: int, tied: bool) -> ModelSection:
    """A small Qwen2 whose sizes divide by 16 and whose heads are few."""
    return ModelSection(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=tied,
    )


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


def all_layouts(model: ModelSection, plan: ParallelPlan) -> dict[str, Layout]:
    """Weights and one moment of each."""
    shapes = weight_shapes(model)
    moments = moment_layouts(shapes, model, plan)
    return {
        **parameter_layouts(shapes, model, plan),
        **{f"adam_m.{name}": layout for name, layout in moments.items()},
    }


@given(plan=plans(), kv_heads=st.sampled_from([1, 2, 4, 8, 16]), tied=st.booleans(), data=st.data())
@settings(max_examples=40)
def test_written_and_read_layouts_place_alike(plan: ParallelPlan, kv_heads: int, tied: bool, data: st.DataObject):
    model, grid = section(kv_heads, tied), RankGrid.of(plan)
    layouts = all_layouts(model, plan)
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


@given(left=plans(), kv_heads=st.sampled_from([2, 16]), data=st.data())
@settings(max_examples=40)
def test_files_of_two_plans_over_equal_stages_compare_as_layouts_do(
    left: ParallelPlan, kv_heads: int, data: st.DataObject
):
    stage_size = left.data_parallel * left.model_parallel
    model_parallel = data.draw(st.sampled_from([size for size in (1, 2, 4, 8, 16) if stage_size % size == 0]))
    right = ParallelPlan(
        data_parallel=stage_size // model_parallel,
        model_parallel=model_parallel,
        pipeline_stage=left.pipeline_stage,
        optimizer_shard=data.draw(st.booleans()),
        vocab_emb_dp=data.draw(st.booleans()),
    )
    sides = [all_layouts(section(kv_heads, tied=False), plan) for plan in (left, right)]
    with tempfile.TemporaryDirectory() as folder:
        merged = [
            merge_strategies(write_strategies(Path(folder, str(i)), sides[i], plan=plan))
            for i, plan in enumerate((left, right))
        ]
    different = [name for name in sides[0] if not sides[0][name].same_placement(sides[1][name])]
    assert sorted(line.split(" ")[0].rstrip(":") for line in compare_strategies(*merged)) == sorted(different)
