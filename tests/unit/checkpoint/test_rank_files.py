"""Which file of a rank is taken: the newest save that all ranks have, whatever the files are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.checkpoint.stored_files import is_sharded, pick_rank_files
from mindgspo.errors import CheckpointError


def touch(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


def picked(folder: Path, prefix: str = "") -> list[str]:
    files = pick_rank_files(folder, prefix=prefix).files
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
    found = pick_rank_files(tmp_path)
    assert found.files[0].name == "w-1_10.ckpt"
    assert found.notes == (
        f"source   {tmp_path}: 2 ranks, rank_*/w-1_10.ckpt",
        "ignored  1 older or incomplete save file: rank_0/w-1_20.ckpt",
        "ignored  1 other file: rank_1/w-graph.meta",
    )


def test_names_that_bear_the_rank(tmp_path: Path):
    one = touch(
        tmp_path / "one", *(f"rank_{r}/qwen_rank_{r}-{save}.ckpt" for r in range(12) for save in ("10_2", "9_2"))
    )
    assert picked(one) == [f"rank_{r}/qwen_rank_{r}-10_2.ckpt" for r in range(12)]
    two = touch(tmp_path / "two", *(f"rank_{r}/checkpoint_{r}.safetensors" for r in range(11)))
    assert picked(two) == [f"rank_{r}/checkpoint_{r}.safetensors" for r in range(11)]
    three = touch(tmp_path / "three", "rank_0/0.ckpt", "rank_1/1.ckpt")
    assert picked(three) == ["rank_0/0.ckpt", "rank_1/1.ckpt"]
    four = touch(tmp_path / "four", *(f"net_rank_{r}.ckpt" for r in range(3)), "notes.txt")
    assert picked(four) == ["net_rank_0.ckpt", "net_rank_1.ckpt", "net_rank_2.ckpt"]


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


def test_a_single_rank(tmp_path: Path):
    assert picked(touch(tmp_path, "rank_0/w_0.ckpt")) == ["rank_0/w_0.ckpt"]


def test_what_is_sharded(tmp_path: Path):
    assert is_sharded(touch(tmp_path / "a", "rank_0/w.ckpt"))
    assert is_sharded(touch(tmp_path / "b", "w_rank_3.safetensors"))
    assert not is_sharded(touch(tmp_path / "c", "w.safetensors", "rank_0.log", "rank_x/w.ckpt"))
