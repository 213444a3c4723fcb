"""MindSpore's ckpt files: MindSpore reads what is written, and what MindSpore writes is read; damage is named."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from mindgspo.errors import WeightsError
from mindgspo.tensor_files import TensorInfo, info_of, open_tensor_file, write_tensors
from mindgspo.tensor_files.ckpt_format import part_header
from mindgspo.tensor_files.writer import write_records

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def write(path: Path, tensors: dict[str, np.ndarray], **options: dict[str, str]) -> None:
    write_tensors(path, {name: info_of(array) for name, array in tensors.items()}, tensors.items(), **options)


def some_tensors() -> dict[str, np.ndarray]:
    return {
        "matrix": MATRIX,
        "scalar": np.array(3.5, np.float64),
        "half": np.array([1.5], np.float16),
        "flags": np.array([True, False]),
        "counts": np.arange(4, dtype=np.int64).reshape(2, 1, 2),
        "bytes": np.array([200], np.uint8),
    }


def test_the_bytes_are_those_of_the_schema(tmp_path: Path) -> None:
    write(tmp_path / "m.ckpt", {"a": MATRIX})
    # value (44 bytes) { tag "a", tensor (39 bytes) { dims 2, dims 3, type "Float32", content (24 bytes) } }
    head = bytes.fromhex("0a2c 0a0161 1227 0802 0803 1207") + b"Float32" + bytes.fromhex("1a18")
    assert (tmp_path / "m.ckpt").read_bytes() == head + MATRIX.tobytes()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    tensors = some_tensors() | {"empty": np.zeros((0, 4), np.float32), "behind": np.ones(2, np.int8)}
    write(tmp_path / "m.ckpt", tensors, metadata={"note": "Grüße"})
    with open_tensor_file(tmp_path / "m.ckpt") as file:
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


def test_mindspore_reads_an_empty_tensor(tmp_path: Path) -> None:
    mindspore = pytest.importorskip("mindspore")
    write(tmp_path / "m.ckpt", {"none": np.zeros((0, 4), np.float32), "w": MATRIX})
    assert mindspore.load_checkpoint(str(tmp_path / "m.ckpt"))["none"].shape == (0, 4)


def test_parts_under_one_name_are_one_tensor(tmp_path: Path) -> None:
    info, content = info_of(MATRIX), MATRIX.tobytes()
    whole = b"".join(part_header("w", info, 10 if end else 4) + part for end, part in parts_of_ten(content))
    (tmp_path / "m.ckpt").write_bytes(whole)
    with open_tensor_file(tmp_path / "m.ckpt") as file:
        np.testing.assert_array_equal(file.read("w"), MATRIX)
        np.testing.assert_array_equal(file.read_slice("w", (slice(1, 2), slice(0, 2))), [[3, 4]])
        assert b"".join(chunk.tobytes() for chunk in file.chunks("w", 8)) == content


@pytest.mark.parametrize("piece_bytes", [1, 10, 16, 24])
def test_a_large_tensor_is_written_in_parts(piece_bytes: int) -> None:
    info, content = info_of(MATRIX), MATRIX.tobytes()
    pieces = [("w", content[start : start + piece_bytes]) for start in range(0, 24, piece_bytes)]
    file = io.BytesIO()
    write_records(file, {"w": info}, pieces, part_bytes=16)
    expected = part_header("w", info, 16) + content[:16] + part_header("w", info, 8) + content[16:]
    assert file.getvalue() == expected


def parts_of_ten(content: bytes) -> list[tuple[bool, bytes]]:
    """24 bytes as 10, 10 and 4: parts that end inside a number."""
    return [(len(content[start : start + 10]) == 10, content[start : start + 10]) for start in range(0, 24, 10)]


def test_a_scalar_of_older_files_has_dims_zero(tmp_path: Path) -> None:
    number = np.float32(2.5)
    header = part_header("s", TensorInfo(dtype="F32", shape=(0,)), 4)
    (tmp_path / "m.ckpt").write_bytes(header + number.tobytes())
    with open_tensor_file(tmp_path / "m.ckpt") as file:
        assert file.read("s").shape == () and file.read("s") == number


def test_a_crc_at_the_end_is_passed_over(tmp_path: Path) -> None:
    mindspore = pytest.importorskip("mindspore")
    listed = [{"name": "w", "data": mindspore.Tensor(MATRIX)}]
    mindspore.save_checkpoint(listed, str(tmp_path / "m.ckpt"), crc_check=True)
    with open_tensor_file(tmp_path / "m.ckpt") as file:
        assert list(file.tensors) == ["w"]
        np.testing.assert_array_equal(file.read("w"), MATRIX)


@pytest.mark.parametrize("mode", ["AES-GCM", "AES-CBC", "SM4-CBC"])
def test_an_encrypted_file_is_refused(tmp_path: Path, mode: str) -> None:
    mindspore = pytest.importorskip("mindspore")
    listed = [{"name": "w", "data": mindspore.Tensor(MATRIX)}]
    path = tmp_path / "m.ckpt"
    mindspore.save_checkpoint(listed, str(path), enc_key=b"0123456789ABCDEF", enc_mode=mode)
    with pytest.raises(WeightsError, match=r"m\.ckpt: is encrypted.*dec_key"):
        open_tensor_file(path)


def test_every_truncation_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.ckpt"
    write(path, {"first": MATRIX, "second": MATRIX})
    whole = path.read_bytes()
    between = whole.index(b"second") - 4  # cut there, it is a whole file of one tensor
    for kept in range(len(whole)):
        path.write_bytes(whole[:kept])
        if kept != between:
            with pytest.raises(WeightsError, match=rf"m\.ckpt: truncated.*its size is {kept} bytes"):
                open_tensor_file(path)


def test_contradicting_parts_are_refused(tmp_path: Path) -> None:
    path, info = tmp_path / "m.ckpt", info_of(MATRIX)
    first, second = MATRIX.tobytes()[:12], MATRIX.tobytes()[12:]
    turned = TensorInfo(dtype="F32", shape=(3, 2))
    cases = {
        "of different shape": part_header("w", info, 12) + first + part_header("w", turned, 12) + second,
        "has 12 bytes in 1 parts instead of 24": part_header("w", info, 12) + first,
        "w stands there twice": part_header("w", info, 24)
        + first
        + second
        + part_header("v", info, 24)
        + first
        + second
        + part_header("w", info, 24)
        + first
        + second,
    }
    for message, content in cases.items():
        path.write_bytes(content)
        with pytest.raises(WeightsError, match=message):
            open_tensor_file(path)


def test_other_protobuf_files_are_no_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "strategy.ckpt").write_bytes(b"\x08\x01\x12\x04\x0a\x02ab")
    with pytest.raises(WeightsError, match="strategy files have the same suffix"):
        open_tensor_file(tmp_path / "strategy.ckpt")
    (tmp_path / "map.ckpt").write_bytes(b"\x0a\x05\x0a\x01w\x1a\x00")
    with pytest.raises(WeightsError, match="map parameter"):
        open_tensor_file(tmp_path / "map.ckpt")


def test_an_unknown_type_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.ckpt"
    write(path, {"w": np.zeros(1, np.int32)})
    path.write_bytes(path.read_bytes().replace(b"Int32", b"Int4x"))
    with pytest.raises(WeightsError, match="w: Int4x"):
        open_tensor_file(path)
