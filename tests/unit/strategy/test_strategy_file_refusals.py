"""Strategy files that are cut, foreign, contradictory or cannot be written: what is refused, and in which words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_plans import moments, plan, weights, write_strategy

from mindgspo.errors import CheckpointError, ConfigError
from mindgspo.strategy.file import read_strategy, save_strategy, strategy_map_message, write_strategies
from mindgspo.strategy.record import StoredLayout, Strategy

Q, K = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"
NORM = "model.norm.weight"


def test_cut_files_are_refused_or_hold_less(tmp_path: Path):
    train, path = plan(1, 2, 1), tmp_path / "s"
    names = [Q, K, NORM]
    layouts = {name: weights(train)[name] for name in names}
    write_strategy(tmp_path / "whole.ckpt", layouts, plan=train, rank=0)
    content = (tmp_path / "whole.ckpt").read_bytes()
    whole = []
    for length in range(len(content)):
        path.write_bytes(content[:length])
        try:
            found = list(read_strategy(path).stages[0])
        except CheckpointError as error:
            assert str(path) in str(error) and "expected a MindSpore strategy file" in str(error)
        else:
            whole.append(found)
    # Cuts exactly between two entries; check_fits tells them from a whole file.
    assert whole == [names[:1], names[:2]]
    write_strategy(tmp_path / "whole.json", layouts, plan=train, rank=0)
    content = (tmp_path / "whole.json").read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"/s: .*; expected a MindSpore strategy file"):
            read_strategy(path)


@pytest.mark.parametrize(("content", "said"), [
    (b"", "the file is empty"),
    (b"hello", "its 5 bytes are no ParallelStrategyMap"),
    (b"\x58\x00\x00\x00\x00\x00\x00\x00{}", "are no ParallelStrategyMap"),
    (b"\x08\x01", "it names no parameter"),
    (b"[" * 100_000, "are no JSON"),
    (b"[1]", "key 'parallel_layout_item' with the layouts of parameters is missing"),
    (b'{"parallel_strategy_item": {}}', "it holds strategies of operators only"),
    (b'{"parallel_layout_item": {}}', "it names no parameter"),
    (b'{"parallel_layout_item": {"w": 3}}', "w: no map of fields"),
    (b'{"parallel_layout_item": {"w": {"dev_matrix": "2"}}}', "w: dev_matrix is '2', not a list of integers"),
    (b'{"parallel_layout_item": {"w": {"dev_matrix": [2, true]}}}', "not a list of integers"),
])  # fmt: skip
def test_other_content_is_refused(tmp_path: Path, content: bytes, said: str):
    path = tmp_path / "s.ckpt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as refusal:
        read_strategy(path)
    assert str(refusal.value).startswith(f"{path}: ") and said in str(refusal.value)
    assert len(str(refusal.value)) < 500


def test_files_that_are_not_there_or_too_large(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"none.ckpt: cannot be read \(No such file"):
        read_strategy(tmp_path / "none.ckpt")
    with pytest.raises(CheckpointError, match=r"cannot be read \(Is a directory\)"):
        read_strategy(tmp_path)
    with (tmp_path / "weights.ckpt").open("wb") as file:
        file.truncate(1 << 40)  # without content: takes no room
    with pytest.raises(CheckpointError, match=r"1099511627776 bytes are more than any strategy has"):
        read_strategy(tmp_path / "weights.ckpt")


def entry(**changes: Any) -> dict[str, Any]:
    fields = {"dev_matrix": [2, 4], "tensor_map": [0, -1], "tensor_shape": [8, 8], "field": 0}
    return {**fields, "opt_weight_shard_step": 0, "opt_weight_shard_size": 0, **changes}


@pytest.mark.parametrize(("changes", "said"), [
    ({"dev_matrix": [0, 4]}, "w: device matrix (0, 4) must have sizes of at least 1"),
    ({"dev_matrix": [1 << 40]}, "arrange at most 1048576 devices"),
    ({"tensor_map": [2, -1]}, "w: tensor map (2, -1) may name each device axis of (2, 4), 0 to 1"),
    ({"tensor_map": [0]}, "tensor map (0,) has 1 entries for the shape (8, 8)"),
    ({"opt_weight_shard_size": 3, "opt_weight_shard_step": 4}, "held by 2 ranks; legal: -1, 0 or a divisor of 2"),
    ({"opt_weight_shard_size": -2, "opt_weight_shard_step": 4}, "opt_weight_shard_size -2 does not fit"),
    ({"opt_weight_shard_size": 2, "opt_weight_shard_step": 2}, "opt_weight_shard_step 2 contradicts"),
    ({"field": None}, "w: field is None, not an integer"),
])  # fmt: skip
def test_entries_that_are_no_layout_are_refused(tmp_path: Path, changes: dict[str, Any], said: str):
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"parallel_layout_item": {"w": entry(**changes)}}))
    with pytest.raises(CheckpointError) as refusal:
        read_strategy(path)
    assert said in str(refusal.value)


def test_entries_that_contradict_each_other_are_refused(tmp_path: Path):
    path = tmp_path / "s.json"
    for entries, said in (
        ({"v": entry(), "w": entry(dev_matrix=[2, 2])},
            r"w \(stage 0\): device matrix \(2, 2\) arranges 4 ranks, other entries 8"),
        ({"0-v": entry(), "w": entry()}, r"names of merged stages \('0-...'\) stand beside plain ones"),
    ):  # fmt: skip
        path.write_text(json.dumps({"parallel_layout_item": entries}))
        with pytest.raises(CheckpointError, match=said):
            read_strategy(path)


def test_a_protobuf_entry_without_matrix_or_named_twice_is_refused(tmp_path: Path):
    def write(change: Callable[[Any], None]) -> Path:
        message = strategy_map_message()()
        message.current_stage = 1
        for _ in range(2):
            item = message.parallel_layout_item.add(param_name="w")
            layouts = item.parallel_layouts
            layouts.field = layouts.opt_weight_shard_step = layouts.opt_weight_shard_size = 0
            layouts.dev_matrix.add().dim.append(2)
            layouts.tensor_map.add().dim.append(0)
        change(message)
        (tmp_path / "s.ckpt").write_bytes(message.SerializeToString())
        return tmp_path / "s.ckpt"

    with pytest.raises(CheckpointError, match=r"w: named twice"):
        read_strategy(write(lambda message: None))
    with pytest.raises(CheckpointError, match=r"w: 0 device matrices and 1 tensor maps; expected 1 and at least 1"):
        read_strategy(write(lambda message: message.parallel_layout_item[0].parallel_layouts.ClearField("dev_matrix")))


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path):
    shared, path = plan(2, 4, 1, optimizer_shard=True), tmp_path / "s.json"
    write_strategy(path, weights(shared), plan=shared, rank=0)
    old = path.read_bytes()
    with pytest.raises(CheckpointError, match=r"s.json: .*weight: tensor map .*write a .ckpt file"):
        write_strategy(path, moments(shared), plan=shared, rank=0)
    with pytest.raises(CheckpointError, match=r"the JSON form holds the full shape, which is not known"):
        save_strategy(path, Strategy(stages={0: {"w": StoredLayout(device_matrix=(2,), tensor_map=(0,))}}))
    assert path.read_bytes() == old and [file.name for file in tmp_path.iterdir()] == ["s.json"]
    dashed = {"w-1": weights(shared)[Q]}
    with pytest.raises(CheckpointError, match=r"s.ckpt: w-1: MindSpore takes what stands before a '-' for a pipeline"):
        write_strategy(tmp_path / "s.ckpt", dashed, plan=shared, rank=0)
    with pytest.raises(CheckpointError, match=r"ends in .ckpt \(protobuf\) or .json, not in '.pb'"):
        write_strategy(tmp_path / "s.pb", weights(shared), plan=shared, rank=0)


def test_ranks_and_layouts_of_another_plan_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"rank 8: the plan 1 x 4 x 2 has the ranks 0 to 7"):
        write_strategy(tmp_path / "s.ckpt", weights(plan(1, 4, 2)), plan=plan(1, 4, 2), rank=8)
    with pytest.raises(ConfigError, match=r"rank 4: none of the 1 layouts has a parameter on stage 1"):
        write_strategy(tmp_path / "s.ckpt", {Q: weights(plan(1, 4, 2))[Q]}, plan=plan(1, 4, 2), rank=4)
    with pytest.raises(AssertionError, match=r"is not one of a plan whose stage has"):
        write_strategy(tmp_path / "s.ckpt", weights(plan(1, 4, 2)), plan=plan(2, 4, 1), rank=0)
    assert not list(tmp_path.iterdir())


def test_a_folder_with_files_of_other_ranks_is_refused(tmp_path: Path):
    small, large = plan(1, 4, 1), plan(2, 4, 1)
    paths = write_strategies(tmp_path, weights(large), plan=large)
    assert write_strategies(tmp_path, weights(large), plan=large) == paths
    said = r"holds 4 file\(s\) beside those of the 4 ranks of 1 x 4 x 1, first ckpt_strategy_rank_4.ckpt; MindSpore"
    with pytest.raises(CheckpointError, match=said):
        write_strategies(tmp_path, weights(small), plan=small)
    with pytest.raises(CheckpointError, match=r"holds 8 file\(s\) beside .*strategy_rank_0.ckpt"):
        write_strategies(tmp_path, weights(large), plan=large, suffix=".json")
