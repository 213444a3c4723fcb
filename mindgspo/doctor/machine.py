"""The machine as the checks see it, so that a test can supply another one; the needs of an experiment; and the problems
that a check finds. Severity, reason and fix of each finding are in findings.yaml."""

from __future__ import annotations

import functools
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

import psutil
import yaml

DRIVER = "/usr/local/Ascend/driver"
LIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "memlock": resource.RLIMIT_MEMLOCK,
          "stack": resource.RLIMIT_STACK}  # fmt: skip
MINDSPORE_PACKAGES = ("mindspore", "mindspore-ascend", "mindspore-cpu", "mindspore-gpu", "mindspore-dev")
_PACKAGES = (*MINDSPORE_PACKAGES, "numpy", "mindformers")
_COMMAND_S = 20.0
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Output:
    """Result of a command."""

    code: int
    text: str
    """Standard output, then standard error."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes of the file system that a path is on."""

    total: int
    free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The state of a machine, as the checks read it."""

    root: Path
    """Folder below which its files are: / of this machine."""
    environment: Mapping[str, str]
    run: Callable[[tuple[str, ...]], Output | None]
    """Runs a command line; None if there is no such command."""
    disk: Callable[[str], Disk]
    """File system of an absolute path."""
    limits: Mapping[str, int | None]
    """Soft limits of `LIMITS`, in bytes or numbers; None for unlimited."""
    packages: Mapping[str, str]
    """{distribution: version} of MindSpore, numpy and MindFormers, as far as they are installed."""
    mindspore: Path | None
    """Folder of the package."""
    tools: frozenset[str]
    """Compilers on the path: g++, gcc."""
    python: str
    processor: str
    user: str
    user_id: int
    groups: frozenset[int]
    interfaces: Mapping[str, frozenset[str]]
    """{network interface: its addresses}."""
    listening: frozenset[int]
    """TCP ports in use."""
    memory: int
    """Bytes, the container's limit included."""
    cores: int
    encoding: str
    """Encoding of file names and text, e.g. UTF-8."""
    host: str

    def path(self, path: str | os.PathLike) -> Path:
        """Path below `root` for an absolute path of the machine."""
        return self.root / str(path).lstrip("/")

    def text(self, path: str | os.PathLike) -> str:
        """Content of a file, at most a megabyte; empty if it cannot be read."""
        try:
            with self.path(path).open("rb") as file:
                return file.read(_MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Requirements of an experiment on this machine."""

    device: Literal["CPU", "Ascend"]
    ranks: int = 1
    """Processes that train here."""
    cards: int = 1
    """Those, and the cards that generate."""
    nodes: int = 1
    run_dir: Path = Path("/")
    """Absolute."""
    buffers: int = 0
    """Bytes of a card that HCCL's buffers take by the plan, at its default size."""
    buffer_room: int = 0
    """Bytes of a card that the plan leaves for them."""
    message: int = 0
    """Bytes of the largest message of a micro-batch."""
    swapped: int = 0
    """Most bytes of a rank that wait in host memory at once."""
    has_config: bool = False
    """Whether an experiment was named; without one, only the minimum is required."""

    @property
    def is_cluster(self) -> bool:
        """Whether ranks talk to each other."""
        return self.ranks * self.nodes > 1


class Severity(str, Enum):
    """BROKEN: a run will fail, or compute wrong results. RISK: it may fail later, or be slow."""

    BROKEN = "broken"
    RISK = "risk"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProblem:
    """One thing that is wrong."""

    name: str
    """Key of findings.yaml, e.g. card_busy."""
    severity: Severity
    what: str
    """The observation, with its value."""
    why: str
    """Why it hurts."""
    fix: str
    """The one thing to do."""


Check = Callable[[Machine, Needs], Iterator[MachineProblem]]


def problem(name: str, what: str, **values: object) -> MachineProblem:
    """An entry of findings.yaml with its braces filled in."""
    entry = known_problems()[name]
    why, fix = (entry[key].format_map(values) for key in ("why", "fix"))
    return MachineProblem(name=name, severity=Severity(entry["severity"]), what=what, why=why, fix=fix)


@functools.cache
def known_problems() -> Mapping[str, Mapping[str, str]]:
    """All entries of findings.yaml, by name."""
    return yaml.safe_load(Path(__file__).with_name("findings.yaml").read_text(encoding="utf-8"))


def this_machine() -> Machine:
    """The machine that this process runs on."""
    spec = importlib.util.find_spec("mindspore")
    return Machine(
        root=Path("/"),
        environment=dict(os.environ),
        run=_run,
        disk=_disk,
        limits={name: _limit(number) for name, number in LIMITS.items()},
        packages=_packages(),
        mindspore=None if spec is None or spec.origin is None else Path(spec.origin).parent,
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
        memory=min(psutil.virtual_memory().total, *_container_limits()),
        cores=len(os.sched_getaffinity(0)),
        encoding=locale.getpreferredencoding(False),
        host=socket.gethostname(),
    )


def _run(command: tuple[str, ...]) -> Output | None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_COMMAND_S, stdin=subprocess.DEVNULL)
    except (FileNotFoundError, PermissionError):
        return None
    except (subprocess.TimeoutExpired, OSError) as error:
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
    for name in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


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
    return frozenset(one.laddr.port for one in connections if one.laddr and one.status == psutil.CONN_LISTEN)


def _container_limits() -> Iterator[int]:
    """Memory limits of control groups of both versions, as a container sees its own; infinite if there is none."""
    yield 1 << 62
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError):
            text = Path("/sys/fs/cgroup", name).read_text(encoding="ascii").strip()
            if text.isdecimal():
                yield int(text)
