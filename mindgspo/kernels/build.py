"""The kernels as a shared library for this processor: compiled the first time, then found in the user's cache."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mindgspo.errors import MindGSPOError

_SOURCES = Path(__file__).parent
_UNITS = ("common.cc", "matmul.cc", "attention.cc", "rows.cc")
_NAME = "libmindgspo_kernels.so"
# No -ffast-math: infinities mask scores, and sums have to keep their order.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-fPIC", "-shared")


class KernelsUnavailable(MindGSPOError, RuntimeError):  # noqa: N818  (says what it is; nothing went wrong)
    """There is no compiler, or it failed; the message says what to do."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Ours below the user's cache; $XDG_CACHE_HOME counts only if it is absolute, as its specification says."""
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "mindgspo"


def library(environment: Mapping[str, str] = os.environ) -> Path:
    """The library's path; compiles it (10 s) if these sources were never compiled for this processor.

    Two processes may compile at once: each does so aside, and the last one to finish gives its file the name.
    Raises KernelsUnavailable.
    """
    cache = cache_folder(environment)
    path = cache / "kernels" / _key() / _NAME
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".building-") as aside:
                _compile(Path(aside, _NAME))
                os.replace(Path(aside, _NAME), path)
        except OSError as error:
            raise KernelsUnavailable(f"the kernels cannot be written below {cache}: {error}") from error
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
    _run("g++", *_FLAGS, "-o", str(target), *(str(_SOURCES / unit) for unit in _UNITS))


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise KernelsUnavailable("the kernels are compiled with g++: install it (apt-get install g++)") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in (error.stderr or "").splitlines() if "error" in line]
        reason = lines[0] if lines else f"exit code {error.returncode}"
        raise KernelsUnavailable(f"the kernels cannot be compiled: {command[0]}: {reason}") from error
