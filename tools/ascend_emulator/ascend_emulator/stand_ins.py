"""Stand-ins for CANN's libraries, in which an emulated card runs.

The installed MindSpore is read as files, never imported: a process that has imported it has chosen its libraries
already. MindSpore's Ascend plugin cannot be loaded without CANN's libraries. What it wants of them is read off the
installed wheel with binutils. One shared object offers all of it and is linked under every library's name: the emulated
card (`native`), an entry for each operator that CANN declares (`signatures.txt`), and functions that
do nothing. The dry run loads it and launches nothing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ascend_emulator.cann_root import LIBRARIES, fill_root
from ascend_emulator.errors import EmulatorError, EmulatorUnavailable
from mindgspo_kernels.cache import check_own, is_whole, private_folder, run_compiler, write_whole

# Of MindSpore's own kernels, below the package: their headers, and their library.
HEADERS = Path("lib", "plugin", "ascend", "ms_kernels_internal", "internal_kernel")
OWN_KERNELS = HEADERS / "lib" / "libms_kernels_internal.so"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """folder: the package `mindspore`. version: what it calls itself, e.g. "2.10.0"."""

    folder: Path
    version: str

    def libraries(self) -> list[Path]:
        """All shared objects, Ascend's and others."""
        return sorted(path for path in self.folder.rglob("*.so*") if path.is_file())

    def ascend_libraries(self) -> list[Path]:
        """Those that refer to CANN. Raises EmulatorUnavailable for a wheel that was built without the plugin."""
        plugin = self.folder / "lib" / "plugin"
        found = [
            plugin / "libmindspore_ascend.so.2",
            plugin / "libmindspore_ops_ascend.so",
            self.folder / "lib" / "libmindspore_ge_backend.so",
        ]
        if not found[0].is_file():
            raise EmulatorUnavailable(
                f"MindSpore {self.version} at {self.folder} has no Ascend plugin ({found[0].name}); install the wheel "
                "of PyPI: pip install 'mindspore~=2.10.0'"
            )
        found += (path for path in (plugin / "ascend").rglob("*.so*") if path.is_file())
        return sorted(path for path in found if path.is_file())

    def fingerprint(self) -> str:
        """Eight digits that differ for another build of the same version: from names and sizes of the libraries."""
        digest = hashlib.sha256()
        for path in self.libraries():
            digest.update(f"{path.relative_to(self.folder)} {path.stat().st_size}\n".encode())
        return digest.hexdigest()[:8]


def installed_wheel() -> Wheel:
    """The MindSpore that this Python would import. Raises EmulatorUnavailable where there is none."""
    spec = importlib.util.find_spec("mindspore")
    if spec is None or spec.origin is None:
        raise EmulatorUnavailable("the dry run compiles with MindSpore, which is not installed: pip install mindspore")
    folder = Path(spec.origin).parent
    return Wheel(folder=folder, version=_version(folder / "version.py"))


