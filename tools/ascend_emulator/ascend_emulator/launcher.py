"""Puts this process on an emulated card: loads the stand-ins and computes what MindSpore launches."""

from __future__ import annotations

import atexit
import ctypes
import itertools
import json
import os
import re
import shutil
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ascend_emulator.cann_root import SOCS
from ascend_emulator.contract import OPERATORS, ContractError
from ascend_emulator.errors import EmulatorError
from ascend_emulator.stand_ins import INTERNAL_KERNELS, OWN_KERNELS, SIGNATURES, installed_wheel
from ascend_emulator.tensors import DTYPE_NAMES, DeviceTensor, storage_dtype
from ascend_emulator.toolchain import Toolchain, find_toolchain, install_stand_in_packages
from mindgspo_kernels.cache import private_folder

EMULATED = "ASCEND_EMULATOR"
"""The environment variable that a process on an emulated card has."""
WAITS = "ASCEND_EMULATOR_WAITS"
"""The environment variable with a file that takes the collectives which this process has waited in for long."""
_SOC = "ASCEND_EMULATOR_SOC"
LAUNCHES = "ASCEND_EMULATOR_LAUNCHES"
"""The environment variable with a file that takes each operator launched by any process, and its inputs' dtypes."""
_FOLDER = "ASCEND_EMULATOR_FOLDER"
_PREFIX = f"ascend-emulator-{os.getuid()}-"  # of that folder; the rest is the process id of the job's first process
# aclError values: CANN's for a parameter that an operator refuses, and for whatever else went wrong inside of it.
_OK, _PARAMETER_INVALID, _INNER_ERROR = 0, 161002, 561000
_CHECK, _LAUNCH, _FORGET = 0, 1, 2
_ARGUMENT = struct.Struct("=qqdQ")  # kind, integer, real, pointer: see `Argument` in native/common.h
_SCALAR = struct.Struct("=qii16s")
_ARRAY = struct.Struct("=qQQ")
_ELEMENTS = {"I": np.int64, "F": np.float32, "B": np.bool_, "T": np.uint64, "S": np.uint64}
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64
)


def is_emulated() -> bool:
    """Whether this process was started on an emulated card."""
    return EMULATED in os.environ


def emulated_environment(folder: Path) -> dict[str, str]:
    """The environment for a process on an emulated card, and for its children: the libraries must be on the path
    before it starts. folder: in shared memory, where the cards of one job exchange data; made if need be.

    Builds the stand-ins the first time. Raises EmulatorUnavailable, EmulatorError as `find_toolchain` does.
    """
    toolchain = find_toolchain(emulated=True)
    own = {
        EMULATED: "1",
        _FOLDER: str(folder),
        "ASCEND_EMULATOR_SIGNATURES": str(SIGNATURES),
        "LD_LIBRARY_PATH": _prefixed(toolchain),
        "ASCEND_HOME_PATH": str(toolchain.libraries.parent),  # read by MindSpore's own kernels
        # They complain on the output where this names no path for logs.
        **dict.fromkeys(("ASCEND_WORK_PATH", "ASCEND_PROCESS_LOG_PATH"), "/dev/null"),
        # A rank is one of several on few cores: an operator's own threads would only wait for one another.
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1"),
    }
    return dict(os.environ) | own


def enter_emulated_cards() -> None:
    """From here on this process, and those that it starts, are on emulated cards. The first time it starts anew, with
    the same command line; before MindSpore is imported.

    Raises as `emulated_environment` does.
    """
    if not is_emulated():
        environment = emulated_environment(_shared_folder())
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    folder = Path(os.environ[_FOLDER])
    if _owner(folder) == os.getpid():
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    install_emulated_card()


def _shared_folder() -> Path:
    """Of the job that this process starts, or takes part in where msrun has started it; this user's alone. Those of
    jobs whose process is gone, which were killed before they could, are cleared away. Whatever else lies there under
    such a name is passed over."""
    base = Path("/dev/shm") if os.path.isdir("/dev/shm") else Path(tempfile.gettempdir())
    for left in base.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if left.lstat().st_uid == os.getuid() and (owner := _owner(left)) and not psutil.pid_exists(owner):
                shutil.rmtree(left)  # not what a link leads to
    is_shared = "MS_ROLE" in os.environ  # by ranks that do not know of each other, so its name must be this one
    folder = base / f"{_PREFIX}{os.getppid() if is_shared else os.getpid()}"
    try:
        private_folder(folder, folder)
    except OSError as error:
        if is_shared:
            raise EmulatorError(
                f"{error.filename}: {error.strerror}; remove it, it is in the way of this job"
            ) from error
        folder = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=base))
    return folder


