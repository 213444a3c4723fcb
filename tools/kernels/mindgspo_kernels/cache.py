"""The user's cache of compiled code. What another user could have put there is never loaded, and a file is whole or
refused."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_DIGEST_BYTES = 32
# In a process group of its own, which is killed when the pipe at 3 has no writer any more.
_GUARDED = """
exec 3<&0 </dev/null
{ read -r line <&3; kill -KILL 0; } >/dev/null 2>&1 &
"$@" 3<&-
code=$?
kill $!
exit $code
"""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Ours below the user's cache; $XDG_CACHE_HOME counts only if it is absolute, as its specification says."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "mindgspo"


def private_folder(path: Path, within: Path) -> None:
    """Make a folder and those above it that are missing, for this user alone whatever the umask. Raises OSError, and as
    `check_own` does."""
    check_own(path, within)
    for part in reversed((path, *path.parents)):
        with suppress(FileExistsError):
            part.mkdir(mode=0o700)
            part.chmod(0o700)  # a umask may have taken even our own rights
    check_own(path, within)


def check_own(path: Path, within: Path) -> None:
    """Raises PermissionError where another user, root apart, could put something else in the place of what is loaded
    from `path`: it or a folder above it, up to the home folder, belongs to somebody else or may be written by others.
    `within` and what is below it may be no links. What does not exist yet is nobody's."""
    home = Path(os.path.expanduser("~")).parents
    for part in dict.fromkeys((path, *path.absolute().parents, *Path(os.path.realpath(path)).parents)):
        try:
            found = os.lstat(part)
        except FileNotFoundError:
            continue
        is_link, is_ours = stat.S_ISLNK(found.st_mode), part.is_relative_to(within)
        is_open = found.st_mode & 0o022 and not (found.st_mode & stat.S_ISVTX and not is_ours) and not is_link
        if is_link and is_ours:
            raise PermissionError(errno.EPERM, "is a link, which is not followed", str(part))
        if found.st_uid not in (0, os.geteuid()) and part not in home:
            raise PermissionError(errno.EPERM, f"belongs to user {found.st_uid}", str(part))
        if is_open and part not in home:
            mode = stat.S_IMODE(found.st_mode)
            raise PermissionError(errno.EPERM, f"may be written by others (mode {mode:o}): chmod go-w", str(part))


def write_whole(path: Path, content: bytes) -> None:
    """Write a library for this user alone, followed by its digest, which whoever loads it passes over."""
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content + hashlib.sha256(content).digest())
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o700)
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise


def is_whole(path: Path) -> bool:
    """Whether `write_whole` wrote just this; a part of it would crash the process that loads it."""
    content = path.read_bytes()
    return hashlib.sha256(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]


def run_compiler(*command: str, check: bool = False) -> subprocess.CompletedProcess[str]:
    """Run it to its end; with this process, however that ends, it and the processes that it has started end. Raises
    FileNotFoundError where there is no such program."""
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, "no such program", command[0])
    reader, writer = os.pipe()  # we hold the other end of
    try:
        return subprocess.run(
            ["/bin/sh", "-c", _GUARDED, "sh", *command], stdin=reader, capture_output=True, text=True, check=check,
            start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(reader)
        os.close(writer)
