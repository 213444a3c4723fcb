"""Which of the ranks that hold a block sends it.

What enters: the blocks of a reshard with their holders, receivers and bytes. What leaves: one sender per block, the
same on whatever rank this is computed. Called by the reshard planner; pure Python.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mindgspo.parallel.ranks import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A block to be sent once."""

    holders: Ranks
    receivers: Ranks
    num_bytes: int


def choose_senders(loads: Sequence[Load], *, grain_bytes: int) -> list[int]:
    """The sender of every load, in the order of `loads`.

    The holder that has least to send is taken; amounts that differ by less than `grain_bytes` count as equal, and then
    a group of ranks that is in use already is preferred (groups cost memory and time to create), then the holder whose
    rank is nearest to a receiver's, then the lowest. Loads with few holders choose first, large ones before small ones,
    so that those with a choice even out the others (the longest-processing-time rule of scheduling).
    """
    sent: Counter[int] = Counter()
    groups: set[Ranks] = set()
    senders = [-1] * len(loads)
    for i in sorted(range(len(loads)), key=lambda i: (len(loads[i].holders), -loads[i].num_bytes, i)):
        load = loads[i]
        least = min(sent[rank] // grain_bytes for rank in load.holders)
        candidates = [rank for rank in load.holders if sent[rank] // grain_bytes == least]
        senders[i] = min(candidates, key=lambda rank: _preference(rank, load.receivers, groups))
        sent[senders[i]] += load.num_bytes
        groups.add(_group(senders[i], load.receivers))
    return senders


def _preference(rank: int, receivers: Ranks, groups: set[Ranks]) -> tuple[bool, int, int]:
    distance = min(abs(rank - receiver) for receiver in receivers)
    return _group(rank, receivers) not in groups, distance, rank


def _group(sender: int, receivers: Ranks) -> Ranks:
    return tuple(sorted((sender, *receivers)))
