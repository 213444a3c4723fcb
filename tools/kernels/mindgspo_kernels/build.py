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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mindgspo_kernels.cache import cache_folder, check_own, is_whole, private_folder, run_compiler, write_whole

_SOURCES = Path(__file__).parent
_NAME = "libmindgspo_kernels.so"
# No -ffast-math: infinities mask scores, and sums have to keep their order.
_FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-pthread", "-fPIC")
KUNPENG = "armv8.2-a"
"""-march for aarch64 servers: of the Kunpeng 920, the first one beside Atlas cards, and understood by its successors.

Not `native`, so that all servers run the instructions that tests have run under qemu-user, and round alike. bfloat16 is
converted with integers: only armv8.6-a has instructions for it.
"""


class KernelsUnavailable(RuntimeError):  # noqa: N818  (says what it is; nothing went wrong)
    """There is no compiler, or it failed; the message says what to do."""


INSTRUCTIONS = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16")
"""What decides in which order products are added, as /proc/cpuinfo names it."""


def instruction_set() -> str:
    """Those of INSTRUCTIONS that this processor has, e.g. "avx2 fma avx512f". Where two processors differ in them,
    results of the kernels may differ by roundings."""
    flags = _processor().split()
    return " ".join(name for name in INSTRUCTIONS if name in flags) or platform.machine()


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


def architecture() -> str:
    """Value of g++'s -march for this processor."""
    if platform.machine() != "aarch64":
        return "native"
    # Of what armv8.2-a adds, g++ uses the atomics by itself.
    return KUNPENG if "atomics" in _processor().split() else "armv8-a"


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
        compile_library(alone / _NAME)
        return alone / _NAME
    with aside as folder:
        compile_library(Path(folder, _NAME))
        write_whole(path, Path(folder, _NAME).read_bytes())
    return path


def _key() -> str:
    """Of the sources, the compiler, and what the processor can do: another one may lack instructions."""
    parts = [source.read_bytes() for source in sorted(_SOURCES.glob("*.cc")) + sorted(_SOURCES.glob("*.h"))]
    parts += [
        b"followed by its digest",
        " ".join((*_FLAGS, architecture())).encode(),
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


def compile_library(target: Path, *, compiler: str = "g++", march: str | None = None) -> None:
    """Compile the library to `target`, for this processor or, with a cross compiler, for `march`. Raises
    KernelsUnavailable."""
    sources = sorted(_SOURCES.glob("*.cc"))
    objects = [target.with_name(source.name + ".o") for source in sources]
    flags = (*_FLAGS, f"-march={march or architecture()}")
    if march is None and "avx512f" not in _processor() and platform.machine() == "x86_64":
        print("[kernels] this processor has no AVX-512: products are slower", file=sys.stderr)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        units = zip(sources, objects, strict=True)
        list(pool.map(lambda unit: _run(compiler, *flags, "-c", "-o", str(unit[1]), str(unit[0])), units))
    _run(compiler, *flags, "-shared", "-o", str(target), *map(str, objects))


def _run(*command: str) -> str:
    try:
        return run_compiler(*command, check=True).stdout
    except FileNotFoundError as error:
        raise KernelsUnavailable("the kernels are compiled with g++: install it (apt-get install g++)") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in (error.stderr or "").splitlines() if "error" in line]
        reason = lines[0] if lines else f"exit code {error.returncode}"
        raise KernelsUnavailable(f"the kernels cannot be compiled: {command[0]}: {reason}") from error
