"""What the checks read of a machine, so that a test can hand them another one: files below a root, environment, limits,
installed packages, answers of commands."""

from __future__ import annotations

import getpass
import importlib.metadata
import importlib.util
import locale
import os
import platform
import resource
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

_COMMAND_S = 20.0
_MOST_BYTES = 1 << 20

LIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "memlock": resource.RLIMIT_MEMLOCK,
          "stack": resource.RLIMIT_STACK}  # fmt: skip
PACKAGES = ("mindspore", "mindspore-ascend", "mindspore-cpu", "mindspore-gpu", "mindspore-dev", "numpy", "mindformers")


@dataclass(frozen=True, slots=True)
class Output:
    """Of a command: its exit code; what it printed, errors behind the rest."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes of the file system that a path is on."""

    total: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """root: of its files. environment: variables. run: a command line -> its output, None where there is no such
    command. disk: of an absolute path. limits: soft ones of `LIMITS`, bytes or numbers, None for unlimited.
    packages: {distribution: version} of those of `PACKAGES` that are installed. mindspore: folder of the package.
    tools: of the compilers asked for, those that are there. user: name; user_id, groups: numbers. interfaces:
    {network interface: its addresses}. listening: TCP ports that somebody listens at. memory: bytes, the limit of
    the container among them. encoding: of file names and text."""

    root: Path
    environment: Mapping[str, str]
    run: Callable[[tuple[str, ...]], Output | None]
    disk: Callable[[str], Disk]
    limits: Mapping[str, int | None]
    packages: Mapping[str, str]
    mindspore: Path | None
    tools: frozenset[str]
    python: str
    processor: str
    user: str
    user_id: int
    groups: frozenset[int]
    interfaces: Mapping[str, frozenset[str]]
    listening: frozenset[int]
    memory: int
    cores: int
    encoding: str
    host: str

    def path(self, path: str | os.PathLike) -> Path:
        """Where an absolute path of the machine is to be read."""
        return self.root / str(path).lstrip("/")

    def text(self, path: str | os.PathLike) -> str | None:
        """Of a file, at most a megabyte; None where it cannot be read."""
        try:
            with self.path(path).open("rb") as file:
                return file.read(_MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            return None

    def exists(self, path: str | os.PathLike) -> bool:
        """Whether a file or folder is there."""
        return self.path(path).exists()

    def may_open(self, path: str) -> bool:
        """Whether the user may read and write a file, by its owner, group and mode."""
        facts = self.path(path).stat()
        if self.user_id == 0:
            return True
        shift = 6 if facts.st_uid == self.user_id else 3 if facts.st_gid in self.groups else 0
        return (facts.st_mode >> shift) & 0o6 == 0o6

    def devices(self) -> list[int]:
        """Numbers of the card devices, /dev/davinci<number>."""
        names = (path.name.removeprefix("davinci") for path in self.path("/dev").glob("davinci[0-9]*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def has_cards(self) -> bool:
        """Whether anything of Ascend cards is there: devices or a driver."""
        return bool(self.devices()) or self.exists(DRIVER)


DRIVER = "/usr/local/Ascend/driver"


def this_machine() -> Machine:
    """The one that this process runs on."""
    return Machine(
        root=Path("/"),
        environment=dict(os.environ),
        run=_run,
        disk=_disk,
        limits={name: _limit(number) for name, number in LIMITS.items()},
        packages=_packages(),
        mindspore=_mindspore(),
        tools=frozenset(name for name in ("g++", "gcc") if shutil.which(name)),
        python=platform.python_version(),
        processor=platform.machine(),
        user=_user(),
        user_id=os.getuid(),
        groups=frozenset({os.getgid(), *os.getgroups()}),
        interfaces={
            name: frozenset(address.address.partition("%")[0] for address in addresses)
            for name, addresses in psutil.net_if_addrs().items()
        },
        listening=_listening(),
        memory=min(psutil.virtual_memory().total, _container_limit()),
        cores=len(os.sched_getaffinity(0)),
        encoding=locale.getpreferredencoding(False),
        host=socket.gethostname(),
    )


def _run(command: tuple[str, ...]) -> Output | None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_COMMAND_S, stdin=subprocess.DEVNULL)
    except (FileNotFoundError, PermissionError):
        return None
    except subprocess.TimeoutExpired:
        return Output(124, f"no answer within {_COMMAND_S:g} s")
    except OSError as error:
        return Output(126, str(error))
    return Output(done.returncode, (done.stdout + done.stderr)[:_MOST_BYTES].decode("utf-8", "replace"))


def _disk(path: str) -> Disk:
    folder = next(parent for parent in (Path(path), *Path(path).parents) if parent.exists())
    usage = shutil.disk_usage(folder)
    return Disk(usage.total, usage.free)


def _limit(number: int) -> int | None:
    soft, _ = resource.getrlimit(number)
    return None if soft == resource.RLIM_INFINITY else soft


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _mindspore() -> Path | None:
    spec = importlib.util.find_spec("mindspore")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for the number
        return str(os.getuid())


def _listening() -> frozenset[int]:
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return frozenset()
    return frozenset(one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN)


def _container_limit() -> int:
    """Of control groups of both versions, as a container sees its own."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = Path("/sys/fs/cgroup", name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdecimal():
            return int(text)
    return psutil.virtual_memory().total
