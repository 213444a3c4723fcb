"""What a step of the benchmark costs at least on this machine; `bench_step.py --limit` prints it.

Three bounds, none of which an implementation that computes the same can go below: the products' operations by the rate
of oneDNN, which MindSpore brings, at the model's own shapes and in its type, on all cores; the bytes of weights,
gradients and moments that updates and decoded tokens read and write by the memory's rate; and the launches of the
step's graphs, as they are compiled, by the time of an empty one. Padding, recomputation, attention's softmax and
everything element by element are not in the first two.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import mindspore as ms
import numpy as np
from bench_product import cores, on_all_cores
from mindspore import Tensor, nn

from mindgspo.config import ModelSection
from mindgspo.dryrun.graph_text import read_graph
from mindgspo.models.operations import Operations
from mindgspo.parallel.ops.kernels import SwiGLUKernel
from mindgspo.parallel.platform.runtime import compiled_text

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
    rates = [
        (2 * outputs * inputs, _product_rate(model.dtype, mini_batch * tokens // len(lengths), outputs, inputs))
        for outputs, inputs in [*layer, (model.vocab_size, model.hidden_size)]
    ]
    rate = sum(share for share, _ in rates) / sum(share / one for share, one in rates)
    parameters = model.vocab_size * model.hidden_size + trunk // 2
    num_updates = len(lengths) // mini_batch
    # Read and written by an update, in float32: gradient, weight and both moments, all but the first written too. Read
    # by each decoded token: the weights.
    of_number = 2 if model.dtype == "bfloat16" else 4
    moved = {"generation": of_number * parameters * max(lengths), "update": 7 * 4 * parameters * num_updates}
    memory = _memory_rate()
    empty = _empty_launch()
    operators = {name: _launched(cell) for name, (cell, _) in graphs.items()}
    launches = sum(operators[name] * calls for name, (_, calls) in graphs.items())
    return {
        "operations_s": round(sum(operations.values()) / rate, 4),
        "operations_by_phase_s": {name: round(value / rate, 4) for name, value in operations.items()},
        "product_gflops": round(rate / 1e9, 1),
        "bytes_s": round(sum(moved.values()) / memory, 4),
        "bytes_by_phase_s": {name: round(value / memory, 4) for name, value in moved.items()},
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


def _product_rate(dtype: str, tokens: int, outputs: int, inputs: int) -> float:
    """Operations per second of products x [tokens, inputs] W^T, on all cores, each with rows of its own.

    In a process of its own: with the oneDNN of MindSpore 2.10 a second shape of bfloat16 ended in a damaged heap.
    """
    sizes = map(str, (max(1, tokens // cores()), outputs, inputs))
    tool = Path(__file__).with_name("bench_product.py")
    command = [sys.executable, str(tool), *sizes, "--dtype", dtype]
    return 1e9 * float(
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)["gflops"]
    )


def _memory_rate() -> float:
    """Bytes per second of STREAM's triad, a = b + s c, on all cores."""
    size = 16 << 20
    arrays = [[np.ones(size // cores(), np.float32) for _ in range(3)] for _ in range(cores())]

    def triad(core: int) -> None:
        a, b, c = arrays[core]
        np.multiply(c, 0.5, out=a)
        np.add(a, b, out=a)

    # numpy takes two passes: five transfers of what the triad has three.
    return 5 * 4 * size / on_all_cores(triad)


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
