"""One rank of test_meeting in a process of its own.

    python shared_memory_child.py FILE RANK WORLD_SIZE DIARY ROUNDS

A round is a group of the ranks that `members` names; some are held up before it. Every rank notes in DIARY, int64
[WORLD_SIZE], the round that it begins. Prints how often this rank went on before all others of a round had begun it.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np

from mindgspo.parallel.collectives.shared_memory import SharedMemoryGroup


def members(round_number: int, world_size: int) -> tuple[int, ...]:
    """The same on every rank."""
    drawn = random.Random(round_number)
    return tuple(sorted(drawn.sample(range(world_size), drawn.randint(1, world_size))))


def main() -> None:
    file, diary = Path(sys.argv[1]), Path(sys.argv[4])
    rank, world_size, num_rounds = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5])
    shared = SharedMemoryGroup(file, rank=rank, world_size=world_size)
    begun = np.memmap(diary, np.int64, "r+", shape=(world_size,))
    delays = random.Random(1000 + rank)
    too_early = 0
    for number in range(num_rounds):
        group = members(number, world_size)
        if rank not in group:
            continue
        if delays.random() < 0.05:
            time.sleep(0.005)
        begun[rank] = number
        shared.barrier(group)
        too_early += any(begun[other] < number for other in group)
    print(too_early)


if __name__ == "__main__":
    main()
