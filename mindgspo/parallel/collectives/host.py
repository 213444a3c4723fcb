"""Collectives called from the host, process groups, barriers, and checks that the ranks agree.

Between the ranks of a CPU cluster they go through shared memory, on Ascend through MindSpore; there the ranks of a host
use shared memory only to wait for each other. A single process pays nothing.
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
from mindspore.mint import distributed

from mindgspo.errors import ConfigError
from mindgspo.parallel.collectives.shared_memory import SLOT_BYTES, SharedMemoryGroup, new_group_file
from mindgspo.parallel.plans.placement import Ranks
from mindgspo.parallel.platform import heartbeat, runtime
from mindgspo_kernels.binding import graph_failure
from mindgspo_kernels.build import KernelsUnavailable

_log = logging.getLogger(__name__)
_names: dict[Ranks, str] = {}


def group_name(ranks: Ranks) -> str:
    """Return the name of the group of `ranks` (ascending, at least two, including this process), made on first use.

    Every member must call it, and members of several new groups in the same order, as with any collective.
    """
    assert len(ranks) > 1 and tuple(sorted(set(ranks))) == ranks, ranks
    assert runtime.rank() in ranks, f"rank {runtime.rank()} is not in {ranks}"
    if ranks not in _names:
        _names[ranks] = _made(ranks)
    return _names[ranks]


def made_groups() -> dict[str, Ranks]:
    """Return {name: ranks} of the groups made so far."""
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

_shared: SharedMemoryGroup | None = None
"""Shared memory of a CPU cluster, which all collectives go through."""
_barrier_group: SharedMemoryGroup | None = None
"""Shared memory in which the ranks `_here` wait for each other: `_shared`, or that of one host with cards."""
_here: Ranks = ()


def open_shared_memory() -> None:
    """Open the shared memory of a CPU cluster, or of a host with cards; all ranks call it once they have joined."""
    global _shared, _barrier_group, _here
    if _barrier_group is not None or runtime.world_size() == 1:
        return
    if runtime.current_device() == "Ascend":
        _barrier_group, _here = _group_of_host()
        return
    path = new_group_file(runtime.world_size()) if runtime.rank() == 0 else None
    (file,) = exchange(str(path or "").encode(), senders=(0,))
    _shared = SharedMemoryGroup(Path(file.decode()), rank=runtime.rank(), world_size=runtime.world_size())
    _barrier_group = _shared
    _here = world_ranks()
    _shared.serve_graphs()
    _shared.barrier(world_ranks())
    if path is not None:
        path.unlink()


def _group_of_host() -> tuple[SharedMemoryGroup | None, Ranks]:
    """Return the shared memory of this host, None if it cannot be opened, and the host's ranks that have opened it."""
    rank, size = runtime.rank(), runtime.world_size()
    hosts = exchange(socket.gethostname().encode())
    leaders = sorted({hosts.index(host) for host in hosts})
    leader = hosts.index(hosts[rank])
    path = group = None
    try:
        path = new_group_file(size, has_slots=False) if rank == leader else None
    except (ConfigError, KernelsUnavailable) as error:
        _log.warning("ranks of this host wait for each other within HCCL's limits alone: %s", error)
    file = exchange(str(path or "").encode(), senders=leaders)[leaders.index(leader)].decode()
    try:
        group = SharedMemoryGroup(Path(file), rank=rank, world_size=size, has_slots=False) if file else None
    except (ConfigError, KernelsUnavailable) as error:
        _log.warning("rank %d waits for others within HCCL's limits alone: %s", rank, error)
    have_it = exchange(b"yes" if group else b"")
    if path is not None:
        path.unlink()
    return group, tuple(other for other in range(size) if hosts[other] == hosts[rank] and have_it[other])


def wait_for_ranks(ranks: Ranks) -> None:
    """Wait for all `ranks` before a collective that they may reach at very different times.

    On Ascend only the ranks of this host; hosts wait for each other in the collective, within HCCL's timeout.
    """
    here = tuple(rank for rank in ranks if rank in _here)
    if _barrier_group is not None and len(here) > 1:
        _barrier_group.barrier(here)


def make_broadcast_groups(groups: Iterable[Ranks]) -> None:
    """Make the groups that include this process, if broadcasts need any; the order matters as in `group_name`."""
    if _shared is None:
        for ranks in groups:
            if runtime.rank() in ranks:
                group_name(ranks)


def broadcast(array: np.ndarray, *, sender: int, ranks: Ranks) -> None:
    """Fill `array` (contiguous, float32 or int32) on all `ranks` with the sender's.

    Not a barrier: on CPU the sender may go on before the others have received it.
    """
    if len(ranks) == 1:
        return
    if _shared is None:
        runtime.broadcast_in_place(array, sender=sender, group=group_name(ranks))
    else:
        assert array.flags.c_contiguous, array.flags
        _shared.broadcast(array, sender=sender, ranks=ranks)


