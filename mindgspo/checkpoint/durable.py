"""Folders and JSON files that are whole or absent, also after `kill -9` or a power cut.

What enters: content, a folder that was filled aside. What leaves: the same under its final name. Called by
the store, the export and the run folder.

A folder is filled under the hidden name `.<name>.tmp-<pid>`, flushed, and renamed. Where the name is
taken, the old folder waits as `.<name>.old-<pid>` until the new one stands. `clear_leftovers` deals with
what dead processes left.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from mindgspo.tensor_files import flush_to_disk

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<kind>tmp|old)-(?P<pid>\d+)")


def temporary_name(path: Path) -> Path:
    """Where this process fills what will be `path`."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")


def write_json(path: Path, content: object) -> None:
    """Write JSON aside, flush it, rename it to `path`. NaN and infinities are refused (ValueError)."""
    content_bytes = json_bytes(content)
    aside = temporary_name(path)
    try:
        aside.write_bytes(content_bytes)
        flush_to_disk(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    flush_to_disk(path.parent)


def json_bytes(content: object) -> bytes:
    """What `write_json` writes."""
    return (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def flush_tree(folder: Path) -> None:
    """Flush every file below `folder`, then the folders that name them."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            flush_to_disk(Path(parent, name))
        flush_to_disk(Path(parent))


def put_in_place(filled: Path, target: Path) -> None:
    """Rename the flushed folder `filled` to `target`; a folder of that name is moved aside, then removed."""
    aside = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists():
        os.rename(target, aside)
    os.rename(filled, target)
    flush_to_disk(target.parent)
    remove_folder(aside)


def remove_folder(folder: Path) -> None:
    """Remove a folder that may be absent. It loses its name first: no half of it is taken for the whole."""
    if not folder.exists():
        return
    doomed = folder if _LEFTOVER.fullmatch(folder.name) else temporary_name(folder)
    if doomed != folder:
        os.rename(folder, doomed)
    shutil.rmtree(doomed)


def clear_leftovers(parent: Path, name: str = "") -> None:
    """Remove what processes that no longer live left in `parent` (for one target name, or for all).

    A folder that waited as `.old-` while its successor never arrived gets its name back.
    """
    for entry in list(parent.iterdir()):
        match = _LEFTOVER.fullmatch(entry.name)
        if not match or (name and match["name"] != name) or _lives(int(match["pid"])):
            continue
        target = parent / match["name"]
        if match["kind"] == "old" and not target.exists():
            os.rename(entry, target)
        elif entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _lives(pid: int) -> bool:
    """Whether another process of this number runs here; our own number can only come from a dead namesake."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
