"""The one place that sets MindSpore's context, an environment variable, or touches a private API.

Called once per process by the command line, by the worker entry and by tests, before any cell is built.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import importlib.metadata
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from mindgspo.io import restore_umask

if TYPE_CHECKING:
    from mindspore import Parameter, Tensor, nn

# Errors only: MindSpore's deprecation warnings about its own context API drown the run's output.
os.environ.setdefault("GLOG_v", "3")
# A failed compile writes rank_0/om/analyze_fail.ir: keep it out of the user's working folder.
os.environ.setdefault("MS_OM_PATH", os.path.join(tempfile.gettempdir(), f"mindgspo-compile-{os.getuid()}"))
# Inside `paged_kernels` MindSpore 2.10 would take its own kernels for these, too: that of Swiglu fails, because it is
# not told how to fuse, and that of attention is given no lengths of its sequences.
os.environ.setdefault("MS_DISABLE_INTERNAL_KERNELS_LIST", "Swiglu,FlashAttentionScore")
# MindFormers, where it is used, writes logs: into the working folder, if nobody says otherwise.
os.environ.setdefault("LOG_MF_PATH", os.path.join(tempfile.gettempdir(), f"mindgspo-mindformers-{os.getuid()}"))


def _is_mindspore(series: str) -> bool:
    try:
        return importlib.metadata.version("mindspore").startswith(series)
    except importlib.metadata.PackageNotFoundError:
        return False


if _is_mindspore("2.9."):
    # It aborts the process where protobuf was imported before it without this. It sets it itself, too late for that.
    os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")

Device = Literal["CPU", "Ascend"]

_DISPATCH_THREADS = 5
# Set for a process on an emulated card, and for those that it starts, by `ascend.emulator.launcher`.
EMULATED = "ASCEND_EMULATOR"
"""The variable that the package of this name sets on an emulated card."""
EMULATED_WAITS = "ASCEND_EMULATOR_WAITS"
"""The variable with a file that takes the collectives in which an emulated card has waited for long."""

_device: Device | None = None
_in_cluster = False


def set_up_runtime(device: Device = "CPU") -> None:
    """Choose the device, and how `call_compiled` compiles; later calls with the same device do nothing.

    The process stays in PyNative mode, MindSpore's own default. `jit_level` O0 because on CPU it decodes twice as fast
    as O1, and on Ascend it is the level whose kernels are launched one by one, which dynamic batch sizes need.
    Raises RuntimeError if the process already runs on another device.
    """
    global _device
    if _device == device:
        return
    if _device is not None:
        raise RuntimeError(f"this process runs on {_device}; start another one for {device}")

    import mindspore as ms

    restore_umask()
    ms.set_device(device)
    ms.set_context(jit_config={"jit_level": "O0"})
    if device == "Ascend" and (os.cpu_count() or 1) < _DISPATCH_THREADS:
        # On so few cores MindSpore would launch kernels another way than on a server.
        ms.runtime.dispatch_threads_num(_DISPATCH_THREADS)
    _device = device


@contextmanager
def paged_kernels() -> Iterator[None]:
    """Graphs that are compiled or run inside may use MindSpore's own kernels, the only ones that ReshapeAndCache and
    PagedAttention have on Ascend.

    The context is switched, and back, because a cell's own JitConfig(infer_boost="on") stays for all later graphs in
    MindSpore 2.10, and FlashAttentionScore would then be given no lengths of its sequences.
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
    """Whether an Ascend of this process is an emulated card."""
    return EMULATED in os.environ


def current_device() -> Device:
    """The device chosen by `set_up_runtime`; an assertion fails if nobody called it."""
    assert _device is not None, "set_up_runtime() was not called"
    return _device


def is_worker() -> bool:
    """Whether this process was started as a worker (the scheduler runs the same command under another role)."""
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


def give_untouched_zeros(parameters: Iterable[Parameter]) -> None:
    """Zeros for those of the parameters that have no values yet, in pages that the host does not have until somebody
    writes into them: for sizes alone."""
    import mindspore as ms
    from mindspore import Tensor

    for parameter in parameters:
        if parameter.has_init:
            zeros = Tensor.from_numpy(np.zeros(parameter.shape, ms.dtype_to_nptype(parameter.dtype)))
            parameter.init_mode = parameter.init = None
            parameter.set_data(zeros, slice_shape=True)


def call_for_memory(cell: nn.Cell, inputs: Sequence[Tensor]) -> tuple[int, int]:
    """Call a compiled graph once; bytes that tensors took on the device at most, and bytes of the blocks that the
    allocator had taken for them."""
    import mindspore as ms

    call_compiled(cell, *inputs)
    ms.runtime.synchronize()
    return ms.runtime.max_memory_allocated(), ms.runtime.max_memory_reserved()


