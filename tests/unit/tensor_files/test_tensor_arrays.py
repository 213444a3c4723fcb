"""Files of tensors written from arrays and in a stream."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from weight_files import write_safetensors

from mindgspo.errors import WeightsError
from mindgspo.tensor_files.formats import library_order
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import TensorInfo, bfloat16_bits, info_of, widen_bfloat16
from mindgspo.tensor_files.writer import read_safetensors, write_tensors


def some_weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"embed.weight": rng.standard_normal((5, 3)).astype(np.float32),
            "norm.weight": rng.standard_normal(3).astype(np.float32)}  # fmt: skip


def write_index(folder: Path, shard_of: dict[str, str]) -> Path:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))
    return index


def write_two_shards(folder: Path) -> dict[str, np.ndarray]:
    weights = some_weights()
    shard_of = {}
    for number, (name, tensor) in enumerate(weights.items(), start=1):
        shard = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensor}, folder / shard)
        shard_of[name] = shard
    write_index(folder, shard_of)
    return weights


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert found[name].tobytes() == tensor.tobytes()


# ---- round trips
def test_arrays_come_back_from_file_and_folder_and_outlive_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    weights = some_weights() | {"s": np.array(2.5, np.float32), "turned": matrix.T, "big": matrix.astype(">f4")}
    write_safetensors(path, weights)
    found = [read_safetensors(path), read_safetensors(tmp_path)]
    path.write_bytes(b"\0" * path.stat().st_size)
    for arrays in found:
        assert_same(arrays, weights | {"big": matrix})
    write_safetensors(path, weights, dtype="float16")
    assert_same(read_safetensors(path), {name: tensor.astype(np.float16) for name, tensor in weights.items()})
    write_safetensors(path, weights, dtype="bfloat16")
    rounded = {name: widen_bfloat16(bfloat16_bits(tensor)) for name, tensor in weights.items()}
    assert_same(read_safetensors(path), rounded)


def test_a_rewrite_replaces_the_file_and_a_failed_one_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"w": np.zeros(2, np.float32)})
    old = os.umask(0o027)
    try:
        write_safetensors(path, {"w": np.ones(3, np.float32)})
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640, "by the umask"
    with pytest.raises(WeightsError, match="1 values of w are too large for float16.*70000"):
        write_safetensors(path, {"w": np.array([1, 70000.0, np.inf], np.float32)}, dtype="float16")
    assert read_safetensors(path)["w"].shape == (3,)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]


# ---- bfloat16
def test_bfloat16_rounds_ties_to_even() -> None:
    # bfloat16 keeps 8 significant bits: between 1 and 2 its step is 1/128, so 1 + 1/256 lies halfway.
    values = np.array([1.0, 1 + 1 / 256, 1 + 3 / 256, 1 + 1 / 256 + 2**-20, -(1 + 1 / 256)], np.float32)
    expected = [1.0, 1.0, 1 + 2 / 128, 1 + 1 / 128, -1.0]
    np.testing.assert_array_equal(widen_bfloat16(bfloat16_bits(values)), np.array(expected, np.float32))


def test_bfloat16_keeps_nan_infinity_and_signed_zero() -> None:
    # 0x7F800001 is a NaN whose payload lies in the lost half only: rounded as a number it gives infinity,
    # and 0xFFFFFFFF would wrap to zero.
    nans = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32).view(np.float32)
    assert np.isnan(widen_bfloat16(bfloat16_bits(nans))).all()
    exact = np.array([np.inf, -np.inf, 0.0, -0.0], np.float32)
    assert widen_bfloat16(bfloat16_bits(exact)).tobytes() == exact.tobytes()


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=50))
def test_every_bfloat16_number_survives_widening_and_rounding(bits: list[int]) -> None:
    before = np.array(bits, np.uint16)
    wide = widen_bfloat16(before)
    after = bfloat16_bits(wide)
    np.testing.assert_array_equal(after[~np.isnan(wide)], before[~np.isnan(wide)])
    assert np.isnan(widen_bfloat16(after[np.isnan(wide)])).all()


@pytest.mark.parity
def test_torch_reads_what_was_written_and_the_other_way_round(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file
    from safetensors.torch import save_file as torch_save

    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)  # every kind of number, NaN too
    values = bits.view(np.float32).reshape(100, 200)
    theirs = torch.from_numpy(values.copy()).to(torch.bfloat16)
    keep = np.abs(values) < 3.3e38  # an overflow to infinity is refused here, torch performs it
    finite = np.where(keep, values, np.float32(0))
    write_safetensors(tmp_path / "ours.safetensors", {"w": finite}, dtype="bfloat16")
    loaded = load_file(tmp_path / "ours.safetensors")["w"]
    assert loaded.dtype == torch.bfloat16
    expected = torch.where(torch.from_numpy(keep), theirs, torch.zeros((), dtype=torch.bfloat16))
    assert torch.equal(loaded.view(torch.int16), expected.view(torch.int16))
    tensors = {"w": theirs, "v": torch.arange(3.0), "s": torch.tensor(1.5, dtype=torch.bfloat16)}
    torch_save(tensors, tmp_path / "theirs.safetensors")
    found = read_safetensors(tmp_path / "theirs.safetensors")
    np.testing.assert_array_equal(found["w"], theirs.float().numpy())
    np.testing.assert_array_equal(found["v"], np.array([0, 1, 2], np.float32))
    assert found["s"].shape == () and found["s"] == 1.5


# ---- damage
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kept", [0, 4, 60, -1])
def test_a_truncated_file_is_named(tmp_path: Path, dtype: str, kept: int) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, some_weights(), dtype=dtype)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(WeightsError, match=r"model\.safetensors: truncated, damaged.*bytes.*again"):
        read_safetensors(tmp_path)


def test_trailing_bytes_and_a_broken_header_are_damage_too(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, some_weights())
    whole = path.read_bytes()
    for damaged in (whole + b"\0", whole[:8] + b"#" + whole[9:]):
        path.write_bytes(damaged)
        with pytest.raises(WeightsError, match="damaged"):
            read_safetensors(path)


def test_a_folder_without_weights_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="there is nothing"):
        read_safetensors(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(WeightsError, match="pytorch_model.bin is a pickle"):
        read_safetensors(tmp_path)
    save_file(some_weights(), tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(WeightsError, match="there is model-00001-of-00002.safetensors.*; shards need their index"):
        read_safetensors(tmp_path)
    with pytest.raises(WeightsError, match="a folder with model.safetensors"):
        read_safetensors(tmp_path / "absent")


def test_a_folder_with_both_kinds_is_ambiguous(tmp_path: Path) -> None:
    write_two_shards(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", some_weights())
    with pytest.raises(WeightsError, match="holds both"):
        read_safetensors(tmp_path)


def test_an_eight_bit_float_is_refused_by_name(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    with pytest.raises(WeightsError, match="w: F8_E4M3"):
        read_safetensors(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_two_shards(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match="1 of 2 shards are not there: model-00002-of-00002.safetensors"):
        read_safetensors(tmp_path)


def test_index_and_shard_must_agree(tmp_path: Path) -> None:
    weights = some_weights()
    save_file(weights, tmp_path / "a.safetensors")
    write_index(tmp_path, {**dict.fromkeys(weights, "a.safetensors"), "lm_head.weight": "a.safetensors"})
    with pytest.raises(WeightsError, match=r"named by the index but not in the shard \(1\):\n.*lm_head.weight"):
        read_safetensors(tmp_path)
    write_index(tmp_path, {"norm.weight": "a.safetensors"})
    with pytest.raises(WeightsError, match=r"not placed there by the index \(1\):\n.*embed.weight"):
        read_safetensors(tmp_path)


def test_a_weight_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_two_shards(tmp_path)
    save_file(some_weights(), tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(WeightsError, match=r"00002-of-00002.*\n.*not placed there.*\n.*embed.weight"):
        read_safetensors(tmp_path)


@pytest.mark.parametrize(("text", "message"), [
    ("{", "not a readable index"),
    ("[]", "not a readable index"),
    ('{"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}}', "'w' is given twice"),
    ('{"weight_map": {"w": "../secret.safetensors"}}', "not the name of a .safetensors file in this folder"),
    ('{"weight_map": {"w": "/etc/passwd"}}', "not the name of a .safetensors file in this folder"),
    ('{"weight_map": {}}', "weight_map is empty"),
])  # fmt: skip
def test_a_bad_index_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(WeightsError, match=message):
        read_safetensors(tmp_path)


# ----- Files written in a stream: the library's bytes, nothing left behind, and little memory whatever the size
def test_the_bytes_are_those_of_the_safetensors_library(tmp_path: Path) -> None:
    dtypes = ("f8", "f4", "f2", "i8", "u8", "i4", "u4", "i2", "u2", "i1", "u1", "?")
    tensors = {f"{'b' if number % 2 else 'a'}.{dtype}": np.ones(number, dtype) for number, dtype in enumerate(dtypes)}
    tensors |= {'quote " \\ ü \n': np.array(1.0, np.float32), "a.second": np.ones((2, 3), np.float16)}
    save_file(tensors, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    infos = library_order({name: info_of(array) for name, array in tensors.items()})
    parts = ((name, tensors[name]) for name in infos)
    write_tensors(tmp_path / "ours.safetensors", infos, parts, metadata={"format": "pt"})
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


@pytest.mark.parametrize("suffix", [".safetensors", ".ckpt"])
def test_tensors_come_in_pieces_of_any_kind(tmp_path: Path, suffix: str) -> None:
    infos = {"w": TensorInfo(dtype="F32", shape=(2, 2)), "none": TensorInfo(dtype="F32", shape=(0,))}
    parts = [("w", b"\0\0\x80\x3f\0"), ("w", b""), ("w", memoryview(b"\0\x80\x3f")), ("w", np.array([1, 1], ">f4"))]
    write_tensors(tmp_path / f"m{suffix}", infos, parts)
    with open_tensors(tmp_path / f"m{suffix}") as file:
        np.testing.assert_array_equal(file.read("w"), np.ones((2, 2)))
        assert file.read("none").shape == (0,)


@pytest.mark.parametrize("suffix", [".safetensors", ".ckpt"])
@pytest.mark.parametrize("parts", [
    [("w", bytes(8))],  # v is missing
    [("w", bytes(7)), ("v", bytes(4))],
    [("w", bytes(9)), ("v", bytes(4))],
    [("v", bytes(4)), ("w", bytes(8))],
])  # fmt: skip
def test_pieces_that_do_not_fit_leave_the_old_file(tmp_path: Path, suffix: str, parts: list[tuple[str, bytes]]) -> None:
    path = tmp_path / f"m{suffix}"
    path.write_bytes(b"old")
    infos = {"w": TensorInfo(dtype="F32", shape=(2,)), "v": TensorInfo(dtype="F32", shape=(1,))}
    with pytest.raises(AssertionError):
        write_tensors(path, infos, parts)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


LIMITED = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from mindgspo.tensor_files.tensors import TensorInfo
from mindgspo.tensor_files.writer import write_tensors

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
infos = {"w": TensorInfo(dtype="U8", shape=(1 << 21,))}
try:
    write_tensors(Path(sys.argv[1]), infos, (("w", bytes(1 << 16)) for _ in range(32)))
except OSError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize("suffix", [".safetensors", ".ckpt"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"m{suffix}"
    path.write_bytes(b"old")
    child = subprocess.run([sys.executable, "-c", LIMITED, path], capture_output=True, text=True, timeout=60)
    assert f"refused: {path}: cannot be written: the file would be larger than the limit" in child.stdout, child.stderr
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


# Of getrusage the peak would begin with that of this process, which forks the child.
COPY = """
import re, sys
from pathlib import Path
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.writer import write_tensors

