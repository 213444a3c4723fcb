"""Collectives called from the host, and what makes them safe: process groups made in one order, ranks that meet before
they enter, and agreement on what all ranks must share. A process that is alone pays nothing.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn

from mindgspo.errors import ConfigError
from mindgspo.parallel import heartbeat, runtime
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


_SHARED_MEMORY = Path("/dev/shm")
_SPINS, _SHORTEST_SLEEP, _LONGEST_SLEEP = 50, 5e-5, 2e-3


class Meeting:
    """The counters of one cluster, seen from one rank. file: made by `new_meeting_file`, of `world_size` ranks."""

    def __init__(self, file: Path, *, rank: int, world_size: int) -> None:
        try:
            with file.open("r+b") as opened:
                self._memory = mmap.mmap(opened.fileno(), 0)
        except OSError as error:
            raise ConfigError(
                f"{file}: rank {rank} cannot open the memory it shares with rank 0 ({error.strerror}); the workers of "
                "a CPU cluster run on one host"
            ) from error
        counters = np.frombuffer(self._memory, np.int64).reshape(2, world_size, world_size)
        self._met, self._sent = counters[0], counters[1]
        self._received = np.zeros(world_size, np.int64)
        self._rank = rank

    def meet(self, ranks: Ranks) -> None:
        """Wait until every one of `ranks` has come to this meeting."""
        others = [rank for rank in ranks if rank != self._rank]
        for other in others:
            self._met[self._rank, other] += 1
        for other in others:
            self._wait(self._met, other, int(self._met[self._rank, other]))

    def has_sent(self, to: int) -> None:
        """A message to rank `to` is on its way."""
        self._sent[self._rank, to] += 1

    def await_message(self, sender: int) -> None:
        """Wait until the next message of `sender` is on its way."""
        self._received[sender] += 1
        self._wait(self._sent, sender, int(self._received[sender]))

    def _wait(self, counters: np.ndarray, other: int, count: int) -> None:
        spins, pause = 0, _SHORTEST_SLEEP
        while counters[other, self._rank] < count:
            spins += 1
            if spins == _SPINS:
                heartbeat.wait(True)
            elif spins > _SPINS:
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_SLEEP)
        if spins >= _SPINS:
            heartbeat.wait(False)


def new_meeting_file(world_size: int) -> Path:
    """Zeroed counters, to be opened by every rank and then unlinked by whoever made them."""
    folder = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    descriptor, name = tempfile.mkstemp(prefix=f"mindgspo-meeting-{os.getuid()}-", dir=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(bytes(2 * world_size * world_size * np.dtype(np.int64).itemsize))
    return Path(name)


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
        self._call = runtime.CompiledCell(cell)
        self._compiled: set[tuple] = set()

    def __call__(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        heartbeat.tick()
        if len(self._ranks) > 1:
            shapes = tuple((tuple(tensor.shape), str(tensor.dtype)) for tensor in inputs)
            if shapes not in self._compiled:
                self.cell.compile(*inputs)
                self._compiled.add(shapes)
                meet(self._ranks)
        return self._call(*inputs)


def world_ranks() -> Ranks:
    """All ranks."""
    return tuple(range(runtime.world_size()))


def exchange(message: bytes, *, speakers: Sequence[int] | None = None) -> list[bytes]:
    """Every rank's message, in the order of `speakers` (default: all ranks), on every rank. Others' are not sent."""
    speakers = world_ranks() if speakers is None else speakers
    if runtime.world_size() == 1:
        return [message]
    lengths = np.zeros(runtime.world_size(), np.int32)
    if runtime.rank() in speakers:
        assert len(message) < 2**31, f"a message of {len(message)} bytes"
        lengths[runtime.rank()] = len(message)
    sum_over_world(lengths)
    return [_told(message, sender=speaker, num_bytes=int(lengths[speaker])) for speaker in speakers]


def _told(message: bytes, *, sender: int, num_bytes: int) -> bytes:
    if num_bytes == 0:
        return b""
    words = np.zeros(-(-num_bytes // _WORD.itemsize), _WORD)
    raw = words.view(np.uint8)[:num_bytes]
    if runtime.rank() == sender:
        raw[:] = np.frombuffer(message, np.uint8)
    broadcast(words, sender=sender, ranks=world_ranks())
    return raw.tobytes()


_MAX_NAMED = 5


def require_agreement(topic: str, facts: Mapping[str, object], fix: str) -> None:
    """facts: JSON-able values by key, nested as they like. fix: what the user should do about a difference."""
    messages = [json.loads(message) for message in exchange(json.dumps(facts, sort_keys=True).encode())]
    first = dict(_flat(messages[0]))
    lines = []
    for rank, message in enumerate(messages):
        other = dict(_flat(message))
        lines += [
            f"  rank {rank}: {key} is {other.get(key, 'missing')!r}, on rank 0 {first.get(key, 'missing')!r}"
            for key in sorted(first.keys() | other.keys())
            if first.get(key) != other.get(key)
        ]
    if lines:
        more = [f"  and {len(lines) - _MAX_NAMED} more"] if len(lines) > _MAX_NAMED else []
        raise ConfigError("\n".join([f"the ranks differ in their {topic}:", *lines[:_MAX_NAMED], *more, fix]))


def _flat(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _flat(below, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value