def _version(path: Path) -> str:
    """A CANN image may name the distribution otherwise; the package's own file is the same everywhere."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    match = re.search(r"__version__\s*=\s*['\"]([^'\"]+)['\"]", text)
    if match is None:
        raise EmulatorUnavailable(f"{path} does not tell MindSpore's version: install MindSpore again")
    return match[1]


# Vtables, type infos and their names are data: loaders copy addresses out of them, nobody calls them.
_DATA_PREFIXES = ("_ZTV", "_ZTI", "_ZTS")
_DATA_BYTES = 512
# What Python's executable or libpython offers.
_PYTHON_PREFIXES = ("Py", "_Py")
_ELF_MACHINE_X86_64 = 62
_WEAK_AND_UNDEFINED = ("w", "v")


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """wanted: undefined ones without which loading fails; weak ones may stay undefined, and weak initialisers of
    thread-local variables must. offered: defined ones. needed: sonames the linker was told."""

    wanted: frozenset[str] = frozenset()
    offered: frozenset[str] = frozenset()
    needed: frozenset[str] = frozenset()


def is_x86_64(path: Path) -> bool:
    """Whether the file is an ELF object for x86-64 (wheels carry some for the device's own processor)."""
    with path.open("rb") as file:
        head = file.read(20)
    return head[:4] == b"\x7fELF" and int.from_bytes(head[18:20], "little") == _ELF_MACHINE_X86_64


def read_symbols(paths: Sequence[Path]) -> Symbols:
    """Of all these shared objects together; raises subprocess.CalledProcessError for what is none."""
    if not paths:
        return Symbols()
    wanted, offered = set(), set()
    for line in _output("nm", "--dynamic", "--no-sort", *paths).splitlines():
        words = line.split()
        if len(words) < 2 or line.endswith(":"):  # the name of the next file, with empty lines around it
            continue
        kind, name = words[-2], words[-1].split("@")[0]
        if kind == "U":
            wanted.add(name)
        elif kind not in _WEAK_AND_UNDEFINED:
            offered.add(name)
    needed = re.findall(r"\(NEEDED\).*\[(.+?)\]", _output("readelf", "--dynamic", "--wide", *paths))
    return Symbols(wanted=frozenset(wanted), offered=frozenset(offered), needed=frozenset(needed))


def missing_symbols(wanted: Iterable[str], offered: Iterable[str]) -> list[str]:
    """What nobody offers, in order; Python's own are offered by the process."""
    return sorted(name for name in set(wanted) - set(offered) if not name.startswith(_PYTHON_PREFIXES))


def assembly(names: Iterable[str]) -> str:
    """Text for the assembler (x86-64) that defines every name: functions that return 0, tables of zeros."""
    names = list(names)
    tables = [name for name in names if name.startswith(_DATA_PREFIXES)]
    functions = [name for name in names if not name.startswith(_DATA_PREFIXES)]
    parts = [".text\n", *map(_function, functions), ".data\n.balign 16\n", *map(_table, tables)]
    return "".join([*parts, '.section .note.GNU-stack,"",@progbits\n'])


# Saves the registers that can hold arguments and hands them on, with the operator's name (r11) and the caller's stack.
_CAPTURE = "".join(
    [
        "emulator_common:\n push %rbp\n mov %rsp,%rbp\n sub $192,%rsp\n",
        *(f" movups %xmm{i},{16 * i}(%rsp)\n" for i in range(8)),
        *(f" mov %{name},{128 + 8 * i}(%rsp)\n" for i, name in enumerate(("rdi", "rsi", "rdx", "rcx", "r8", "r9"))),
        " mov %r11,%rdi\n mov %rsp,%rsi\n lea 16(%rbp),%rdx\n call emulator_capture@PLT\n leave\n ret\n",
    ]
)


def operator_stubs(names: Sequence[str]) -> str:
    """Text for the assembler (x86-64): for each operator X, XGetWorkspaceSize goes to `emulator_capture` with all that
    it was given, and X(workspace, size, executor, stream) to `emulator_launch` with the operator's name in front."""
    parts, texts = [".text\n", _CAPTURE], [".section .rodata\n"]
    for number, name in enumerate(names):
        texts.append(f'operator_{number}: .asciz "{name}"\n')
        parts.append(
            f".globl {name}GetWorkspaceSize\n.type {name}GetWorkspaceSize,@function\n{name}GetWorkspaceSize:\n"
            f" lea operator_{number}(%rip),%r11\n jmp emulator_common\n"
            f".globl {name}\n.type {name},@function\n{name}:\n"
            " mov %rcx,%r8\n mov %rdx,%rcx\n mov %rsi,%rdx\n mov %rdi,%rsi\n"
            f" lea operator_{number}(%rip),%rdi\n jmp emulator_launch@PLT\n"
        )
    return "".join([*parts, *texts])


def _function(name: str) -> str:
    return f'.globl "{name}"\n.type "{name}",@function\n"{name}":\n xor %eax,%eax\n ret\n'


def _table(name: str) -> str:
    return f'.globl "{name}"\n.type "{name}",@object\n.size "{name}",{_DATA_BYTES}\n"{name}":\n .zero {_DATA_BYTES}\n'


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


_MARKER = "complete.json"
OBJECT = "libascend_stand_in.so"
INTERNAL_KERNELS = "libemulated_internal_kernels.so"
_TOOLS = ("gcc", "g++", "nm", "readelf")
_MOST_NAMESAKES = 5

_EMULATOR = Path(__file__).resolve().parent
_NATIVE = _EMULATOR / "native"
SIGNATURES = _EMULATOR / "signatures.txt"
_SOURCES = ("runtime.cc", "operators.cc", "hccl.cc", "messages.cc", "factory.cc", "waiting.cc")
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
    EmulatorUnavailable without compiler, binutils or plugin; EmulatorError where these fail or nothing can be written.
    """
    folder = cache / "ascend-stand-ins" / _key(wheel)
    try:
        check_own(folder / LIBRARIES / OBJECT, cache)
        if not _is_complete(folder):
            _check_tools()
            private_folder(folder.parent, cache)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".building-") as aside:
                _build(wheel, Path(aside, "filled"))
                _put_in_place(Path(aside, "filled"), folder)
    except OSError as error:
        raise EmulatorError(
            f"the stand-ins for CANN cannot be written below {cache}: {error}; export XDG_CACHE_HOME=<your own folder>"
        ) from error
    return folder / LIBRARIES


def _key(wheel: Wheel) -> str:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    digest = hashlib.sha256()
    for path in [*sorted(_NATIVE.iterdir()), SIGNATURES, _EMULATOR / "cann_root.py", Path(__file__)]:
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"{wheel.version}-{python}-{platform.machine()}-{wheel.fingerprint()}-{digest.hexdigest()[:8]}"


def _is_complete(folder: Path) -> bool:
    """The marker is written last and names every file, so that a cache that was half cleaned is built again."""
    try:
        names = json.loads((folder / _MARKER).read_text(encoding="utf-8"))["names"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    libraries = folder / LIBRARIES
    return all((libraries / name).is_file() for name in names) and all(
        is_whole(libraries / name) for name in (OBJECT, INTERNAL_KERNELS)
    )


def _check_tools() -> None:
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        raise EmulatorUnavailable(
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

    libraries = filled / LIBRARIES
    private_folder(libraries, filled)
    fill_root(libraries)
    with tempfile.TemporaryDirectory() as scratch:
        objects = _compile_all(Path(scratch), wheel)
        defined = read_symbols([Path(scratch, "defined.so")]).offered
        operators = [name for name in declared_operators() if name not in defined]
        entries = {name for operator in operators for name in (operator, f"{operator}GetWorkspaceSize")}
        lacking = {*missing_symbols(wanted.wanted, offered), *_looked_up(ascend)} - defined - entries
        stubs = Path(scratch, "stubs.s")
        stubs.write_text(assembly(sorted(lacking)) + operator_stubs(operators), encoding="utf-8")
        _run("g++", "-shared", "-fPIC", "-o", str(libraries / OBJECT), *objects, str(stubs))
        _run(
            *("g++", "-shared", f"-Wl,-soname,{INTERNAL_KERNELS}", "-o", str(libraries / INTERNAL_KERNELS)),
            *(str(Path(scratch, "internal_kernels.o")), str(wheel.folder / OWN_KERNELS)),
            *(f"-L{libraries}", f"-l:{OBJECT}"),
        )
    names = sorted({*wanted.needed, *_OPENED_BY_NAME} - present - set(system))
    for name in names:  # all the same file, which the loader notices and maps once
        os.symlink(OBJECT, libraries / name)
    written = [OBJECT, INTERNAL_KERNELS, *names]
    for name in written[:2]:
        write_whole(libraries / name, (libraries / name).read_bytes())
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
    with ThreadPoolExecutor(len(commands)) as pool:
        list(pool.map(lambda command: _run(*command), commands))
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
    done = run_compiler(*command)
    if done.returncode:
        raise _build_error(command, done.returncode, done.stderr)
    return done.stdout


def _build_error(command: Sequence[str], code: int, complaint: str) -> EmulatorError:
    """Names the compiler's first error, which the others follow from."""
    lines = complaint.strip().splitlines()
    told = next((line for line in lines if "error" in line), lines[-1] if lines else f"exit code {code}")
    return EmulatorError(f"the stand-ins for CANN cannot be built: {command[0]}: {told}")


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
