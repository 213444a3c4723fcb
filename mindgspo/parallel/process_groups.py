"""Groups of ranks that communicate, made once and known by name.

What enters: ranks. What leaves: the name under which MindSpore's collectives know their group. A group is made when it
is first asked for, by all of its members in the same order; the layers ask while they are built, the reshard and the
gradient buckets before their first use.
"""

from __future__ import annotations

import hashlib

from mindgspo.parallel import runtime
from mindgspo.parallel.ranks import Ranks

_names: dict[Ranks, str] = {}


def group_name(ranks: Ranks) -> str:
    """Name of the group of `ranks` (ascending, at least two, this process among them); made at the first call.

    Every member must call it, and members of several new groups in the same order, as with any collective.
    """
    assert len(ranks) > 1 and tuple(sorted(set(ranks))) == ranks, ranks
    assert runtime.rank() in ranks, f"rank {runtime.rank()} is not in {ranks}"
    if ranks not in _names:
        _names[ranks] = _made(ranks)
    return _names[ranks]


def made_groups() -> dict[str, Ranks]:
    """{name: ranks} of the groups made so far."""
    return {name: ranks for ranks, name in _names.items()}


def _made(ranks: Ranks) -> str:
    from mindspore import communication

    if len(ranks) == runtime.world_size():
        return communication.GlobalComm.WORLD_COMM_GROUP
    text = "_".join(map(str, ranks))
    name = f"mindgspo_{len(ranks)}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    communication.create_group(name, list(ranks))
    return name
