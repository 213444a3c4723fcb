"""A checkpoint goes from plan to plan and comes back as it was, and every rank gets its slices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planned_checkpoints import (
    SHAPES,
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

from mindgspo.checkpoint.transform import TransformRequest, transform
from mindgspo.checkpoint.whole_checkpoint import TensorBlocks
from mindgspo.parallel.plans.layout import Layout, TensorSlice
from mindgspo.planner.strategy_files import single_source
from mindgspo.strategy.file import read_strategy
from mindgspo.strategy.record import StoredLayout, Strategy
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import TensorInfo
from mindgspo.tensor_files.writer import read_safetensors, write_tensors


def run(source: Path, destination: Path, **request: Any) -> list[str]:
    """Transform; returns what it said."""
    said: list[str] = []
    transform(TransformRequest(source=source, destination=destination, **request), note=said.append, shows_bar=False)
    return said


def assert_ranks(folder: Path, expected: dict[int, dict[str, np.ndarray]]) -> None:
    """Every rank's one file has these tensors and no others, bit for bit."""
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == sorted(f"rank_{r}" for r in expected)
    for rank, tensors in expected.items():
        (path,) = (folder / f"rank_{rank}").iterdir()
        with open_tensors(path) as file:
            assert file.tensors.keys() == tensors.keys(), rank
            for name, array in tensors.items():
                found = file.read(name)
                assert found.dtype == array.dtype and found.shape == array.shape, (rank, name)
                assert found.tobytes() == array.tobytes(), (rank, name)


# ----- there and back
@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
@pytest.mark.parametrize("kind", ["plain", "ours", "compiled"])
def test_one_to_eight_to_other_eight_to_one_is_the_same(tmp_path: Path, suffix: str, kind: str):
    """kind: without optimizer shards, with ours, with those that MindSpore's compiler makes."""
    tensors = random_tensors()
    kept = {"reference": {name: tensors[name] + 1 for name in SHAPES}, "surplus": {"ids": np.arange(5, dtype=np.int32)}}
    step = write_step(tmp_path / "run", tensors, kept=kept)
    changes = {} if kind == "plain" else {"optimizer_shard": True, "vocab_emb_dp": False}
    first, second = plan(1, 4, 2, **changes), plan(2, 4, 1, **changes)
    compiled = kind == "compiled"
    one = single_source(write_strategy_files(tmp_path / "s1", first, compiled=compiled))
    two = single_source(write_strategy_files(tmp_path / "s2", second, compiled=compiled))
    run(step, tmp_path / "a", destination_strategy=one, suffix=suffix, deep=True)
    assert_ranks(tmp_path / "a", rank_tensors(tensors, layouts_of(first, compiled=compiled)))
    run(tmp_path / "a", tmp_path / "b", source_strategy=one, destination_strategy=two)
    assert_ranks(tmp_path / "b", rank_tensors(tensors, layouts_of(second, compiled=compiled)))
    assert {path.suffix for path in (tmp_path / "b").glob("rank_*/*")} == {suffix}
    assert {path.name for path in (tmp_path / "b").glob("*.safetensors")} == {f"{name}.safetensors" for name in kept}
    run(tmp_path / "b", tmp_path / "c", source_strategy=two, deep=True)
    run(tmp_path / "b", tmp_path / "d", source_strategy=two, destination_strategy=one, weights_only=True)
    assert not list((tmp_path / "d").glob("*.safetensors")), "they belong to a run that goes on"
    assert contents(tmp_path / "c") == contents(step)


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
def test_a_single_file_comes_back_byte_for_byte_from_the_other_format(tmp_path: Path, suffix: str):
    whole = write_whole(tmp_path / f"w{suffix}", random_tensors())
    other = ".ckpt" if suffix == ".safetensors" else ".safetensors"
    strategy = single_source(write_strategy_files(tmp_path / "s", plan(2, 2, 2, optimizer_shard=True)))
    run(whole, tmp_path / "ranks", destination_strategy=strategy, suffix=other)
    run(tmp_path / "ranks", tmp_path / f"back{suffix}", source_strategy=strategy)
    assert (tmp_path / f"back{suffix}").read_bytes() == whole.read_bytes()


def test_not_waiting_for_the_disk_changes_nothing_but_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = []
    monkeypatch.setattr("os.fsync", lambda descriptor: calls.append(descriptor))
    whole = write_whole(tmp_path / "w.safetensors", random_tensors())
    strategy = single_source(write_strategy_files(tmp_path / "s", plan(1, 4, 2)))
    calls.clear()
    run(whole, tmp_path / "quick", destination_strategy=strategy, sync=False)
    num_record = len(calls)  # the small record beside the files is made as always
    run(whole, tmp_path / "waiting", destination_strategy=strategy)
    assert num_record < 8 < len(calls) - num_record
    assert (tmp_path / "quick/checkpoint.json").read_bytes() == (tmp_path / "waiting/checkpoint.json").read_bytes()
    for file in (tmp_path / "waiting").glob("rank_*/*"):
        assert (tmp_path / "quick" / file.relative_to(tmp_path / "waiting")).read_bytes() == file.read_bytes()


