"""The one place that sets MindSpore's context, an environment variable, or touches a private API.

Called once per process by the command line, by the worker entry and by tests, before any cell is built.
"""

from __future__ import annotations

import os
import tempfile
from typing import Literal

# Errors only: MindSpore's deprecation warnings about its own context API drown the run's output.
os.environ.setdefault("GLOG_v", "3")
# A failed compile writes rank_0/om/analyze_fail.ir: keep it out of the user's working folder.
os.environ.setdefault("MS_OM_PATH", os.path.join(tempfile.gettempdir(), "mindgspo-compile"))

Device = Literal["CPU", "Ascend"]

_device: Device | None = None
_in_cluster = False


def set_up_runtime(device: Device = "CPU") -> None:
    """Choose the device and compile every cell as a whole graph; later calls with the same device do nothing.

    `jit_level` O0 because on CPU it decodes twice as fast as O1, and on Ascend it is the level whose
    kernels are launched one by one, which dynamic batch sizes need.
    Raises RuntimeError if the process already runs on another device.
    """
    global _device
    if _device == device:
        return
    if _device is not None:
        raise RuntimeError(f"this process runs on {_device}; start another one for {device}")

    import mindspore as ms

    ms.set_device(device)
    ms.set_context(mode=ms.GRAPH_MODE, jit_config={"jit_level": "O0"})
    _device = device


def current_device() -> Device:
    """The device chosen by `set_up_runtime`; an assertion fails if nobody called it."""
    assert _device is not None, "set_up_runtime() was not called"
    return _device


def is_worker() -> bool:
    """Whether msrun started this process as a worker (its scheduler runs the same command under another role)."""
    return os.environ.get("MS_ROLE") == "MS_WORKER"


def join_cluster() -> None:
    """Meet the other workers; waits until all have come. `set_up_runtime` comes first; a second call does nothing.

    Raises RuntimeError where the cluster does not form (a worker is missing, the scheduler's port is taken).
    """
    global _in_cluster
    if _in_cluster:
        return
    assert _device is not None, "set_up_runtime() comes before join_cluster()"
    from mindspore import communication

    communication.init()
    _in_cluster = True


def rank() -> int:
    """Number of this process among the workers, from 0; 0 for a process that is alone."""
    if not _in_cluster:
        return 0
    from mindspore import communication

    return communication.get_rank()


def world_size() -> int:
    """Number of workers; 1 for a process that is alone."""
    if not _in_cluster:
        return 1
    from mindspore import communication

    return communication.get_group_size()
