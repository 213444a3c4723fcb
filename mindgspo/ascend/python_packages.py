"""CANN's Python packages as empty modules, for a process that loads stand-ins for CANN's libraries.

MindSpore imports some of them when the device is chosen, for names and versions only. Called by `child`.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

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
