"""The kernels as a shared library for this processor: compiled the first time, then found in the user's cache."""

from __future__ import annotations

import atexit
import errno
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mindgspo.errors import MindGSPOError
from mindgspo.io import check_own, private_folder, read_bytes, write_file

_SOURCES = Path(__file__).parent
_NAME = "libmindgspo_kernels.so"
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
# No -ffast-math: infinities mask scores, and sums have to keep their order.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-pthread", "-fPIC")


class KernelsUnavailable(MindGSPOError, RuntimeError):  # noqa: N818  (says what it is; nothing went wrong)
    """There is no compiler, or it failed; the message says what to do."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Ours below the user's cache; $XDG_CACHE_HOME counts only if it is absolute, as its specification says."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "mindgspo"


def has_compiler() -> bool:
    """Whether g++ is there to compile the kernels; no file is read."""
    return shutil.which("g++") is not None


@functools.cache
def library() -> Path:
    """The library's path; compiles it (10 s) if these sources were never compiled for this processor, into the user's
    cache or, where that cannot be written to, for this process alone.

    Two processes may compile at once: each does so aside, and the last one to finish gives its file the name.
    Raises KernelsUnavailable.
    """
    return library_in(cache_folder(os.environ))


def library_in(cache: Path) -> Path:
    """The same with this cache. What others could have put there is not loaded."""
    path = cache / "kernels" / _key() / _NAME
    try:
        private_folder(path.parent, cache)
        if path.exists():
            check_own(path, cache)
            if is_whole(path):
                return path
            print(f"[kernels] {path} is damaged, and is compiled anew", file=sys.stderr)
        aside = tempfile.TemporaryDirectory(dir=path.parent, prefix=".building-")
    except OSError as error:
        alone = Path(tempfile.mkdtemp(prefix="mindgspo-kernels-"))
        atexit.register(shutil.rmtree, alone, ignore_errors=True)
        print(f"[kernels] not kept, and compiled at each start: {error}", file=sys.stderr)
        _compile(alone / _NAME)
        return alone / _NAME
    with aside as folder:
        _compile(Path(folder, _NAME))
        write_whole(path, Path(folder, _NAME).read_bytes())
    return path


def write_whole(path: Path, content: bytes) -> None:
    """Write a library for this user alone, followed by its digest, which whoever loads it passes over."""
    write_file(path, content + hashlib.sha256(content).digest(), mode=0o700)


def is_whole(path: Path) -> bool:
    """Whether `write_whole` wrote just this; a part of it would crash the process that loads it."""
    content = read_bytes(path)
    return hashlib.sha256(content[:-_DIGEST_BYTES]).digest() == content[-_DIGEST_BYTES:]


def _key() -> str:
    """Of the sources, the compiler, and what the processor can do: another one may lack instructions."""
    parts = [source.read_bytes() for source in sorted(_SOURCES.glob("*.cc")) + sorted(_SOURCES.glob("*.h"))]
    parts += [
        b"followed by its digest",
        " ".join(_FLAGS).encode(),
        _run("g++", "--version").encode(),
        _processor().encode(),
    ]
    return f"{platform.machine()}-{hashlib.sha256(b''.join(parts)).hexdigest()[:16]}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")


def _compile(target: Path) -> None:
    sources = sorted(_SOURCES.glob("*.cc"))
    objects = [target.with_name(source.name + ".o") for source in sources]
    if "avx512f" not in _processor() and platform.machine() == "x86_64":
        print("[kernels] this processor has no AVX-512: products are slower", file=sys.stderr)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        units = zip(sources, objects, strict=True)
        list(pool.map(lambda unit: _run("g++", *_FLAGS, "-c", "-o", str(unit[1]), str(unit[0])), units))
    _run("g++", *_FLAGS, "-shared", "-o", str(target), *map(str, objects))


def _run(*command: str) -> str:
    try:
        return run_compiler(*command, check=True).stdout
    except FileNotFoundError as error:
        raise KernelsUnavailable("the kernels are compiled with g++: install it (apt-get install g++)") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in (error.stderr or "").splitlines() if "error" in line]
        reason = lines[0] if lines else f"exit code {error.returncode}"
        raise KernelsUnavailable(f"the kernels cannot be compiled: {command[0]}: {reason}") from error


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
