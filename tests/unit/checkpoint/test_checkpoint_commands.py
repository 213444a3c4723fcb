"""`mindgspo checkpoint`, and which files belong to which rank."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damage import flip_bit
from planned_checkpoints import (
    MODEL,
    contents,
    layouts_of,
    plan,
    random_tensors,
    write_ranks,
    write_step,
    write_strategy_files,
    write_whole,
)

from mindgspo.checkpoint.stored_files import is_sharded, pick_rank_files
from mindgspo.cli import main
from mindgspo.config import load_model_and_plans
from mindgspo.errors import CheckpointError
from mindgspo.metrics.files import CONFIG_FILE
from mindgspo.models.names import weight_shapes
from mindgspo.planner.strategy_files import write_plan_files
from mindgspo.tensor_files.reader import open_tensors

TOOL = Path(__file__).resolve().parents[3] / "tools" / "transform_checkpoint.py"
CONFIG = """
model: {vocab_size: 512, hidden_size: 256, intermediate_size: 128, num_hidden_layers: 2, num_attention_heads: 8,
  num_key_value_heads: 2}
plans:
  train: {data_parallel: 2, model_parallel: 2, pipeline_stage: 2, micro_batch_num: 2, optimizer_shard: true}
  infer: {data_parallel: 4, model_parallel: 2}
"""
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """call(*words): exit code, stdout and stderr of `mindgspo checkpoint <words>`."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main(["checkpoint", *map(str, words)])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "model.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


@pytest.fixture
def step(tmp_path: Path) -> Path:
    return write_step(tmp_path / "run", random_tensors())


# ----- list and verify
def test_steps_of_a_run(tmp_path: Path, step: Path, call: Call):
    for number in (5, 12):
        write_step(tmp_path / "run", random_tensors(), step=number)
    broken = tmp_path / "run" / "checkpoints" / "step_00000012" / "optimizer.safetensors"
    broken.write_bytes(broken.read_bytes()[:-7])
    for path in (tmp_path / "run", tmp_path / "run" / "checkpoints"):
        code, out, _ = call("list", path)
        rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines()]
        assert code == 0
        assert [(row[0], row[1], row[-1]) for row in rows[1:3]] == [
            ("step_00000003", "3", "sizes match"),
            ("step_00000005", "5", "sizes match, newest"),
        ]
        assert rows[3][-1].startswith("damaged: optimizer.safetensors: truncated, ")
        assert rows[1][2] == "9.0 MiB"


def test_verify_reads_every_step(tmp_path: Path, step: Path, call: Call):
    write_step(tmp_path / "run", random_tensors(), step=4)
    assert call("verify", tmp_path / "run")[0] == 0
    flip_bit(step / "optimizer.safetensors")
    code, out, _ = call("verify", tmp_path / "run")
    lines = out.splitlines()
    assert code == 1
    assert lines[0].startswith(f"damaged  {step / 'optimizer.safetensors'}: its content changed after it was saved")
    assert lines[1].startswith("sound    ") and "step_00000004" in lines[1]
    assert call("verify", step)[0] == 1
    (step / "optimizer.safetensors").write_bytes(b"")
    code, out, _ = call("verify", step)
    assert code == 1 and "truncated, 0 bytes instead of" in out


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
def test_verify_finds_a_flipped_bit_in_one_rank_s_file(tmp_path: Path, step: Path, call: Call, form: str):
    strategy = write_strategy_files(tmp_path / "s", plan(1, 2, 2))
    call("shard", step, tmp_path / "out", "--strategy", strategy, "--format", form)
    code, out, _ = call("verify", tmp_path / "out", "--strategy", strategy)
    assert code == 0 and len(out.splitlines()) == 5 and "82 tensors lie where" in out
    flip_bit(tmp_path / "out" / "rank_3" / f"checkpoint_3.{form}")
    code, out, _ = call("verify", tmp_path / "out")
    damaged = [line for line in out.splitlines() if line.startswith("damaged")]
    assert code == 1 and len(damaged) == 1 and f"rank_3/checkpoint_3.{form}: its content changed" in damaged[0]
    (tmp_path / "out" / "rank_1" / f"checkpoint_1.{form}").unlink()
    code, out, _ = call("verify", tmp_path / "out")
    assert code == 1 and "missing, though checkpoint.json names it" in out


