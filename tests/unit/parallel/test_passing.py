"""Bytes through shared memory arrive unchanged, once, in order, and are not written over while somebody reads them:
ranks that are threads, then ranks that are processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest
from thread_ranks import WAIT_S, assert_goes_on, assert_waits, until

from mindgspo.parallel.collectives.shared_memory import NUM_SLOTS, SLOT_BYTES, SharedMemoryGroup, new_group_file
from mindgspo.parallel.platform import heartbeat
from mindgspo.parallel.platform.heartbeat import Record, read_record

CHILD = Path(__file__).with_name("passing_child.py")


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen]]:
    """start(*arguments): a `passing_child`; none outlives the test."""
    children: list[subprocess.Popen] = []

    def started(*arguments: object) -> subprocess.Popen:
        command = [sys.executable, str(CHILD), *map(str, arguments)]
        children.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return children[-1]

    yield started
    for child in children:
        child.kill()
        child.communicate()


def put(group: SharedMemoryGroup, content: int, to: tuple[int, ...], sender: int = 0) -> None:
    with group.passing(8, sender=sender, ranks=tuple(sorted((sender, *to)))) as slot:
        slot[:] = content


def taken(group: SharedMemoryGroup, rank: int, sender: int = 0) -> list[int]:
    with group.passing(8, sender=sender, ranks=tuple(sorted((sender, rank)))) as slot:
        return sorted(set(slot.tolist()))


def test_a_sender_is_ahead_by_its_slots_and_no_further(ranks: list[SharedMemoryGroup], aside: Callable[..., Future]):
    for number in range(NUM_SLOTS):
        put(ranks[0], number, to=(1, 2))
    late = aside(put, ranks[0], NUM_SLOTS, (1, 2))
    for number in range(NUM_SLOTS):
        assert taken(ranks[1], 1) == [number]
    assert_waits(late)  # for rank 2
    for number in range(NUM_SLOTS):
        assert taken(ranks[2], 2) == [number]
    assert_goes_on(late)
    assert [taken(ranks[rank], rank) for rank in (1, 2)] == [[NUM_SLOTS], [NUM_SLOTS]]


def test_a_slot_is_not_written_over_while_it_is_read(ranks: list[SharedMemoryGroup], aside: Callable[..., Future]):
    for number in range(NUM_SLOTS):
        put(ranks[0], number, to=(1,))
    with ranks[1].passing(8, sender=0, ranks=(0, 1)) as slot:
        late = aside(put, ranks[0], 99, (1,))
        assert_waits(late)
        assert set(slot.tolist()) == {0}
    assert_goes_on(late)


def test_a_receiver_waits_for_its_own_message(ranks: list[SharedMemoryGroup], aside: Callable[..., Future]):
    """Not for that of another sender or for another receiver, and not before the sender is done with it."""
    early = aside(taken, ranks[2], 2, 0)
    put(ranks[0], 1, to=(1,))
    put(ranks[3], 3, to=(2,), sender=3)
    assert_waits(early)
    with ranks[0].passing(8, sender=0, ranks=(0, 1, 2)) as slot:
        slot[:] = 7
        assert_waits(early)
    assert early.result(WAIT_S) == [7]
    assert [taken(ranks[1], 1), taken(ranks[1], 1), taken(ranks[2], 2, 3)] == [[1], [7], [3]]


def test_each_receiver_gets_its_messages_in_order(ranks: list[SharedMemoryGroup], aside: Callable[..., Future]):
    groups = [(1,), (2,), (1, 2), (3,), (1, 2, 3), (2,), (1,), (1,), (3,), (2, 3)]
    sending = aside(lambda: [put(ranks[0], number, to=group) for number, group in enumerate(groups)])
    due = {rank: [number for number, group in enumerate(groups) if rank in group] for rank in (1, 2, 3)}
    receiving = {rank: aside(lambda rank=rank: [taken(ranks[rank], rank) for _ in due[rank]]) for rank in due}
    assert {rank: future.result(WAIT_S) for rank, future in receiving.items()} == {
        rank: [[number] for number in numbers] for rank, numbers in due.items()
    }
    assert_goes_on(sending)


def test_senders_do_not_share_slots(ranks: list[SharedMemoryGroup]):
    for sender in (0, 1, 2):
        put(ranks[sender], 10 + sender, to=(3,), sender=sender)
    assert [taken(ranks[3], 3, sender) for sender in (2, 0, 1)] == [[12], [10], [11]]


@pytest.mark.parametrize("num_bytes", [0, 1, SLOT_BYTES - 1, SLOT_BYTES, SLOT_BYTES + 1, 5 * SLOT_BYTES + 3])
def test_any_number_of_bytes(ranks: list[SharedMemoryGroup], aside: Callable[..., Future], num_bytes: int):
    sent = np.random.default_rng(5).integers(0, 256, num_bytes, np.uint8)
    held = [sent.copy(), *(np.zeros(num_bytes, np.uint8) for _ in range(3))]
    assert_goes_on(*(aside(ranks[i].broadcast, held[i], sender=0, ranks=(0, 1, 3)) for i in (0, 1, 3)))
    assert [array.tobytes() == sent.tobytes() for array in held] == [True, True, num_bytes == 0, True]


@pytest.mark.parametrize("group", [(0, 1), (0, 2, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("shapes", [[(1,)], [(3,), (0,), (5, 7)], [(SLOT_BYTES // 4 - 1,), (2,), (600, 1000), (3,)]])
def test_sums_are_those_in_the_order_of_the_ranks_on_each(
    ranks: list[SharedMemoryGroup], aside: Callable[..., Future], group: tuple[int, ...], shapes: list[tuple[int, ...]]
):
    rng = np.random.default_rng(3)
    given = {rank: [rng.standard_normal(shape, np.float32) * 10.0 ** (3 * rank) for shape in shapes] for rank in group}
    given = {rank: [array.astype(np.float32) for array in arrays] for rank, arrays in given.items()}
    expected = [np.zeros(shape, np.float32) for shape in shapes]
    for rank in group:
        for total, array in zip(expected, given[rank], strict=True):
            total += array
    for _ in range(2):  # the second time over slots that were used
        held = {rank: [array.copy() for array in given[rank]] for rank in group}
        assert_goes_on(*(aside(ranks[rank].sum, held[rank], group) for rank in group))
        for arrays in held.values():
            assert [array.tobytes() for array in arrays] == [array.tobytes() for array in expected]


def test_what_is_sent_waits_for_its_receiver_while_both_meet_others(
    ranks: list[SharedMemoryGroup], aside: Callable[..., Future]
):
    sent = [np.full(50_000, number, np.float32) for number in range(2)]
    for array in sent:
        ranks[0].send(array, 2)  # returns
    held = [np.ones(3, np.float32) for _ in range(4)]
    assert_goes_on(*(aside(ranks[rank].sum, [held[rank]], (0, 1, 2, 3)) for rank in range(4)))
    late = aside(ranks[0].send, sent[0], 2)
    assert_waits(late)
    for array in (*sent, sent[0]):
        got = np.zeros(50_000, np.float32)
        ranks[2].receive(got, 0)
        assert got.tobytes() == array.tobytes()
    assert_goes_on(late)
    with pytest.raises(
        ValueError, match=r"rank 2 is in broadcast of int32 \[3\] .*, but rank 1 in broadcast of int32 \[4\]"
    ):
        ranks[1].send(np.zeros(4, np.int32), 2)
        ranks[2].receive(np.zeros(3, np.int32), 1)


def test_more_than_the_slots_hold_is_sent_while_it_is_received(
    ranks: list[SharedMemoryGroup], aside: Callable[..., Future]
):
    sent = np.random.default_rng(1).integers(0, 256, 3 * SLOT_BYTES + 5, np.uint8)
    got = np.zeros_like(sent)
    sending = aside(ranks[3].send, sent, 1)
    assert_waits(sending)
    ranks[1].receive(got, 3)
    assert_goes_on(sending)
    assert got.tobytes() == sent.tobytes()


def put_too_many(group: SharedMemoryGroup) -> None:
    for _ in range(NUM_SLOTS + 1):
        put(group, 1, to=(1,))


@pytest.mark.parametrize(("rank", "wait", "release", "said"), [
    (0, put_too_many, lambda other: taken(other, 1), ""),
    (1, lambda group: taken(group, 1), lambda other: put(other, 1, to=(1,)), ""),
    (0, lambda group: group.barrier((0, 1)), lambda other: other.barrier((0, 1)), "barrier over ranks 0-1, for rank 1"),
], ids=["sender", "receiver", "barrier"])  # fmt: skip
def test_who_waits_says_so(ranks: list[SharedMemoryGroup], aside: Callable[..., Future], rank, wait, release, said):
    beat = heartbeat.start_beating(None)
    try:
        waiting = aside(wait, ranks[rank])
        assert until(lambda: beat.record.waits_in)
        assert beat.record.waits_in == (said or beat.record.waits_in) and not waiting.done()
        release(ranks[1 - rank])
        assert_goes_on(waiting)
        assert not beat.record.waits_in
    finally:
        heartbeat.stop()


@pytest.mark.parametrize("world_size", [2, 4])
def test_processes_pass_random_bits_in_random_groups(start: Callable[..., subprocess.Popen], world_size: int):
    file = new_group_file(world_size)
    try:
        children = [start(file, rank, world_size, "walk", 7, 150) for rank in range(world_size)]
        assert [child.communicate(timeout=WAIT_S)[0] for child in children] == ["0\n"] * world_size
    finally:
        file.unlink()


def test_a_sender_that_is_killed_leaves_its_receiver_waiting(
    start: Callable[..., subprocess.Popen], file: Path, tmp_path: Path
):
    """It has not come to the end with half a message, and the launcher can see who waits; no file is left."""
    beat, result = tmp_path / "heartbeat", tmp_path / "result"
    receiver = start(file, 1, 4, "receive", beat, result, 2 * SLOT_BYTES)
    assert until(lambda: waits(read_record(beat)))
    sender = start(file, 0, 4, "die", 2 * SLOT_BYTES)
    assert sender.wait(WAIT_S) == -signal.SIGKILL
    file.unlink()
    assert until(lambda: waits(read_record(beat)))
    time.sleep(0.2)
    assert receiver.poll() is None and waits(read_record(beat)) and not result.exists()
    assert not list(file.parent.glob(f"{file.name}*"))


def waits(record: Record | None) -> bool:
    return record is not None and bool(record.waits_in)
