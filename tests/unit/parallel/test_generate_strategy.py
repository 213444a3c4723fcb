"""Strategy files of all ranks from a configuration: what is in them, for whom, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mindgspo.config import load_model_and_plans
from mindgspo.errors import CheckpointError, ConfigError
from mindgspo.models.names import parameter_shapes
from mindgspo.parallel.parameter_layouts import parameter_layouts
from mindgspo.parallel.strategy.file import merge_strategies, read_strategy
from mindgspo.parallel.strategy.layouts import strategy_layouts
from mindgspo.parallel.strategy.record import StoredLayout
from mindgspo.parallel.tensor_slice import TensorSlice
from mindgspo.planner import strategy_files
from mindgspo.planner.strategy_files import GRAPHS, graph_layouts, write_plan_files

ROOT = Path(__file__).resolve().parents[3]
TOOL = ROOT / "tools" / "generate_strategy.py"
MODELS = sorted((ROOT / "model_configs").glob("*.yaml"))
QUERY, NORM = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.input_layernorm.weight"

MODEL = """
model:
  vocab_size: 1024
  hidden_size: 256
  intermediate_size: 512
  num_hidden_layers: 4
  num_attention_heads: 8
  num_key_value_heads: 2
plans:
  train: {data_parallel: 2, model_parallel: 2, pipeline_stage: 2, micro_batch_num: 2, optimizer_shard: true}
  infer: {data_parallel: 4, model_parallel: 2}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL, encoding="utf-8")
    return path


def run_tool(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd=ROOT
    )


def test_three_folders_with_a_file_per_rank(config: Path, tmp_path: Path):
    model, plans = load_model_and_plans(config)
    written = write_plan_files(model, plans, tmp_path / "out")
    assert [(folder.graph, folder.num_files) for folder in written] == [(graph, 8) for graph in GRAPHS]
    for folder in written:
        names = sorted(path.name for path in folder.folder.iterdir())
        assert names == [f"ckpt_strategy_rank_{rank}.ckpt" for rank in range(8)]
    # 12 weights in each of 4 layers, 3 outside them; each with two moments.
    assert [folder.num_parameters for folder in written] == [3 * 51, 51, 51]
    assert "optimizer shards over 2: 8 files" in str(written[0]) and "shards" not in str(written[1])


def test_train_has_optimizer_shards_and_moments_the_reference_neither(config: Path, tmp_path: Path):
    write_plan_files(*load_model_and_plans(config), tmp_path)
    train, reference, rollout = (
        read_strategy(tmp_path / graph / "ckpt_strategy_rank_0.ckpt").stages[0] for graph in GRAPHS
    )
    sharded = StoredLayout(device_matrix=(2, 2), tensor_map=(0, -1), opt_weight_shard_step=2, opt_weight_shard_size=2)
    assert train[QUERY] == train[f"adamw.m.{QUERY}"] == train[f"adamw.v.{QUERY}"] == sharded
    assert train[NORM] == StoredLayout(device_matrix=(2, 2), tensor_map=(-1,)), "below 64 KB"
    assert reference[QUERY] == StoredLayout(device_matrix=(2, 2), tensor_map=(0, -1))
    assert rollout[QUERY] == StoredLayout(device_matrix=(4, 2), tensor_map=(0, -1))
    assert [name for name in (*reference, *rollout) if name.startswith("adamw")] == []


def test_the_names_of_moments_are_adamw_s():

    source = (ROOT / "mindgspo" / "algorithms" / "optim" / "adamw.py").read_text(encoding="utf-8")
    assert [f'"{prefix.rstrip(".")}"' in source for prefix in strategy_files._MOMENTS] == [True, True]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_files_of_every_shipped_model_give_its_layouts_back(path: Path, tmp_path: Path):
    model, plans = load_model_and_plans(path)
    write_plan_files(model, plans, tmp_path)
    shapes = parameter_shapes(model)
    for graph, plan in (("reference", plans.train), ("rollout", plans.infer)):
        files = sorted((tmp_path / graph).iterdir())
        assert len(files) == plan.world_size
        per_stage = [tmp_path / graph / f"ckpt_strategy_rank_{rank}.ckpt" for rank in _first_ranks(plan)]
        found = strategy_layouts(merge_strategies(per_stage), shapes)
        expected = parameter_layouts(shapes, model, plan)
        assert list(found) == list(expected)
        assert [name for name in found if not found[name].same_placement(expected[name])] == []


def _first_ranks(plan) -> list[int]:
    size = plan.world_size // plan.pipeline_stage
    return [stage * size for stage in range(plan.pipeline_stage)]


