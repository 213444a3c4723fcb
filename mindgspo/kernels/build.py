"""The kernels as a shared library for this processor: compiled the first time, then found in the user's cache."""

from __future__ import annotations

import atexit
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
from mindgspo.io import fsync

_SOURCES = Path(__file__).parent
_NAME = "libmindgspo_kernels.so"
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
    """The same with this cache."""
    path = cache / "kernels" / _key() / _NAME
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = tempfile.TemporaryDirectory(dir=path.parent, prefix=".building-")
    except OSError as error:
        alone = Path(tempfile.mkdtemp(prefix="mindgspo-kernels-"))
        atexit.register(shutil.rmtree, alone, ignore_errors=True)
        print(f"[kernels] not kept, and compiled at each start: {error}", file=sys.stderr)
        _compile(alone / _NAME)
        return alone / _NAME
    with aside as folder:
        _compile(Path(folder, _NAME))
        fsync(Path(folder, _NAME))  # a power cut would leave an empty file of that name, which is taken for the library
        os.replace(Path(folder, _NAME), path)
    return path


def _key() -> str:
    """Of the sources, the compiler, and what the processor can do: another one may lack instructions."""
    parts = [source.read_bytes() for source in sorted(_SOURCES.glob("*.cc")) + sorted(_SOURCES.glob("*.h"))]
    parts += [" ".join(_FLAGS).encode(), _run("g++", "--version").encode(), _processor().encode()]
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
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise KernelsUnavailable("the kernels are compiled with g++: install it (apt-get install g++)") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in (error.stderr or "").splitlines() if "error" in line]
        reason = lines[0] if lines else f"exit code {error.returncode}"
        raise KernelsUnavailable(f"the kernels cannot be compiled: {command[0]}: {reason}") from error
