"""What is not transformed, in which words, and that nothing half-written is left behind."""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip_bit
from planned_checkpoints import (
    MODEL,
    contents,
    layouts_of,
    plan,
    random_tensors,
    rank_tensors,
    write_ranks,
    write_step,
    write_strategy_files,
    write_whole,
)

from mindgspo.checkpoint.transform import NewFile, TransformRequest, read_back, transform
from mindgspo.checkpoint.verify import tensor_digest
from mindgspo.checkpoint.whole_checkpoint import TensorBlocks, WholeCheckpoint
from mindgspo.errors import CheckpointError, WeightsError
from mindgspo.models.names import weight_shapes
from mindgspo.parallel.plans.parameter_layouts import parameter_layouts
from mindgspo.planner.strategy_files import single_source
from mindgspo.strategy.file import merge_strategies, write_strategies
from mindgspo.strategy.record import StoredLayout, Strategy
from mindgspo.tensor_files.reader import open_tensors

TOOL = Path(__file__).resolve().parents[3] / "tools" / "transform_checkpoint.py"
TRAIN = plan(2, 2, 2)


def run(source: Path, destination: Path, **request: Any) -> None:
    transform(TransformRequest(source=source, destination=destination, **request), note=lambda line: None)


@pytest.fixture
def strategy(tmp_path: Path) -> Strategy:
    return single_source(write_strategy_files(tmp_path / "s", TRAIN))


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """A sound checkpoint of 2 x 2 x 2."""
    return write_ranks(tmp_path / "in", random_tensors(), layouts_of(TRAIN), name="w.ckpt")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write_whole(tmp_path / "w.safetensors", random_tensors())


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# ----- the source
@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
def test_a_truncated_shard(tmp_path: Path, strategy: Strategy, suffix: str):
    folder = write_ranks(tmp_path / "cut", random_tensors(), layouts_of(TRAIN), name=f"w{suffix}")
    path = folder / "rank_5" / f"w{suffix}"
    os.truncate(path, path.stat().st_size - 100)
    before = names(tmp_path)
    with pytest.raises(WeightsError, match=rf"rank_5/w{suffix}: truncated, damaged or unreadable .* Copy"):
        run(folder, tmp_path / "out.safetensors", source_strategy=strategy)
    assert names(tmp_path) == before


def test_a_rank_without_a_file_and_ranks_without_a_strategy(tmp_path, strategy, ranks, whole):
    out = tmp_path / "out.safetensors"
    with pytest.raises(CheckpointError, match=r"holds files of 8 ranks, and no strategy says how they were cut"):
        run(ranks, out)
    with pytest.raises(CheckpointError, match=r"w.safetensors: holds files of 1 rank, and .* arranges 8"):
        run(whole, out, source_strategy=strategy)
    shutil.rmtree(ranks / "rank_7")
    with pytest.raises(CheckpointError, match=r"holds files of 7 ranks, and .* arranges 8 \(2 stage\(s\) of 4 ranks\)"):
        run(ranks, out, source_strategy=strategy)
    shutil.rmtree(ranks / "rank_2")
    (ranks / "rank_4" / "w.ckpt").unlink()
    missing = r"in: rank\(s\) 2, 4 of 0 to 6 without a tensor file .* copy the missing files"
    with pytest.raises(CheckpointError, match=missing):
        run(ranks, out, source_strategy=strategy)


def test_the_strategy_of_one_stage_alone(tmp_path: Path, ranks: Path):
    write_strategy_files(tmp_path / "s", TRAIN)
    stage_0, stage_1 = (single_source(tmp_path / "s" / f"ckpt_strategy_rank_{rank}.ckpt") for rank in (0, 4))
    with pytest.raises(CheckpointError, match=r"of pipeline stage 1 alone, stage 0 is missing; give the folder"):
        run(ranks, tmp_path / "out.safetensors", source_strategy=stage_1)
    with pytest.raises(CheckpointError, match=r"holds files of 8 ranks, and .* arranges 4 \(1 stage\(s\) of 4 ranks\)"):
        run(ranks, tmp_path / "out.safetensors", source_strategy=stage_0)


@pytest.mark.parametrize("other", [plan(4, 1, 2), plan(2, 4, 1), plan(1, 4, 2), plan(8, 1, 1)], ids=str)
def test_the_strategy_of_another_plan_of_as_many_ranks(tmp_path: Path, ranks: Path, other: Any):
    wrong = single_source(write_strategy_files(tmp_path / "other", other))
    before = names(tmp_path)
    with pytest.raises(CheckpointError, match="give the strategy of the run that wrote this checkpoint"):
        run(ranks, tmp_path / "out.safetensors", source_strategy=wrong)
    assert names(tmp_path) == before


