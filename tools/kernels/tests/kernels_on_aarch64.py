"""pytest plugin: functions of the kernels, called by tests as always, run in a library for aarch64 under qemu-user.

    test -> binding -> a call in shared memory -> aarch64_calls.cc under qemu-user -> the library for aarch64
    graph -> MindSpore -> a library of this processor with the same operators -> the same way

What pointers point to is copied to memory that both processes map, and back after the call.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mindgspo_kernels import binding, build

COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
CALLED = "MINDGSPO_AARCH64_CALLED"  # the file that gets the names of the functions called, one a line

_SYSTEM = "/usr/aarch64-linux-gnu"  # Debian's libraries for aarch64
_SHARE = 1 << 30
"""Bytes of shared memory of a thread; pages take up memory once they are touched."""
_THREADS = 12
_ADDRESS = 1 << 40
"""Of the shared memory in the other process."""
_REQUEST = struct.Struct("@64s24q8dqq1024s")
_ITEM = {"bool": 1, "uint8": 1, "int16": 2, "float16": 2, "bfloat16": 2, "int64": 8}
_TEXTS = {"mindgspo_error", "mindgspo_graph_failure"}


def exported(library: Path) -> set[str]:
    """Names of the functions that a library offers."""
    listing = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return set(re.findall(r" T ((?:mindgspo|graph)_\w+)", listing.stdout))


class Memory:
    """What one call points to: copied to the shared memory, where each address has another one."""

    def __init__(self, share: memoryview, address: int) -> None:
        self._share, self._address, self._end = share, address, _REQUEST.size
        self._spans: list[tuple[int, int]] = []
        self._places: list[tuple[int, int, int]] = []  # start, end, offset in the share

    def add(self, start: int, num_bytes: int) -> None:
        """Memory of this process that the call reads or writes."""
        if num_bytes:
            self._spans.append((start, start + num_bytes))

    def copy_in(self) -> None:
        """Spans that overlap are copied as one."""
        merged: list[list[int]] = []
        for start, end in sorted(self._spans):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(end, merged[-1][1])
            else:
                merged.append([start, end])
        for start, end in merged:
            offset = self._take(end - start, start % 64)
            self._share[offset : offset + end - start] = ctypes.string_at(start, end - start)
            self._places.append((start, end, offset))

    def copy_out(self) -> None:
        for start, end, offset in self._places:
            ctypes.memmove(start, bytes(self._share[offset : offset + end - start]), end - start)

    def there(self, address: int) -> int:
        """The other process's address; an empty tensor's, which nobody reads, is 64."""
        found = (offset + address - start for start, end, offset in self._places if start <= address < end)
        offset = next(found, None)
        return 64 if offset is None else self._address + offset

    def put(self, content: bytes) -> int:
        """The other process's address of a copy that nobody reads back."""
        offset = self._take(len(content), 0)
        self._share[offset : offset + len(content)] = content
        return self._address + offset

    def _take(self, num_bytes: int, shift: int) -> int:
        offset = -(-self._end // 64) * 64 + shift
        self._end = offset + num_bytes
        assert self._end <= len(self._share), "a call with too much memory"
        return offset


class Channel:
    """One of the other process's threads, for one of this process's."""

    def __init__(self, number: int, share: memoryview, end: socket.socket) -> None:
        self._share, self._address, self._end = share, _ADDRESS + number * _SHARE, end

    def memory(self) -> Memory:
        return Memory(self._share, self._address)

    def call(self, name: str, integers: Sequence[int], doubles: Sequence[float] = (), *, is_text: bool = False) -> Any:
        integers, doubles = [*integers, *[0] * (24 - len(integers))], [*doubles, *[0.0] * (8 - len(doubles))]
        request = _REQUEST.pack(name.encode(), *integers, *doubles, is_text, 0, b"")
        self._share[: _REQUEST.size] = request
        self._end.send(b"x")
        assert self._end.recv(1), f"the process for aarch64 ended in {name}"
        *_, result, text = _REQUEST.unpack(self._share[: _REQUEST.size])
        return text.partition(b"\0")[0] if is_text else result


class Aarch64:
    """The library under qemu-user, in place of what `ctypes.CDLL` returns."""

    def __init__(self, library: Path, calls: Path) -> None:
        self.called: set[str] = set()
        self._functions: dict[str, Function] = {}
        file = os.memfd_create("aarch64")
        os.ftruncate(file, _THREADS * _SHARE)
        shares, pairs = memoryview(mmap.mmap(file, _THREADS * _SHARE)), [socket.socketpair() for _ in range(_THREADS)]
        numbers = [file, *(theirs.fileno() for _, theirs in pairs)]
        memory = str(file), str(_ADDRESS), str(_THREADS * _SHARE)
        self._process = subprocess.Popen(
            [EMULATOR, "-L", _SYSTEM, calls, library, *memory, *map(str, numbers[1:])], pass_fds=numbers
        )
        for _, theirs in pairs:
            theirs.close()
        self._free = [
            Channel(number, shares[number * _SHARE : (number + 1) * _SHARE], ours)
            for number, (ours, _) in enumerate(pairs)
        ]
        self._of_thread = threading.local()

    def channel(self) -> Channel:
        """The calling thread's, until it ends: messages of errors are kept by thread."""
        if not hasattr(self._of_thread, "lent"):
            self._of_thread.lent = Lent(self._free)
        return self._of_thread.lent.channel

    def __getattr__(self, name: str) -> Function:
        return self._functions.setdefault(name, Function(name, self))


class Lent:
    """Gives its channel back with the thread-local variable that holds it."""

    def __init__(self, free: list[Channel]) -> None:
        self._free, self.channel = free, free.pop()

    def __del__(self) -> None:
        self._free.append(self.channel)


class Function:
    """A function with the arguments that `binding` gives to those of ctypes."""

    def __init__(self, name: str, library: Aarch64) -> None:
        self._name, self._library = name, library

    def __call__(self, *arguments: object) -> Any:
        self._library.called.add(self._name)
        channel = self._library.channel()
        if self._name == "mindgspo_open_shared_memory":
            arguments = self._opened(channel, arguments)
        memory = channel.memory()
        for one in arguments:
            _add(memory, one)
        memory.copy_in()
        doubles = [one.value for one in arguments if isinstance(one, ctypes.c_double)]
        integers = [_integer(memory, one) for one in arguments if not isinstance(one, ctypes.c_double)]
        result = channel.call(self._name, integers, doubles, is_text=self._name in _TEXTS)
        memory.copy_out()
        return result if self._name in _TEXTS else ctypes.c_int(result).value

    @staticmethod
    def _opened(channel: Channel, arguments: Sequence[Any]) -> list[Any]:
        """The file as the other process opens it, no heartbeat and no look for signals, which are of this one."""
        path = channel.memory().put(f"/proc/{os.getpid()}/fd/{arguments[0].value}\0".encode())
        file = channel.call("open", [path, os.O_RDWR])
        return [ctypes.c_int64(file), *arguments[1:6], None, None, *arguments[8:]]


def _tensor(raw: bytes) -> tuple[int, int, int]:
    """Address, and the first and last byte that a mindgspo_tensor reaches, relative to it."""
    data, number, rank, *sizes = binding._DESCRIPTOR.unpack(raw)
    item = next(_ITEM.get(name, 4) for name, one in binding._DTYPES.items() if one == number)
    reach = [(size - 1) * stride for size, stride in zip(sizes[:rank], sizes[binding._MAX_RANK :][:rank], strict=True)]
    if 0 in sizes[:rank]:
        return data, 0, 0
    return data, item * sum(min(0, one) for one in reach), item * (1 + sum(max(0, one) for one in reach))


def _pointed(array: ctypes.Array) -> list[bytes | None]:
    """The descriptors that an array of pointers names."""
    return [None if place is None else ctypes.string_at(place, binding._DESCRIPTOR.size) for place in array]


def _add(memory: Memory, given: Any) -> None:
    if isinstance(given, bytes):
        data, first, end = _tensor(given)
        memory.add(data + first, end - first)
    elif isinstance(given, ctypes.Array) and given._type_ is ctypes.c_void_p:
        for descriptor in _pointed(given):
            _add(memory, descriptor)
    elif (inner := _referred(given)) is not None:
        memory.add(ctypes.addressof(inner), ctypes.sizeof(inner))


def _referred(given: Any) -> Any:
    """What is passed by its address; a structure by that of a copy."""
    return given if isinstance(given, (ctypes.Array, ctypes.Structure)) else getattr(given, "_obj", None)


def _integer(memory: Memory, given: Any) -> int:
    if given is None or isinstance(given, ctypes.c_int64):
        return 0 if given is None else given.value
    if isinstance(given, bytes):
        return memory.put(struct.pack("@q", memory.there(_tensor(given)[0])) + given[8:])
    if isinstance(given, ctypes.Array) and given._type_ is ctypes.c_void_p:
        places = [0 if one is None else _integer(memory, one) for one in _pointed(given)]
        return memory.put(struct.pack(f"@{len(places)}q", *places))
    return memory.there(ctypes.addressof(_referred(given)))


_OPERATOR = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_int, *[ctypes.POINTER(kind) for kind in (
        ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int64), ctypes.c_char_p)]
)  # fmt: skip


