"""The CPU's tier: parameters in mapped memory, graphs that read and write them there, pages that come and go."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from running import python

from mindgspo.errors import ConfigError, TrainingError
from mindgspo.swap.mapped_memory import MappedMemory

pytestmark = pytest.mark.usefixtures("cpu_runtime")

MIB = 2**20
FLOATS_PER_MIB = MIB // 4


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[MappedMemory]:
    memory = MappedMemory(tmp_path / "swap")
    yield memory
    memory.close()


def parameter(values: np.ndarray, name: str = "w") -> Parameter:
    return Parameter(Tensor(values), name=name)


def ramp(mebibytes: int) -> np.ndarray:
    return np.arange(mebibytes * FLOATS_PER_MIB, dtype=np.float32)


def resident_mib(address: int, mebibytes: int) -> float:
    """MiB from `address` on, out of `mebibytes`, that are present in this process. By pages: the kernel may report
    neighbouring anonymous mappings as one."""
    entry, present = 8, 1 << 63
    first, count = address // mmap.PAGESIZE, mebibytes * MIB // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb") as pages:
        pages.seek(first * entry)
        flags = np.frombuffer(pages.read(count * entry), np.uint64)
    assert len(flags) == count, f"no mapping holds {address:#x}"
    return int(((flags & np.uint64(present)) != 0).sum()) * mmap.PAGESIZE / MIB


def address_of(given: Parameter) -> int:
    return given.asnumpy().ctypes.data


class AddTwice(nn.Cell):
    """Adds a number to a matrix, in place, and returns its sum."""

    def __init__(self, matrix: Parameter) -> None:
        super().__init__(auto_prefix=False)
        self.matrix = matrix

    def construct(self, number: Tensor) -> Tensor:
        ops.assign_add(self.matrix, ops.ones_like(self.matrix) * number)
        return self.matrix.sum()


def test_values_survive_and_pages_leave_the_process(tier: MappedMemory, tmp_path: Path):
    kept = parameter(ramp(8))
    tier.take_over([kept], keeps_content=True)
    assert list((tmp_path / "swap").iterdir()) == [], "files bear no name"
    where = address_of(kept)
    np.testing.assert_array_equal(kept.asnumpy(), ramp(8))
    assert resident_mib(where, 8) == 8
    tier.evict(kept)
    assert resident_mib(where, 8) == 0
    tier.load(kept)
    assert resident_mib(where, 8) == 8, "all pages come at once, not one by one when they are read"
    np.testing.assert_array_equal(kept.asnumpy(), ramp(8))
    tier.evict(kept)
    np.testing.assert_array_equal(kept.asnumpy(), ramp(8), "an evicted parameter still has its values")


def test_compiled_graphs_go_on_reading_and_writing_the_same_memory(tier: MappedMemory):
    matrix = parameter(np.full((4, 1024), 1.5, np.float32))
    graph = AddTwice(matrix)
    graph(Tensor(1.0, ms.float32))
    tier.take_over([matrix], keeps_content=True)
    where = address_of(matrix)
    for round_number in range(3):
        assert float(graph(Tensor(2.0, ms.float32)).asnumpy()) == 4096 * (4.5 + 2 * round_number)
        tier.evict(matrix)
        tier.load(matrix)
    assert address_of(matrix) == where
    np.testing.assert_array_equal(matrix.asnumpy(), np.full((4, 1024), 8.5, np.float32))


def test_content_that_nobody_keeps_is_zero_after_eviction(tier: MappedMemory):
    cache = parameter(ramp(4))
    tier.take_over([cache], keeps_content=False)
    where = address_of(cache)
    np.testing.assert_array_equal(cache.asnumpy(), ramp(4))
    tier.evict(cache)
    assert resident_mib(where, 4) == 0
    tier.load(cache)
    assert not cache.asnumpy().any()


def test_every_bit_survives_minus_zero_and_nan_payloads_included(tier: MappedMemory):
    bits = np.array([0x80000000, 0x7FC01234, 0xFF800000, 1, 0], np.uint32)
    odd, zeros = parameter(bits.view(np.float32), "odd"), parameter(np.array([-0.0, 0.0], np.float32), "zeros")
    tier.take_over([odd, zeros], keeps_content=True)
    for given in (odd, zeros):
        tier.evict(given)
        tier.load(given)
    np.testing.assert_array_equal(odd.asnumpy().view(np.uint32), bits)
    np.testing.assert_array_equal(zeros.asnumpy().view(np.uint32), [0x80000000, 0])


def test_small_parameters_do_not_share_pages(tier: MappedMemory):
    """Evicting one must not take the neighbour's pages along: it may be in the middle of an update."""
    shapes = {"scalar": (), "bias": (3,), "matrix": (5, 7), "large": (1025,)}
    given = [parameter(np.full(shape, i + 1, np.float32), name) for i, (name, shape) in enumerate(shapes.items())]
    tier.take_over(given, keeps_content=False)
    tier.evict(given[1])
    for number, (each, shape) in enumerate(zip(given, shapes.values(), strict=True)):
        expected = 0 if number == 1 else number + 1
        np.testing.assert_array_equal(each.asnumpy(), np.full(shape, expected, np.float32))