def test_ranks_whose_tensors_do_not_agree(tmp_path: Path, strategy: Strategy, ranks: Path):
    slices = rank_tensors(random_tensors(), layouts_of(TRAIN))
    first, missing = next(iter(slices[1])), list(slices[3])[-2]
    half = {first: slices[1][first].astype(np.float16)}
    for rank, tensors, message in (
        (1, {**slices[1], **half}, rf"rank_1/w.ckpt: {first} is F16 on rank 1 and F32 on rank 0"),
        (6, {**slices[6], "adamw.updates": np.array(8)}, r"rank_6/w.ckpt: adamw.updates differs from that of rank 0"),
        (3, dict(list(slices[3].items())[:-2]), rf"rank 3 lacks {missing}, .* the file may be cut short"),
    ):
        path = ranks / f"rank_{rank}" / "w.ckpt"
        sound = path.read_bytes()
        write_whole(path, tensors)
        with pytest.raises(CheckpointError, match=message):
            run(ranks, tmp_path / "out.safetensors", source_strategy=strategy)
        path.write_bytes(sound)


def test_replicas_that_differ_far_inside_are_found_by_the_deep_proof(tmp_path: Path, strategy: Strategy):
    folder = write_ranks(tmp_path / "in", random_tensors(), layouts_of(TRAIN))
    path = folder / "rank_2" / "w.safetensors"
    flip_bit(path, path.stat().st_size // 2)
    run(folder, tmp_path / "fast.safetensors", source_strategy=strategy)
    before = names(tmp_path)
    with pytest.raises(CheckpointError, match=r"rank_2/w.safetensors: .* differs from that of rank 0.* is damaged"):
        run(folder, tmp_path / "deep.safetensors", source_strategy=strategy, deep=True)
    assert names(tmp_path) == before


def test_what_is_no_checkpoint(tmp_path: Path, whole: Path):
    out, folder = tmp_path / "out.safetensors", tmp_path / "model"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "weights.ckpt").write_bytes(b"")
    (tmp_path / "w.bin").write_bytes(b"\x80\x04\x95pickled")
    write_whole(folder / "model-1.safetensors", {"a": np.ones(3, np.float32), "b": np.ones(2, np.float32)})
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    for error, source, destination, message in (
        (CheckpointError, tmp_path / "nowhere", out, "nowhere: no such file or folder; give a tensor file or"),
        (CheckpointError, tmp_path / "notes", out, "notes: no checkpoint: .* give the file, .*notes/weights.ckpt"),
        (WeightsError, tmp_path / "w.bin", out, "pickled weights are never loaded"),
        (WeightsError, folder, out, r"(?s)model-1.safetensors: does not agree .*not placed there.*    b"),
        (CheckpointError, whole, tmp_path / "out", "out: without a strategy .* end its name in .safetensors or .ckpt"),
    ):
        with pytest.raises(error, match=message):
            run(source, destination)


# ----- the strategy and the model
@pytest.mark.parametrize(("changes", "said"), [
    ({"num_hidden_layers": 4}, r"24 of 51 names in it are not the model's.*it has 4 layers, the model 2"),
    ({"num_hidden_layers": 1}, r"no entry for .*, though others of that kind have one; it is of a smaller model"),
    ({"tie_word_embeddings": True}, None),
], ids=["deeper", "shallower", "tied"])  # fmt: skip
def test_the_strategy_of_another_model(tmp_path: Path, whole: Path, changes: dict, said: str | None):
    model = MODEL.model_copy(update=changes)
    shapes = weight_shapes(model)
    two = plan(1, 2, 1)
    files = write_strategies(tmp_path / "s", parameter_layouts(shapes, model, two), plan=two)
    wrong = merge_strategies(files)
    before = names(tmp_path)
    if said is None:  # the output table has no entry and no kin: it is whole, which the notes say
        run(whole, tmp_path / "out", destination_strategy=wrong, weights_only=True)
        assert "lm_head.weight" in open_tensors(tmp_path / "out" / "rank_1" / "checkpoint_1.safetensors").tensors
        return
    with pytest.raises((WeightsError, CheckpointError), match=said):
        run(whole, tmp_path / "out", destination_strategy=wrong, weights_only=True)
    assert names(tmp_path) == before


def test_a_strategy_that_does_not_divide_the_tensors(tmp_path: Path):
    source = write_whole(tmp_path / "w.ckpt", {"w": np.ones((6, 4), np.float32)})
    for tensor_map, message in (
        ((0, -1), r"\(6, 4\) in the model does not divide into \(4, 1\) slices"),
        ((0,), r"1 axes in the file, 2 in the model"),
    ):
        stored = StoredLayout(device_matrix=(4,), tensor_map=tensor_map)
        with pytest.raises(WeightsError, match=message):
            run(source, tmp_path / "out", destination_strategy=Strategy(stages={0: {"w": stored}}))


def test_state_that_the_strategy_forgets(tmp_path: Path, whole: Path):
    layouts = layouts_of(plan(1, 2, 1), prefixes=())
    bare = merge_strategies(write_strategies(tmp_path / "s", layouts, plan=plan(1, 2, 1)))
    with pytest.raises(
        CheckpointError, match=r"no entry for adamw.m.* and 39 more, .* leave it out with --weights-only"
    ):
        run(whole, tmp_path / "out", destination_strategy=bare)
    run(whole, tmp_path / "out", destination_strategy=bare, weights_only=True)


