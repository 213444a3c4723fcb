"""Files and folders that are complete or absent, even after `kill -9` or a power cut.

A file or folder is written under the hidden name `.<name>.tmp-<pid>`, flushed and renamed. A folder that is replaced
waits as `.<name>.old-<pid>` until the new one has its name; `remove_leftovers` clears what dead processes left.
"""

from __future__ import annotations

import codecs
import errno
import fcntl
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from mindgspo.errors import ConfigError, WriteError

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
Content = bytes | bytearray | memoryview

MOST_BYTES = 1 << 30
MOST_LINE_BYTES = 16 << 20
MOST_DEPTH = 100
"""Brackets within each other in JSON from outside: real files have fewer than 10, and code that walks them recurses."""

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<kind>tmp|old)-(?P<pid>\d+)")
_FLUSH_BYTES = 8 << 20  # handed to the disk at once, so that the final fsync has little left
os.umask(_UMASK := os.umask(0o077))  # the only way to read it
_RESERVE_BYTES = 16 << 20  # headers, small files, the file system's own records


def temporary_path(path: Path) -> Path:
    """Temporary path at which this process writes the file that becomes `path`."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")


@contextmanager
def atomic_file(
    path: Path,
    *,
    sync: bool = True,
    on_write: Callable[[Content], None] | None = None,
    num_bytes: int | None = None,
    mode: int = 0o666,
) -> Iterator[BinaryIO]:
    """A binary file that becomes `path` when the block succeeds and is removed when it fails.

    sync: flush it to disk; otherwise a power cut may leave part of it.
    on_write: called with everything that is written, e.g. to hash it without reading it back.
    num_bytes: its final size, if known.
    mode: of the new file, less the umask.

    Raises WriteError.
    """
    temporary = temporary_path(path)
    try:
        temporary.unlink(missing_ok=True)  # of a dead process with our number, or a link that someone placed there
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield cast(BinaryIO, _NewFile(file, on_write, sync))
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if sync:
            fsync(path.parent)
    except OSError as error:
        if error.filename is not None and Path(error.filename) not in (temporary, path, path.parent):
            raise  # of a file that the block reads
        raise write_error(path, error, num_bytes) from error
    finally:
        with suppress(OSError):  # there is none on a disk that is read-only
            temporary.unlink(missing_ok=True)


def write_error(path: Path, error: OSError, num_bytes: int | None = None) -> WriteError:
    """The error for a failed write to `path`: space needed, space available, remedy. num_bytes: that were to be
    written, if that is known."""
    folder = _nearest_folder(path)
    mend = "choose another place"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        needs = "" if num_bytes is None else f"it needs {_size(num_bytes)}, "
        full = "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
        reason = f"{full} ({needs}{_size(shutil.disk_usage(folder).free)} are free in {folder})"
        mend = "make room there, or choose a place on another disk"
    elif error.errno == errno.EROFS:
        reason = f"{folder} is read-only"
    elif error.errno in (errno.EACCES, errno.EPERM):
        reason = f"user {os.geteuid()} may not write in {folder}"
    elif error.errno == errno.EFBIG:
        reason = "the file would be larger than the limit (ulimit -f) or the file system allows"
    else:
        reason = error.strerror or (os.strerror(error.errno) if error.errno else str(error))
    wrapped = WriteError(f"{path}: cannot be written: {reason}; {mend}")
    wrapped.errno = error.errno
    return wrapped


def _size(num_bytes: int) -> str:
    return f"{num_bytes:,} bytes" if num_bytes < 1 << 20 else f"{num_bytes / 2**20:,.1f} MiB"


@contextmanager
def writing(path: Path, num_bytes: int | None = None) -> Iterator[None]:
    """A block that writes `path`, a file or folder; system errors become a WriteError, see `write_error`."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise write_error(path, error, num_bytes) from error