def test_other_memory_given_by_set_data_is_taken_back(tier: MappedMemory):
    """Loading a checkpoint does that, to parameters in either state."""
    kept = parameter(ramp(1))
    tier.take_over([kept], keeps_content=True)
    where = address_of(kept)
    kept.set_data(Tensor(ramp(1) + 1))
    assert address_of(kept) != where
    tier.evict(kept)
    assert address_of(kept) == where
    assert resident_mib(where, 1) == 0
    kept.set_data(Tensor(ramp(1) + 2))
    tier.load(kept)
    assert address_of(kept) == where
    np.testing.assert_array_equal(kept.asnumpy(), ramp(1) + 2)


def test_parameters_outlive_the_tier(tmp_path: Path):
    memory = MappedMemory(tmp_path)
    kept = parameter(ramp(1))
    memory.take_over([kept], keeps_content=True)
    memory.evict(kept)
    memory.close()
    del memory
    np.testing.assert_array_equal(kept.asnumpy(), ramp(1))


def test_a_failing_read_leaves_the_parameter_evicted(tier: MappedMemory, tmp_path: Path):
    """A file that lost its end stands for a disk that cannot be read: both fail at the first access."""
    kept = parameter(ramp(2))
    tier.take_over([kept], keeps_content=True)
    where = address_of(kept)
    tier.evict(kept)
    descriptor = descriptor_in(tmp_path)
    os.ftruncate(descriptor, 0)
    with pytest.raises(TrainingError, match="w could not be read from .*swap .*Bad address.*still evicted"):
        tier.load(kept)
    assert resident_mib(where, 2) == 0
    os.ftruncate(descriptor, 2 * MIB)
    tier.load(kept)
    assert resident_mib(where, 2) == 2, "once the disk can be read, so can the parameter"


def test_a_full_disk_is_met_before_anything_has_moved(small_disk: Path):
    memory = MappedMemory(small_disk)
    first, second = parameter(ramp(1), "first"), parameter(ramp(3), "second")
    memory.take_over([first], keeps_content=True)
    addresses = address_of(first), address_of(second)
    with pytest.raises(ConfigError, match=r"has no room for 3\.0 MiB .*No space left.*MiB are free\); make room"):
        memory.take_over([second], keeps_content=True)
    assert (address_of(first), address_of(second)) == addresses
    np.testing.assert_array_equal(second.asnumpy(), ramp(3))
    memory.evict(first)
    np.testing.assert_array_equal(first.asnumpy(), ramp(1))
    # What the refused one had claimed is free again.
    memory.take_over([parameter(ramp(1), "third")], keeps_content=True)


def test_an_ordinary_folder_is_not_complained_about(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    if os.statvfs(tmp_path).f_fsid == os.statvfs("/dev/shm").f_fsid:
        pytest.skip("temporary files lie in memory here")
    MappedMemory(tmp_path)
    assert not caplog.records


def test_a_file_system_in_memory_is_named(small_disk: Path, caplog: pytest.LogCaptureFixture):
    MappedMemory(small_disk)
    assert "lies in memory (tmpfs)" in caplog.text


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"swap\.path: .*/file/swap cannot be written .*Not a directory"):
        MappedMemory(tmp_path / "file" / "swap")


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from mindspore import Parameter, Tensor
from mindgspo.errors import ConfigError
from mindgspo.swap.mapped_memory import MappedMemory
from mindgspo.parallel.platform.runtime import set_up_runtime

set_up_runtime("CPU")
kept = Parameter(Tensor(np.ones(1 << 20, np.float32)), name="w")
memory = MappedMemory(Path(sys.argv[1]))
limit, size = getattr(resource, sys.argv[2]), int(sys.argv[3])
before = resource.getrlimit(limit)
resource.setrlimit(limit, (size, before[1]))
try:
    memory.take_over([kept], keeps_content=sys.argv[2] == "RLIMIT_FSIZE")
except ConfigError as error:
    resource.setrlimit(limit, before)
    print(error)
assert kept.asnumpy().all()
"""


@pytest.mark.parametrize(("limit", "size", "message"), [
    ("RLIMIT_FSIZE", MIB, "has no room for 4.0 MiB ([Errno 27] File too large"),
    ("RLIMIT_AS", MIB, "swap: no address space for 4.0 MiB ([Errno 12] Cannot allocate memory)"),
])  # fmt: skip
def test_limits_of_the_process_are_explained(tmp_path: Path, limit: str, size: int, message: str):
    done = python("-c", LIMITED, tmp_path, limit, size, timeout=120)
    assert message in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs the right to mount a small file system: {error}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def descriptor_in(folder: Path) -> int:
    """Of the only file that is open below `folder`; the tier and the map have one each."""
    links = {int(name): f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")}
    found = [number for number, link in links.items() if os.path.islink(link) and str(folder) in os.readlink(link)]
    assert len({os.fstat(number).st_ino for number in found}) == 1, found
    return found[0]