def call_compiled(cell: nn.Cell, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
    """Compile a cell for these shapes, if that was not done before, and run the graph, whatever mode the process is in:
    `cell(...)` would compile in graph mode alone. The result is that of `mindspore.jit`, whose calls take more of the
    host's time."""
    return cell.compile_and_run(*inputs)


class CompiledCell:
    """A cell whose graphs are called as they are once they are compiled.

    `call_compiled` looks through all cells inside for changes each time: a millisecond where a decode step takes
    four. On Ascend it is left to do so.
    """

    def __init__(self, cell: nn.Cell) -> None:
        self.cell = cell
        self._keys: dict[tuple, object] = {}

    def __call__(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
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


def compile_once(cells: Sequence[nn.Cell]) -> None:
    """Have MindSpore compile, and differentiate, one of these cells in place of each, in graphs for Ascend that call
    them. They differ in their parameters alone: all else is taken from one of them.

    It is what `mindspore.lazy_inline` does to cells whose constructors got equal arguments; there is none on CPU.
    """
    if _device == "Ascend" and len(cells) > 1:
        for cell in cells:
            cell.cell_init_args = f"lazy_inline_{type(cell).__name__}_{id(cells[0])}"


def compiled_text(cell: nn.Cell) -> str:
    """MindSpore's text of the graph that `cell.compile` made last, functions and local shapes included."""
    from mindspore._c_expression import dump_func_graph
    from mindspore.graph.api import _cell_graph_executor

    return dump_func_graph(_cell_graph_executor._get_func_graph(cell, cell.current_phase))


def broadcast_in_place(array: np.ndarray, *, sender: int, group: str) -> None:
    """Fill a contiguous float32 or int32 array with the one of rank `sender`; both are members of `group`."""
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
    """Send the int32 array number r to rank r of the world, and fill the array number s with what rank s sends here."""
    from mindspore import Tensor
    from mindspore.mint import distributed

    # Never empty: the collective takes no buffer without memory.
    outgoing, incoming = ([np.zeros(1, np.int32), *arrays] for arrays in (parts, received))
    result = Tensor(np.concatenate(incoming))
    distributed.all_to_all_single(
        result[1:], Tensor(np.concatenate(outgoing))[1:], [one.size for one in received], [one.size for one in parts]
    )
    ends = np.cumsum([one.size for one in received])
    for array, part in zip(received, np.split(result.asnumpy()[1:], ends[:-1]), strict=True):
        array[...] = part


def send_tensor(tensor: Tensor, receiver: int) -> None:
    """From this card to the one of rank `receiver`, which calls `receive_tensor` with one of the same shape."""
    from mindspore.mint import distributed

    distributed.send(tensor, receiver)


def receive_tensor(tensor: Tensor, sender: int) -> None:
    """Fill a tensor of this card with the one that rank `sender` sends."""
    from mindspore.mint import distributed

    distributed.recv(tensor, sender)


def _aliasing_tensor(array: np.ndarray) -> Tensor:
    from mindspore import Tensor

    assert array.flags.c_contiguous and array.dtype in (np.float32, np.int32), (array.dtype, array.flags)
    return Tensor.from_numpy(array)


def _wait_for(tensor: Tensor, array: np.ndarray) -> None:
    """The functional collectives run in a thread of their own: reading waits for them. Where the device is the host
    the tensor is the array; elsewhere it is copied back."""
    result = tensor.asnumpy()
    if not np.may_share_memory(result, array):
        array[...] = result


def synchronize_device() -> None:
    """Wait for the graphs that were launched. On CPU a call of a graph returns when it is done."""
    if _device == "Ascend":
        from mindspore import runtime

        runtime.synchronize()


def offload_parameter(parameter: Parameter) -> None:
    """Copy a parameter to host memory and free its memory on the device; MindSpore changes nothing on CPU."""
    parameter._offload()


def load_parameter(parameter: Parameter) -> None:
    """Bring a parameter back to the device, after `offload_parameter`."""
    parameter._load()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrders:
    """What the launcher tells its workers. launcher: its process id. is_terminal: rank 0 writes for a terminal."""

    log_dir: str
    state_dir: str
    launcher: int
    is_terminal: bool


_ROLLOUT_SERVERS = "MINDGSPO_ROLLOUT_SERVERS"  # that the launcher has started, for its workers
API_KEY = "MINDGSPO_API_KEY"
"""The variable that holds the key of servers that generate."""
_api_key: str | None = None


def rollout_servers() -> dict[str, int]:
    """{URL: process id} of the servers that were started to generate for this run; none where nobody started any."""
    return json.loads(os.environ.get(_ROLLOUT_SERVERS, "{}"))


def tell_rollout_servers(servers: Mapping[str, int], key: str) -> None:
    """To this process and the ranks that it starts, see `rollout_servers` and `api_key`."""
    global _api_key
    os.environ[_ROLLOUT_SERVERS], _api_key = json.dumps(servers), key


def api_key() -> str | None:
    """The key of servers that generate. From the first call on it is in no environment that a child inherits; the
    launcher gives it to rank 0."""
    global _api_key
    _api_key = os.environ.pop(API_KEY, _api_key)
    return _api_key


def choose_card(number: str) -> None:
    """Of this machine, for this process alone; before `set_up_runtime`."""
    os.environ["DEVICE_ID"] = number


_LAUNCH = "MINDGSPO_LAUNCH"
# A collective on CPU gives up after 30 s by default, also when a rank merely compiles or evaluates for longer. Who
# died is found out by the launcher at once, and who is slow is reported by its watch: both limits can be a day.
_NO_LIMIT_S = "86400"
_FORMING_S = "600"  # msrun's limit for the forming of a cluster
# More workers than this leave MindSpore's interval of messages to the scheduler (3 to 5 s) as it is.
_MAX_WORKERS_OF_SHORT_INTERVAL = 64


def worker_environment(
    orders: LaunchOrders, *, rank: int | None, num_workers: int, num_local_workers: int, scheduler: tuple[str, int]
) -> dict[str, str]:
    """The environment of one started process, as msrun makes it; what the user has set of other variables stays.

    rank: None for MindSpore's scheduler, which listens at `scheduler` (IP address, port).
    """
    environment = dict(os.environ)
    environment |= {
        _LAUNCH: json.dumps(dataclasses.asdict(orders)),
        "MS_WORKER_NUM": str(num_workers),
        "MS_SCHED_HOST": scheduler[0],
        "MS_SCHED_PORT": str(scheduler[1]),
        "MS_TOPO_TIMEOUT": _FORMING_S,
        "MS_ROLE": "MS_SCHED" if rank is None else "MS_WORKER",
        "RANK_SIZE": str(num_workers),
        "RANK_ID": str(rank or 0),
    }
    if rank == 0 and (key := api_key()) is not None:
        environment[API_KEY] = key
    if rank is not None:
        environment |= {"MS_NODE_ID": str(rank), "DEVICE_ID": str(rank % num_local_workers)}
    environment.setdefault("MS_CPU_COMM_OP_TIMEOUT", _NO_LIMIT_S)
    if num_local_workers == num_workers:  # else the scheduler alone notices that another machine is gone, after 30 s
        environment.setdefault("MS_NODE_TIMEOUT", _NO_LIMIT_S)
    if num_workers <= _MAX_WORKERS_OF_SHORT_INTERVAL:  # saves seconds while the cluster forms
        environment.setdefault("MS_RETRY_INTERVAL_LOWER", "1")
        environment.setdefault("MS_RETRY_INTERVAL_UPPER", "1")
    if orders.is_terminal and rank == 0:  # it writes to a file, which the launcher copies to the terminal
        columns, lines = shutil.get_terminal_size()
        environment.setdefault("TTY_COMPATIBLE", "1")
        environment |= {"COLUMNS": str(columns), "LINES": str(lines)}
    return environment


def launch_orders() -> LaunchOrders | None:
    """What the launcher told this worker; None in a process that it did not start."""
    text = os.environ.get(_LAUNCH)
    return LaunchOrders(**json.loads(text)) if text else None


def launched_rank() -> int:
    """Number of this worker among all, known from the start; `rank()` is known when the cluster has formed."""
    return int(os.environ["MS_NODE_ID"])


def msrun_workers() -> tuple[int, int | None]:
    """How many workers msrun was asked for, and which of them this is, where that is known from the start."""
    rank = os.environ.get("MS_NODE_ID", "")
    return int(os.environ["MS_WORKER_NUM"]), int(rank) if rank.isdecimal() else None


def is_scheduler() -> bool:
    """Whether this process was started as the scheduler, which must not do a worker's work."""
    return os.environ.get("MS_ROLE") == "MS_SCHED"


def is_launched() -> bool:
    """Whether the launcher or msrun started this process, in either role; `launch.worker.run_worker` handles both."""
    return is_worker() or is_scheduler()


def await_scheduler(poll_s: float = 0.05) -> None:
    """Wait until the scheduler listens. `join_cluster` alone would come back 3 s later after one refused connection.

    Gives up after the limit for the forming of a cluster; then `join_cluster` says what is wrong.
    """
    address = os.environ["MS_SCHED_HOST"], int(os.environ["MS_SCHED_PORT"])
    give_up = time.monotonic() + float(os.environ["MS_TOPO_TIMEOUT"])
    while time.monotonic() < give_up:
        try:
            socket.create_connection(address, timeout=5.0).close()
            return
        except OSError:
            time.sleep(poll_s)


def serve_as_scheduler() -> None:
    """MindSpore's scheduler: returns, or ends the process, when all workers have left the cluster.

    Raises RuntimeError where the port is taken or a worker is lost. Holds Python's lock all the time.
    """
    from mindspore import communication

    communication.init()


def run_exit_functions() -> None:
    """What Python would call at its end; MindSpore's own takes this process out of the cluster in order."""
    atexit._run_exitfuncs()


def adopt_orphans(is_on: bool) -> None:
    """Descendants whose parent ends become this process's children instead of init's (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(is_on))


def die_with_parent() -> None:
    """The kernel kills this process when its parent ends, even while it hangs in C code (Linux)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, argument: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, ctypes.c_ulong(argument), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")
