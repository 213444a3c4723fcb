"""Nobody goes on before all have come: ranks that are threads, on one file."""

from __future__ import annotations

import ctypes
import random
import resource
import signal
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from thread_ranks import MOMENT_S, WAIT_S, assert_goes_on, assert_waits

from mindgspo.errors import ConfigError
from mindgspo.parallel.collectives.shared_memory import (
    NUM_SLOTS,
    SLOT_BYTES,
    Numbers,
    SharedMemoryGroup,
    new_group_file,
)
from mindgspo_kernels.binding import call


def test_all_wait_for_the_last_and_again_in_the_next_meeting(
    ranks: list[SharedMemoryGroup], aside: Callable[..., Future]
):
    group = (0, 1, 3)
    for _ in range(2):
        first, second = aside(ranks[0].barrier, group), aside(ranks[3].barrier, group)
        assert_waits(first, second)
        assert_goes_on(aside(ranks[1].barrier, group), first, second)
    # Having met rank 1 among others, rank 0 waits for it when they are to meet alone.
    alone = aside(ranks[0].barrier, (0, 1))
    assert_waits(alone)
    assert_goes_on(aside(ranks[1].barrier, (0, 1)), alone)


def test_other_groups_do_not_disturb(ranks: list[SharedMemoryGroup], aside: Callable[..., Future]):
    """Who is not asked need not come; rank 0 waits for rank 1 while rank 1 still meets ranks 2 and 3."""
    assert_goes_on(*(aside(ranks[rank].barrier, (0, 2)) for rank in (0, 2)), aside(ranks[1].barrier, (1,)))
    early = aside(ranks[0].barrier, (0, 1))
    late = aside(lambda: (ranks[1].barrier((1, 2, 3)), ranks[1].barrier((0, 1))))
    aside(ranks[2].barrier, (1, 2, 3))
    assert_waits(early, late)
    assert_goes_on(aside(ranks[3].barrier, (1, 2, 3)), early, late)


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_early_in_a_thousand_meetings(
    ranks: list[SharedMemoryGroup], aside: Callable[..., Future], seed: int
):
    drawn = random.Random(seed)
    groups = [tuple(sorted(drawn.sample(range(4), drawn.randint(2, 4)))) for _ in range(1000)]
    begun = [-1] * 4

    def walk(rank: int) -> int:
        early = 0
        for number, group in enumerate(groups):
            if rank in group:
                begun[rank] = number
                ranks[rank].barrier(group)
                early += any(begun[other] < number for other in group)
        return early

    walks = [aside(walk, rank) for rank in range(4)]
    assert [walk.result(timeout=WAIT_S) for walk in walks] == [0, 0, 0, 0]


def test_a_new_file_is_allocated_zeros_and_nobody_elses(file: Path):
    assert not np.fromfile(file, np.uint8).any()
    facts = file.stat()
    assert facts.st_size > 4 * NUM_SLOTS * SLOT_BYTES
    assert facts.st_blocks * 512 >= facts.st_size, "a page that is missing later kills the process"
    assert facts.st_mode & 0o077 == 0


def test_without_shared_memory_the_file_is_among_temporary_files(monkeypatch, tmp_path: Path, caplog):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    file = new_group_file(2, folder=tmp_path / "absent")
    assert file.parent == tmp_path and not np.fromfile(file, np.uint8).any()
    (line,) = caplog.messages
    assert "absent has no room for the 6.1 MiB that 2 ranks share ([Errno 2]" in line
    assert line.endswith(f"; they are in {tmp_path}")


def test_no_room_anywhere_is_found_at_once_and_leaves_nothing(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (NUM_SLOTS * SLOT_BYTES, limits[1]))
        with pytest.raises(ConfigError, match=r"has no room for the 12\.1 MiB that 4 ranks share .*, neither has "):
            new_group_file(4, folder=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_file_may_go_once_all_have_opened_it(
    ranks: list[SharedMemoryGroup], file: Path, aside: Callable[..., Future]
):
    file.unlink()
    assert_goes_on(*(aside(group.barrier, (0, 1, 2, 3)) for group in ranks))


def test_two_clusters_do_not_share_a_file(ranks: list[SharedMemoryGroup], aside: Callable[..., Future]):
    other = new_group_file(4)
    try:
        stranger = SharedMemoryGroup(other, rank=1, world_size=4)
        early, alone = aside(ranks[0].barrier, (0, 1)), aside(stranger.barrier, (0, 1))
        assert_waits(early, alone)
        assert_goes_on(aside(ranks[1].barrier, (0, 1)), early)
        assert_goes_on(aside(SharedMemoryGroup(other, rank=0, world_size=4).barrier, (0, 1)), alone)
    finally:
        other.unlink()


def test_a_file_that_is_not_there_names_file_and_rank(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"elsewhere: rank 3 cannot open .* \(No such .*; the workers .* one host"):
        SharedMemoryGroup(tmp_path / "elsewhere", rank=3, world_size=4)


def test_waiting_leaves_the_processor_to_others(ranks: list[SharedMemoryGroup], aside: Callable[..., Future]):
    """Ranks wait for minutes while another compiles; a loop without a pause would take a core each."""

    def processor_seconds() -> float:
        before = time.thread_time()
        ranks[0].barrier((0, 1))
        return time.thread_time() - before

    waiting = aside(processor_seconds)
    time.sleep(1.0)
    ranks[1].barrier((0, 1))
    assert waiting.result(timeout=WAIT_S) < 0.3


def test_a_signal_is_answered_while_a_rank_waits(ranks: list[SharedMemoryGroup]) -> None:
    def interrupt(*_: object) -> None:
        raise InterruptedError("by hand")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, MOMENT_S)
        with pytest.raises(InterruptedError, match="by hand"):
            ranks[0].barrier((0, 1))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def sum_of(dtype: str, size: int) -> Callable[[SharedMemoryGroup], None]:
    return lambda group: group.sum([np.ones(size, dtype)], (0, 1))


