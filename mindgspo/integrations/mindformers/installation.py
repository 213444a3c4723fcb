"""MindFormers, imported late, and quietly.

What enters: nothing. What leaves: the imported package, or an error that says what to install. Called before any of its
cells is built.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import logging
import os
import sys
import warnings
from types import ModuleType

from mindgspo.errors import ConfigError

WANTED = {"mindformers": "1.9.0", "mindspore": "2.9.0"}
"""The pair of wheels that belong together, and that this backend was tested with."""

_HOW = (
    "it runs in an environment of its own, with mindformers 1.9.0 and mindspore 2.9.0. In a checkout: "
    "python3 -m venv mf && mf/bin/pip install -e '.[mindformers]'; then mf/bin/mindgspo"
)


def require_mindformers() -> ModuleType:
    """The package `mindformers`. Raises ConfigError: it is absent, not the tested pair of versions, or told by an
    environment variable to do something else.

    On its import MindFormers sends its messages and Python's warnings to stdout, which belongs to our results. Here its
    errors go to stderr, lesser things into its log file alone, and warnings stay Python's.
    """
    found = {name: _version(name) for name in WANTED}
    if found["mindformers"] is None:
        raise ConfigError(f"the MindFormers backend needs the package mindformers, which is not installed; {_HOW}")
    if found != WANTED:
        have = ", ".join(f"{name} {version or 'absent'}" for name, version in found.items())
        raise ConfigError(
            f"the MindFormers backend is tested with one pair of wheels and this is another: {have}; {_HOW}"
        )
    if os.environ.get("RUN_MODE") == "predict":
        raise ConfigError("RUN_MODE=predict: MindFormers then builds graphs for generation on Ascend; unset it")
    show_warning = warnings.showwarning
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import mindformers
            from mindformers.tools.logger import get_logger

            _quieten(get_logger())
    except ImportError as error:
        raise ConfigError(f"the MindFormers backend: mindformers cannot be imported ({error}); {_HOW}") from error
    finally:
        warnings.showwarning = show_warning
    return mindformers


def _quieten(logger: logging.Logger) -> None:
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
            handler.setStream(sys.stderr)
            handler.setLevel(logging.ERROR)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
