"""MindSpore's context and private API: the only module that touches them.

`set_up_runtime` is called once per process, before any cell is built.
"""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mindgspo.io import restore_umask
from mindgspo.parallel.platform.worker_process import COMPILING_S
from mindgspo.progress import activity

if TYPE_CHECKING:
    from mindspore import Parameter, Tensor, nn

# Errors only: MindSpore's deprecation warnings about its own context API drown the run's output.
os.environ.setdefault("GLOG_v", "3")
# A failed compile writes rank_0/om/analyze_fail.ir: keep it out of the user's working folder.
os.environ.setdefault("MS_OM_PATH", os.path.join(tempfile.gettempdir(), f"mindgspo-compile-{os.getuid()}"))
# Inside `paged_kernels` MindSpore 2.10 would use its internal kernels for these as well: Swiglu's fails for want of a
# fusion mode, and attention's is not given the sequence lengths.
os.environ.setdefault("MS_DISABLE_INTERNAL_KERNELS_LIST", "Swiglu,FlashAttentionScore")
# It would also fuse transposes and batched products into a kernel that takes no float32.
os.environ.setdefault("MS_INTERNAL_DISABLE_CUSTOM_KERNEL_LIST", "TransposeBatchMatmulTranspose")
# Ranks compile graphs for minutes, and some for much longer than others: within HCCL's default of 120 s they would not
# connect. The launcher's watch names a rank that hangs.
os.environ.setdefault("HCCL_CONNECT_TIMEOUT", "7200")
os.environ.setdefault("HCCL_EXEC_TIMEOUT", "7200")
# With infer_boost MindSpore would make groups by LCCL, which spans no more than a server, whenever they are made then.
os.environ.setdefault("MS_ENABLE_LCCL", "off")
# MindFormers writes its logs into the working folder unless told otherwise.
os.environ.setdefault("LOG_MF_PATH", os.path.join(tempfile.gettempdir(), f"mindgspo-mindformers-{os.getuid()}"))


def _is_mindspore(series: str) -> bool:
    try:
        return importlib.metadata.version("mindspore").startswith(series)
    except importlib.metadata.PackageNotFoundError:
        return False


if _is_mindspore("2.9."):
    # MindSpore 2.9 sets this itself, but aborts the process if protobuf was imported before that without it.
    os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")

Device = Literal["CPU", "Ascend"]
Outputs = Any
"""What the `construct` of a cell returns: a tensor, or a tuple of them."""

_DISPATCH_THREADS = 5
EMULATED = "ASCEND_EMULATOR"
"""Environment variable that the package ascend-emulator sets in a process on an emulated card and in its children."""
EMULATED_WAITS = "ASCEND_EMULATOR_WAITS"
"""Environment variable with the file in which an emulated card lists the collectives that it waited for too long."""

_device: Device | None = None
_in_cluster = False


def set_up_runtime(device: Device = "CPU", *, deterministic: bool = False) -> None:
    """Choose the device and the compiler settings; later calls with the same device do nothing.

    deterministic: of kernels and collectives on Ascend that add up in any order, take the slower form with one order.

    The process stays in PyNative mode, MindSpore's default. `jit_level` is O0: on CPU it decodes twice as fast as O1,
    and on Ascend it launches kernels one by one, which dynamic batch sizes need. Raises RuntimeError if the process
    already runs on another device.
    """
    global _device
    if _device == device:
        return
    if _device is not None:
        raise RuntimeError(f"this process runs on {_device}; start another one for {device}")

    with activity("loading MindSpore"):
        import mindspore as ms

    restore_umask()
    ms.set_device(device)
    ms.set_context(jit_config={"jit_level": "O0"})
    if device == "Ascend" and deterministic:
        os.environ["HCCL_DETERMINISTIC"] = "true"
        ms.set_deterministic(True)
    if device == "Ascend" and (os.cpu_count() or 1) < _DISPATCH_THREADS:
        # With so few cores MindSpore would launch kernels differently from a server.
        ms.runtime.dispatch_threads_num(_DISPATCH_THREADS)
    _device = device