def _run_operator(library: Aarch64, name: bytes, count: int, data: Any, ranks: Any, shapes: Any, dtypes: Any) -> int:
    """An operator of a graph, as MindSpore calls it."""
    library.called.add(name.decode())
    channel = library.channel()
    memory, places = channel.memory(), [data[i] or 0 for i in range(count)]
    sizes = [shapes[i][: ranks[i]] for i in range(count)]
    for place, size, dtype in zip(places, sizes, dtypes[:count], strict=True):
        memory.add(place, _ITEM.get(dtype.decode(), 4) * int(np.prod(size)))
    memory.copy_in()
    pointers = [
        [memory.there(place) for place in places],
        [memory.put(struct.pack(f"@{len(size)}q", *size)) for size in sizes],
        [memory.put(dtype + b"\0") for dtype in dtypes[:count]],
    ]
    moved, shapes_there, dtypes_there = (memory.put(struct.pack(f"@{count}q", *some)) for some in pointers)
    ranks_there = memory.put(struct.pack(f"@{count}i", *ranks[:count]))
    result = channel.call(name.decode(), [count, moved, ranks_there, shapes_there, dtypes_there, 0, 0])
    memory.copy_out()
    return ctypes.c_int(result).value


def _stand_in(folder: Path, names: set[str]) -> Path:
    """A library of this processor with these operators, which all call `callback`."""
    types = "int n, void** data, int* ranks, void** shapes, const char** dtypes"
    lines = [f"int (*callback)(const char*, {types});"]
    lines += [
        f'int {name}({types}, void* a, void* b) {{ return callback("{name}", n, data, ranks, shapes, dtypes); }}'
        for name in sorted(names)
    ]
    source, target = folder / "operators.c", folder / "liboperators.so"
    source.write_text("\n".join(lines))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", target, source], check=True)
    return target


