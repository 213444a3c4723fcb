"""Stand-ins for CANN's libraries: shared objects that can be loaded and do nothing.

MindSpore's Ascend plugin compiles graphs without calling CANN, but it cannot be loaded without CANN's libraries. What
it wants of them is read off the installed wheel; one shared object with all of it is built and linked under every name.
What enters: a `Wheel`. What leaves: the folder to put on the library path. Called by `toolchain`.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mindgspo.dryrun.symbols import assembly, is_x86_64, missing_symbols, read_symbols
from mindgspo.dryrun.wheel import Wheel
from mindgspo.errors import DryRunError, DryRunUnavailable

# The plugin takes the folder two above the library of `aclrtMalloc` for CANN's root, and wants it to look like one.
_LIBRARIES = Path("ascend-toolkit", "latest", "lib64")
_MARKER = "complete.json"
_OBJECT = "libascend_stand_in.so"
_TOOLS = ("gcc", "g++", "nm", "readelf")
# To be raised when the way of building changes: what older code built is not used any more.
_RECIPE = 1
_MOST_NAMESAKES = 5

# What the plugin opens by name at run time, beside the names that the linker was told.
_OPENED_BY_NAME = (
    *("libacl_dvpp.so", "libacl_dvpp_mpi.so", "libacl_dvpp_op.so", "libascend_hal.so", "libascendalog.so"),
    *("libascendcl.so", "libatb.so", "libc_sec.so", "libexe_graph.so", "libge_runner.so", "libgraph.so", "libhccl.so"),
    *("libmmpa.so", "libmsprofiler.so", "libnnopbase.so", "libopapi.so", "libplatform.so", "libprofapi.so"),
    *("libregister.so", "libruntime.so"),
)
_SYSTEM = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0")

# Static initialisers of the plugin insert into this map, so it has to be one: of the old ABI, as CANN is built.
_FACTORY = "_ZN2ge13StatusFactory8InstanceEv"
_FACTORY_SOURCE = f"""#define _GLIBCXX_USE_CXX11_ABI 0
#include <map>
#include <string>
struct Factory {{ std::map<unsigned, std::string> texts; char rest[4096]; }};
extern "C" void* factory() __asm__("{_FACTORY}");
void* factory() {{ static Factory* only = new Factory(); return only; }}
"""


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
    return f"{wheel.version}-{python}-{platform.machine()}-{wheel.fingerprint()}-r{_RECIPE}"


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
    lacking = [name for name in missing_symbols(wanted.wanted, offered) if name != _FACTORY]

    libraries = filled / _LIBRARIES
    libraries.mkdir(parents=True)
    _compile(lacking, libraries / _OBJECT)
    names = sorted({*wanted.needed, *_OPENED_BY_NAME} - present - set(system))
    for name in names:  # all the same file, which the loader notices and maps once
        os.symlink(_OBJECT, libraries / name)
    (filled / _MARKER).write_text(json.dumps({"names": [_OBJECT, *names], "symbols": len(lacking) + 1}) + "\n")


def _system_libraries(names: Iterable[str]) -> dict[str, Path]:
    """Where the compiler finds those of these libraries that the system has."""
    found = {}
    for name in sorted(names):
        answer = _run("gcc", f"-print-file-name={name}").strip()
        if os.path.isabs(answer):  # gcc repeats a name that it does not find
            found[name] = Path(answer)
    return found


def _compile(symbols: Iterable[str], target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        functions, factory = Path(scratch, "functions.s"), Path(scratch, "factory.cc")
        functions.write_text(assembly(symbols), encoding="utf-8")
        factory.write_text(_FACTORY_SOURCE, encoding="utf-8")
        _run("g++", "-shared", "-fPIC", "-O1", "-o", str(target), str(functions), str(factory))


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
        raise DryRunError(f"the stand-ins for CANN cannot be built: {command[0]}: {last[0]}") from error


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
