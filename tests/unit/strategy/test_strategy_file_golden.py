"""Layouts, strategy files and `mindgspo strategy` against MindSpore's own files of all shipped plans.

`tests/data/strategies` holds what the compiler of MindSpore 2.10.0 wrote for small twins of the shipped configurations,
for further plans and for MindFormers' model; its `record.py` and `record_mindformers.py` say how.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from running import PROJECT, python
from small_plans import compiled_layouts

from mindgspo.cli import main
from mindgspo.config import ModelSection, ParallelPlan, load_model_and_plans
from mindgspo.config.schema import PlansSection
from mindgspo.parallel.plans.placement import RankGrid
from mindgspo.planner.strategy_files import GRAPHS, graph_layouts, write_plan_files
from mindgspo.strategy.commands import collapse_layers, compare_strategies, diff_lines
from mindgspo.strategy.file import read_strategy, save_strategy
from mindgspo.strategy.layouts import compiled_strategy, strategy_layouts
from mindgspo.strategy.record import StoredLayout, Strategy

DATA = PROJECT / "tests" / "data" / "strategies"
RECORD = json.loads((DATA / "compiled.json").read_text(encoding="utf-8"))
CONFIGS = tuple(RECORD["configurations"])
# Those for 8 ranks are one now, with the plans of the second and the tied table of the first.
SHIPPED = [name for name in CONFIGS if name.endswith(".yaml") and not name.startswith("arithmetic/gspo_8")]
# What gradients are added up in, of graphs that a compiler divided.
SUMS = ("gradient.", "accu_grads.")


MINDFORMERS = json.loads((DATA / "mindformers.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MindSpore's files: <configuration>/<graph>/<rank>.ckpt."""
    return unpacked(tmp_path_factory, "compiled.tar.xz")