def test_64_cards_of_qwen3_32b(tmp_path: Path):
    model, plans = load_model_and_plans(ROOT / "model_configs" / "qwen3_32b_64.yaml")
    plan, layouts = graph_layouts(model, plans, "train")
    assert str(plan) == "2 x 8 x 4" and len(layouts) == 3 * (64 * 11 + 3)
    # Rank 33 is slice 1 of the third stage, layers 32 to 47; 8 of 64 heads of 128.
    query = layouts["model.layers.40.self_attn.q_proj.weight"]
    assert query.slice_of(33) == TensorSlice((1024, 0), (2048, 5120)) and query.slice_of(1) is None
    write_plan_files(model, plans, tmp_path)
    stored = read_strategy(tmp_path / "train" / "ckpt_strategy_rank_33.ckpt").stages[2]
    assert stored["model.layers.40.self_attn.q_proj.weight"] == StoredLayout(
        device_matrix=(2, 8), tensor_map=(0, -1), opt_weight_shard_step=8, opt_weight_shard_size=2
    )
    assert stored["model.layers.40.self_attn.q_norm.weight"] == StoredLayout(device_matrix=(2, 8), tensor_map=(-1,))


def test_json_holds_shapes(config: Path, tmp_path: Path):
    write_plan_files(*load_model_and_plans(config), tmp_path, suffix=".json")
    stored = read_strategy(tmp_path / "rollout" / "ckpt_strategy_rank_7.json").stages[0]
    assert stored[QUERY].shape == (256, 256)


def test_a_smaller_plan_does_not_mix_with_files_of_a_larger_one(config: Path, tmp_path: Path):
    write_plan_files(*load_model_and_plans(config), tmp_path)
    write_plan_files(*load_model_and_plans(config), tmp_path)  # the same again is replaced
    smaller = load_model_and_plans(
        config, ["plans.train.data_parallel=1", "plans.train.optimizer_shard=false", "plans.infer.data_parallel=2"]
    )
    with pytest.raises(CheckpointError, match=r"train: holds 4 file\(s\) beside those of the 4 ranks"):
        write_plan_files(*smaller, tmp_path)


# ----- the tool


def test_the_tool_takes_a_model_file_and_overrides(config: Path, tmp_path: Path):
    done = run_tool(
        config,
        "--out",
        tmp_path / "out",
        "--set",
        "plans.infer.model_parallel=4",
        "--set",
        "plans.infer.data_parallel=2",
    )
    assert done.returncode == 0, done.stderr
    train, reference, rollout, files, end = done.stdout.splitlines()
    assert train.startswith(
        "train      2 x 2 x 2 (data x model x pipeline), optimizer shards over 2: 8 files, 153 para"
    )
    assert reference.startswith("reference  2 x 2 x 2") and rollout.startswith("rollout    2 x 4 x 1")
    assert files == "24 files" and end.startswith("done in ")
    assert read_strategy(tmp_path / "out" / "rollout" / "ckpt_strategy_rank_5.ckpt").stage_size == 8


def test_the_tool_takes_an_experiment(tmp_path: Path):
    done = run_tool(ROOT / "examples" / "gsm8k" / "gspo_qwen2_5_7b.yaml", "--out", tmp_path, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "reference").glob("*.json"))) == 8


def test_the_tool_says_what_is_wrong(config: Path, tmp_path: Path):
    done = run_tool(config, "--out", tmp_path / "out", "--set", "plans.train.model_parallel=3")
    assert done.returncode == 1 and done.stdout == ""
    assert "plans.train.model_parallel: 3 does not split the model evenly" in done.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    done = run_tool(config, "--out", tmp_path / "file")
    assert done.returncode == 1 and "cannot be made" in done.stderr
    assert run_tool(config, "--out", tmp_path, "--compile", "--format", "json").returncode == 2


def test_512_ranks_without_mindspore(tmp_path: Path):
    # 8 x 8 x 8 of 64 layers; the tool prints how long it took.
    source = (
        "import sys\n"
        "from pathlib import Path\n"
        "from mindgspo.config import load_model_and_plans\n"
        "from mindgspo.planner.strategy_files import write_plan_files\n"
        "plans = ['plans.train.data_parallel=8', 'plans.train.pipeline_stage=8', 'plans.infer.data_parallel=64']\n"
        f"config = load_model_and_plans({str(ROOT / 'model_configs' / 'qwen2_5_32b_64.yaml')!r}, plans)\n"
        f"print(sum(folder.num_files for folder in write_plan_files(*config, Path({str(tmp_path)!r}))))\n"
        "assert 'mindspore' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1536\n"


def test_a_plan_that_does_not_fit_is_refused_before_a_file_is_written(config: Path, tmp_path: Path):
    model, plans = load_model_and_plans(config)
    wrong = plans.model_copy(update={"train": plans.train.model_copy(update={"pipeline_stage": 3})})
    with pytest.raises(ConfigError, match="4 layers do not divide over pipeline_stage 3"):
        write_plan_files(model, wrong, tmp_path / "out")
    assert not (tmp_path / "out").exists()