def peak_kib() -> int:
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

source, target = map(Path, sys.argv[1:])
before = peak_kib()
with open_tensors(source) as file:
    parts = ((name, chunk) for name in file.tensors for chunk in file.chunks(name, 1 << 20))
    write_tensors(target, file.tensors, parts)
print(peak_kib() - before)
"""


@pytest.mark.parametrize("formats", [("safetensors", "ckpt"), ("ckpt", "safetensors")], ids="-to-".join)
def test_a_large_tensor_is_copied_in_little_memory(tmp_path: Path, formats: tuple[str, str]) -> None:
    source, target = (tmp_path / f"m.{suffix}" for suffix in formats)
    info = TensorInfo(dtype="F32", shape=(1 << 10, 25 << 10))  # 100 MiB
    block = np.arange(25 << 18, dtype=np.float32)
    write_tensors(source, {"w": info}, (("w", block + number) for number in range(4)))
    child = subprocess.run([sys.executable, "-c", COPY, source, target], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) < 12 << 10, f"{child.stdout} KiB more for a copy in chunks of 1 MiB"
    with open_tensors(source) as first, open_tensors(target) as second:
        assert np.array_equal(first.read("w"), second.read("w"))


def test_shards_are_joined(tmp_path: Path) -> None:
    weights = write_two_shards(tmp_path)
    assert_same(read_safetensors(tmp_path), weights)


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    write_two_shards(tmp_path)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(WeightsError, match=r"model-00002-of-00002\.safetensors: truncated"):
        read_safetensors(tmp_path)