def share_bytes(message: bytes, *, sender: int, ranks: Ranks) -> bytes:
    """Return the sender's message on all `ranks`."""
    size = np.array([len(message)], _WORD)
    broadcast(size, sender=sender, ranks=ranks)
    return _message_from(sender, message, num_bytes=int(size[0]), ranks=ranks)


def max_buffer_bytes() -> int:
    """Return the largest size of a `broadcast_buffer`."""
    return sys.maxsize if _shared is None else SLOT_BYTES


@contextmanager
def broadcast_buffer(num_bytes: int, *, sender: int, ranks: Ranks) -> Iterator[np.ndarray]:
    """Yield an int32 buffer [ceil(num_bytes / 4)] that the sender fills and the other `ranks` read inside the block."""
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
    """Wait for all ranks."""
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
    """Send a tensor to a rank that calls `receive`; may wait for it, on CPU only if over 1 MiB is on its way."""
    if _shared is None:
        distributed.send(tensor, receiver)
    else:
        _shared.send(tensor.asnumpy(), receiver)


def receive(shape: Sequence[int], dtype: ms.Type, sender: int) -> Tensor:
    """Return the next tensor that `sender` sends to this rank."""
    result = ms.mint.empty(tuple(shape), dtype=dtype)
    if _shared is None:
        distributed.recv(result, sender)
    else:
        _shared.receive(result.asnumpy(), sender)
    return result


class GraphOfRanks:
    """A compiled cell in which several ranks communicate.

    Compilation times differ between ranks, so they wait for each other before the first run with new shapes.
    """

    def __init__(self, cell: nn.Cell, ranks: Ranks) -> None:
        self.cell, self._ranks = cell, ranks
        self._call = runtime.CompiledCell(cell)
        self._compiled: set[tuple] = set()

    def compile(self, *inputs: Tensor) -> bool:
        """Compile for inputs of these shapes without waiting for other ranks; return False if already compiled."""
        shapes = tuple((tuple(tensor.shape), str(tensor.dtype)) for tensor in inputs)
        if shapes in self._compiled:
            return False
        self.cell.compile(*inputs)
        self._compiled.add(shapes)
        return True

    def __call__(self, *inputs: Tensor) -> runtime.Outputs:
        heartbeat.tick()
        if len(self._ranks) > 1 and self.compile(*inputs):
            wait_for_ranks(self._ranks)
        try:
            return self._call(*inputs)
        except RuntimeError as error:  # it says that an operator failed, not why
            if _shared is None or not (reason := graph_failure()):
                raise
            raise RuntimeError(reason) from error


def world_ranks() -> Ranks:
    """Return all ranks."""
    return tuple(range(runtime.world_size()))


def exchange(message: bytes, *, senders: Sequence[int] | None = None) -> list[bytes]:
    """Return the messages of `senders` (default: all ranks) in that order, on every rank; all ranks call it."""
    senders = world_ranks() if senders is None else senders
    if runtime.world_size() == 1:
        return [message]
    lengths = np.zeros(runtime.world_size(), np.int32)
    if runtime.rank() in senders:
        assert len(message) < 2**31, f"a message of {len(message)} bytes"
        lengths[runtime.rank()] = len(message)
    sum_over_world(lengths)
    ranks = world_ranks()
    return [_message_from(sender, message, num_bytes=int(lengths[sender]), ranks=ranks) for sender in senders]


def _message_from(sender: int, message: bytes, *, num_bytes: int, ranks: Ranks) -> bytes:
    if num_bytes == 0:
        return b""
    words = np.zeros(-(-num_bytes // _WORD.itemsize), _WORD)
    raw = words.view(np.uint8)[:num_bytes]
    if runtime.rank() == sender:
        raw[:] = np.frombuffer(message, np.uint8)
    broadcast(words, sender=sender, ranks=ranks)
    return raw.tobytes()


def send_between(messages: Mapping[int, np.ndarray], expected: Mapping[int, int]) -> dict[int, np.ndarray]:
    """Exchange bytes between pairs of ranks; all ranks call it.

    messages: uint8 arrays by receiver. expected: number of bytes by sender. Returns the received arrays by sender.
    """
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
        # All ranks take the pairs in one order, so that no two wait for each other.
        pairs = [(rank, other) for other in messages] + [(other, rank) for other in expected]
        for sender, receiver in sorted(pairs):
            array = sent[receiver] if sender == rank else words[sender]
            broadcast(array, sender=sender, ranks=tuple(sorted((sender, receiver))))
    return {other: words[other].view(np.uint8)[:num_bytes] for other, num_bytes in expected.items()}


_MAX_NAMED = 5


def require_agreement(topic: str, facts: Mapping[str, object], fix: str) -> None:
    """Raise ConfigError on every rank if `facts` (JSON values by key, nested) differ between ranks.

    topic: the subject of the facts, for the message. fix: the advice at its end.
    """
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