def test_the_number_of_threads_changes_nothing(tmp_path: Path):
    tensors, train = random_tensors(), plan(1, 4, 2)
    write_ranks(tmp_path / "in", tensors, layouts_of(train))
    strategy = single_source(write_strategy_files(tmp_path / "s", train))
    expected = write_whole(tmp_path / "expected.safetensors", tensors).read_bytes()
    for jobs in (1, 2, 5):
        run(tmp_path / "in", tmp_path / f"{jobs}.safetensors", source_strategy=strategy, jobs=jobs)
        assert (tmp_path / f"{jobs}.safetensors").read_bytes() == expected


def test_strategies_are_read_from_merged_files_and_json_and_for_one_rank_too(tmp_path: Path):
    tensors = random_tensors()
    step = write_step(tmp_path / "run", tensors)
    found = []
    for suffix, merged in ((".ckpt", False), (".ckpt", True), (".json", False), (".json", True)):
        path = write_strategy_files(tmp_path / f"s{suffix}{merged}", plan(1, 2, 2), suffix=suffix, merged=merged)
        out = tmp_path / f"out{len(found)}"
        run(step, out, destination_strategy=single_source(path))
        found.append({name: digest for name, digest in contents(out).items() if name.startswith("rank_")})
    assert found[0] == found[1] == found[2] == found[3]
    whole = write_whole(tmp_path / "w.safetensors", tensors)
    one = single_source(write_strategy_files(tmp_path / "one", plan(1, 1, 1)))
    run(whole, tmp_path / "out", destination_strategy=one)
    one = read_strategy(tmp_path / "one" / "ckpt_strategy_rank_0.ckpt")
    run(tmp_path / "out", tmp_path / "back.safetensors", source_strategy=one)
    assert (tmp_path / "back.safetensors").read_bytes() == whole.read_bytes()


def test_what_was_cut_elsewhere_merges_in_the_order_of_the_ranks(tmp_path: Path):
    """Without our record: as the safetensors library orders, or, for ckpt, as the ranks' files have them."""
    tensors, train = random_tensors(), plan(1, 2, 2)
    strategy = single_source(write_strategy_files(tmp_path / "s", train))
    for suffix in (".safetensors", ".ckpt"):
        source = write_ranks(tmp_path / f"in{suffix}", tensors, layouts_of(train), name=f"w{suffix}")
        run(source, tmp_path / f"w{suffix}", source_strategy=strategy)
        with open_tensors(tmp_path / f"w{suffix}") as file:
            assert file.tensors.keys() == tensors.keys()
            assert [name for name, array in tensors.items() if file.read(name).tobytes() != array.tobytes()] == []
    first_rank = open_tensors(tmp_path / "in.ckpt" / "rank_0" / "w.ckpt").tensors
    assert list(open_tensors(tmp_path / "w.ckpt").tensors)[: len(first_rank)] == list(first_rank)


# ----- what tensors may be
def test_tensors_without_an_entry_are_whole_on_every_rank(tmp_path: Path):
    tensors = {**random_tensors(), "global_step": np.array(5, np.int32), "rope.table": np.ones((3, 2), np.float16)}
    whole = write_whole(tmp_path / "w.safetensors", tensors)
    train = plan(1, 2, 2)
    strategy = single_source(write_strategy_files(tmp_path / "s", train))
    said = run(whole, tmp_path / "out", destination_strategy=strategy)
    assert_ranks(tmp_path / "out", rank_tensors(tensors, layouts_of(train)))
    (line,) = [line for line in said if line.startswith("whole ")]
    assert "3 tensors" in line and "rope.table" in line and "destination's strategy" in line


def test_moments_under_mindspore_s_names(tmp_path: Path):
    prefixes = ("adam_m.", "adam_v.", "accu_grads.")
    tensors = random_tensors(prefixes)
    train = plan(2, 2, 1, optimizer_shard=True, vocab_emb_dp=False)
    layouts = layouts_of(train, prefixes=prefixes)
    entries = {
        name: StoredLayout(device_matrix=one.device_matrix, tensor_map=one.tensor_map) for name, one in layouts.items()
    }
    strategy = Strategy(stages={0: entries})
    write_ranks(tmp_path / "in", tensors, layouts)
    run(tmp_path / "in", tmp_path / "w.safetensors", source_strategy=strategy, deep=True)
    found = read_safetensors(tmp_path / "w.safetensors")
    assert found.keys() == tensors.keys()
    assert all(found[name].tobytes() == tensors[name].tobytes() for name in tensors)


