"""`mindgspo strategy`, tools/generate_strategy.py, and files of a dry run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from running import PROJECT, python

from mindgspo.cli import main
from mindgspo.config import load_model_and_plans
from mindgspo.errors import ConfigError
from mindgspo.planner import strategy_files
from mindgspo.planner.strategy_files import GRAPHS, write_plan_files
from mindgspo.strategy.commands import collapse_layers, ranges, without_state
from mindgspo.strategy.file import read_strategy, save_strategy
from mindgspo.strategy.record import StoredLayout, Strategy

MODEL = """
model:
  {vocab_size: 1024, hidden_size: 256, intermediate_size: 512, num_hidden_layers: 4, num_attention_heads: 8,
   num_key_value_heads: 2}
plans:
  train: {data_parallel: 2, model_parallel: 2, pipeline_stage: 2, micro_batch_num: 2, optimizer_shard: true}
  infer: {data_parallel: 4, model_parallel: 2}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL, encoding="utf-8")
    return path


@pytest.fixture
def out(config: Path, tmp_path: Path) -> Path:
    """What tools/generate_strategy.py makes of it."""
    write_plan_files(*load_model_and_plans(config), tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    """run(*words): exit code, lines on stdout, text on stderr of `mindgspo strategy <words>`."""

    def call(*words: object) -> tuple[int, list[str], str]:
        code = main(["strategy", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return call


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def rows_of(lines: list[str]) -> dict[str, list[str]]:
    """{parameter: its other cells}."""
    return {row[0]: row[1:] for row in map(cells, lines[2:])}


def stored(folder: Path, name: str, *parameters: str, **fields: object) -> Path:
    """A strategy file of one stage whose parameters are all laid out by these fields."""
    entries = dict.fromkeys(parameters, StoredLayout(**fields))
    save_strategy(folder / f"{name}.ckpt", Strategy(stages={0: entries}))
    return folder / f"{name}.ckpt"


def test_a_file_as_a_table(run, out: Path):
    code, lines, _ = run("show", out / "train" / "ckpt_strategy_rank_5.ckpt")
    assert code == 0
    assert lines[0] == "78 parameters on 1 stage of 4 ranks"
    assert cells(lines[1]) == ["parameter", "device matrix", "tensor map", "slice", "optimizer shard", "ranks"]
    rows = rows_of(lines)
    assert rows["model.layers.{2-3}.self_attn.q_proj.weight"] == ["(2, 2)", "(0, -1)", "1/2 x 1", "1/2, step 2", "4-7"]
    assert rows["model.layers.{2-3}.self_attn.o_proj.weight"][1:3] == ["(-1, 0)", "1 x 1/2"]
    assert rows["model.norm.weight"] == ["(2, 2)", "(-1)", "1", "4-7"]
    assert lines[-2:] == [f"adamw.{kind}.*: 26 entries, laid out as their parameters" for kind in "mv"]


def test_shapes_from_a_config_every_entry_and_a_folder_of_graphs(run, out: Path, config: Path):
    _, lines, _ = run("show", out / "reference", "--config", config)
    assert lines[0] == "51 parameters on 2 stages of 4 ranks"
    assert "shape" in cells(lines[1]) and "optimizer shard" not in cells(lines[1])
    rows = rows_of(lines)
    assert rows["model.layers.{0-1}.self_attn.k_proj.weight"] == ["(64, 256)", "(2, 2)", "(0, -1)", "(32, 256)", "0-3"]
    assert rows["lm_head.weight"] == ["(1024, 256)", "(2, 2)", "(0, -1)", "(512, 256)", "4-7"]
    _, lines, _ = run("show", out / "train", "--all")
    names = [cells(line)[0] for line in lines[2:]]
    assert len(names) == 3 * 51
    assert "model.layers.3.mlp.up_proj.weight" in names and "adamw.v.model.norm.weight" in names
    _, lines, _ = run("show", out)
    assert [line for line in lines if "parameters on" in line] == [
        "reference: 51 parameters on 2 stages of 4 ranks",
        "rollout: 51 parameters on 1 stage of 8 ranks",
        "train: 153 parameters on 2 stages of 4 ranks",
    ]


def test_what_the_compiler_may_also_write(run, tmp_path: Path):
    entries = {
        "w": StoredLayout(device_matrix=(2, 4), tensor_map=(-1, 0), opt_weight_shard_step=4, opt_weight_shard_size=-1),
        "nested": StoredLayout(device_matrix=(2, 2, 2), tensor_map=((2, 0), -1)),
        "step": StoredLayout(device_matrix=(2, 4), tensor_map=()),
    }
    save_strategy(tmp_path / "s.ckpt", Strategy(stages={0: entries}))
    rows = rows_of(run("show", tmp_path / "s.ckpt")[1])
    assert rows["w"] == ["(2, 4)", "(-1, 0)", "1 x 1/4", "all replicas, step 4", "0-7"]
    assert rows["nested"] == ["(2, 2, 2)", "((2, 0), -1)", "1/4 x 1", "0-7"]
    assert rows["step"] == ["(2, 4)", "()", "0-7"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("num_hidden_layers: 6", "24 of 75 parameters of the model are not in it: model.layers.4."),
        ("num_hidden_layers: 2", "24 of 51 names in it are not the model's: model.layers.2."),
        ("hidden_size: 320", "have another shape"),
    ],
)
def test_shapes_of_another_model_are_refused(run, config: Path, tmp_path: Path, other: str, said: str):
    """JSON files have shapes themselves; of protobuf files the names are compared, and whether the cuts divide."""
    write_plan_files(*load_model_and_plans(config), tmp_path / "s", suffix=".json")
    key = other.split(":")[0]
    config.write_text(re.sub(rf"{key}: \d+", other, MODEL))
    code, lines, error = run("show", tmp_path / "s" / "reference", "--config", config)
    assert code == 1 and lines == [] and said in error and "does not fit the model" in error


def test_equal_folders_and_a_graph_that_one_side_lacks(run, out: Path, config: Path, tmp_path: Path):
    again = tmp_path / "again"
    write_plan_files(*load_model_and_plans(config), again, suffix=".json")
    code, lines, _ = run("diff", out, again)
    assert code == 0 and lines[:2] == [f"left   {out}", f"right  {again}"]
    assert lines[2].startswith("equal: reference: 51 parameters on 2 stages of 4 ranks; rollout: 51 parameters")
    for path in (again / "rollout").iterdir():
        path.unlink()
    code, lines, _ = run("diff", out, again)
    assert code == 1 and lines[2:] == ["rollout: missing in right", "1 difference"]


def test_what_differs_by_parameter(run, out: Path):
    code, lines, _ = run("diff", out / "train", out / "reference")
    assert code == 1
    assert lines[-1] == f"{102 + 30} differences"  # all moments, and the 30 weights that are cut
    changed = [line for line in lines if line.startswith("model.layers.{0-1}.self_attn.q_proj.weight")]
    assert changed == [
        "model.layers.{0-1}.self_attn.q_proj.weight (stage 0): "
        "device matrix (2, 2), tensor map (0, -1), opt_weight_shard step 2 size 2 in left, "
        "device matrix (2, 2), tensor map (0, -1), opt_weight_shard step 0 size 0 in right"
    ]
    assert "adamw.m.model.layers.{2-3}.input_layernorm.weight (stage 1): missing in right" in lines
    _, common, _ = run("diff", out / "train", out / "reference", "--common")
    assert common[-1] == "30 differences" and changed[0] in common
    _, separate, _ = run("diff", out / "train", out / "reference", "--common", "--all")
    assert len(separate) == 3 + 30


def test_spelling_counts_on_request_only(run, tmp_path: Path):
    pair = [
        stored(tmp_path, name, "w", device_matrix=matrix, tensor_map=tensor_map)
        for name, matrix, tensor_map in (("a", (4, 1), (1, -1)), ("b", (4,), (0, -1)))
    ]
    code, lines, _ = run("diff", *pair)
    assert (code, lines[-1]) == (0, "equal: 1 parameter on 1 stage of 4 ranks")
    code, lines, _ = run("diff", *pair, "--spelling")
    assert code == 1 and "same placement, spelled as device matrix (4, 1)" in lines[2]


def test_state_is_folded_where_it_differs_as_its_parameter(run, tmp_path: Path):
    names = [f"{prefix}model.layers.{i}.w" for prefix in ("", "adam_m.", "accu_grads.") for i in (0, 1)]
    maps = {"a": (0, -1), "b": (-1, 0)}
    pair = [stored(tmp_path, name, *names, device_matrix=(4,), tensor_map=maps[name]) for name in maps]
    _, lines, _ = run("diff", *pair)
    assert lines[2].startswith("model.layers.{0-1}.w: device matrix (4,), tensor map (0, -1) in left")
    folded = [f"{prefix}.*: 2 entries, as their parameters" for prefix in ("adam_m", "accu_grads")]
    assert lines[3:] == [*folded, "6 differences"]


def test_merged_stages(run, out: Path, tmp_path: Path):
    code, lines, _ = run("merge", out / "train", "--out", tmp_path / "merged.ckpt")
    assert code == 0
    assert lines == [f"merged 153 parameters on 2 stages of 4 ranks into {tmp_path / 'merged.ckpt'}"]
    assert list(read_strategy(tmp_path / "merged.ckpt").stages) == [0, 1]
    code, lines, _ = run("diff", out / "train", tmp_path / "merged.ckpt")
    assert code == 0


@pytest.mark.parametrize("words", ["show none", "diff none none", "merge none --out m.ckpt"])
def test_what_is_not_there(run, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    code, lines, said = run(*words.split())
    assert code == 1 and lines == [] and said.startswith("error: none: ")


def test_folders_without_strategies_and_files_without_a_common_parameter(run, out: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert "holds no strategy files (*.ckpt, *.json), nor does a folder in it" in run("show", tmp_path / "empty")[2]
    assert "give the folder that does" in run("merge", out, "--out", tmp_path / "m.ckpt")[2]
    (tmp_path / "empty" / "weights.ckpt").write_bytes(b"\x0a\x05weigh")
    assert "expected a MindSpore strategy file" in run("show", tmp_path / "empty")[2]
    code, _, said = run("merge", out / "train", "--out", tmp_path / "m.txt")
    assert code == 1 and "ends in .ckpt (protobuf) or .json" in said
    code, _, said = run("merge", out / "train", "--out", tmp_path / "none" / "m.ckpt")
    assert code == 1 and "cannot be written" in said
    pair = [stored(tmp_path, name, name, device_matrix=(2,), tensor_map=(0,)) for name in "ab"]
    code, _, said = run("diff", *pair, "--common")
    assert code == 1 and "have no parameter of one stage in common" in said


def test_layers_become_runs():
    pairs = [("a.layers.0.w", 1), ("a.layers.1.w", 1), ("a.layers.2.w", 2), ("a.layers.3.w", 1), ("b", 1)]
    assert collapse_layers(pairs) == [("a.layers.{0-1, 3}.w", 1), ("a.layers.2.w", 2), ("b", 1)]
    assert collapse_layers([("a.layers.x.w", 1), ("players.1.w", 1)]) == [("a.layers.x.w", 1), ("players.1.w", 1)]
    assert ranges([8, 0, 1, 2, 10]) == "0-2, 8, 10" and ranges([]) == ""


def test_state_is_left_out_only_where_the_same_is_said_of_it():
    pairs = [("w", 1), ("m.w", 1), ("v.w", 2), ("m.u", 1), ("a.b.w", 1)]
    assert without_state(pairs) == ([("w", 1), ("v.w", 2), ("m.u", 1)], {"m.": 1, "a.b.": 1})


TOOL = PROJECT / "tools" / "generate_strategy.py"

# One layer of MindFormers' LlamaForCausalLM with qkv_concat=False, as its own network lists its parameters
# (mindformers 1.9.0 and r1.6.0): [out, in] of a Qwen2 with 8 heads of 32, 2 of them for keys and values.
PUBLISHED = {
    "model.tok_embeddings.embedding_weight": (1024, 256),
    "model.layers.1.attention_norm.weight": (256,),
    "model.layers.1.ffn_norm.weight": (256,),
    "model.layers.1.attention.wq.weight": (256, 256),
    "model.layers.1.attention.wq.bias": (256,),
    "model.layers.1.attention.wk.weight": (64, 256),
    "model.layers.1.attention.wk.bias": (64,),
    "model.layers.1.attention.wv.weight": (64, 256),
    "model.layers.1.attention.wv.bias": (64,),
    "model.layers.1.attention.wo.weight": (256, 256),
    "model.layers.1.feed_forward.w1.weight": (512, 256),
    "model.layers.1.feed_forward.w2.weight": (256, 512),
    "model.layers.1.feed_forward.w3.weight": (512, 256),
    "model.norm_out.weight": (256,),
    "lm_head.weight": (1024, 256),
}
MINDRLHF = {"train": "grpo_model_train.policy_model.model.", "reference": "model.",
            "rollout": "grpo_model.policy_model.model."}  # fmt: skip


@pytest.mark.parametrize("naming", ["mindformers", "mindrlhf"])
def test_files_with_the_names_and_shapes_of_other_suites(naming: str, config: Path, out: Path, tmp_path: Path) -> None:
    write_plan_files(*load_model_and_plans(config), tmp_path / "theirs", suffix=".json", naming=naming)
    for graph in GRAPHS:
        prefix = MINDRLHF[graph] if naming == "mindrlhf" else ""
        found = {}
        for path in (tmp_path / "theirs" / graph).iterdir():
            found |= read_strategy(path).parameters
        shapes = {name: next(iter(stages.values())).shape for name, stages in found.items()}
        published = {f"{prefix}{name}": shape for name, shape in PUBLISHED.items()}
        states = ("", "adam_m.", "adam_v.") if graph == "train" else ("",)
        for state in states:
            assert {name: shapes[f"{state}{name}"] for name in published} == published
        assert len(shapes) == len(states) * (3 + 4 * 12), "and nothing else: 4 layers of 12 weights, 3 outside"
        ours = {}
        for path in (out / graph).iterdir():
            ours |= read_strategy(path).parameters
        wanted = ours["model.layers.1.mlp.down_proj.weight"]
        for stage, stored in found[f"{prefix}model.layers.1.feed_forward.w2.weight"].items():
            assert stored.placement == wanted[stage].placement, "the same slices under another name"


def test_models_without_names_there_are_refused(config: Path, tmp_path: Path) -> None:
    config.write_text(MODEL.replace("{vocab_size", "{architecture: qwen3, head_dim: 32, vocab_size"), encoding="utf-8")
    done = run_tool(config, "--out", tmp_path / "theirs", "--layout", "mindformers")
    assert done.returncode == 1 and "MindFormers has no name for it" in done.stderr


def run_tool(*arguments: object) -> subprocess.CompletedProcess[str]:
    return python(TOOL, *arguments, timeout=120, cwd=PROJECT)


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


def test_the_names_of_moments_are_adamw_s():
    source = (PROJECT / "mindgspo" / "algorithms" / "optim" / "adamw.py").read_text(encoding="utf-8")
    assert [f'"{prefix.rstrip(".")}"' in source for prefix in strategy_files._MOMENTS] == [True, True]


def test_the_tool_takes_a_model_file_and_overrides(config: Path, tmp_path: Path):
    overrides = ("--set", "plans.infer.model_parallel=4", "--set", "plans.infer.data_parallel=2")
    done = run_tool(config, "--out", tmp_path / "out", *overrides)
    assert done.returncode == 0, done.stderr
    train, reference, rollout, files, end = done.stdout.splitlines()
    plan = "2 x 2 x 2 (data x model x pipeline), optimizer shards over 2: 8 files, 153 para"
    assert train.startswith(f"train      {plan}")
    assert reference.startswith("reference  2 x 2 x 2") and rollout.startswith("rollout    2 x 4 x 1")
    assert files == "24 files" and end.startswith("done in ")
    assert read_strategy(tmp_path / "out" / "rollout" / "ckpt_strategy_rank_5.ckpt").stage_size == 8


def test_the_tool_says_what_is_wrong(config: Path, tmp_path: Path):
    done = run_tool(config, "--out", tmp_path / "out", "--set", "plans.train.model_parallel=3")
    assert done.returncode == 1 and done.stdout == ""
    assert "plans.train.model_parallel: 3 does not split the model evenly" in done.stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    done = run_tool(config, "--out", tmp_path / "file")
    assert done.returncode == 1 and "cannot be made" in done.stderr


def test_a_plan_that_does_not_fit_is_refused_before_a_file_is_written(config: Path, tmp_path: Path):
    model, plans = load_model_and_plans(config)
    wrong = plans.model_copy(update={"train": plans.train.model_copy(update={"pipeline_stage": 5})})
    with pytest.raises(ConfigError, match="4 layers are fewer than pipeline_stage 5"):
        write_plan_files(model, wrong, tmp_path / "out")
    assert not (tmp_path / "out").exists()