@contextmanager
def paged_kernels() -> Iterator[None]:
    """Allow MindSpore's internal kernels for graphs compiled or run inside: on Ascend, ReshapeAndCache and
    PagedAttention have no others.

    Switches the context and restores it, because in MindSpore 2.10 a cell's own JitConfig(infer_boost="on") leaks into
    all later graphs, where FlashAttentionScore would then lack the sequence lengths.
    """
    if _device != "Ascend":
        yield
        return
    import mindspore as ms

    ms.set_context(jit_config={"jit_level": "O0", "infer_boost": "on"})
    try:
        yield
    finally:
        ms.set_context(jit_config={"jit_level": "O0", "infer_boost": "off"})


def is_emulated() -> bool:
    """Whether this process runs on an emulated card."""
    return EMULATED in os.environ


def current_device() -> Device:
    """Return the device chosen by `set_up_runtime`, which must have been called."""
    assert _device is not None, "set_up_runtime() was not called"
    return _device


def join_cluster() -> None:
    """Join the cluster and wait until all workers have; call `set_up_runtime` first. A second call does nothing.

    Raises RuntimeError if the cluster does not form (a worker is missing, the scheduler's port is taken).
    """
    global _in_cluster
    if _in_cluster:
        return
    assert _device is not None, "set_up_runtime() comes before join_cluster()"
    from mindspore import communication

    os.environ.setdefault("MS_NODE_TIMEOUT", COMPILING_S)
    communication.init()
    _in_cluster = True


def rank() -> int:
    """Return this process's rank; 0 outside a cluster."""
    if not _in_cluster:
        return 0
    from mindspore import communication

    return communication.get_rank()


def world_size() -> int:
    """Return the number of workers; 1 outside a cluster."""
    if not _in_cluster:
        return 1
    from mindspore import communication

    return communication.get_group_size()


def give_untouched_zeros(parameters: Iterable[Parameter]) -> None:
    """Give parameters without values zeros whose host pages are not allocated until written: for sizes alone."""
    import mindspore as ms
    from mindspore import Tensor

    for parameter in parameters:
        if parameter.has_init:
            zeros = Tensor.from_numpy(np.zeros(parameter.shape, ms.dtype_to_nptype(parameter.dtype)))
            parameter.init_mode = parameter.init = None
            parameter.set_data(zeros, slice_shape=True)


def call_for_memory(cell: nn.Cell, inputs: Sequence[Tensor]) -> tuple[int, int]:
    """Run a graph once; return the peak bytes of its tensors on the device and the bytes reserved by the allocator."""
    import mindspore as ms

    call_compiled(cell, *inputs)
    ms.runtime.synchronize()
    return ms.runtime.max_memory_allocated(), ms.runtime.max_memory_reserved()


def peak_device_bytes() -> int | None:
    """Return the most bytes that tensors have taken on this process's card; None on a CPU."""
    import mindspore as ms

    return ms.runtime.max_memory_allocated() if _device == "Ascend" else None


def call_compiled(cell: nn.Cell, *inputs: Tensor) -> Outputs:
    """Compile a cell for these shapes unless done before, and run the graph.

    `cell(...)` would compile in graph mode only; `mindspore.jit` gives the same result with more host time per call.
    """
    if cell.compile_cache:
        return cell.compile_and_run(*inputs)
    with activity(f"compiling {type(cell).__name__}"):
        return cell.compile_and_run(*inputs)


