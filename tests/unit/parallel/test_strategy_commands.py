"""`mindgspo strategy show | diff | merge` as a user calls them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.cli import main
from mindgspo.config import load_model_and_plans
from mindgspo.parallel.strategy.commands import collapse_layers, ranges, without_state
from mindgspo.parallel.strategy.file import read_strategy, save_strategy
from mindgspo.parallel.strategy.record import StoredLayout, Strategy
from mindgspo.planner.strategy_files import write_plan_files

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


# ----- show


def test_a_file_as_a_table(run, out: Path):
    code, lines, _ = run("show", out / "train" / "ckpt_strategy_rank_5.ckpt")
    assert code == 0
    assert lines[0] == "78 parameters on 1 stage of 4 ranks"
    assert cells(lines[1]) == ["parameter", "device matrix", "tensor map", "slice", "optimizer shard", "ranks"]
    rows = {row[0]: row[1:] for row in map(cells, lines[2:])}
    assert rows["model.layers.{2-3}.self_attn.q_proj.weight"] == ["(2, 2)", "(0, -1)", "1/2 x 1", "1/2, step 2", "4-7"]
    assert rows["model.layers.{2-3}.self_attn.o_proj.weight"][1:3] == ["(-1, 0)", "1 x 1/2"]
    assert rows["model.norm.weight"] == ["(2, 2)", "(-1)", "1", "4-7"]
    assert lines[-2:] == [f"adamw.{kind}.*: 26 entries, laid out as their parameters" for kind in "mv"]


def test_shapes_from_a_config(run, out: Path, config: Path):
    _, lines, _ = run("show", out / "reference", "--config", config)
    assert lines[0] == "51 parameters on 2 stages of 4 ranks"
    assert "shape" in cells(lines[1]) and "optimizer shard" not in cells(lines[1])
    rows = {row[0]: row[1:] for row in map(cells, lines[2:])}
    assert rows["model.layers.{0-1}.self_attn.k_proj.weight"] == ["(64, 256)", "(2, 2)", "(0, -1)", "(32, 256)", "0-3"]
    assert rows["lm_head.weight"] == ["(1024, 256)", "(2, 2)", "(0, -1)", "(512, 256)", "4-7"]


def test_every_entry_on_request(run, out: Path):
    _, lines, _ = run("show", out / "train", "--all")
    names = [cells(line)[0] for line in lines[2:]]
    assert len(names) == 3 * 51
    assert "model.layers.3.mlp.up_proj.weight" in names and "adamw.v.model.norm.weight" in names


def test_a_folder_of_graphs(run, out: Path):
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
    _, lines, _ = run("show", tmp_path / "s.ckpt")
    rows = {row[0]: row[1:] for row in map(cells, lines[2:])}
    assert rows["w"] == ["(2, 4)", "(-1, 0)", "1 x 1/4", "all replicas, step 4", "0-7"]
    assert rows["nested"] == ["(2, 2, 2)", "((2, 0), -1)", "1/4 x 1", "0-7"]
    assert rows["step"] == ["(2, 4)", "()", "0-7"]


# ----- diff


def test_equal_folders(run, out: Path, config: Path, tmp_path: Path):
    write_plan_files(*load_model_and_plans(config), tmp_path / "again", suffix=".json")
    code, lines, _ = run("diff", out, tmp_path / "again")
    assert code == 0
    assert lines[0] == f"left   {out}" and lines[1] == f"right  {tmp_path / 'again'}"
    assert lines[2].startswith("equal: reference: 51 parameters on 2 stages of 4 ranks; rollout: 51 parameters")


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
    assert common[-1] == "30 differences"
    _, separate, _ = run("diff", out / "train", out / "reference", "--common", "--all")
    assert len(separate) == 3 + 30


def test_spelling_counts_on_request_only(run, tmp_path: Path):
    for name, matrix, tensor_map in (("a", (4, 1), (1, -1)), ("b", (4,), (0, -1))):
        entry = StoredLayout(device_matrix=matrix, tensor_map=tensor_map)
        save_strategy(tmp_path / f"{name}.ckpt", Strategy(stages={0: {"w": entry}}))
    pair = (tmp_path / "a.ckpt", tmp_path / "b.ckpt")
    code, lines, _ = run("diff", *pair)
    assert (code, lines[-1]) == (0, "equal: 1 parameter on 1 stage of 4 ranks")
    code, lines, _ = run("diff", *pair, "--spelling")
    assert code == 1 and "same placement, spelled as device matrix (4, 1)" in lines[2]


def test_state_is_folded_where_it_differs_as_its_parameter(run, tmp_path: Path):
    for name, tensor_map in (("a", (0, -1)), ("b", (-1, 0))):
        entry = StoredLayout(device_matrix=(4,), tensor_map=tensor_map)
        names = [f"{prefix}model.layers.{i}.w" for prefix in ("", "adam_m.", "accu_grads.") for i in (0, 1)]
        save_strategy(tmp_path / f"{name}.ckpt", Strategy(stages={0: dict.fromkeys(names, entry)}))
    _, lines, _ = run("diff", tmp_path / "a.ckpt", tmp_path / "b.ckpt")
    assert lines[2].startswith("model.layers.{0-1}.w: device matrix (4,), tensor map (0, -1) in left")
    assert lines[3:] == [
        "adam_m.*: 2 entries, as their parameters",
        "accu_grads.*: 2 entries, as their parameters",
        "6 differences",
    ]


def test_a_graph_that_one_side_lacks(run, out: Path, config: Path, tmp_path: Path):
    other = tmp_path / "other"
    write_plan_files(*load_model_and_plans(config), other)
    for path in (other / "rollout").iterdir():
        path.unlink()
    code, lines, _ = run("diff", out, other)
    assert code == 1 and lines[2:] == ["rollout: missing in right", "1 difference"]


# ----- merge


def test_merged_stages(run, out: Path, tmp_path: Path):
    code, lines, _ = run("merge", out / "train", "--out", tmp_path / "merged.ckpt")
    assert code == 0
    assert lines == [f"merged 153 parameters on 2 stages of 4 ranks into {tmp_path / 'merged.ckpt'}"]
    assert list(read_strategy(tmp_path / "merged.ckpt").stages) == [0, 1]
    code, lines, _ = run("diff", out / "train", tmp_path / "merged.ckpt")
    assert code == 0


# ----- what is refused


@pytest.mark.parametrize("words", [("show", "none"), ("diff", "none", "none"), ("merge", "none", "--out", "m.ckpt")])
def test_what_is_not_there(run, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    code, lines, said = run(*words)
    assert code == 1 and lines == [] and said.startswith("error: none: ")


def test_folders_without_strategies(run, out: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    assert "holds no strategy files (*.ckpt, *.json), nor does a folder in it" in run("show", tmp_path / "empty")[2]
    assert "give the folder that does" in run("merge", out, "--out", tmp_path / "m.ckpt")[2]
    (tmp_path / "empty" / "weights.ckpt").write_bytes(b"\x0a\x05weigh")
    assert "expected a MindSpore strategy file" in run("show", tmp_path / "empty")[2]
    code, _, said = run("merge", out / "train", "--out", tmp_path / "m.txt")
    assert code == 1 and "ends in .ckpt (protobuf) or .json" in said
    code, _, said = run("merge", out / "train", "--out", tmp_path / "none" / "m.ckpt")
    assert code == 1 and "cannot be written" in said


def test_nothing_in_common(run, tmp_path: Path):
    for name in "ab":
        entry = StoredLayout(device_matrix=(2,), tensor_map=(0,))
        save_strategy(tmp_path / f"{name}.ckpt", Strategy(stages={0: {name: entry}}))
    code, _, said = run("diff", tmp_path / "a.ckpt", tmp_path / "b.ckpt", "--common")
    assert code == 1 and "have no parameter of one stage in common" in said


# ----- folding


def test_layers_become_runs():
    pairs = [("a.layers.0.w", 1), ("a.layers.1.w", 1), ("a.layers.2.w", 2), ("a.layers.3.w", 1), ("b", 1)]
    assert collapse_layers(pairs) == [("a.layers.{0-1, 3}.w", 1), ("a.layers.2.w", 2), ("b", 1)]
    assert collapse_layers([("a.layers.x.w", 1), ("players.1.w", 1)]) == [("a.layers.x.w", 1), ("players.1.w", 1)]
    assert ranges([8, 0, 1, 2, 10]) == "0-2, 8, 10" and ranges([]) == ""


def test_state_is_left_out_only_where_the_same_is_said_of_it():
    pairs = [("w", 1), ("m.w", 1), ("v.w", 2), ("m.u", 1), ("a.b.w", 1)]
    assert without_state(pairs) == ([("w", 1), ("v.w", 2), ("m.u", 1)], {"m.": 1, "a.b.": 1})
