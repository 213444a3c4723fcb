"""One file read by need: headers that lie are refused, slices and chunks are what numpy would cut out."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mindgspo.errors import WeightsError
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import TensorInfo
from mindgspo.tensor_files.writer import write_tensors


def write_raw(path: Path, header: str | bytes, data: bytes = b"") -> Path:
    """A safetensors file with this header and these bytes behind it."""
    content = header.encode() if isinstance(header, str) else header
    path.write_bytes(len(content).to_bytes(8, "little") + content + data)
    return path


def entry(dtype: str, shape: list[int], first: int, last: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


# ---- what a file says
def test_infos_come_in_the_order_of_the_bytes_and_nothing_is_read(tmp_path: Path) -> None:
    header = {"b": entry("BF16", [2, 3], 8, 20), "a": entry("I64", [], 0, 8), "__metadata__": {"format": "pt"}}
    path = write_raw(tmp_path / "m.safetensors", json.dumps(header), b"\x05" + bytes(7) + b"\x80\x3f" * 6)
    with open_tensors(path) as file:
        assert list(file.tensors) == ["a", "b"]
        assert file.tensors["b"] == TensorInfo(dtype="BF16", shape=(2, 3)) and file.tensors["b"].num_bytes == 12
        assert file.metadata == {"format": "pt"} and file.path == path
        assert file.read("a").shape == () and file.read("a") == 5
        assert file.read("b").dtype == np.uint16
        np.testing.assert_array_equal(file.read("b"), np.full((2, 3), 0x3F80))  # the bits of 1.0


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    save_file({"w": np.ones(3, np.float32)}, tmp_path / "weights.ckpt")
    with open_tensors(tmp_path / "weights.ckpt") as file:
        np.testing.assert_array_equal(file.read("w"), np.ones(3))
    (tmp_path / "m.bin").write_bytes(b"PK\x03\x04" + bytes(50))
    with pytest.raises(WeightsError, match=r"m\.bin.*pickled weights are never loaded.*54 bytes"):
        open_tensors(tmp_path / "m.bin")
    with pytest.raises(WeightsError, match="absent.safetensors: no such file or folder; give a folder with absent.sa"):
        open_tensors(tmp_path / "absent.safetensors")


@pytest.mark.parametrize(("header", "num_bytes", "message"), [
    ({"w": entry("F32", [2], 0, 8), "v": entry("F32", [2], 4, 12)}, 12, "v of 8 bytes .* should lie at 8"),
    ({"w": entry("F32", [2], 0, 8), "v": entry("F32", [2], 12, 20)}, 20, "should lie at 8, .* 12 to 20"),
    ({"w": entry("F32", [2], 4, 12)}, 12, "should lie at 0"),
    ({"w": entry("F32", [3], 0, 8)}, 8, "w of 12 bytes"),
    ({"w": entry("F32", [2], 0, 8)}, 9, r"describes 7\d bytes"),
    ({"w": entry("F32", [2], 0, 8)}, 7, r"describes 7\d bytes"),
    ({"w": entry("F32", [-2], 0, 8)}, 8, "shape"),
    ({"w": entry("F32", [True], 0, 4)}, 4, "shape"),
    ({"w": entry("F32", [2], 0, 8) | {"x": 1}}, 8, "must have data_offsets, dtype, shape"),
    ({"w": [1]}, 0, "must have"),
    ({"__metadata__": {"step": 1}}, 0, "text only"),
])  # fmt: skip
def test_a_header_that_lies_is_refused(tmp_path: Path, header: dict, num_bytes: int, message: str) -> None:
    path = write_raw(tmp_path / "m.safetensors", json.dumps(header), bytes(num_bytes))
    with pytest.raises(WeightsError, match=message) as caught:
        open_tensors(path)
    assert str(path) in str(caught.value) and f"{path.stat().st_size:,} bytes" in str(caught.value)


@pytest.mark.parametrize("header", [b"{", b"[]", b'{"w":1,"w":2}', b"\xff{}", b"[" * 100_000])
def test_a_header_that_is_no_object_is_refused(tmp_path: Path, header: bytes) -> None:
    path = write_raw(tmp_path / "m.safetensors", header)
    with pytest.raises(WeightsError, match="damaged"):
        open_tensors(path)


def test_a_header_of_impossible_length_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    for length in (100_000_001, 2**63):
        path.write_bytes(length.to_bytes(8, "little") + b"{}")
        with pytest.raises(WeightsError, match=f"its header would have {length:,} bytes"):
            open_tensors(path)


def test_a_file_that_shrinks_while_it_is_open_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"w": np.ones(100, np.float32)}, path)
    with open_tensors(path) as file:
        path.write_bytes(path.read_bytes()[:-8])
        with pytest.raises(WeightsError, match=r"m\.safetensors: truncated"):
            file.read("w")


# ---- parts of a tensor
@st.composite
def tensors_and_slices(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[slice, ...]]:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    index = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        start = draw(st.integers(0, size))
        index.append(draw(st.sampled_from([slice(None), slice(start, draw(st.integers(start, size)))])))
    return shape, tuple(index)


@given(case=tensors_and_slices())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_slice_is_what_numpy_cuts_out(tmp_path: Path, case: tuple[tuple[int, ...], tuple[slice, ...]]) -> None:
    shape, index = case
    tensor = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    save_file({"before": np.zeros(3, np.int64), "w": tensor}, tmp_path / "m.safetensors")
    with open_tensors(tmp_path / "m.safetensors") as file:
        part = file.read_slice("w", index)
    np.testing.assert_array_equal(part, tensor[index])
    assert part.shape == tensor[index].shape


@pytest.mark.parametrize("index", [
    (slice(100, 300),),  # rows that lie side by side
    (slice(None), slice(1000, 3000)),  # long runs, one per row
    (slice(3, 500), slice(7, 9)),  # short runs, cut out of blocks
    (slice(3, 500), slice(None, 4000)),
])  # fmt: skip
def test_slices_of_a_large_matrix(tmp_path: Path, index: tuple[slice, ...]) -> None:
    tensor = np.arange(600 * 4000, dtype=np.float32).reshape(600, 4000)
    save_file({"w": tensor}, tmp_path / "m.safetensors")
    with open_tensors(tmp_path / "m.safetensors") as file:
        np.testing.assert_array_equal(file.read_slice("w", index), tensor[index])


def test_chunks_are_the_whole_in_order(tmp_path: Path) -> None:
    tensor = np.arange(35, dtype=np.int16).reshape(5, 7)
    save_file({"w": tensor, "none": np.zeros((0, 3), np.float32)}, tmp_path / "m.safetensors")
    with open_tensors(tmp_path / "m.safetensors") as folder:
        chunks = list(folder.chunks("w", 21))  # ten elements and a half
        assert [chunk.size for chunk in chunks] == [10, 10, 10, 5]
        np.testing.assert_array_equal(np.concatenate(chunks), tensor.reshape(-1))
        assert list(folder.chunks("none")) == []


def test_threads_share_a_file(tmp_path: Path) -> None:
    tensors = {f"w{number}": np.full(50_000, number, np.float32) for number in range(8)}
    save_file(tensors, tmp_path / "m.safetensors")
    wrong: list[str] = []
    with open_tensors(tmp_path / "m.safetensors") as file:

        def read_often(name: str) -> None:
            wrong.extend(name for _ in range(30) if not np.array_equal(file.read(name), tensors[name]))

        threads = [threading.Thread(target=read_often, args=(name,)) for name in tensors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_shards_are_one_mapping(tmp_path: Path) -> None:
    infos = {"w": TensorInfo(dtype="F32", shape=(2,))}
    write_tensors(tmp_path / "a.safetensors", infos, [("w", np.float32([1, 2]))], metadata={"format": "pt", "a": "1"})
    infos = {"v": TensorInfo(dtype="BF16", shape=(1,))}
    write_tensors(tmp_path / "b.safetensors", infos, [("v", b"\x80\x3f")], metadata={"format": "pt", "b": "1"})
    index = {"weight_map": {"v": "b.safetensors", "w": "a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with open_tensors(tmp_path) as folder:
        assert list(folder.tensors) == ["w", "v"]
        assert folder.metadata == {"format": "pt"}
        assert folder.read("v") == 0x3F80
        np.testing.assert_array_equal(folder.read_slice("w", (slice(1, 2),)), [2])


@pytest.mark.parametrize(
    "index", [(slice(2, 5),), (slice(0, 6), slice(1, 3)), (slice(1, 2), slice(0, 4), slice(2, 3)), ()], ids=str
)
@pytest.mark.parametrize("columns", [5, 3000])
def test_a_slice_goes_into_the_array_that_is_given(tmp_path: Path, index: tuple[slice, ...], columns: int):
    whole = np.arange(6 * 4 * columns, dtype=np.float32).reshape(6, 4, columns)
    write_tensors(tmp_path / "w.ckpt", {"w": TensorInfo(dtype="F32", shape=whole.shape)}, [("w", whole)])
    out = np.zeros_like(whole[index])
    with open_tensors(tmp_path / "w.ckpt") as file:
        assert file.read_slice("w", index, out) is out
        np.testing.assert_array_equal(out, whole[index])
        with pytest.raises(AssertionError):
            file.read_slice("w", index, out[..., :-1])


@pytest.mark.parametrize("name", ["model.safetensors", "model.ckpt", "model.bin"])
def test_a_pointer_of_git_lfs_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab\nsize 12345\n")
    with pytest.raises(WeightsError, match="a Git LFS pointer, not the file; fetch it, e.g. by `git lfs pull` in"):
        open_tensors(path)