class CompiledCell:
    """A cell whose compiled graphs are called directly on CPU.

    `call_compiled` checks all inner cells for changes on every call, which takes 1 ms where a decode step takes 4.
    """

    def __init__(self, cell: nn.Cell) -> None:
        self.cell = cell
        self._keys: dict[tuple, object] = {}

    def __call__(self, *inputs: Tensor) -> Outputs:
        from mindspore.graph.api import _cell_graph_executor

        cell = self.cell
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        key = self._keys.get(shapes)
        if key is not None:
            cell.arguments_key = key
            return _cell_graph_executor(cell, *inputs, phase=cell.phase)
        result = call_compiled(cell, *inputs)
        if _device == "CPU":
            self._keys[shapes] = cell.arguments_key
        return result


def compile_once(cells: nn.CellList, kinds: Sequence[object]) -> None:
    """Have graphs for Ascend compile and differentiate one cell of each kind; cells of a kind differ only in their
    parameters.

    `mindspore.lazy_inline` does this for cells whose constructors got equal arguments; it does not exist on CPU.
    """
    if _device == "Ascend":
        for cell, kind in zip(cells, kinds, strict=True):
            if kinds.count(kind) > 1:
                cell.cell_init_args = f"lazy_inline_{type(cell).__name__}_{id(cells[0])}_{kind}"


def compiled_text(cell: nn.Cell) -> str:
    """Return the IR text of the graph that `cell.compile` made last, with its functions and local shapes."""
    from mindspore._c_expression import dump_func_graph
    from mindspore.graph.api import _cell_graph_executor

    return dump_func_graph(_cell_graph_executor._get_func_graph(cell, cell.current_phase))


def broadcast_in_place(array: np.ndarray, *, sender: int, group: str) -> None:
    """Fill a contiguous float32 or int32 array with that of rank `sender`; both ranks are members of `group`."""
    from mindspore.mint import distributed

    tensor = _aliasing_tensor(array)
    distributed.broadcast(tensor, sender, group=group)
    _wait_for(tensor, array)


def sum_in_place(array: np.ndarray, *, group: str) -> None:
    """Replace a contiguous float32 or int32 array by its sum over the members of `group`."""
    from mindspore.mint import distributed

    tensor = _aliasing_tensor(array)
    distributed.all_reduce(tensor, group=group)
    _wait_for(tensor, array)


def send_to_each(parts: Sequence[np.ndarray], received: Sequence[np.ndarray]) -> None:
    """Send `parts[r]` (int32) to each rank r of the world and fill `received[s]` with the data from each rank s."""
    from mindspore import Tensor
    from mindspore.mint import distributed

    # One leading element, because the collective refuses empty buffers.
    outgoing, incoming = ([np.zeros(1, np.int32), *arrays] for arrays in (parts, received))
    result = Tensor(np.concatenate(incoming))
    distributed.all_to_all_single(
        result[1:], Tensor(np.concatenate(outgoing))[1:], [one.size for one in received], [one.size for one in parts]
    )
    ends = np.cumsum([one.size for one in received])
    for array, part in zip(received, np.split(result.asnumpy()[1:], ends[:-1]), strict=True):
        array[...] = part


def _aliasing_tensor(array: np.ndarray) -> Tensor:
    from mindspore import Tensor

    assert array.flags.c_contiguous and array.dtype in (np.float32, np.int32), (array.dtype, array.flags)
    return Tensor.from_numpy(array)


def _wait_for(tensor: Tensor, array: np.ndarray) -> None:
    """Wait for a functional collective, which runs in its own thread, and copy its result back into the array unless
    they share memory, as on CPU."""
    result = tensor.asnumpy()
    if not np.may_share_memory(result, array):
        array[...] = result


def synchronize_device() -> None:
    """Wait for the launched graphs. On CPU a call returns when its graph is done."""
    if _device == "Ascend":
        from mindspore import runtime

        runtime.synchronize()


def offload_parameter(parameter: Parameter) -> None:
    """Move a parameter to host memory and free its device memory; does nothing on CPU."""
    parameter._offload()


def load_parameter(parameter: Parameter) -> None:
    """Bring a parameter back to the device, after `offload_parameter`."""
    parameter._load()