class Closing(AbstractContextManager):
    """A context manager that closes itself at the end."""

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release what is open."""
        raise NotImplementedError


class _NewFile:
    """A file being written: its bytes also go to `on_write`, and soon to the disk.

    That keeps the final fsync short, because the kernel starts writing while more bytes come. A thread that flushes
    would need memory when there may be none left.
    """

    def __init__(self, file: BinaryIO, on_write: Callable[[Content], None] | None, sync: bool) -> None:
        self._file, self._on_write, self._sync, self._begun = file, on_write, sync, 0

    def write(self, content: Content) -> int:
        if self._on_write is not None:
            self._on_write(content)
        number = self._file.write(content)
        if self._sync and (end := self._file.tell()) - self._begun >= _FLUSH_BYTES:
            with suppress(OSError):  # a file system that does not know it
                os.posix_fadvise(self._file.fileno(), self._begun, end - self._begun, os.POSIX_FADV_DONTNEED)
            self._begun = end
        return number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def write_file(path: Path, content: Content, *, sync: bool = True, mode: int = 0o666) -> None:
    """Write `content` to `path` atomically; sync, mode as in `atomic_file`. Raises WriteError."""
    with atomic_file(path, sync=sync, num_bytes=len(content), mode=mode) as file:
        file.write(content)


def write_new_file(path: Path, content: Content) -> None:
    """Write a new file atomically. Raises ConfigError if it exists; WriteError."""
    check_is_new(path)
    write_file(path, content)


def check_is_new(path: Path) -> None:
    """Raises ConfigError if a file or folder has the name that --out gives."""
    if path.exists():
        raise ConfigError(f"{path}: is there already; give --out another name, or move it away")


def write_json(path: Path, content: object) -> None:
    """Write JSON to `path` atomically. Raises ValueError for NaN and infinities."""
    write_file(path, json_bytes(content))


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a file from outside. Raises OSError, also if it is not a regular file (a pipe would block for
    ever) or has more than `most` bytes."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"has {found.st_size:,} bytes, and at most {most:,} are read", str(path))
        return file.read(found.st_size)  # read(most) would reserve that much memory


def check_is_fetched(path: Path, start: bytes, error: type[Exception]) -> None:
    """Raises `error` if a file begins like the pointer that Git LFS leaves in its place. start: its first bytes."""
    if start.startswith(b"version https://git-lfs.github.com/"):
        raise error(f"{path}: a Git LFS pointer, not the file; fetch it, e.g. by `git lfs pull` in {path.parent}")


def read_lines(path: Path, error: type[Exception], most: int = MOST_LINE_BYTES) -> Iterator[tuple[int, bytes]]:
    """(number, line with its end) of a file from outside, from 1 on. Raises `error` for a line of more than `most`
    bytes: parsed, it would take many times that much memory."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(most + 1):
            number += 1
            if len(line) > most:
                raise error(f"{path}, line {number}: more than {most:,} bytes; split the line, or remove it")
            yield number, line


def decoded(content: bytes) -> str:
    """Text from outside. Raises a ValueError that says which encoding to convert it from."""
    head = content[:2]
    marked = head in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    wide = "UTF-16" if marked else "UTF-16LE" if head[1:] == b"\0" else "UTF-16BE" if head[:1] == b"\0" else ""
    try:
        text = content.decode("utf-8")
        if not wide:
            return text
        what = f"not UTF-8 text but {wide}"
    except UnicodeDecodeError as error:
        what = f"not UTF-8 text ({error.reason} at byte {error.start})"
    raise ValueError(f"{what}; convert the file, e.g. by `iconv -f {wide or 'GBK'} -t UTF-8`")


