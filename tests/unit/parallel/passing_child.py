"""One rank of test_passing in a process of its own.

    python passing_child.py FILE RANK WORLD_SIZE walk SEED ROUNDS
    python passing_child.py FILE RANK WORLD_SIZE receive HEARTBEAT RESULT BYTES
    python passing_child.py FILE RANK WORLD_SIZE die BYTES

walk: each round is a broadcast of random bits between random ranks, some of whom dawdle before it or while they read.
Prints how many bytes arrived here that were not the sender's. receive: messages from rank 0 to rank 1, written to
RESULT. die: rank 0 sends a first slot of it and ends by SIGKILL in the middle of the second one.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from mindgspo.parallel.collectives.shared_memory import SLOT_BYTES, SharedMemoryGroup
from mindgspo.parallel.platform import heartbeat

PATTERNS = np.array([0x7F800001, 0xFFC12345, 0x7FC00000, 1 << 31, 1], np.uint32)
"""Signalling and quiet NaNs with payloads, a negative zero, a subnormal."""
LARGEST = 5 * SLOT_BYTES // 2


def payload(seed: int, num_bytes: int) -> np.ndarray:
    """uint8 [num_bytes], random but for every third word."""
    words = np.random.default_rng(seed).integers(0, 1 << 32, -(-num_bytes // 4), np.uint32)
    words[::3] = np.resize(PATTERNS, words[::3].size)
    return words.view(np.uint8)[:num_bytes]


def walk(group: SharedMemoryGroup, rank: int, world_size: int, seed: int, num_rounds: int) -> int:
    """The rounds, equal on every rank but for the dawdling."""
    drawn, own = random.Random(seed), random.Random(1000 * seed + rank)
    wrong = 0
    for number in range(num_rounds):
        ranks = tuple(sorted(drawn.sample(range(world_size), drawn.randint(2, world_size))))
        sender = drawn.choice(ranks)
        num_bytes = drawn.choice([drawn.randint(1, 100), drawn.randint(1, LARGEST), SLOT_BYTES, 2 * SLOT_BYTES])
        is_whole = drawn.random() < 0.5
        if rank not in ranks:
            continue
        if own.random() < 0.1:
            time.sleep(0.02)
        sent = payload(number, num_bytes)
        if is_whole:
            held = sent.copy() if rank == sender else np.zeros(num_bytes, np.uint8)
            group.broadcast(held, sender=sender, ranks=ranks)
            wrong += np.count_nonzero(held != sent)
            held[:] = 0xA5  # what the sender does afterwards is nobody's business
            continue
        for first in range(0, num_bytes, SLOT_BYTES):
            part = sent[first : first + SLOT_BYTES]
            with group.passing(part.size, sender=sender, ranks=ranks) as slot:
                if rank == sender:
                    slot[:] = 0
                    slot[:] = part
                else:
                    if own.random() < 0.1:
                        time.sleep(0.02)
                    wrong += np.count_nonzero(slot != part)
    return wrong


def receive(group: SharedMemoryGroup, beat: Path, result: Path, num_bytes: int) -> None:
    """As a worker that a launcher watches."""
    heartbeat.start_beating(beat)
    heartbeat.enter("broadcast", 1)
    held = np.zeros(num_bytes, np.uint8)
    for first in range(0, num_bytes, SLOT_BYTES):
        with group.passing(SLOT_BYTES, sender=0, ranks=(0, 1)) as slot:
            held[first : first + SLOT_BYTES] = slot
    result.write_bytes(held.tobytes())


def die(group: SharedMemoryGroup, num_bytes: int) -> None:
    """As a worker that the kernel ends for want of memory."""
    sent = payload(0, num_bytes)
    with group.passing(SLOT_BYTES, sender=0, ranks=(0, 1)) as slot:
        slot[:] = sent[:SLOT_BYTES]
    with group.passing(SLOT_BYTES, sender=0, ranks=(0, 1)) as slot:
        slot[: SLOT_BYTES // 2] = sent[SLOT_BYTES:][: SLOT_BYTES // 2]
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    file, rank, world_size, act, *rest = sys.argv[1:]
    group = SharedMemoryGroup(Path(file), rank=int(rank), world_size=int(world_size))
    if act == "walk":
        print(walk(group, int(rank), int(world_size), *map(int, rest)))
    elif act == "receive":
        receive(group, Path(rest[0]), Path(rest[1]), int(rest[2]))
    else:
        die(group, int(rest[0]))


if __name__ == "__main__":
    main()