def _owner(folder: Path) -> int | None:
    """The process whose job a folder belongs to, as its name says."""
    found = re.fullmatch(rf"{_PREFIX}(\d{{1,9}})(-\w+)?", folder.name)
    return int(found[1]) if found else None


def _prefixed(toolchain: Toolchain) -> str:
    rest = os.environ.get("LD_LIBRARY_PATH")
    return f"{toolchain.libraries}{os.pathsep}{rest}" if rest else str(toolchain.libraries)


class _Card:
    """The loaded libraries, and what their callback needs."""

    def __init__(self, libraries: Path) -> None:
        self.seconds: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()
        self._decoded: dict[int, tuple[int, list[Any]]] = {}
        self._told_launches: set[str] = set()
        self._callback = _CALLBACK(self._called)  # kept, or it would be collected
        self.library = ctypes.CDLL(str(libraries / "libascendcl.so"), mode=ctypes.RTLD_GLOBAL)
        if not self.library.emulator_has_soc():
            raise EmulatorError(f"{_SOC}={os.environ[_SOC]}: must be {', '.join(SOCS)}")
        self.library.emulator_set_callback(self._callback)
        self.library.emulator_set_error.argtypes = [ctypes.c_char_p]
        self.library.emulator_peak_bytes.restype = ctypes.c_size_t
        self.library.emulator_collectives.restype = ctypes.c_char_p
        self._internal = _load_internal_kernels(libraries)

    def _called(self, name: bytes, phase: int, key: int, version: int, arguments: int, count: int) -> int:
        """Never lets an exception pass: it would be lost in C."""
        operator = name.decode()
        try:
            if phase == _FORGET:
                self._decoded.pop(key, None)
                return _OK
            if operator not in OPERATORS:
                self._tell(f"{operator}: CANN has it, the emulated card does not")
                return _INNER_ERROR
            if phase == _CHECK:
                OPERATORS[operator].check(_decode(operator, arguments, count))
                return _OK
            self._launch(operator, key, version, arguments, count)
            return _OK
        except ContractError as error:
            self._tell(str(error))
            return _PARAMETER_INVALID
        except BaseException as error:
            traceback.print_exc()
            self._tell(f"{operator}: {type(error).__name__}: {error}")
            return _INNER_ERROR

    def _launch(self, operator: str, key: int, version: int, arguments: int, count: int) -> None:
        started = time.perf_counter()
        kept = self._decoded.get(key) if key else None
        if kept is not None and kept[0] == version:
            values = kept[1]
        else:
            values = _decode(operator, arguments, count)
            if key:
                self._decoded[key] = (version, values)
        with np.errstate(all="ignore"):
            OPERATORS[operator].run(*values)
        if LAUNCHES in os.environ:
            self._tell_launch(operator, values)
        self.launches[operator] += 1
        self.seconds[operator] += time.perf_counter() - started

    def _tell_launch(self, operator: str, values: list[Any]) -> None:
        """Add a line to the file, once: equal dtypes of neighbours are told once, those of aclnn functions not. Of
        MindSpore's own kernels all that their host code was asked, and the workspace that it wanted."""
        inputs = [] if operator.startswith("aclnn") else values[0]
        dtypes = [dtype for dtype, _ in itertools.groupby(one.dtype for one in inputs if one is not None)]
        if operator.startswith("internal:"):
            both = [[one and [one.dtype, *one.shape] for one in tensors] for tensors in values[:2]]
            dtypes = [json.dumps(both + values[2:])]
        line = " ".join([operator, *dtypes]) + "\n"
        if line not in self._told_launches:
            self._told_launches.add(line)
            with open(os.environ[LAUNCHES], "a", encoding="ascii") as file:
                file.write(line)

    def _tell(self, text: str) -> None:
        """To MindSpore, whose exception will hold it, and to the log, since it does not always."""
        self.library.emulator_set_error(text.encode())
        print(f"[emulated card] {text}", file=sys.stderr, flush=True)


def _load_internal_kernels(libraries: Path) -> list[ctypes.CDLL]:
    """MindSpore's own, and in front of them for whoever looks for a symbol later those that launch here."""
    wheel = ctypes.CDLL(str(installed_wheel().folder / OWN_KERNELS))
    return [wheel, ctypes.CDLL(str(libraries / INTERNAL_KERNELS), mode=ctypes.RTLD_GLOBAL)]


