"""Files written in a stream: the library's bytes, nothing left behind, and little memory whatever the size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mindgspo.tensor_files import TensorInfo, info_of, library_order, open_tensor_file, write_tensors


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
    with open_tensor_file(tmp_path / f"m{suffix}") as file:
        np.testing.assert_array_equal(file.read("w"), np.ones((2, 2)))
        assert file.read("none").shape == (0,)


@pytest.mark.parametrize("suffix", [".safetensors", ".ckpt"])
@pytest.mark.parametrize(
    "parts",
    [
        [("w", bytes(8))],  # v is missing
        [("w", bytes(7)), ("v", bytes(4))],
        [("w", bytes(9)), ("v", bytes(4))],
        [("v", bytes(4)), ("w", bytes(8))],
    ],
)
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
from mindgspo.tensor_files import TensorInfo, write_tensors

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
    assert "refused: [Errno 27]" in child.stdout, child.stderr
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


# Of getrusage the peak would begin with that of this process, which forks the child.
COPY = """
import re, sys
from pathlib import Path
from mindgspo.tensor_files import open_tensor_file, write_tensors

def peak_kib() -> int:
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

source, target = map(Path, sys.argv[1:])
before = peak_kib()
with open_tensor_file(source) as file:
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
    with open_tensor_file(source) as first, open_tensor_file(target) as second:
        assert np.array_equal(first.read("w"), second.read("w"))
