"""How much memory this process can still get: of the machine, and of the control group (container) that it runs in.

What leaves: bytes. Called by the CPU's tier of the swap before it loads. Without MindSpore.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def free_memory_bytes(groups: Path = _GROUPS, own_group: Path = _OWN_GROUP) -> int:
    """Bytes that are free or that the kernel would free; the tightest limit counts.

    groups, own_group: where control groups (version 2) are listed and where the process's own is named. Where there
    are none, or of version 1, the machine alone counts.
    """
    rooms = [room for folder in _own_folders(groups, own_group) if (room := _room(folder)) is not None]
    return max(0, min([psutil.virtual_memory().available, *rooms]))


def _own_folders(groups: Path, own_group: Path) -> Iterator[Path]:
    """The process's group and those around it."""
    try:
        lines = own_group.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::/"):
            folder = groups / line.removeprefix("0::/")
            yield folder
            yield from (parent for parent in folder.parents if parent.is_relative_to(groups))


def _room(folder: Path) -> int | None:
    """Bytes below the group's limit, with the file pages that would make room; None without a limit."""
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        counters = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
    except OSError:
        return None
    if limit == "max":
        return None
    return int(limit) - used + int(counters.get("active_file", 0)) + int(counters.get("inactive_file", 0))