def test_verify_without_a_known_hash(tmp_path: Path, call: Call):
    train = plan(2, 2, 1)
    folder = write_ranks(tmp_path / "in", random_tensors(), layouts_of(train))
    strategy = write_strategy_files(tmp_path / "s", train)
    other = write_strategy_files(tmp_path / "other", plan(4, 1, 1))
    code, out, _ = call("verify", folder)
    assert code == 0 and out.count("header and sizes (no hash known)") == 4
    assert call("verify", folder, "--strategy", strategy)[0] == 0
    code, out, _ = call("verify", folder, "--strategy", other)
    assert code == 1 and "give the strategy of the run that wrote this checkpoint" in out
    path = folder / "rank_2" / "w.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    code, out, _ = call("verify", folder)
    assert code == 1 and "damaged  rank 2:" in out and "truncated" in out
    code, _, err = call("verify", tmp_path / "nowhere")
    assert code == 1 and "error: " in err


def test_list_of_ranks_and_of_a_file(tmp_path: Path, step: Path, call: Call):
    call("shard", step, tmp_path / "out", "--strategy", write_strategy_files(tmp_path / "s", plan(1, 2, 1)))
    code, out, _ = call("list", tmp_path / "out")
    assert code == 0 and "2 ranks, rank_*/checkpoint_*.safetensors" in out
    assert [line.split()[:3] for line in out.splitlines()[-2:]] == [
        ["0", "rank_0/checkpoint_0.safetensors", "82"],
        ["1", "rank_1/checkpoint_1.safetensors", "82"],
    ]
    whole = write_whole(tmp_path / "w.ckpt", random_tensors())
    assert call("list", whole)[1].splitlines()[-1].split() == ["0", "w.ckpt", "82", "9.0", "MiB", "F32,", "I64"]


# ----- shard, transform, merge
def test_shard_transform_merge_by_plans(tmp_path: Path, step: Path, config: Path, call: Call):
    code, out, err = call("shard", step, tmp_path / "a", "--plan", "1x4x2", "--config", config)
    assert (code, err) == (0, "")
    assert "writes   " in out and f"by plan 1x4x2 of {config}" in out and "read back and compared by XXH3" in out
    words = ("--src-plan", "1x4x2", "--dst-plan", "train", "--config", config, "--format", "ckpt", "--verify", "deep")
    code, out, _ = call("transform", tmp_path / "a", tmp_path / "b", *words)
    assert code == 0 and "every tensor compared with the source" in out
    assert call("merge", tmp_path / "b", tmp_path / "c", "--plan", "train", "--config", config)[0] == 0
    assert contents(tmp_path / "c") == contents(step)
    code, out, _ = call("merge", tmp_path / "b", tmp_path / "c.safetensors", "--plan", "train", "--config", config)
    assert code == 0 and "left out state.json" in out


