"""One rank of test_meeting in a process of its own.

    python meeting_child.py FILE RANK WORLD_SIZE DIARY ROUNDS

Rank 0 says in DIARY, int64 [WORLD_SIZE], how many rounds it has begun, and so does everybody; a round is a meeting of
the ranks that `members` names, before which every rank may be held up. Prints how often a member went on before all
others had come; then a message goes round once.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np

from mindgspo.parallel.meeting import Meeting


def members(round_number: int, world_size: int) -> tuple[int, ...]:
    """The same on every rank."""
    drawn = random.Random(round_number)
    return tuple(sorted(drawn.sample(range(world_size), drawn.randint(1, world_size))))


def main() -> None:
    file, rank, world_size, diary, rounds = (kind(text) for kind, text in zip((Path, int, int, Path, int),
    sys.argv[1:])) meeting = Meeting(file, rank=rank, world_size=world_size) begun = np.memmap(diary, np.int64, "r+",
    shape=(world_size,)) delays = random.Random(1000 + rank) too_early = 0 for number in range(rounds):
        group = members(number, world_size)
        if rank not in group:
            continue
        if delays.random() < 0.05:
            time.sleep(0.005)
        begun[rank] = number
        meeting.meet(group)
        too_early += any(begun[other] < number for other in group)
    if rank > 0:
        meeting.await_message(rank - 1)
    meeting.has_sent((rank + 1) % world_size)
    if rank == 0:
        meeting.await_message(world_size - 1)
    print(too_early)


if __name__ == "__main__":
    main()
