"""Stand-ins for CANN's libraries, in which an emulated card runs.

MindSpore's Ascend plugin cannot be loaded without CANN's libraries. What it wants of them is read off the installed
wheel. One shared object offers all of it and is linked under every library's name: the emulated card
(`emulator/native`), an entry for each operator that CANN declares (`emulator/signatures.txt`), and functions that do
nothing. The dry run loads it and launches nothing. What enters: a `Wheel`. What leaves: the folder to put on the
library path. Called by `toolchain`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from mindgspo.ascend.symbols import assembly, is_x86_64, missing_symbols, operator_stubs, read_symbols
from mindgspo.ascend.wheel import HEADERS, Wheel
from mindgspo.errors import DryRunError, DryRunUnavailable

# The plugin takes the folder two above the library of `aclrtMalloc` for CANN's root, and wants it to look like one.
_LIBRARIES = Path("ascend-toolkit", "latest", "lib64")
_MARKER = "complete.json"
_OBJECT = "libascend_stand_in.so"
# Under the name of the wheel's own library, which is then not looked for.
INTERNAL_KERNELS = "libms_kernels_internal.so"
_TOOLS = ("gcc", "g++", "nm", "readelf")
_MOST_NAMESAKES = 5

_EMULATOR = Path(__file__).resolve().parent / "emulator"
_NATIVE = _EMULATOR / "native"
SIGNATURES = _EMULATOR / "signatures.txt"
_SOURCES = ("runtime.cc", "operators.cc", "hccl.cc", "factory.cc", "waiting.cc")
_INTERNAL_SOURCE = "internal_kernels.cc"
_FLAGS = ("-O2", "-std=c++17", "-fPIC")

# What the plugin opens by name at run time, beside the names that the linker was told.
_OPENED_BY_NAME = (
    *("libacl_dvpp.so", "libacl_dvpp_mpi.so", "libacl_dvpp_op.so", "libascend_hal.so", "libascendalog.so"),
    *("libascendcl.so", "libatb.so", "libc_sec.so", "libexe_graph.so", "libge_runner.so", "libgraph.so", "libhccl.so"),
    *("libmmpa.so", "libmsprofiler.so", "libnnopbase.so", "libopapi.so", "libplatform.so", "libprofapi.so"),
    *("libregister.so", "libruntime.so", "libacl_tdt_channel.so", "libacl_tdt_queue.so", "libacl_op_compiler.so"),
    "libascend_ml.so",
)
# Functions that it looks up by name: all texts of these forms in its libraries.
_LOOKED_UP = re.compile(
    rb"((?:Hccl|Hcom|aclrt|aclmdl|aclop|acltdt|aclprof|acldump|aclSet|aclGen)\w+"
    rb"|InitHcomGraphAdapter|FinalizeHcomGraphAdapter|GetHcclKernelInfoStore|GetAllKernelBuilder)(?=\0)"
)
_BEGINNINGS = (b"\0Hc", b"\0acl", b"\0InitHcom", b"\0FinalizeHcom", b"\0GetHccl", b"\0GetAll")
_SYSTEM = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0")


def stand_ins(wheel: Wheel, cache: Path) -> Path:
    """Folder of the stand-ins for this wheel; built below `cache` if it is not there yet, which takes seconds.

    Two processes may build at once: each builds aside, the first to finish gives its folder the name. Raises
    DryRunUnavailable without compiler, binutils or plugin; DryRunError where these fail or nothing can be written.
    """
    folder = cache / "ascend-stand-ins" / _key(wheel)
    if not _is_complete(folder):
        _check_tools()
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as aside:
                _build(wheel, Path(aside, "filled"))
                _put_in_place(Path(aside, "filled"), folder)
        except OSError as error:
            raise DryRunError(f"the stand-ins for CANN cannot be written below {cache}: {error}") from error
    return folder / _LIBRARIES


def _key(wheel: Wheel) -> str:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    digest = hashlib.sha256()
    for path in [*sorted(_NATIVE.iterdir()), SIGNATURES, _EMULATOR.parent / "symbols.py", Path(__file__)]:
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"{wheel.version}-{python}-{platform.machine()}-{wheel.fingerprint()}-{digest.hexdigest()[:8]}"


def _is_complete(folder: Path) -> bool:
    """The marker is written last and names every file, so that a cache that was half cleaned is built again."""
    try:
        names = json.loads((folder / _MARKER).read_text(encoding="utf-8"))["names"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return all((folder / _LIBRARIES / name).is_file() for name in names)


def _check_tools() -> None:
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        raise DryRunUnavailable(
            f"the dry run builds stand-ins for CANN's libraries and lacks {', '.join(lacking)}: install gcc, g++ and "
            "binutils (apt-get install g++ binutils)"
        )


def _build(wheel: Wheel, filled: Path) -> None:
    """Make and fill the folder; the marker comes last."""
    own = [path for path in wheel.libraries() if is_x86_64(path)]
    ascend = [path for path in wheel.ascend_libraries() if is_x86_64(path)]
    wanted = read_symbols(ascend)
    present = {path.name for path in own}
    system = _system_libraries({*_SYSTEM, *wanted.needed} - present)
    offered = read_symbols([*own, *system.values()]).offered

    libraries = filled / _LIBRARIES
    libraries.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        objects = _compile_all(Path(scratch), wheel)
        defined = read_symbols([Path(scratch, "defined.so")]).offered
        operators = [name for name in declared_operators() if name not in defined]
        entries = {name for operator in operators for name in (operator, f"{operator}GetWorkspaceSize")}
        lacking = {*missing_symbols(wanted.wanted, offered), *_looked_up(ascend)} - defined - entries
        stubs = Path(scratch, "stubs.s")
        stubs.write_text(assembly(sorted(lacking)) + operator_stubs(operators), encoding="utf-8")
        _run("g++", "-shared", "-fPIC", "-o", str(libraries / _OBJECT), *objects, str(stubs))
        _run(
            *("g++", "-shared", f"-Wl,-soname,{INTERNAL_KERNELS}", "-o", str(libraries / INTERNAL_KERNELS)),
            *(str(Path(scratch, "internal_kernels.o")), f"-L{libraries}", f"-l:{_OBJECT}"),
        )
    names = sorted({*wanted.needed, *_OPENED_BY_NAME} - present - set(system))
    for name in names:  # all the same file, which the loader notices and maps once
        os.symlink(_OBJECT, libraries / name)
    written = [_OBJECT, INTERNAL_KERNELS, *names]
    (filled / _MARKER).write_text(json.dumps({"names": written, "symbols": len(lacking)}) + "\n")


def declared_operators() -> list[str]:
    """The operators for which the signature table has a line: those that CANN declares."""
    lines = SIGNATURES.read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def _looked_up(libraries: Iterable[Path]) -> set[str]:
    """Half a gigabyte is searched for the beginnings first, which is three times as fast as the expression alone."""
    found = set()
    for path in libraries:
        content = path.read_bytes()
        for beginning in _BEGINNINGS:
            at = content.find(beginning)
            while at >= 0:
                if name := _LOOKED_UP.match(content, at + 1):
                    found.add(name[0].decode())
                at = content.find(beginning, at + 1)
    return found


def _compile_all(scratch: Path, wheel: Wheel) -> list[str]:
    """Objects of the emulated card, side by side; beside them defined.so, which offers what they define."""
    headers = wheel.folder / HEADERS
    commands = [("g++", *_FLAGS, "-c", "-o", str(scratch / f"{name}.o"), str(_NATIVE / name)) for name in _SOURCES]
    commands.append(
        (
            *("g++", *_FLAGS, "-D_GLIBCXX_USE_CXX11_ABI=0", f"-I{headers}", f"-I{headers / 'include'}", f"-I{_NATIVE}"),
            *("-c", "-o", str(scratch / "internal_kernels.o"), str(_NATIVE / _INTERNAL_SOURCE)),
        )
    )
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    for command, process in zip(commands, running, strict=True):
        _, complaint = process.communicate()
        if process.returncode:
            raise _build_error(command, process.returncode, complaint)
    objects = [str(scratch / f"{name}.o") for name in _SOURCES]
    _run("g++", "-shared", "-fPIC", "-o", str(scratch / "defined.so"), *objects)
    return objects


def _system_libraries(names: Iterable[str]) -> dict[str, Path]:
    """Where the compiler finds those of these libraries that the system has."""
    found = {}
    for name in sorted(names):
        answer = _run("gcc", f"-print-file-name={name}").strip()
        if os.path.isabs(answer):  # gcc repeats a name that it does not find
            found[name] = Path(answer)
    return found


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise _build_error(command, done.returncode, done.stderr)
    return done.stdout


def _build_error(command: Sequence[str], code: int, complaint: str) -> DryRunError:
    """Names the compiler's first error, which the others follow from."""
    lines = complaint.strip().splitlines()
    told = next((line for line in lines if "error" in line), lines[-1] if lines else f"exit code {code}")
    return DryRunError(f"the stand-ins for CANN cannot be built: {command[0]}: {told}")


def _put_in_place(filled: Path, folder: Path) -> None:
    """Give the filled folder its name, unless another process was faster; incomplete namesakes go away with what lies
    beside `filled`."""
    for number in range(_MOST_NAMESAKES):
        with suppress(OSError):
            os.rename(filled, folder)
            return
        if _is_complete(folder):
            return
        with suppress(FileNotFoundError):
            os.rename(folder, filled.with_name(f"incomplete-{number}"))
    raise OSError(f"{folder} comes back incomplete each time it is removed")
