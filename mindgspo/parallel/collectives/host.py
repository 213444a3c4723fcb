"""Collectives called from the host, and what makes them safe: process groups made in one order, ranks that meet before
they enter, and agreement on what all ranks must share. Between the ranks of a CPU cluster they go through memory that
these share, on Ascend through MindSpore; there the ranks of a host share memory to wait for each other. A process that
is alone pays nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from mindgspo.errors import ConfigError
from mindgspo.parallel.collectives.shared_memory import SLOT_BYTES, SharedMemoryGroup, new_group_file
from mindgspo.parallel.plans.placement import Ranks
from mindgspo.parallel.platform import heartbeat, runtime
from mindgspo_kernels.binding import graph_failure
from mindgspo_kernels.build import KernelsUnavailable

_log = logging.getLogger(__name__)
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


# CPU collectives move float32 and int32, and only an integer keeps every bit pattern.
_WORD = np.dtype(np.int32)
_PATH_BYTES = 512

_shared: SharedMemoryGroup | None = None
"""Of a CPU cluster: all collectives go through it."""
_barrier_group: SharedMemoryGroup | None = None
"""Where the ranks `_here` wait for each other: `_shared`, or what the ranks of one host with cards have."""
_here: Ranks = ()


def open_shared_memory() -> None:
    """Give the ranks of a CPU cluster, or on Ascend those of a host, their meeting place; all call it, right after
    `runtime.join_cluster`."""
    global _shared, _barrier_group, _here
    if _barrier_group is not None or runtime.world_size() == 1:
        return
    if runtime.current_device() == "Ascend":
        _barrier_group, _here = _group_of_host()
        return
    path = new_group_file(runtime.world_size()) if runtime.rank() == 0 else None
    words = np.zeros(_PATH_BYTES // _WORD.itemsize, _WORD)
    if path is not None:
        encoded = str(path).encode()
        assert len(encoded) <= _PATH_BYTES, path
        words.view(np.uint8)[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    runtime.broadcast_in_place(words, sender=0, group=group_name(world_ranks()))
    file = Path(words.tobytes().rstrip(b"\0").decode())
    _shared = _barrier_group = SharedMemoryGroup(file, rank=runtime.rank(), world_size=runtime.world_size())
    _here = world_ranks()
    _shared.serve_graphs()
    _shared.barrier(world_ranks())
    if path is not None:
        path.unlink()


def _group_of_host() -> tuple[SharedMemoryGroup | None, Ranks]:
    """And those that have it: the ranks of this host that could open the file of the first of them."""
    rank, size = runtime.rank(), runtime.world_size()
    hosts = exchange(socket.gethostname().encode())
    leaders = sorted({hosts.index(host) for host in hosts})
    leader = hosts.index(hosts[rank])
    path = group = None
    try:
        path = new_group_file(size, has_slots=False) if rank == leader else None
    except (ConfigError, KernelsUnavailable) as error:
        _log.warning("ranks of this host wait for each other within HCCL's limits alone: %s", error)
    told = exchange(str(path or "").encode(), senders=leaders)[leaders.index(leader)].decode()
    try:
        group = SharedMemoryGroup(Path(told), rank=rank, world_size=size, has_slots=False) if told else None
    except (ConfigError, KernelsUnavailable) as error:
        _log.warning("rank %d waits for others within HCCL's limits alone: %s", rank, error)
    have_it = exchange(b"yes" if group else b"")
    if path is not None:
        path.unlink()
    return group, tuple(other for other in range(size) if hosts[other] == hosts[rank] and have_it[other])


def wait_for_ranks(ranks: Ranks) -> None:
    """Wait until all `ranks` are here: before a collective to which they may come at very different times. On Ascend
    those of this host; hosts wait for each other in the collective, which HCCL's limits end."""
    here = tuple(rank for rank in ranks if rank in _here)
    if _barrier_group is not None and len(here) > 1:
        _barrier_group.barrier(here)


def make_broadcast_groups(groups: Iterable[Ranks]) -> None:
    """Make those of the groups that have this process among them, where broadcasts need them: see `group_name`."""
    if _shared is None:
        for ranks in groups:
            if runtime.rank() in ranks:
                group_name(ranks)


def broadcast(array: np.ndarray, *, sender: int, ranks: Ranks) -> None:
    """Fill `array` (contiguous, float32 or int32) on all `ranks` with the sender's. On CPU the sender may go on before
    they have it."""
    if len(ranks) == 1:
        return
    if _shared is None:
        runtime.broadcast_in_place(array, sender=sender, group=group_name(ranks))
    else:
        assert array.flags.c_contiguous, array.flags
        _shared.broadcast(array, sender=sender, ranks=ranks)


def max_buffer_bytes() -> int:
    """The most that `broadcast_buffer` takes at once."""
    return sys.maxsize if _shared is None else SLOT_BYTES