def start(folder: Path) -> Aarch64:
    """Compile all in `folder` and put it in the place of the kernels of this process."""
    library, calls = folder / "libmindgspo_kernels.so", folder / "aarch64_calls"
    build.compile_library(library, compiler=COMPILER, march=build.KUNPENG)
    source = Path(__file__).with_name("aarch64_calls.cc")
    subprocess.run([COMPILER, "-std=c++17", "-O1", "-pthread", "-o", calls, source, "-ldl"], check=True)
    kernels = Aarch64(library, calls)
    operators = _stand_in(folder, {name for name in exported(library) if name.startswith("graph_")})
    kernels.callback = _OPERATOR(lambda *arguments: _run_operator(kernels, *arguments))
    ctypes.c_void_p.in_dll(ctypes.CDLL(str(operators)), "callback").value = ctypes.cast(
        kernels.callback, ctypes.c_void_p
    ).value
    binding.library = build.library = lambda: operators
    binding._library = lambda: kernels
    return kernels


def pytest_configure(config: pytest.Config) -> None:
    config.aarch64_folder = folder = Path(tempfile.mkdtemp(prefix="mindgspo-aarch64-"))
    config.aarch64 = start(folder)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    Path(os.environ[CALLED]).write_text("\n".join(sorted(item.config.aarch64.called)))


def pytest_unconfigure(config: pytest.Config) -> None:
    config.aarch64._process.kill()
    config.aarch64._process.wait()
    shutil.rmtree(config.aarch64_folder)
