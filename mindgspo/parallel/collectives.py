"""What ranks tell each other from the host, between compiled graphs: arrays, and parcels of bytes.

What enters: numpy arrays and the ranks they concern. What leaves: the same arrays, filled. Called by resharding, the
pipeline's links, the exchange of results and the comparison of ranks at the start. MindSpore's functional collectives
do the work; messages between two ranks are first in, first out, so that every rank must come to them in the same order,
and with no graph of its own still running.

A process that is alone returns at once from everything here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn

from mindgspo.parallel import heartbeat, runtime
from mindgspo.parallel.meeting import Meeting, new_meeting_file
from mindgspo.parallel.process_groups import group_name
from mindgspo.parallel.ranks import Ranks

_WORD = np.dtype(np.int32)
_PATH_BYTES = 512

_meeting: Meeting | None = None


def open_meeting() -> None:
    """Give the ranks of a CPU cluster their meeting place; all call it, right after `runtime.join_cluster`."""
    global _meeting
    if _meeting is not None or runtime.world_size() == 1 or runtime.current_device() != "CPU":
        return
    path = new_meeting_file(runtime.world_size()) if runtime.rank() == 0 else None
    words = np.zeros(_PATH_BYTES // _WORD.itemsize, _WORD)
    if path is not None:
        encoded = str(path).encode()
        assert len(encoded) <= _PATH_BYTES, path
        words.view(np.uint8)[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    runtime.broadcast_in_place(words, sender=0, group=group_name(world_ranks()))
    file = Path(words.tobytes().rstrip(b"\0").decode())
    _meeting = Meeting(file, rank=runtime.rank(), world_size=runtime.world_size())
    _meeting.meet(world_ranks())
    if path is not None:
        path.unlink()


def meet(ranks: Ranks) -> None:
    """Wait until all `ranks` are here: before a collective to which they may come at very different times."""
    if _meeting is not None and len(ranks) > 1:
        _meeting.meet(ranks)


def broadcast(array: np.ndarray, *, sender: int, ranks: Ranks) -> None:
    """Fill `array` (contiguous, float32 or int32) on all `ranks` with the sender's."""
    if len(ranks) == 1:
        return
    meet(ranks)
    runtime.broadcast_in_place(array, sender=sender, group=group_name(ranks))


def send(array: np.ndarray, *, to: int) -> None:
    """Hand `array` (contiguous, float32 or int32) to one rank, which calls `receive`; on CPU the sender goes on."""
    me = runtime.rank()
    runtime.broadcast_in_place(array, sender=me, group=group_name(_pair(me, to)))
    if _meeting is not None:
        _meeting.has_sent(to)


def receive(array: np.ndarray, *, sender: int) -> None:
    """Fill `array` with what `sender` sends; waits for it."""
    if _meeting is not None:
        _meeting.await_message(sender)
    runtime.broadcast_in_place(array, sender=sender, group=group_name(_pair(runtime.rank(), sender)))


def _pair(one: int, other: int) -> Ranks:
    return (min(one, other), max(one, other))


def barrier() -> None:
    """Wait until every rank has come."""
    total = np.ones(1, np.int32)
    sum_over_world(total)
    assert total[0] == runtime.world_size(), total


def sum_over_world(array: np.ndarray) -> None:
    """Replace `array` (float32 or int32, contiguous) on every rank by the sum over all ranks."""
    if runtime.world_size() > 1:
        meet(world_ranks())
        runtime.sum_in_place(array, group=group_name(world_ranks()))


class GraphOfRanks:
    """A compiled cell in which several ranks talk to each other. Compiling takes each of them its own time, so they
    meet before the first run with new shapes."""

    def __init__(self, cell: nn.Cell, ranks: Ranks) -> None:
        self.cell, self._ranks = cell, ranks
        self._compiled: set[tuple] = set()

    def __call__(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        heartbeat.tick()
        if len(self._ranks) > 1:
            shapes = tuple((tuple(tensor.shape), str(tensor.dtype)) for tensor in inputs)
            if shapes not in self._compiled:
                self.cell.compile(*inputs)
                self._compiled.add(shapes)
                meet(self._ranks)
        return self.cell(*inputs)


def world_ranks() -> Ranks:
    """All ranks."""
    return tuple(range(runtime.world_size()))


def exchange(parcel: bytes, *, speakers: Sequence[int] | None = None) -> list[bytes]:
    """Everybody's parcel, in the order of `speakers` (default: all ranks), on every rank. Others' are not sent."""
    speakers = world_ranks() if speakers is None else speakers
    if runtime.world_size() == 1:
        return [parcel]
    lengths = np.zeros(runtime.world_size(), np.int32)
    if runtime.rank() in speakers:
        assert len(parcel) < 2**31, f"a parcel of {len(parcel)} bytes"
        lengths[runtime.rank()] = len(parcel)
    sum_over_world(lengths)
    return [_told(parcel, sender=speaker, num_bytes=int(lengths[speaker])) for speaker in speakers]


def _told(parcel: bytes, *, sender: int, num_bytes: int) -> bytes:
    if num_bytes == 0:
        return b""
    words = np.zeros(-(-num_bytes // _WORD.itemsize), _WORD)
    raw = words.view(np.uint8)[:num_bytes]
    if runtime.rank() == sender:
        raw[:] = np.frombuffer(parcel, np.uint8)
    broadcast(words, sender=sender, ranks=world_ranks())
    return raw.tobytes()
