"""What a step of the benchmark costs at least on this machine; `bench_step.py --limit` prints it.

Three bounds, none of which an implementation that computes the same can go below: the products' operations by the
fastest sgemm found here, at the model's own shapes, on all cores; the bytes of weights, gradients and moments that
updates and decoded tokens read and write by the memory's rate; and the launches of the step's graphs, as they are
compiled, by the time of an empty one. Padding, recomputation, attention's softmax and everything element by element are
not in the first two.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from mindgspo.config import ModelSection
from mindgspo.dryrun.graph_text import read_graph
from mindgspo.models.operations import Operations
from mindgspo.parallel.ops.kernels import SwiGLUKernel
from mindgspo.parallel.platform.runtime import compiled_text

_SECONDS = 0.15
# Nodes of a graph's text that order others, or name what is there already.
_NOT_LAUNCHED = ("Depend", "ExpandDims", "Load", "MakeTuple", "Reshape", "Squeeze", "TupleGetItem", "UpdateState")


def step_limit(
    model: ModelSection,
    lengths: Sequence[int],
    graphs: Mapping[str, tuple[nn.Cell, int]],
    *,
    prompt_length: int,
    num_prompts: int,
    mini_batch: int,
) -> dict[str, object]:
    """Seconds of each bound, and what they follow from. lengths: of the step's responses. graphs: by name, cells that
    were called, and how often the step calls them."""
    layer = _layer_shapes(model)
    tokens = sum(lengths) + len(lengths) * prompt_length
    trunk, head = Operations.of(model).trunk, Operations.of(model).head
    forward = tokens * trunk + sum(lengths) * head + _attention(model, [prompt_length + one for one in lengths])
    prefill = num_prompts * prompt_length * trunk + _attention(model, [prompt_length] * num_prompts)
    decoded = sum(lengths) * (trunk + head)
    decoded += _attention(model, [prompt_length + one for one in lengths]) - _attention(model, [prompt_length]) * len(
        lengths
    )
    operations = {"generation": prefill + decoded, "update": 3 * forward}
    if "old_log_probs" in graphs:
        operations["old_log_probs"] = forward
    rate = _sgemm_rate(mini_batch * tokens // len(lengths), [*layer, (model.vocab_size, model.hidden_size)])
    parameters = model.vocab_size * model.hidden_size + trunk // 2
    num_updates = len(lengths) // mini_batch
    # Read and written by an update: gradient, weight and both moments, all but the first written too. By a token: read.
    moved = 4 * parameters * (7 * num_updates + max(lengths))
    memory = _memory_rate()
    empty = _empty_launch()
    operators = {name: _launched(cell) for name, (cell, _) in graphs.items()}
    launches = sum(operators[name] * calls for name, (_, calls) in graphs.items())
    return {
        "operations_s": round(sum(operations.values()) / rate, 4),
        "operations_by_phase_s": {name: round(value / rate, 4) for name, value in operations.items()},
        "sgemm_gflops": round(rate / 1e9, 1),
        "bytes_s": round(moved / memory, 4),
        "memory_gb_per_s": round(memory / 1e9, 1),
        "launches_by_graph": operators,
        "launches": launches,
        "launches_s": round(launches * empty, 4),
        "empty_launch_us": round(1e6 * empty, 2),
    }


def _launched(cell: nn.Cell) -> int:
    """Operators of the graph that the cell was last compiled to."""
    operators = read_graph(compiled_text(cell), 1).operators
    return sum(count for name, count in operators.items() if name not in _NOT_LAUNCHED)


def _layer_shapes(model: ModelSection) -> list[tuple[int, int]]:
    """[outputs, inputs] of a layer's matrices."""
    assert model.head_dim is not None
    hidden, inner = model.hidden_size, model.intermediate_size
    heads, kv_heads = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    return [(heads + 2 * kv_heads, hidden), (hidden, heads), (2 * inner, hidden), (hidden, inner)]