def told(size: int) -> Callable[[SharedMemoryGroup], None]:
    return lambda group: group.broadcast(np.ones(size, np.float32), sender=0, ranks=(0, 1))


@pytest.mark.parametrize(("first", "second", "names"), [
    (sum_of("float32", 3), sum_of("float32", 4), ["all_reduce of float32 [3] over ranks 0-1", "float32 [4]"]),
    (sum_of("float32", 3), sum_of("int32", 3), ["all_reduce of float32 [3] over ranks 0-1", "int32 [3]"]),
    (sum_of("float32", 3), told(3), ["all_reduce of float32 [3]", "broadcast of float32 [3] from rank 0 over"]),
    (told(3), told(4), ["broadcast of float32 [3] from rank 0", "broadcast of float32 [4] from rank 0"]),
    (told(3), lambda group: group.broadcast(np.ones(3, np.float32), sender=0, ranks=(0, 1, 2)),
     ["float32 [3] from rank 0 over ranks 0-1", "float32 [3] from rank 0 over ranks 0-2"]),
])  # fmt: skip
def test_ranks_in_different_collectives_are_told_of_both(
    ranks: list[SharedMemoryGroup], aside: Callable[..., Future], first: Callable, second: Callable, names: list[str]
):
    """The one that sends alone need not notice."""
    one, other = aside(first, ranks[0]), aside(second, ranks[1])
    with pytest.raises(ValueError, match="rank 1 is in .*, but rank 0 in ") as raised:
        other.result(timeout=WAIT_S)
    assert all(name in str(raised.value) for name in names), raised.value
    if names[0].startswith("all_reduce") and names[1].startswith(("float", "int")):
        with pytest.raises(ValueError, match="rank 0 is in .*, but rank 1 in "):
            one.result(timeout=WAIT_S)


def test_collectives_of_graphs_are_told_apart_by_number(ranks: list[SharedMemoryGroup], aside: Callable[..., Future]):
    """Two of the same kind and shape, as where the graphs of two ranks run them in another order."""

    def gather(rank: int, number: int) -> None:
        x, out = (Numbers("float32", np.ones((rows, 2), np.float32)) for rows in (3, 6))
        call("all_gather", ranks[rank]._address, (ctypes.c_int64 * 2)(0, 1), 2, number, x, 3, out)

    assert_goes_on(aside(gather, 0, 7), aside(gather, 1, 7))
    crossing = aside(gather, 0, 8), aside(gather, 1, 9)
    for rank, future in enumerate(crossing):
        with pytest.raises(
            ValueError, match=rf"rank {rank} is in all_gather .* \[3, 2\] over ranks 0-1, number {8 + rank}"
        ):
            future.result(timeout=WAIT_S)


@pytest.mark.parametrize(("dtype", "columns"), [("float32", 3), ("float16", 5), ("int64", 2), ("float32", 90_000)])
def test_collectives_move_and_add_up_what_they_say(
    ranks: list[SharedMemoryGroup], aside: Callable[..., Future], dtype: str, columns: int
):
    """Of three of the four ranks; 90,000 columns fill several slots."""
    members, rows = (0, 1, 3), 6
    given = np.random.default_rng(columns).integers(-9, 9, (3, rows, columns)).astype(dtype)  # sums are exact

    def work(index: int) -> list[np.ndarray]:
        def run(name: str, out: np.ndarray, *more: object, tensors: tuple | None = None) -> np.ndarray:
            seen = [Numbers(dtype, array) for array in (given[index], out)]
            call(name, *place, 1, *(tensors or (seen[0], *more, seen[1])))
            return out

        place = ranks[members[index]]._address, (ctypes.c_int64 * 3)(*members), 3
        sums = [np.empty_like(given[index]) for _ in range(2)]
        lists = ([Numbers(dtype, given[index])] * 2, [Numbers(dtype, one) for one in sums])
        call("all_reduce", *place, 1, 2, *lists)
        told = given[1].copy() if index == 1 else np.zeros_like(given[1])
        call("broadcast", *place, 1, Numbers(dtype, told))
        return [
            *sums,
            told,
            run("all_gather", np.ones((3 * rows, columns), dtype), 4),
            run("reduce_scatter", np.empty((rows // 3, columns), dtype)),
            run("all_to_all", np.empty((rows // 3, 3 * columns), dtype), 0, 1),
        ]

    total, futures = given.sum(axis=0), [aside(work, index) for index in range(3)]
    gathered = given.copy()
    gathered[:, 4:] = 0  # rows that are not in use
    for index, future in enumerate(futures):
        share = slice(2 * index, 2 * index + 2)
        expected = [
            total,
            total,
            given[1],
            gathered.reshape(3 * rows, columns),
            total[share],
            np.concatenate(list(given[:, share]), axis=1),
        ]
        for found, one in zip(future.result(timeout=WAIT_S), expected, strict=True):
            np.testing.assert_array_equal(found, one)