@contextmanager
def broadcast_buffer(num_bytes: int, *, sender: int, ranks: Ranks) -> Iterator[np.ndarray]:
    """int32 [ceil(num_bytes / 4)]: what the sender writes into it inside, the other `ranks` read from it inside."""
    num_words = -(-num_bytes // _WORD.itemsize)
    if _shared is not None:
        with _shared.passing(num_words * _WORD.itemsize, sender=sender, ranks=ranks) as slot:
            yield slot.view(_WORD)
        return
    buffer, is_sender = np.empty(num_words, _WORD), runtime.rank() == sender
    if is_sender:
        yield buffer
    runtime.broadcast_in_place(buffer, sender=sender, group=group_name(ranks))
    if not is_sender:
        yield buffer


def barrier() -> None:
    """Wait until every rank has come."""
    total = np.ones(1, np.int32)
    sum_over_world(total)
    assert total[0] == runtime.world_size(), total


def sum_over_world(array: np.ndarray) -> None:
    """Replace `array` (float32 or int32, contiguous) on every rank by the sum over all ranks."""
    if _shared is not None:
        _shared.sum([array], world_ranks())
    elif runtime.world_size() > 1:
        runtime.sum_in_place(array, group=group_name(world_ranks()))


def send(tensor: Tensor, receiver: int) -> None:
    """To a rank that calls `receive`. On CPU it goes on at once where 1 MiB holds what is on its way, else, and on
    Ascend, it may wait for the receiver."""
    if _shared is None:
        runtime.send_tensor(tensor, receiver)
    else:
        _shared.send(tensor.asnumpy(), receiver)


def receive(shape: Sequence[int], dtype: ms.Type, sender: int) -> Tensor:
    """The next tensor that `sender` sends here."""
    result = ms.mint.empty(tuple(shape), dtype=dtype)
    if _shared is None:
        runtime.receive_tensor(result, sender)
    else:
        _shared.receive(result.asnumpy(), sender)
    return result


class GraphOfRanks:
    """A compiled cell in which several ranks talk to each other. Compiling takes each of them its own time, so they
    meet before the first run with new shapes."""

    def __init__(self, cell: nn.Cell, ranks: Ranks) -> None:
        self.cell, self._ranks = cell, ranks
        self._call = runtime.CompiledCell(cell)
        self._compiled: set[tuple] = set()

    def compile(self, *inputs: Tensor) -> bool:
        """Compile for inputs of these shapes, without meeting the others; whether that was still to be done."""
        shapes = tuple((tuple(tensor.shape), str(tensor.dtype)) for tensor in inputs)
        if shapes in self._compiled:
            return False
        self.cell.compile(*inputs)
        self._compiled.add(shapes)
        return True

    def __call__(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        heartbeat.tick()
        if len(self._ranks) > 1 and self.compile(*inputs):
            wait_for_ranks(self._ranks)
        try:
            return self._call(*inputs)
        except RuntimeError as error:  # which says that an operator failed, not why
            if _shared is None or not (reason := graph_failure()):
                raise
            raise RuntimeError(reason) from error


def world_ranks() -> Ranks:
    """All ranks."""
    return tuple(range(runtime.world_size()))


def exchange(message: bytes, *, senders: Sequence[int] | None = None) -> list[bytes]:
    """Every rank's message, in the order of `senders` (default: all ranks), on every rank. Others' are not sent."""
    senders = world_ranks() if senders is None else senders
    if runtime.world_size() == 1:
        return [message]
    lengths = np.zeros(runtime.world_size(), np.int32)
    if runtime.rank() in senders:
        assert len(message) < 2**31, f"a message of {len(message)} bytes"
        lengths[runtime.rank()] = len(message)
    sum_over_world(lengths)
    return [_told(message, sender=sender, num_bytes=int(lengths[sender])) for sender in senders]


def _told(message: bytes, *, sender: int, num_bytes: int) -> bytes:
    if num_bytes == 0:
        return b""
    words = np.zeros(-(-num_bytes // _WORD.itemsize), _WORD)
    raw = words.view(np.uint8)[:num_bytes]
    if runtime.rank() == sender:
        raw[:] = np.frombuffer(message, np.uint8)
    broadcast(words, sender=sender, ranks=world_ranks())
    return raw.tobytes()


def send_between(messages: Mapping[int, np.ndarray], expected: Mapping[int, int]) -> dict[int, np.ndarray]:
    """Bytes from rank to rank; all ranks call it. messages: uint8, by the rank that gets them. expected: how many bytes
    come, by the rank that sends them. Returns what has come, by sender."""
    rank, size = runtime.rank(), runtime.world_size()
    assert rank not in messages and rank not in expected, "a message to itself"
    words = {other: np.zeros(-(-num_bytes // _WORD.itemsize), _WORD) for other, num_bytes in expected.items()}
    sent = {other: np.zeros(-(-message.nbytes // _WORD.itemsize), _WORD) for other, message in messages.items()}
    for other, message in messages.items():
        sent[other].view(np.uint8)[: message.nbytes] = message
    if _shared is None:
        none = np.zeros(0, _WORD)
        parts = [sent.get(other, none) for other in range(size)]
        runtime.send_to_each(parts, [words.get(other, none) for other in range(size)])
    else:
        # Every rank takes the pairs in one order, so that nobody waits for somebody who waits for it.
        pairs = [(rank, other) for other in messages] + [(other, rank) for other in expected]
        for sender, receiver in sorted(pairs):
            array = sent[receiver] if sender == rank else words[sender]
            broadcast(array, sender=sender, ranks=tuple(sorted((sender, receiver))))
    return {other: words[other].view(np.uint8)[:num_bytes] for other, num_bytes in expected.items()}


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