def _attention(model: ModelSection, lengths: Sequence[int]) -> int:
    """Operations of causal scores and of their products with values."""
    return Operations.of(model).pair * sum(length * (length + 1) // 2 for length in lengths)


def _sgemm_rate(tokens: int, shapes: Sequence[tuple[int, int]]) -> float:
    """Operations per second over products x [tokens, inputs] W^T, on all cores, each with rows of its own."""
    multiply = _sgemm()
    spent, done = 0.0, 0
    for outputs, inputs in shapes:
        rng = np.random.default_rng(0)
        weight = rng.standard_normal((outputs, inputs), dtype=np.float32)
        rows = tokens // _cores()
        x = [rng.standard_normal((rows, inputs), dtype=np.float32) for _ in range(_cores())]
        out = [np.empty((rows, outputs), np.float32) for _ in range(_cores())]
        operations = 2 * rows * _cores() * outputs * inputs
        best = operations / _on_all_cores(lambda core: multiply(x[core], weight, out[core]))  # noqa: B023
        spent, done = spent + operations / best, done + operations
    return done / spent


def _sgemm() -> Callable[[np.ndarray, np.ndarray, np.ndarray], object]:
    """out = x W^T on the calling thread, by the library that MindSpore brings."""
    path = next(Path(ms.__file__).parent.glob("lib/libdnnl.so*"))
    sgemm = ctypes.CDLL(str(path)).dnnl_sgemm

    def multiply(x: np.ndarray, weight: np.ndarray, out: np.ndarray) -> None:
        rows, inputs = x.shape
        outputs = len(weight)
        size, pointer = ctypes.c_int64, lambda array: array.ctypes.data_as(ctypes.c_void_p)
        left = pointer(x), size(inputs), pointer(weight), size(inputs), ctypes.c_float(0.0), pointer(out), size(outputs)
        sgemm(
            ctypes.c_char(b"N"),
            ctypes.c_char(b"T"),
            size(rows),
            size(outputs),
            size(inputs),
            ctypes.c_float(1.0),
            *left,
        )

    return multiply


def _on_all_cores(work: Callable[[int], object]) -> float:
    """Seconds of one call where every core calls all the time: the best of some rounds."""
    best = np.inf
    for _ in range(5):
        counts, stop = [0] * _cores(), time.perf_counter() + _SECONDS

        def run(core: int, counts: list[int] = counts, stop: float = stop) -> None:
            while time.perf_counter() < stop:
                work(core)
                counts[core] += 1

        threads = [threading.Thread(target=run, args=(core,)) for core in range(_cores())]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, (time.perf_counter() - started) * _cores() / sum(counts))
    return best


def _memory_rate() -> float:
    """Bytes per second of STREAM's triad, a = b + s c, on all cores."""
    size = 16 << 20
    arrays = [[np.ones(size // _cores(), np.float32) for _ in range(3)] for _ in range(_cores())]

    def triad(core: int) -> None:
        a, b, c = arrays[core]
        np.multiply(c, 0.5, out=a)
        np.add(a, b, out=a)

    # numpy takes two passes: five transfers of what the triad has three.
    return 5 * 4 * size / _on_all_cores(triad)


def _empty_launch() -> float:
    """Seconds per operator of a graph whose operators have nothing to do."""

    class Chain(nn.Cell):
        def __init__(self, length: int) -> None:
            super().__init__()
            self.length, self.op = length, SwiGLUKernel()

        def construct(self, x: Tensor, tokens: Tensor) -> Tensor:
            for _ in range(self.length):
                x = self.op(x, x, tokens)
            return x

    x, tokens = Tensor(np.zeros((1, 16), np.float32)), Tensor([0], ms.int32)
    seconds = []
    for length in (1, 81):
        chain, taken = Chain(length), []
        for _ in range(60):
            started = time.perf_counter()
            chain(x, tokens).asnumpy()
            taken.append(time.perf_counter() - started)
        seconds.append(sorted(taken[10:])[20])
    return (seconds[1] - seconds[0]) / 80


def _cores() -> int:
    return len(os.sched_getaffinity(0))
