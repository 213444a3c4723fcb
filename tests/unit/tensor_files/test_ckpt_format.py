"""MindSpore's ckpt files: MindSpore reads what is written, and what MindSpore writes is read; damage is named."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from mindgspo.errors import WeightsError
from mindgspo.tensor_files.formats import part_header
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import TensorInfo, info_of
from mindgspo.tensor_files.writer import write_ckpt, write_tensors

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def write(path: Path, tensors: dict[str, np.ndarray], **options: dict[str, str]) -> None:
    write_tensors(path, {name: info_of(array) for name, array in tensors.items()}, tensors.items(), **options)


def some_tensors() -> dict[str, np.ndarray]:
    return {"matrix": MATRIX, "scalar": np.array(3.5, np.float64), "half": np.array([1.5], np.float16),
            "flags": np.array([True, False]), "counts": np.arange(4, dtype=np.int64).reshape(2, 1, 2),
            "bytes": np.array([200], np.uint8)}  # fmt: skip


def test_the_bytes_are_those_of_the_schema(tmp_path: Path) -> None:
    write(tmp_path / "m.ckpt", {"a": MATRIX})
    # value (44 bytes) { tag "a", tensor (39 bytes) { dims 2, dims 3, type "Float32", content (24 bytes) } }
    head = bytes.fromhex("0a2c 0a0161 1227 0802 0803 1207") + b"Float32" + bytes.fromhex("1a18")
    assert (tmp_path / "m.ckpt").read_bytes() == head + MATRIX.tobytes()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    tensors = some_tensors() | {"empty": np.zeros((0, 4), np.float32), "behind": np.ones(2, np.int8)}
    write(tmp_path / "m.ckpt", tensors, metadata={"note": "Grüße"})
    with open_tensors(tmp_path / "m.ckpt") as file:
        assert list(file.tensors) == list(tensors) and file.metadata == {"note": "Grüße"}
        for name, array in tensors.items():
            assert file.tensors[name] == info_of(array)
            assert file.read(name).tobytes() == array.tobytes()
        np.testing.assert_array_equal(file.read_slice("matrix", (slice(None), slice(1, 2))), [[1], [4]])


def test_mindspore_writes_the_same_bytes_and_reads_ours(tmp_path: Path) -> None:
    mindspore = pytest.importorskip("mindspore")
    tensors = some_tensors()
    listed = [{"name": name, "data": mindspore.Tensor(array)} for name, array in tensors.items()]
    listed.append({"name": "brain", "data": mindspore.Tensor([1.0, -2.0], mindspore.bfloat16)})
    mindspore.save_checkpoint(listed, str(tmp_path / "theirs.ckpt"), append_dict={"note": "hello"})
    infos = {name: info_of(array) for name, array in tensors.items()} | {"brain": TensorInfo(dtype="BF16", shape=(2,))}
    parts = [*tensors.items(), ("brain", np.array([0x3F80, 0xC000], np.uint16))]
    write_tensors(tmp_path / "ours.ckpt", infos, parts, metadata={"note": "hello"})
    assert (tmp_path / "ours.ckpt").read_bytes() == (tmp_path / "theirs.ckpt").read_bytes()
    loaded = mindspore.load_checkpoint(str(tmp_path / "ours.ckpt"))
    assert loaded.pop("note") == "hello"
    assert loaded["brain"].dtype == mindspore.bfloat16
    for name, array in tensors.items():
        found = loaded[name].asnumpy()
        assert found.dtype == array.dtype and found.shape == array.shape and found.tobytes() == array.tobytes()


def test_mindspore_reads_an_empty_tensor_and_its_crc_at_the_end_is_passed_over(tmp_path: Path) -> None:
    mindspore = pytest.importorskip("mindspore")
    path = tmp_path / "m.ckpt"
    write(path, {"none": np.zeros((0, 4), np.float32), "w": MATRIX})
    assert mindspore.load_checkpoint(str(path))["none"].shape == (0, 4)
    mindspore.save_checkpoint([{"name": "w", "data": mindspore.Tensor(MATRIX)}], str(path), crc_check=True)
    with open_tensors(path) as file:
        assert list(file.tensors) == ["w"]
        np.testing.assert_array_equal(file.read("w"), MATRIX)


def test_parts_under_one_name_are_one_tensor(tmp_path: Path) -> None:
    info, content = info_of(MATRIX), MATRIX.tobytes()
    parts = (content[:10], content[10:20], content[20:])  # they end inside a number
    (tmp_path / "m.ckpt").write_bytes(b"".join(part_header("w", info, len(part)) + part for part in parts))
    with open_tensors(tmp_path / "m.ckpt") as file:
        np.testing.assert_array_equal(file.read("w"), MATRIX)
        np.testing.assert_array_equal(file.read_slice("w", (slice(1, 2), slice(0, 2))), [[3, 4]])
        assert b"".join(chunk.tobytes() for chunk in file.chunks("w", 8)) == content


@pytest.mark.parametrize("piece_bytes", [1, 10, 16, 24])
def test_a_large_tensor_is_written_in_parts(piece_bytes: int) -> None:
    info, content = info_of(MATRIX), MATRIX.tobytes()
    pieces = [("w", content[start : start + piece_bytes]) for start in range(0, 24, piece_bytes)]
    file = io.BytesIO()
    write_ckpt(file, {"w": info}, pieces, part_bytes=16)
    expected = part_header("w", info, 16) + content[:16] + part_header("w", info, 8) + content[16:]
    assert file.getvalue() == expected


def test_a_scalar_of_older_files_has_dims_zero(tmp_path: Path) -> None:
    number = np.float32(2.5)
    header = part_header("s", TensorInfo(dtype="F32", shape=(0,)), 4)
    (tmp_path / "m.ckpt").write_bytes(header + number.tobytes())
    with open_tensors(tmp_path / "m.ckpt") as file:
        assert file.read("s").shape == () and file.read("s") == number


@pytest.mark.parametrize("mode", ["AES-GCM", "AES-CBC", "SM4-CBC"])
def test_an_encrypted_file_is_refused(tmp_path: Path, mode: str) -> None:
    mindspore = pytest.importorskip("mindspore")
    listed = [{"name": "w", "data": mindspore.Tensor(MATRIX)}]
    path = tmp_path / "m.ckpt"
    mindspore.save_checkpoint(listed, str(path), enc_key=b"0123456789ABCDEF", enc_mode=mode)
    with pytest.raises(WeightsError, match=r"m\.ckpt: is encrypted.*dec_key"):
        open_tensors(path)


def test_every_truncation_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.ckpt"
    write(path, {"first": MATRIX, "second": MATRIX})
    whole = path.read_bytes()
    between = whole.index(b"second") - 4  # cut there, it is a whole file of one tensor
    for kept in range(len(whole)):
        path.write_bytes(whole[:kept])
        if kept != between:
            with pytest.raises(WeightsError, match=rf"m\.ckpt: truncated.*its size is {kept} bytes"):
                open_tensors(path)


def test_what_is_no_checkpoint_is_named(tmp_path: Path) -> None:
    path, info = tmp_path / "m.ckpt", info_of(MATRIX)
    write(path, {"w": np.zeros(1, np.int32)})
    whole, half = MATRIX.tobytes(), MATRIX.tobytes()[:12]
    first, turned = part_header("w", info, 12) + half, TensorInfo(dtype="F32", shape=(3, 2))
    again = part_header("w", info, 24) + whole
    for message, content in (
        ("of different shape", first + part_header("w", turned, 12) + half),
        ("has 12 bytes in 1 parts instead of 24", first),
        ("w stands there twice", again + part_header("v", info, 24) + whole + again),
        ("w: Int4x", path.read_bytes().replace(b"Int32", b"Int4x")),
        ("strategy files have the same suffix", b"\x08\x01\x12\x04\x0a\x02ab"),
        ("map parameter", b"\x0a\x05\x0a\x01w\x1a\x00"),
    ):
        path.write_bytes(content)
        with pytest.raises(WeightsError, match=message):
            open_tensors(path)
