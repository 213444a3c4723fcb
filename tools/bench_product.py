"""Operations per second of one matrix product by the oneDNN that MindSpore brings, on all cores, as JSON.

    python tools/bench_product.py ROWS OUTPUTS INPUTS [--dtype float32|bfloat16]

x [ROWS, INPUTS] W^T [INPUTS, OUTPUTS] on every core, each with memory of its own: what a core of this machine can do,
for `bench_limit`.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

_SECONDS = 0.15
_pair = ctypes.c_int64 * 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("rows", "outputs", "inputs"):
        parser.add_argument(name, type=int)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # the threads are our own
    product = _Product(given.dtype, given.rows, given.outputs, given.inputs)
    calls = [product.call() for _ in range(cores())]
    seconds = on_all_cores(lambda core: calls[core]())
    gflops = 2e-9 * given.rows * given.outputs * given.inputs * cores() / seconds
    print(json.dumps({**vars(given), "cores": cores(), "gflops": round(gflops, 2)}), flush=True)
    os._exit(0)  # without oneDNN's destructors, which may find its heap damaged


class _Product:
    """oneDNN's matmul x [rows, inputs] W^T [inputs, outputs], on the calling thread."""

    class Argument(ctypes.Structure):
        _fields_ = (("number", ctypes.c_int), ("memory", ctypes.c_void_p))

    def __init__(self, dtype: str, rows: int, outputs: int, inputs: int) -> None:
        mindspore = importlib.util.find_spec("mindspore")
        assert mindspore is not None and mindspore.origin is not None
        self.library = ctypes.CDLL(str(next(Path(mindspore.origin).parent.glob("lib/libdnnl.so*"))))
        shapes = ((rows, inputs), (inputs, outputs), (rows, outputs))
        cpu, number = 1, 2 if dtype == "bfloat16" else 3  # dnnl_cpu; dnnl_bf16, dnnl_f32
        self.engine = self.made("engine_create", cpu, ctypes.c_size_t(0))
        any_format, in_rows = 1, 3
        x, weight, out = (
            self.made("memory_desc_create_with_tag", 2, _pair(*shape), number, tag)
            for shape, tag in zip(shapes, (in_rows, any_format, in_rows), strict=True)
        )
        described = self.made("matmul_primitive_desc_create", self.engine, x, weight, None, out, None)
        self.primitive = self.made("primitive_create", described)
        query = self.library.dnnl_primitive_desc_query_md
        query.restype, weights_md = ctypes.c_void_p, 131
        self.descriptions = [x, ctypes.c_void_p(query(described, weights_md, 0)), out]

    def made(self, function: str, *arguments: object) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        status = getattr(self.library, f"dnnl_{function}")(ctypes.byref(handle), *arguments)
        assert status == 0, f"dnnl_{function}: status {status}"
        return handle

    def call(self) -> Callable[[], None]:
        """A call on memory of its own."""
        in_order = 1
        stream = self.made("stream_create", self.engine, in_order)
        source, weights, destination = 1, 33, 17  # DNNL_ARG_SRC, _WEIGHTS, _DST
        own = ctypes.c_void_p(-1)  # DNNL_MEMORY_ALLOCATE; what lies in it does not change the rate
        memories = [self.made("memory_create", description, self.engine, own) for description in self.descriptions]
        pairs = zip((source, weights, destination), memories, strict=True)
        arguments = (self.Argument * 3)(*(self.Argument(number, memory) for number, memory in pairs))

        def run() -> None:
            assert self.library.dnnl_primitive_execute(self.primitive, stream, 3, arguments) == 0
            self.library.dnnl_stream_wait(stream)

        return run


def on_all_cores(work: Callable[[int], object]) -> float:
    """Seconds of one call where every core calls all the time: the best of some rounds."""
    best = np.inf
    for _ in range(5):
        counts, stop = [0] * cores(), time.perf_counter() + _SECONDS

        def run(core: int, counts: list[int] = counts, stop: float = stop) -> None:
            while time.perf_counter() < stop:
                work(core)
                counts[core] += 1

        threads = [threading.Thread(target=run, args=(core,)) for core in range(cores())]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, (time.perf_counter() - started) * cores() / sum(counts))
    return best


def cores() -> int:
    """Processors of this process."""
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