def unpacked(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(DATA / name) as archive:
        archive.extractall(folder, filter="data")
    return folder


def folder_of(golden: Path, config: str) -> Path:
    return golden / config.replace("/", "-").removesuffix(".yaml")


@cache
def small(config: str) -> tuple[ModelSection, PlansSection]:
    """The twin that was compiled."""
    sections = RECORD["configurations"][config]
    plans = {name: ParallelPlan(**fields) for name, fields in sections["plans"].items()}
    return ModelSection(**sections["model"]), PlansSection(**plans)


def shipped(config: str) -> Path:
    return PROJECT / ("examples" if "/" in config else "model_configs") / config


def recorded(golden: Path, config: str, graph: str) -> Iterator[tuple[int, Strategy]]:
    """(rank, what MindSpore's file says of weights and moments)."""
    yield from read_recorded(folder_of(golden, config) / graph)


def read_recorded(folder: Path) -> Iterator[tuple[int, Strategy]]:
    for path in sorted(folder.glob("*.ckpt"), key=lambda path: int(path.stem)):
        whole = read_strategy(path)
        ((stage, entries),) = whole.stages.items()
        for name, entry in entries.items():
            if name.startswith(SUMS):
                assert entry == entries[name.split(".", 1)[1]], name
        kept = {name: entry for name, entry in entries.items() if not name.startswith(SUMS)}
        yield int(path.stem), replace(whole, stages={stage: kept})


@pytest.mark.parametrize("config", CONFIGS)
def test_the_algebra_says_what_mindspore_wrote(golden: Path, config: str) -> None:
    for graph in GRAPHS:
        plan, layouts = graph_layouts(*small(config), graph)
        shapes = {name: layout.shape for name, layout in layouts.items()}
        held = compiled_layouts(layouts, plan=plan)
        grid = RankGrid(plan)
        ranks = []
        for rank, theirs in recorded(golden, config, graph):
            ranks.append(rank)
            ours = compiled_strategy(layouts, plan=plan, rank=rank)
            assert compare_strategies(ours, theirs) == [], (graph, rank)
            for name, layout in strategy_layouts(theirs, shapes).items():
                assert layout.slice_of(rank) == held[name].slice_of(rank), (graph, rank, name)
        stages = [ranks_of[position] for ranks_of in stage_ranks(grid) for position in (0, -1)]
        assert set(stages if graph == "train" else stages[::2]) <= set(ranks), "of every stage"


def stage_ranks(grid: RankGrid) -> list[tuple[int, ...]]:
    return [grid.stage_ranks(stage) for stage in range(grid.plan.pipeline_stage)]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_files_that_are_written_place_as_mindspore_s(golden: Path, tmp_path: Path, config: str) -> None:
    write_plan_files(*small(config), tmp_path / "ours")
    for graph in GRAPHS:
        for rank, theirs in recorded(golden, config, graph):
            path = tmp_path / "theirs" / graph / f"{rank}.ckpt"
            path.parent.mkdir(parents=True, exist_ok=True)
            save_strategy(path, theirs)
            assert read_strategy(path) == theirs, "nothing is lost on the way"
            assert compare_strategies(read_strategy(ours_of(tmp_path, graph, rank)), theirs) == []
    found = diff_lines(tmp_path / "ours", tmp_path / "theirs")
    assert found.number == 0, "\n".join(found.lines)


def ours_of(folder: Path, graph: str, rank: int) -> Path:
    return folder / "ours" / graph / f"ckpt_strategy_rank_{rank}.ckpt"


@pytest.mark.parametrize("config", SHIPPED)
def test_the_shipped_sizes_are_laid_out_as_their_small_twins(config: str) -> None:
    """Layer by layer, on every stage: what decides about a layout stayed as it is."""
    of_twin, of_shipped = (kinds_by_stage(*both) for both in (small(config), load_model_and_plans(shipped(config))))
    assert of_twin == of_shipped


def kinds_by_stage(model: ModelSection, plans: PlansSection) -> Mapping[tuple[str, int], set]:
    """{(graph, stage): {(parameter, * in the place of its layer's number; what a file says of it, but the shape)}}."""
    found = {}
    for graph in GRAPHS:
        plan, layouts = graph_layouts(model, plans, graph)
        for ranks in stage_ranks(RankGrid(plan)):
            ((stage, entries),) = compiled_strategy(layouts, plan=plan, rank=ranks[0]).stages.items()
            pairs = collapse_layers((name, replace(entry, shape=None)) for name, entry in entries.items())
            found[graph, stage] = {(_without_numbers(name), entry) for name, entry in pairs}
    return found


def _without_numbers(name: str) -> str:
    before, layers, behind = name.partition(".layers.")
    return f"{before}{layers}*.{behind.split('.', 1)[1]}" if layers else name


@pytest.fixture(scope="module")
def golden_of_mindformers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """<case>/<rank>.ckpt."""
    return unpacked(tmp_path_factory, "mindformers.tar.xz")


@pytest.mark.parametrize("case", MINDFORMERS["cases"])
def test_files_under_mindformers_names_place_as_its_own(golden_of_mindformers: Path, tmp_path: Path, case: str) -> None:
    fields = MINDFORMERS["cases"][case]
    model = ModelSection(**MINDFORMERS["sizes"], tie_word_embeddings=fields.get("is_tied", False))
    plans = PlansSection(train=ParallelPlan(**fields["plan"]), infer=ParallelPlan(data_parallel=8))
    write_plan_files(model, plans, tmp_path / "ours", naming="mindformers")
    ranks = [rank for rank, _ in read_recorded(golden_of_mindformers / case)]
    assert ranks == [0, 3, 4, 7] if plans.train.pipeline_stage > 1 else ranks == [0, 7]
    for rank, theirs in read_recorded(golden_of_mindformers / case):
        assert compare_strategies(read_strategy(ours_of(tmp_path, "train", rank)), theirs) == [], rank


TOOL = PROJECT / "tools" / "generate_strategy.py"


def test_the_tool_and_the_command_find_mindspore_s_files_equal_and_a_moved_shard_not(
    golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = "qwen2_5_32b_64.yaml"
    (tmp_path / "model.json").write_text(json.dumps(RECORD["configurations"][config]), encoding="utf-8")
    done = python(TOOL, tmp_path / "model.json", "--out", tmp_path / "ours", cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    theirs = folder_of(golden, config)
    assert main(["strategy", "diff", str(tmp_path / "ours"), str(theirs), "--common"]) == 0
    # A moment's shards lie over other replicas.
    name = "adamw.m.model.layers.0.self_attn.q_proj.weight"
    strategy = read_strategy(theirs / "train" / "0.ckpt")
    entries = dict(strategy.stages[0])
    assert entries[name] == StoredLayout(
        device_matrix=(2, 8), tensor_map=(0, -1), opt_weight_shard_step=8, opt_weight_shard_size=2
    )
    entries[name] = replace(entries[name], opt_weight_shard_step=0, opt_weight_shard_size=0)
    save_strategy(tmp_path / "moved.ckpt", Strategy(stages={0: entries}))
    capsys.readouterr()
    ours = ours_of(tmp_path, "train", 0)
    assert main(["strategy", "diff", str(ours), str(tmp_path / "moved.ckpt"), "--common"]) == 1
    said = capsys.readouterr().out
    assert said.count(name) == 1 and "1 difference" in said