# ----- the destination
def test_what_stands_at_the_destination_stays(tmp_path: Path, whole: Path, strategy: Strategy):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("kept")
    (tmp_path / "out.safetensors").write_text("kept too")
    before = contents(tmp_path)
    for destination, request in (("out", {"destination_strategy": strategy}), ("out.safetensors", {})):
        with pytest.raises(CheckpointError, match=rf"{destination}: already there, and nothing is replaced; move it"):
            run(whole, tmp_path / destination, **request)
    assert contents(tmp_path) == before
    (tmp_path / "empty").mkdir()
    run(whole, tmp_path / "empty", destination_strategy=strategy)
    assert len(list((tmp_path / "empty").glob("rank_*"))) == 8


def test_a_run_s_step_without_its_optimizer_state_is_no_step(tmp_path: Path, strategy: Strategy):
    step = write_step(tmp_path / "run", random_tensors())
    with pytest.raises(CheckpointError, match=r"made only of a run's step with its state.json and all optimizer state"):
        run(step, tmp_path / "out", weights_only=True)
    run(step, tmp_path / "ranks", destination_strategy=strategy, weights_only=True)
    with pytest.raises(CheckpointError, match=r"made only of a run's step"):
        run(tmp_path / "ranks", tmp_path / "out", source_strategy=strategy)


def test_a_source_that_is_not_what_its_manifest_says(tmp_path: Path, strategy: Strategy):
    """Seen by the deep proof alone: SHA-256 takes longer than the transform."""
    step = write_step(tmp_path / "run", random_tensors())
    flip_bit(step / "parameters.safetensors")
    with pytest.raises(CheckpointError, match=r"parameters.safetensors: its content changed after it was saved"):
        run(step, tmp_path / "out", destination_strategy=strategy, deep=True)
    assert names(tmp_path) == {"run", "s"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_while_files_are_written(tmp_path: Path, whole: Path, strategy: Strategy, monkeypatch, jobs: int):
    calls = itertools.count()
    blocks = WholeCheckpoint.blocks

    def interrupted(self: WholeCheckpoint, name: str, *, near: int = 0) -> TensorBlocks:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return blocks(self, name, near=near)

    monkeypatch.setattr(WholeCheckpoint, "blocks", interrupted)
    before = names(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(whole, tmp_path / "out", destination_strategy=strategy, jobs=jobs)
    assert names(tmp_path) == before


def test_too_little_room_is_seen_before(tmp_path: Path):
    """A file with a hole: it says to hold twice what is free, and takes no room itself."""
    size = 2 * shutil.disk_usage(tmp_path).free // 4 * 4
    text = f'{{"w":{{"dtype":"F32","shape":[{size // 4}],"data_offsets":[0,{size}]}}}}'.encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    try:
        os.truncate(path, path.stat().st_size + size)
    except OSError as error:
        pytest.skip(f"this file system makes no file of {size:,} bytes with a hole: {error}")
    with pytest.raises(
        CheckpointError,
        match=r"out.ckpt: needs [\d,.]+ MiB and a reserve of 16.0 MiB, and [\d,.]+ MiB are free in .*; make room",
    ):
        run(path, tmp_path / "out.ckpt")


@pytest.mark.parametrize("kind", ["file", "ranks", "step"])
def test_a_full_disk(tmp_path: Path, kind: str):
    """A child that may not write beyond 1 MiB per file, as if there were no room behind it."""
    step = write_step(tmp_path / "run", random_tensors())
    write_strategy_files(tmp_path / "s", plan(1, 2, 1))
    command = [sys.executable, str(TOOL), "--src_checkpoint", str(step)]
    command += ["--dst_checkpoint", str(tmp_path / ("out.ckpt" if kind == "file" else "out"))]
    command += ["--dst_strategy", str(tmp_path / "s")] if kind == "ranks" else []
    before = contents(tmp_path)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    ended = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1, ended.stderr
    assert "cannot be written: the file would be larger than the limit" in ended.stderr
    assert "nothing is left there, the source is untouched" in ended.stderr and "Traceback" not in ended.stderr
    assert contents(tmp_path) == before
    assert names(tmp_path) == {"run", "s"}


def test_leftovers_of_a_killed_process_are_cleared(tmp_path: Path, whole: Path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".out.ckpt.tmp-{dead.pid}").mkdir()
    (tmp_path / f".out.ckpt.tmp-{dead.pid}" / "out.ckpt").write_bytes(b"half")
    run(whole, tmp_path / "out.ckpt")
    assert names(tmp_path) == {"w.safetensors", "out.ckpt"}


# ----- reading back
def test_a_file_that_reads_back_differently(tmp_path: Path, whole: Path):
    path = tmp_path / "out.safetensors"
    run(whole, path)
    with open_tensors(path) as file:
        digests = {name: tensor_digest(file, name, advance=lambda count: None) for name in file.tensors}
        new = NewFile(name=path.name, rank=0, infos=file.tensors, slices={})
    read_back(path, new, digests, advance=lambda count: None)
    flip_bit(path)
    last = list(new.infos)[-1]
    with pytest.raises(
        CheckpointError, match=rf"{last}, read back, differs from what was written \(XXH3 [0-9a-f]{{32}}"
    ):
        read_back(path, new, digests, advance=lambda count: None)
