"""The host: shared memory, disks, limits, memory, locale, compiler."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

from mindgspo.doctor.findings import Finding, Needs, broken, risk
from mindgspo.doctor.machine import Machine
from mindgspo_kernels.cache import cache_folder, check_own

_GB = 1 << 30
_SHARED_BYTES = 1 * _GB
_RUN_BYTES, _TMP_BYTES = 10 * _GB, 1 * _GB
_RANK_BYTES = {"CPU": 1 * _GB, "Ascend": 8 * _GB}
"""Of host memory per rank: what a small run takes on CPU, and what compiling for Ascend took (docs/ascend.md)."""
_LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "overlay", "tmpfs", "zfs")


def disks(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """Shared memory, the run folder, temporary files, the cache of kernels."""
    shared = machine.disk("/dev/shm")
    if shared.total < _SHARED_BYTES:
        yield broken(
            "shared_memory",
            f"/dev/shm has {_size(shared.total)}",
            why="ranks and workers exchange arrays there; a container gets 64 MB unless told otherwise (SIGBUS)",
            fix="start the container with --shm-size=16g (Kubernetes: an emptyDir of medium Memory at /dev/shm)",
        )
    elif shared.free < _SHARED_BYTES:
        yield broken(
            "shared_memory_full",
            f"/dev/shm has {_size(shared.free)} left of {_size(shared.total)}",
            why="ranks and workers exchange arrays there (SIGBUS)",
            fix="remove what killed jobs left: ls -l /dev/shm",
        )
    run_dir = machine.disk(str(needs.run_dir))
    if needs.has_config and run_dir.free < _RUN_BYTES:
        yield broken(
            "run_disk",
            f"{_size(run_dir.free)} free for {needs.run_dir}",
            why="checkpoints of weights and moments are written there, the newest twice while one is replaced",
            fix="make room, or choose another disk with --set run_dir=...",
        )
    temporary = machine.environment.get("TMPDIR") or "/tmp"
    if not machine.exists(temporary):
        yield broken(
            "tmp_missing",
            f"TMPDIR={temporary} does not exist",
            why="the launcher, MindSpore and compilers keep files there",
            fix="unset TMPDIR",
        )
    elif machine.disk(temporary).free < _TMP_BYTES:
        yield broken(
            "tmp_disk",
            f"{_size(machine.disk(temporary).free)} free in {temporary}",
            why="the launcher, MindSpore and compilers keep files there",
            fix=f"make room in {temporary}, or export TMPDIR=<folder on another disk>",
        )
    if needs.has_config and needs.nodes > 1 and (kind := _file_system(machine, str(needs.run_dir))) in _LOCAL:
        yield risk(
            "run_dir_local",
            f"{needs.run_dir} is on {kind}, a disk of this machine alone",
            why="all nodes must see one run folder: checkpoints, prepared data and the report are rank 0's",
            fix="--set run_dir=<folder on a file system that all nodes mount>",
        )


def _file_system(machine: Machine, path: str) -> str | None:
    """Of the mount that holds a path."""
    mounts = [line.split() for line in (machine.text("/proc/mounts") or "").splitlines()]
    holding = [
        fields
        for fields in mounts
        if len(fields) > 2 and (fields[1] == "/" or path == fields[1] or path.startswith(f"{fields[1]}/"))
    ]
    return max(holding, key=lambda fields: len(fields[1]), default=[None, None, None])[2]


def limits(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """What `ulimit` allows."""
    least = {"nofile": (4096, "-n", "files that one process holds open: sockets of ranks, workers, data"),
             "nproc": (2048, "-u", "processes and threads of this user: a rank has a hundred")}  # fmt: skip
    for name, (number, flag, meaning) in least.items():
        value = machine.limits.get(name)
        if value is not None and value < number:
            yield broken(
                f"limit_{name}",
                f"ulimit {flag} is {value}",
                why=f"{meaning}; too few end a run in its middle (EMFILE, EAGAIN)",
                fix=f"ulimit {flag} {number * 16} (container: --ulimit {name}={number * 16})",
            )
    stack = machine.limits.get("stack")
    if stack is not None and stack < 8 << 20:
        yield risk(
            "limit_stack",
            f"ulimit -s is {stack >> 10} kB",
            why="MindSpore's compiler recurses through large graphs (SIGSEGV)",
            fix="ulimit -s 8192",
        )
    locked = machine.limits.get("memlock")
    if needs.device == "Ascend" and needs.is_cluster and locked is not None and locked < 64 << 20:
        yield risk(
            "limit_memlock",
            f"ulimit -l is {locked >> 10} kB",
            why="RDMA and copies to cards pin host memory",
            fix="ulimit -l unlimited (container: --ulimit memlock=-1:-1)",
        )


def memory(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """Host memory and cores for the ranks."""
    needed = _RANK_BYTES[needs.device] * needs.ranks
    if machine.memory < needed:
        yield (broken if machine.memory < needed // 2 else risk)(
            "host_memory",
            f"{_size(machine.memory)} of memory for {needs.ranks} ranks",
            why=f"a rank takes about {_size(_RANK_BYTES[needs.device])} while it compiles, and is killed without it",
            fix="raise the container's limit (--memory), or run fewer ranks",
        )
    if needs.device == "CPU" and needs.ranks > 2 * machine.cores:
        yield risk(
            "cores",
            f"{needs.ranks} ranks on {machine.cores} cores",
            why="they wait for each other in every collective",
            fix=f"plans for {machine.cores} ranks",
        )


def surroundings(machine: Machine, needs: Needs) -> Iterator[Finding]:
    """Locale, compiler, cache, log levels."""
    if machine.encoding.lower().replace("-", "") not in ("utf8", "utf8mb4"):
        yield risk(
            "locale",
            f"text is encoded as {machine.encoding}",
            why="prompts, responses and file names are UTF-8; libraries that do not say so fail at the first other one",
            fix="export LC_ALL=C.UTF-8",
        )
    if "g++" not in machine.tools and needs.device == "CPU":
        yield risk(
            "no_compiler",
            "no g++",
            why="the kernels for CPU cannot be built: several times slower, and bfloat16 is refused",
            fix="apt-get install g++",
        )
    cache = str(cache_folder(machine.environment).parent)
    holder = next(parent for parent in (machine.path(cache), *machine.path(cache).parents) if parent.exists())
    if machine.user_id and not machine.may_open("/" + str(holder.relative_to(machine.root))):
        yield risk(
            "cache_closed",
            f"user {machine.user} may not write in {cache}",
            why="kernels and stand-ins are compiled again by each process",
            fix="export XDG_CACHE_HOME=<a folder of yours>",
        )
    yield from _open_cache(machine.path(cache) / "mindgspo")
    verbose = [f"{name}={value}" for name in ("ASCEND_GLOBAL_LOG_LEVEL", "GLOG_v")
               if (value := machine.environment.get(name)) in ("0", "1")]  # fmt: skip
    if verbose:
        yield risk(
            "verbose_logs",
            " ".join(verbose),
            why="debug logs slow each kernel down and fill the disk with gigabytes",
            fix=f"unset {' '.join(one.partition('=')[0] for one in verbose)}",
        )
    if machine.environment.get("ASCEND_LAUNCH_BLOCKING") == "1":
        yield risk(
            "launch_blocking",
            "ASCEND_LAUNCH_BLOCKING=1",
            why="every kernel is waited for; meant for debugging",
            fix="unset ASCEND_LAUNCH_BLOCKING",
        )


def _open_cache(ours: Path) -> Iterator[Finding]:
    try:
        for path in (ours, *ours.glob("kernels/*/*.so"), *ours.glob("ascend-stand-ins/*")):
            check_own(path, ours)
    except OSError as error:
        if error.errno == errno.EPERM:  # of `check_own`; else nothing is there
            yield risk(
                "cache_open",
                f"{error.filename} {error.strerror}",
                why="what others put there would run with your rights, so kernels are compiled again by each process",
                fix=f"rm -r {ours}, or export XDG_CACHE_HOME=<a folder that only you may write>",
            )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GB:.1f} GB" if num_bytes >= _GB else f"{num_bytes / (1 << 20):.0f} MB"
