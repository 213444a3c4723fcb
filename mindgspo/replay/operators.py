"""Inputs and outputs of a replay's operators, written by msprobe (the package mindstudio-probe)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mindgspo.errors import ConfigError
from mindgspo.io import make_folder, write_json


@contextmanager
def operators_written(folder: Path) -> Iterator[None]:
    """Write inputs and outputs of all operators that run inside to `folder`, as .npy files in msprobe's layout.

    Entered before any graph is compiled: MindSpore reads the settings with the first one. On CPU it goes on writing
    until the process ends. Raises ConfigError if msprobe is not installed.
    """
    try:
        msprobe = importlib.import_module("msprobe.mindspore")
    except ImportError as error:
        raise ConfigError(f"--operators: needs msprobe ({error}); pip install 'mindgspo[msprobe]'") from error
    make_folder(folder)
    settings = folder / "msprobe.json"
    everything = {"scope": [], "list": [], "data_mode": ["all"]}
    dumped = {"task": "tensor", "level": "L2", "rank": [], "step": [], "tensor": everything}
    write_json(settings, {**dumped, "dump_path": str(folder.absolute())})
    debugger = msprobe.PrecisionDebugger(config_path=str(settings))
    debugger.start()
    try:
        yield
    finally:
        debugger.stop()