def unique_keys(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    """A hook of `json.loads`, which keeps the last of equal keys silently. Raises ValueError if they disagree."""
    found: dict[str, object] = {}
    for key, value in pairs:
        if repr(found.setdefault(key, value)) != repr(value):
            raise ValueError(f"{key!r:.60} is given twice, as {found[key]!r:.60} and as {value!r:.60}")
    return found


def parse_json(content: str | bytes, **options: Any) -> Any:
    """JSON from outside. options: of `json.loads`. Raises a ValueError that says briefly why it cannot be read: not
    UTF-8, not JSON, nested too deeply, an integer of thousands of digits, which would take quadratic time."""
    with _plain_json_errors():
        text = content if isinstance(content, str) else decoded(content)
        value = json.loads(text, **options)
    if text.count("[") + text.count("{") > MOST_DEPTH and is_deeper(value, MOST_DEPTH):
        raise ValueError(_TOO_DEEP)
    return value


@contextmanager
def _plain_json_errors() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except json.JSONDecodeError as error:
        if "BOM" in error.msg:
            raise ValueError("begins with a byte order mark; save it as UTF-8 without one") from None
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise ValueError(f"not JSON ({line}column {error.colno}: {error.msg})") from None
    except ValueError as error:
        if "integer string conversion" not in str(error):  # raised by a hook of the caller's
            raise
        digits = sys.get_int_max_str_digits()
        raise ValueError(f"holds an integer of more than {digits:,} digits; write it as text") from None


def json_items(content: bytes) -> Iterator[Any]:
    """The items of a JSON list, one after the other, so that a file of many takes no more memory than its text. A
    mapping that holds one list, {"data": [...]}, is that list; it is read as a whole, so that it must be smaller.
    Raises ValueError as `parse_json`."""
    with _plain_json_errors():
        text = content.decode("utf-8-sig")
    start = _after_space(text, 0)
    if not text.startswith("[", start):
        if len(content) > MOST_LINE_BYTES:
            raise ValueError(f"no list, and of more than {MOST_LINE_BYTES:,} bytes; write a list, or one row per line")
        value = parse_json(text)
        lists = [below for below in value.values() if isinstance(below, list)] if isinstance(value, dict) else []
        if len(lists) != 1:
            raise ValueError(f"expected a list of rows, got {type(value).__name__}")
        yield from lists[0]
        return
    decoder, place, mark = json.JSONDecoder(), start, "["
    while mark != "]":
        place = _after_space(text, place + 1)
        if mark == "[" and text.startswith("]", place):
            break
        with _plain_json_errors():
            value, end = decoder.raw_decode(text, place)
            place = _after_space(text, end)
            mark = text[place : place + 1]
            if mark not in (",", "]"):
                raise json.JSONDecodeError("expected , or ]", text, place)
        if is_deeper(value, MOST_DEPTH):
            raise ValueError(_TOO_DEEP)
        yield value
    with _plain_json_errors():
        if (end := _after_space(text, place + 1)) < len(text):
            raise json.JSONDecodeError("more after the list", text, end)


_SPACE = re.compile(r"[ \t\n\r]*")


def _after_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    assert found is not None, "it matches nothing as well"
    return found.end()


_TOO_DEEP = f"not JSON that can be read (nested more than {MOST_DEPTH} deep)"


def read_json(path: Path, **options: Any) -> Any:
    """The JSON of a file from outside. Raises OSError as `read_bytes`, ValueError as `parse_json`."""
    return parse_json(read_bytes(path), **options)


def is_deeper(value: object, depth: int) -> bool:
    """Whether lists and mappings are nested more than `depth` deep."""
    level = [value] if isinstance(value, (list, dict)) else []
    for _ in range(depth):
        inside = (below for one in level for below in (one.values() if isinstance(one, dict) else one))
        level = [below for below in inside if isinstance(below, (list, dict))]
    return bool(level)


def json_bytes(content: object) -> bytes:
    """Indented JSON with a final newline, as `write_json` writes it."""
    return (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def make_folder(path: Path) -> None:
    """Make a folder and its parents, and flush their names to disk."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        fsync(path.parent)


def fsync(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Flush all files below `folder`, then the folders."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            fsync(Path(parent, name))
        fsync(Path(parent))


def publish_folder(filled: Path, target: Path) -> None:
    """Rename the flushed folder `filled` to `target`, replacing a folder of that name."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists():
        os.rename(target, old)
    os.rename(filled, target)
    fsync(target.parent)
    remove_folder(old)


def remove_folder(folder: Path) -> None:
    """Remove a folder that may be absent. It is renamed first, so that a part of it is never taken for the whole."""
    if not folder.exists():
        return
    doomed = folder if _LEFTOVER.fullmatch(folder.name) else temporary_path(folder)
    if doomed != folder:
        os.rename(folder, doomed)
    shutil.rmtree(doomed)


def remove_leftovers(parent: Path, name: str = "") -> None:
    """Remove files that dead processes left in `parent`, for one target name or all.

    A folder moved to `.old-` whose successor never arrived gets its name back.
    """
    for entry in list(parent.iterdir()):
        match = _LEFTOVER.fullmatch(entry.name)
        if not match or (name and match["name"] != name) or _is_running(int(match["pid"])):
            continue
        target = parent / match["name"]
        if match["kind"] == "old" and not target.exists():
            os.rename(entry, target)
        elif entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def check_free_space(path: Path, num_bytes: int, error: type[Exception], fix: str) -> None:
    """Raises `error`, which ends with `fix`, if the disk of `path` lacks space for `num_bytes` and a reserve."""
    folder = _nearest_folder(path)
    free = shutil.disk_usage(folder).free
    if free < num_bytes + _RESERVE_BYTES:
        raise error(
            f"{path}: needs {_size(num_bytes)} and a reserve of {_size(_RESERVE_BYTES)}, and {_size(free)} are free in "
            f"{folder}; {fix}"
        )


def _nearest_folder(path: Path) -> Path:
    """The folder itself, or the nearest one above that exists."""
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if os.path.isdir(parent))


@contextmanager
def scratch_folder(kind: str) -> Iterator[Path]:
    """`<temporary folder>/mindgspo-<kind>-<user id>-<random>`, removed at the end of the block.

    Its owner holds a lock on it, which the kernel drops with the process: folders of this user that no process holds
    were left by processes that were killed, and are removed as well.
    """
    parent, prefix = Path(tempfile.gettempdir()), f"mindgspo-{kind}-{os.getuid()}-"
    for left in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            descriptor = _locked(left)
            if left.stat().st_uid == os.getuid():
                shutil.rmtree(left, ignore_errors=True)
            os.close(descriptor)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(OSError):  # another process got the lock first and is removing it
            descriptor = _locked(folder)
            break
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked(folder: Path) -> int:
    """The descriptor of a folder that exists and is locked. Raises OSError if it is gone, or held by another."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(folder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def restore_umask() -> None:
    """After the first import of MindSpore: where it logs to files (GLOG_logtostderr=0), it sets the umask to 077."""
    os.umask(_UMASK)


def unused_name(path: Path) -> Path:
    """`path` with a timestamp appended, and a number where that is taken."""
    stamped = path.with_name(f"{path.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    candidate, number = stamped, 2
    while candidate.exists():
        candidate, number = stamped.with_name(f"{stamped.name}-{number}"), number + 1
    return candidate


def _is_running(pid: int) -> bool:
    """Whether another process has this id; our own id can only come from an earlier process."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
