"""Run by test_logprob_head_memory in a process of its own: how far the log-prob head lets memory grow.

    python logprob_head_memory_child.py {base,entropy} TEMPERATURE TOKENS VOCAB HIDDEN CHUNK_TOKENS

Prints one JSON line. chunks: growth of the resident set from before the compilation to after the backward pass,
both gradients included, at its highest, in units of `chunk_bytes`. finite: whether all results are.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time

import mindspore
import numpy as np
import psutil
from mindspore import Tensor, nn, ops

from mindgspo.models.log_prob import ChunkedLogProb, ChunkedLogProbEntropy
from mindgspo.parallel.platform.runtime import set_up_runtime

# A head that keeps the logits of all tokens would take 20 GB: it shall fail, not take the machine with it.
ADDRESS_SPACE_BYTES = 9 << 30

HEADS = {"base": ChunkedLogProb, "entropy": ChunkedLogProbEntropy}


class PeakMemory:
    """Highest resident set seen by a thread that looks every few milliseconds."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.peak = self.process.memory_info().rss
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        while True:
            self.peak = max(self.peak, self.process.memory_info().rss)
            time.sleep(0.003)


class WeightedSum(nn.Cell):
    """A scalar that depends on every log-prob and every entropy."""

    def __init__(self, head: nn.Cell) -> None:
        super().__init__()
        self.head = head

    def construct(self, hidden: Tensor, weight: Tensor, targets: Tensor, slopes: Tensor) -> Tensor:
        logp, entropy = self.head(hidden, weight, targets)
        return ((logp + entropy) * slopes).sum()


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    name, temperature = sys.argv[1], float(sys.argv[2])
    num_tokens, vocab_size, hidden_size, chunk_tokens = map(int, sys.argv[3:])
    set_up_runtime("CPU")
    mindspore.set_context(mode=mindspore.GRAPH_MODE)  # for what is called as it is
    chunk_bytes = 4 * vocab_size * chunk_tokens
    head = HEADS[name](temperature=temperature, chunk_bytes=chunk_bytes)
    value_and_gradients = ops.value_and_grad(WeightedSum(head), grad_position=(0, 1))
    rng = np.random.default_rng(0)
    inputs = [
        Tensor(rng.standard_normal((num_tokens, hidden_size), dtype=np.float32)),
        Tensor(rng.standard_normal((vocab_size, hidden_size), dtype=np.float32)),
        Tensor(rng.integers(0, vocab_size, num_tokens).astype(np.int32)),
        Tensor(rng.standard_normal(num_tokens, dtype=np.float32)),
    ]
    memory = PeakMemory()
    before = memory.process.memory_info().rss
    value, gradients = value_and_gradients(*inputs)
    finite = all(np.isfinite(output.asnumpy()).all() for output in (value, *gradients))
    growth = memory.peak - before
    print(json.dumps({"chunks": growth / chunk_bytes, "chunk_mb": chunk_bytes / 2**20, "finite": bool(finite)}))


if __name__ == "__main__":
    main()
