"""What MindSpore's Ascend front end needs in order to load: real CANN where it is installed, stand-ins elsewhere.

CANN's Python packages are empty modules for a process that loads stand-ins.
"""

from __future__ import annotations

import os
import platform
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

from ascend_emulator.errors import EmulatorUnavailable
from ascend_emulator.stand_ins import OBJECT, Wheel, installed_wheel, stand_ins
from mindgspo_kernels.cache import cache_folder

_PACKAGES = frozenset({"te", "tbe", "topi", "auto_tune", "tvm", "hccl"})
# A version that MindSpore 2.10 accepts: it compares the first two numbers with a list of its own.
_CANN_VERSION = "8.5.0"


def install_stand_in_packages() -> None:
    """From now on these packages, and whatever is asked of them, can be imported and does nothing."""
    sys.meta_path.insert(0, _Finder())


class _Anything:
    """Gives itself for every attribute and call; as a decorator it leaves the function as it is."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        is_decorator = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if is_decorator else _Anything()

    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in _PACKAGES else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        # te.version.version and hccl.sys_version.__sys_version__ are read.
        module.version = types.SimpleNamespace(version=_CANN_VERSION)
        module.sys_version = types.SimpleNamespace(__sys_version__=_CANN_VERSION)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing to execute."""


# Where the tests passed. Stand-ins are built for this processor only; with real CANN any processor will do.
SUPPORTED = ("linux", "x86_64", "2.10.")
_USUAL_CANN = "/usr/local/Ascend/ascend-toolkit/latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """libraries: folder for the library path. is_stand_in: nothing of it can run, only be loaded.
    mindspore: version of the wheel."""

    libraries: Path
    is_stand_in: bool
    mindspore: str

    def __str__(self) -> str:
        what = "stand-ins for CANN" if self.is_stand_in else f"CANN of {self.libraries.parent}"
        return f"MindSpore {self.mindspore}, {what}"


def find_toolchain(
    environment: Mapping[str, str] = os.environ, wheel: Wheel | None = None, *, emulated: bool = False
) -> Toolchain:
    """Ready for use; builds the stand-ins the first time. wheel: by default the MindSpore that this Python imports.

    emulated: stand-ins even where CANN is installed.

    Raises EmulatorUnavailable where nothing can be compiled, EmulatorError where the stand-ins cannot be built.
    """
    wheel = wheel or installed_wheel()
    _check_supported("MindSpore", wheel.version, wheel.version.startswith(SUPPORTED[2]))
    wheel.ascend_libraries()
    if not emulated and (libraries := real_cann(environment)) is not None:
        return Toolchain(libraries=libraries, is_stand_in=False, mindspore=wheel.version)
    machine = platform.machine()
    _check_supported("system", sys.platform, sys.platform == SUPPORTED[0])
    _check_supported("processor", machine, machine == SUPPORTED[1])
    return Toolchain(libraries=stand_ins(wheel, cache_folder(environment)), is_stand_in=True, mindspore=wheel.version)


def _check_supported(what: str, found: str, is_supported: bool) -> None:
    if not is_supported:
        system, machine, version = SUPPORTED
        raise EmulatorUnavailable(
            f"the dry run and emulated cards were tested on {system} {machine} with MindSpore {version}x; this {what} "
            f"is {found}"
        )


def real_cann(environment: Mapping[str, str]) -> Path | None:
    """Folder of CANN's libraries: of the variables that its set_env.sh sets, else of the usual place. On an emulated
    card the first of them leads to the stand-ins."""
    for root in (environment.get("ASCEND_HOME_PATH"), environment.get("ASCEND_TOOLKIT_HOME"), _USUAL_CANN):
        libraries = Path(root, "lib64") if root else None
        if libraries and (libraries / "libascendcl.so").is_file() and not (libraries / OBJECT).exists():
            return libraries
    return None