def test_the_folder_of_generate_strategy(tmp_path: Path, step: Path, config: Path, call: Call):
    write_plan_files(*load_model_and_plans(config), tmp_path / "strategies")
    code, _, err = call("shard", step, tmp_path / "a", "--strategy", tmp_path / "strategies")
    assert code == 1 and "holds the strategies of reference, rollout, train; give one of them" in err
    code, _, err = call("shard", step, tmp_path / "a", "--strategy", tmp_path / "strategies" / "rollout")
    assert code == 1 and "--weights-only" in err
    words = ("--strategy", tmp_path / "strategies" / "rollout", "--weights-only", "--jobs", "1")
    assert call("shard", step, tmp_path / "a", *words)[0] == 0
    with open_tensors(tmp_path / "a" / "rank_7" / "checkpoint_7.safetensors") as file:
        assert not any(name.startswith("adamw.") for name in file.tensors)
        assert file.tensors["model.layers.1.mlp.up_proj.weight"].shape == (MODEL.intermediate_size // 2, 256)
    assert call("shard", step, tmp_path / "b", "--strategy", tmp_path / "strategies" / "train")[0] == 0


def test_the_newest_step_of_a_run_is_taken_and_told(tmp_path: Path, step: Path, config: Path, call: Call):
    write_step(tmp_path / "run", random_tensors(seed=1), step=8)
    code, out, _ = call("transform", tmp_path / "run", tmp_path / "w.safetensors")
    assert code == 0 and f"source   {step.parent / 'step_00000008'}: whole, step 8 of a run" in out
    for name, said in (
        ("big", "big: no plan; give train, reference, rollout, or data x model x pipeline"),
        ("1x3x1", "do not divide over model_parallel 3"),
    ):
        code, _, err = call("shard", step, tmp_path / "a", "--plan", name, "--config", config)
        assert code == 1 and said in err


@pytest.mark.parametrize(("words", "said"), [
    (("shard", "x", "y"), "say how to cut"),
    (("shard", "x", "y", "--plan", "1x2x1"), "a plan is for a model"),
    (("shard", "x", "y", "--plan", "1x2x1", "--strategy", "s", "--config", "c"), "not both"),
    (("transform", "x", "y", "--format", "bin"), "'bin' is not one of 'ckpt', 'safetensors'"),
    (("merge", "x", "y", "--verify", "maybe"), "'maybe' is not one of 'written', 'deep'"),
])  # fmt: skip
def test_wrong_words(call: Call, words: tuple[str, ...], said: str):
    code, _, err = call(*words)
    assert code == 2 and said in err.replace("\n", " ")


def test_the_tool_with_its_own_option_names(tmp_path: Path, step: Path):
    train = plan(2, 2, 1, optimizer_shard=True, vocab_emb_dp=False)
    strategy = write_strategy_files(tmp_path / "s", train, suffix=".json", compiled=True)

    def tool(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(TOOL), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    ended = tool("--src_checkpoint", step, "--dst_checkpoint", tmp_path / "a", "--dst_strategy", strategy)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0].startswith(f"source   {step}: whole, step 3 of a run")
    words = ("--src_checkpoint", tmp_path / "a", "--src_strategy", strategy, "--dst_checkpoint")
    ended = tool(*words, tmp_path / "back", "--verify", "deep", "--jobs", 1)
    assert ended.returncode == 0, ended.stderr
    assert contents(tmp_path / "back") == contents(step)
    ended = tool(*words, tmp_path / "back")
    assert ended.returncode == 1 and ended.stderr.startswith("error: ") and "already there" in ended.stderr


def test_more_ranks_than_files_may_be_open(tmp_path: Path):
    """64 ranks in a process that begins with a limit of 48 open files."""
    weights = random_tensors(())
    write_ranks(tmp_path / "in", weights, layouts_of(plan(8, 8, 1), prefixes=()))
    strategy = write_strategy_files(tmp_path / "s", plan(8, 8, 1))
    command = [sys.executable, str(TOOL), "--src_checkpoint", str(tmp_path / "in"), "--src_strategy", str(strategy)]
    command += ["--dst_checkpoint", str(tmp_path / "w.safetensors")]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (48, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    ended = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    with open_tensors(tmp_path / "w.safetensors") as file:
        assert all(file.read(name).tobytes() == array.tobytes() for name, array in weights.items())


def test_record_that_is_damaged(tmp_path: Path, step: Path, call: Call):
    strategy = write_strategy_files(tmp_path / "s", plan(1, 2, 1))
    call("shard", step, tmp_path / "a", "--strategy", strategy)
    record = tmp_path / "a" / "checkpoint.json"
    content = json.loads(record.read_text())
    content["files"]["../outside"] = {"size": 1, "xxh3_128": "0"}
    record.write_text(json.dumps(content))
    code, _, err = call("merge", tmp_path / "a", tmp_path / "w.safetensors", "--strategy", strategy)
    assert code == 1 and "checkpoint.json: damaged" in err and "outside" in err and "remove this file" in err
    record.unlink()
    assert call("merge", tmp_path / "a", tmp_path / "w.safetensors", "--strategy", strategy)[0] == 0
    with open_tensors(tmp_path / "w.safetensors") as file:
        np.testing.assert_array_equal(file.read("adamw.updates"), 7)


# ----- export
def test_export_of_the_newest_step(tmp_path: Path, call: Call):
    run = tmp_path / "run"
    run.mkdir()
    example = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo.yaml"
    text = example.read_text(encoding="utf-8").replace("../../", f"{example.parents[2]}/")
    (run / CONFIG_FILE).write_text(text, encoding="utf-8")
    shapes = weight_shapes(load_model_and_plans(example).model)
    for step in (1, 2):
        weights = {name: np.full(shape, step, np.float32) for name, shape in shapes.items()}
        write_step(run, {**weights, "adamw.updates": np.array(step, np.int64)}, step=step)
    code, out, err = call("export", run, tmp_path / "model", "--dtype", "bfloat16")
    assert (code, err) == (0, "") and "step 2 of a run" in out and f"{len(shapes)} weights" in out
    written = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors"} <= written
    with open_tensors(tmp_path / "model" / "model.safetensors") as file:
        assert file.tensors.keys() == shapes.keys()
        assert file.read("model.norm.weight")[0] == 0x4000  # 2.0 in bfloat16
    ranks = write_ranks(tmp_path / "in", random_tensors(), layouts_of(plan(1, 2, 1)))
    for source, said in ((run, "already there"), (ranks, "holds the files of 2 ranks; merge them first")):
        code, _, err = call("export", source, tmp_path / "model")
        assert code == 1 and said in err


# ----- Which file of a rank is taken: the newest save that all ranks have, whatever the files are called
def touch(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


def picked(folder: Path, prefix: str = "") -> list[str]:
    files, _ = pick_rank_files(folder, prefix=prefix)
    assert list(files) == list(range(len(files)))
    return [str(path.relative_to(folder)) for path in files.values()]


def test_saves_are_ordered_by_number_not_by_spelling(tmp_path: Path):
    """MindSpore's own order is by spelling, which takes 1_9 for newer than 1_10."""
    for rank in (0, 1):
        touch(tmp_path, *(f"rank_{rank}/w-{save}.ckpt" for save in ("1_9", "1_10", "2_1")))
    assert picked(tmp_path) == ["rank_0/w-2_1.ckpt", "rank_1/w-2_1.ckpt"]
    for rank in (0, 1):
        (tmp_path / f"rank_{rank}" / "w-2_1.ckpt").unlink()
    assert picked(tmp_path) == ["rank_0/w-1_10.ckpt", "rank_1/w-1_10.ckpt"]


def test_a_save_that_not_all_ranks_have_is_passed_over_and_told(tmp_path: Path):
    touch(tmp_path, "rank_0/w-1_10.ckpt", "rank_0/w-1_20.ckpt", "rank_1/w-1_10.ckpt", "rank_1/w-graph.meta")
    files, notes = pick_rank_files(tmp_path)
    assert files[0].name == "w-1_10.ckpt"
    assert tuple(notes) == (f"source   {tmp_path}: 2 ranks, rank_*/w-1_10.ckpt",
                           "ignored  1 older or incomplete save file: rank_0/w-1_20.ckpt")  # fmt: skip


def test_names_that_bear_the_rank(tmp_path: Path):
    for number, names in enumerate((
        [f"rank_{r}/qwen_rank_{r}-10_2.ckpt" for r in range(12)],
        [f"rank_{r}/checkpoint_{r}.safetensors" for r in range(11)],
        ["rank_0/0.ckpt", "rank_1/1.ckpt"],
        [f"net_rank_{r}.ckpt" for r in range(3)],
        ["rank_0/w_0.ckpt"],
    )):  # fmt: skip
        folder = touch(tmp_path / f"{number}", *names, *(name.replace("-10_2", "-9_2") for name in names))
        assert picked(touch(folder, "notes.txt")) == names and is_sharded(folder)
    assert is_sharded(touch(tmp_path / "a", "w_rank_3.safetensors"))
    assert not is_sharded(touch(tmp_path / "b", "w.safetensors", "rank_0.log", "rank_x/w.ckpt"))


def test_the_step_of_a_save_is_not_taken_for_a_rank(tmp_path: Path):
    touch(tmp_path, "rank_0/w-1_0.ckpt", "rank_1/w-1_1.ckpt")
    with pytest.raises(
        CheckpointError, match=r"no file name is common to the ranks 0 to 1, e.g. rank 0 has w-1_0.ckpt"
    ):
        pick_rank_files(tmp_path)


def test_two_kinds_are_told_apart_by_a_prefix_only(tmp_path: Path):
    touch(tmp_path, *(f"rank_{r}/{kind}-1_1.ckpt" for r in range(2) for kind in ("net", "best")))
    with pytest.raises(CheckpointError, match=r"best.ckpt and net.ckpt are there for every rank, .* --prefix"):
        pick_rank_files(tmp_path)
    assert picked(tmp_path, prefix="net") == ["rank_0/net-1_1.ckpt", "rank_1/net-1_1.ckpt"]
    with pytest.raises(CheckpointError, match=r"its ranks have no tensor files \(other\*.safetensors, other\*.ckpt\)"):
        pick_rank_files(tmp_path, prefix="other")


# ----- The benchmark of the checkpoint tools, on a checkpoint that takes no time
BENCH = Path(__file__).resolve().parents[3] / "tools" / "bench_checkpoint.py"


def test_a_small_round(tmp_path: Path):
    command = [sys.executable, str(BENCH), "--gib", "0.05", "--runs", "1", "--folder", str(tmp_path), "--format",
               "ckpt"]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["ranks"] == 8 and report["bytes"] / 8 < report["largest_shard"] < report["bytes"] / 4
    for way in ("shard", "merge"):
        figures = report[way]
        assert 0 < figures["seconds"] < figures["process_seconds"]
        assert figures["cp"] > 0 and figures["share_of_cp"] > 0 and figures["peak_rss"] > 1 << 20
    assert list(tmp_path.iterdir()) == []