_card: _Card | None = None


def install_emulated_card() -> None:
    """Load everything; before MindSpore is imported. A second call does nothing.

    Raises EmulatorError for a card that is not emulated.
    """
    global _card
    if _card is not None:
        return
    assert is_emulated(), "this process was not started with emulated_environment()"
    assert "mindspore" not in sys.modules, "MindSpore is loaded already, with other libraries"
    import ascend_emulator.operators  # noqa: F401  (enters them into the table)

    install_stand_in_packages()
    _card = _Card(find_toolchain(emulated=True).libraries)
    if WAITS in os.environ:
        _card.library.emulator_tell_waits(os.environ[WAITS].encode())


def peak_bytes() -> int:
    """The most memory that MindSpore has held on this process's card at once."""
    assert _card is not None, "this process has no emulated card"
    return _card.library.emulator_peak_bytes()


def sleeps_while_waiting() -> bool:
    """Whether MindSpore's thread that waits for launches leaves its core to others (`native/waiting.cc`)."""
    assert _card is not None, "this process has no emulated card"
    return bool(_card.library.emulator_sleeps_while_waiting())


def launch_counts() -> Counter[str]:
    """How often each operator has run on this process's card."""
    assert _card is not None, "this process has no emulated card"
    return Counter(_card.launches)


def launch_seconds() -> Counter[str]:
    """Seconds that each operator has taken on this process's card."""
    assert _card is not None, "this process has no emulated card"
    return Counter(_card.seconds)


def collective_counts() -> Counter[str]:
    """How often this process has called each collective, by kind and size of group: "AllReduce/4"."""
    return Counter({kind: calls for kind, calls, _ in _collectives()})


def collective_bytes() -> Counter[str]:
    """Bytes that this process's card has sent in them if the ranks of a group pass data around in a ring: of n bytes
    and k ranks 2n(k-1)/k in an AllReduce, half of that in the others, n in a Send, none in a Receive."""
    return Counter({kind: num_bytes for kind, _, num_bytes in _collectives()})


def _collectives() -> list[tuple[str, int, int]]:
    assert _card is not None, "this process has no emulated card"
    lines = (line.split() for line in _card.library.emulator_collectives().decode().splitlines())
    return [(kind, int(calls), int(num_bytes)) for kind, calls, num_bytes in lines]


def _decode(operator: str, address: int, count: int) -> list[Any]:
    """The arguments of aclnnX in order; of others inputs, outputs and attributes."""
    raw = ctypes.string_at(address, count * _ARGUMENT.size)
    values = [_value(chr(kind), integer, real, at) for kind, integer, real, at in _ARGUMENT.iter_unpack(raw)]
    if operator.startswith("aclnn"):
        return values
    bar = next(i for i in range(count) if raw[i * _ARGUMENT.size] == ord("|"))
    return [values[:bar], values[bar + 1 : -1], json.loads(values[-1])]


def _value(kind: str, integer: int, real: float, address: int) -> Any:
    decode = _BY_KIND.get(kind)
    if decode is not None:
        return decode(integer, real)
    if not address:
        return None
    if kind == "t":
        return DeviceTensor.at(address)
    if kind == "s":
        return _scalar(address)
    if kind == "z":
        return ctypes.string_at(address).decode()
    _, size, data = _ARRAY.unpack(ctypes.string_at(address, _ARRAY.size))
    elements = np.frombuffer(
        ctypes.string_at(data, size * np.dtype(_ELEMENTS[kind]).itemsize), _ELEMENTS[kind]
    ).tolist()
    if kind == "T":
        return [DeviceTensor.at(at) if at else None for at in elements]
    return [_scalar(at) for at in elements] if kind == "S" else elements


_BY_KIND: dict[str, Callable[[int, float], Any]] = {
    "d": lambda integer, real: real,
    "f": lambda integer, real: real,
    "b": lambda integer, real: bool(integer),
    **dict.fromkeys("cwlup|", lambda integer, real: integer),
}


def _scalar(address: int) -> Any:
    _, number, _, raw = _SCALAR.unpack(ctypes.string_at(address, _SCALAR.size))
    dtype = storage_dtype(DTYPE_NAMES[number])
    if DTYPE_NAMES[number] == "bfloat16":
        return float(np.frombuffer(b"\0\0" + raw[:2], np.float32)[0])
    return np.frombuffer(raw, dtype, 1)[0].item()
