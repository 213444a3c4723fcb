"""The installed MindSpore as files: where it lies, its version, the libraries of its Ascend plugin.

Nothing of it is imported: a process that has imported MindSpore has chosen its libraries already. Called by
`toolchain` and `stand_ins`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from mindgspo.errors import DryRunUnavailable

# Of MindSpore's own kernels, below the package.
HEADERS = Path("lib", "plugin", "ascend", "ms_kernels_internal", "internal_kernel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """folder: the package `mindspore`. version: what it calls itself, e.g. "2.10.0"."""

    folder: Path
    version: str

    def libraries(self) -> list[Path]:
        """All shared objects, Ascend's and others."""
        return sorted(path for path in self.folder.rglob("*.so*") if path.is_file())

    def ascend_libraries(self) -> list[Path]:
        """Those that refer to CANN. Raises DryRunUnavailable for a wheel that was built without the plugin."""
        plugin = self.folder / "lib" / "plugin"
        found = [
            plugin / "libmindspore_ascend.so.2",
            plugin / "libmindspore_ops_ascend.so",
            self.folder / "lib" / "libmindspore_ge_backend.so",
        ]
        if not found[0].is_file():
            raise DryRunUnavailable(
                f"MindSpore {self.version} at {self.folder} has no Ascend plugin ({found[0].name}); install the wheel "
                "of PyPI: pip install 'mindspore>=2.10,<2.11'"
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
    """The MindSpore that this Python would import. Raises DryRunUnavailable where there is none."""
    spec = importlib.util.find_spec("mindspore")
    if spec is None or spec.origin is None:
        raise DryRunUnavailable("the dry run compiles with MindSpore, which is not installed: pip install mindspore")
    folder = Path(spec.origin).parent
    return Wheel(folder=folder, version=_version(folder / "version.py"))


def _version(path: Path) -> str:
    """A CANN image may name the distribution otherwise; the package's own file is the same everywhere."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    match = re.search(r"__version__\s*=\s*['\"]([^'\"]+)['\"]", text)
    if match is None:
        raise DryRunUnavailable(f"{path} does not tell MindSpore's version: install MindSpore again")
    return match[1]