def test_weights_only_leaves_all_state_out(tmp_path: Path):
    tensors = random_tensors(("adamw.m.", "adam_v."))
    whole = write_whole(tmp_path / "w.ckpt", tensors)
    run(whole, tmp_path / "weights.safetensors", weights_only=True)
    assert read_safetensors(tmp_path / "weights.safetensors").keys() == SHAPES.keys()


def test_experts_stacked_on_a_third_axis_in_bfloat16(tmp_path: Path):
    """[E, I, H] over experts and columns; one expert is larger than a chunk."""
    random = np.random.default_rng(1)
    shape = (4, 768, 1024)
    bits = random.integers(0, 2**16, shape, dtype=np.uint16)
    infos = {"experts.w1": TensorInfo(dtype="BF16", shape=shape)}
    write_tensors(tmp_path / "w.safetensors", infos, [("experts.w1", bits)])
    by_expert = StoredLayout(device_matrix=(2, 4), tensor_map=(1, 0, -1))
    by_column = StoredLayout(device_matrix=(2, 2, 2), tensor_map=(-1, 2, (0, 1)))
    one, two = (Strategy(stages={0: {"experts.w1": stored}}) for stored in (by_expert, by_column))
    run(tmp_path / "w.safetensors", tmp_path / "a", destination_strategy=one)
    with open_tensors(tmp_path / "a" / "rank_6" / "checkpoint_6.safetensors") as file:
        np.testing.assert_array_equal(file.read("experts.w1"), bits[2:4, 384:576])
    run(tmp_path / "a", tmp_path / "b", source_strategy=one, destination_strategy=two)
    with open_tensors(tmp_path / "b" / "rank_5" / "checkpoint_5.safetensors") as file:  # rank 5 is (1, 0, 1)
        np.testing.assert_array_equal(file.read("experts.w1"), bits[:, 384:, 512:768])
    run(tmp_path / "b", tmp_path / "back.safetensors", source_strategy=two, deep=True)
    assert (tmp_path / "back.safetensors").read_bytes() == (tmp_path / "w.safetensors").read_bytes()


def test_a_hugging_face_folder_of_shards_and_its_metadata(tmp_path: Path):
    folder = tmp_path / "model"
    folder.mkdir()
    halves = {"model-1.safetensors": ["a", "b"], "model-2.safetensors": ["c"]}
    arrays = {name: np.full((8, 4), number, np.float32) for number, name in enumerate("abc")}
    for file, names in halves.items():
        infos = {name: TensorInfo(dtype="F32", shape=(8, 4)) for name in names}
        write_tensors(folder / file, infos, [(name, arrays[name]) for name in names], metadata={"format": "pt"})
    places = ", ".join(f'"{name}": "{file}"' for file, names in halves.items() for name in names)
    (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {{{places}}}}}')
    entries = {name: StoredLayout(device_matrix=(2,), tensor_map=(0, -1)) for name in arrays}
    run(folder, tmp_path / "out", destination_strategy=Strategy(stages={0: entries}))
    with open_tensors(tmp_path / "out" / "rank_1" / "checkpoint_1.safetensors") as file:
        assert file.metadata == {"format": "pt"}
        assert file.read("c").tolist() == [[2.0] * 4] * 4


# ----- blocks
@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    """Any layout of a shape whose axes are multiples of 12."""
    matrix = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3))
    axes = draw(st.permutations(range(len(matrix))))
    used = axes[: draw(st.integers(0, min(len(axes), len(shape))))]
    places = draw(st.permutations(range(len(shape))))[: len(used)]
    tensor_map = [-1] * len(shape)
    for axis, place in zip(used, places, strict=True):
        tensor_map[place] = axis
    size = int(np.prod(matrix))
    ranks = tuple(draw(st.permutations(range(size))))
    return Layout(
        parameter="w", shape=shape, device_matrix=tuple(matrix), tensor_map=tuple(tensor_map), rank_list=ranks
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), shape=st.lists(st.sampled_from([12, 24]), min_size=1, max_size=3).map(tuple))
def test_any_block_of_any_layout(tmp_path: Path, data: st.DataObject, shape: tuple[int, ...]):
    layout = data.draw(layouts(shape))
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    files = {}
    for rank, slices in rank_tensors({"w": whole}, {"w": layout}).items():
        files[rank] = open_tensors(write_whole(tmp_path / f"{rank}.safetensors", slices))
    bounds = [sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))) for n in shape]
    block = TensorSlice(tuple(start for start, _ in bounds), tuple(stop for _, stop in bounds))
    out = np.full(block.shape, -1, np.float32)
    TensorBlocks("w", layout, files, near=data.draw(st.integers(0, 30))).fill(block, out)
    np.testing.assert_array_equal(out, whole[block.index])
    for file in files.values():
        file.close()
