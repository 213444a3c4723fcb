"""The kernels beside numpy, as JSON: medians of alternating rounds, one thread each.

    OPENBLAS_NUM_THREADS=1 python tools/bench_kernels.py [--rounds 31]

`microseconds`: of the kernel through its Python binding. `numpy`: of the same in numpy, float32; of attention in its
naive form, all scores at once. `gflops`: of products. Seconds are the process's own, so that a busy machine disturbs
less: what the kernel waits for is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from ascend_emulator.tensors import DeviceTensor
from mindgspo_kernels import binding as kernels

Case = tuple[str, Callable[[], object], Callable[[], object], float]  # name, kernel, numpy, operations
PRODUCTS = [(64, 96, 256), (2048, 128, 512), (64, 256, 704), (8, 256, 1024), (512, 512, 512)]  # M, K, N


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    rounds = parser.parse_args().rounds
    print(json.dumps([measured(*case, rounds) for case in cases()], indent=2))


def measured(
    name: str, kernel: Callable[[], object], reference: Callable[[], object], operations: float, rounds: int
) -> dict[str, object]:
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(rounds):
        for call, taken in zip((kernel, reference), seconds, strict=True):
            call()  # what a call finds in the caches is its own
            started = time.process_time()
            call()
            call()
            taken.append((time.process_time() - started) / 2)
    own, other = map(statistics.median, seconds)
    row: dict[str, object] = {"case": name, "microseconds": round(own * 1e6, 1), "numpy": round(other * 1e6, 1)}
    return row | ({"gflops": round(operations / own / 1e9, 1)} if operations else {})


def draw(*shape: int, dtype: str = "float32") -> DeviceTensor:
    return DeviceTensor.of(np.random.default_rng(0).standard_normal(shape), dtype)


def cases() -> Iterator[Case]:
    for m, k, n in PRODUCTS:
        a, b, out = draw(m, k), draw(n, k), DeviceTensor.zeros((m, n))
        transposed = b.seen(b.bits.T)
        yield from (
            (f"matmul {m} x {k} x {n} {name}", *of_product(a, second, out), 2.0 * m * k * n)
            for name, second in (("", draw(k, n)), ("transposed", transposed))
        )
    a, b, out = draw(64, 256, dtype="bfloat16"), draw(256, 704, dtype="bfloat16"), DeviceTensor.zeros((64, 704))
    yield ("matmul 64 x 256 x 704 bfloat16", *of_product(a, b, out), 2.0 * 64 * 256 * 704)
    yield from of_attention(256, 8, 4, 32)
    x, gamma, y, rstd = draw(1024, 256), draw(256), DeviceTensor.zeros((1024, 256)), DeviceTensor.zeros((1024, 1))
    yield (
        "rms_norm 1024 x 256",
        lambda: kernels.rms_norm(x, gamma, epsilon=1e-6, y=y, rstd=rstd),
        lambda: x.bits / np.sqrt((x.bits * x.bits).mean(-1, keepdims=True) + 1e-6) * gamma.bits,
        0.0,
    )
    logits, logp = draw(256, 1024), DeviceTensor.zeros((256, 1024))
    yield (
        "log_softmax 256 x 1024",
        lambda: kernels.softmax(logits, -1, y=logp, is_log=True),
        lambda: naive_log_softmax(logits.bits),
        0.0,
    )
    stacked, gated = draw(256, 1408), DeviceTensor.zeros((256, 704))
    yield (
        "swiglu 256 x 1408",
        lambda: kernels.swiglu(stacked, -1, y=gated),
        lambda: stacked.bits[:, :704] / (1 + np.exp(-stacked.bits[:, :704])) * stacked.bits[:, 704:],
        0.0,
    )


def of_product(
    a: DeviceTensor, b: DeviceTensor, out: DeviceTensor
) -> tuple[Callable[[], object], Callable[[], object]]:
    left, right, result = a.values(), b.values(), np.empty(out.shape, np.float32)
    return lambda: kernels.matmul(a, b, out), lambda: np.matmul(left, right, out=result)


def of_attention(tokens: int, heads: int, kv_heads: int, size: int) -> Iterator[Case]:
    q, k, v = (draw(1, tokens, n, size) for n in (heads, kv_heads, kv_heads))
    out, highest, total = DeviceTensor.zeros(q.shape), *(DeviceTensor.zeros((1, tokens, heads, 8)) for _ in range(2))
    common = {"scale": size**-0.5, "out": out, "highest": highest, "total": total}
    common["visible"] = kernels.Visible(after=0, from_end=True)
    gradients = {f"d_{name}": DeviceTensor.zeros(x.shape) for name, x in zip("qkv", (q, k, v), strict=True)}
    hidden, group = np.triu(np.ones((tokens, tokens), bool), 1), heads // kv_heads

    def weights_of() -> np.ndarray:
        queries, keys = q.bits[0].transpose(1, 0, 2), k.bits[0].transpose(1, 2, 0).repeat(group, 0)
        return np.exp(naive_log_softmax(np.where(hidden, np.float32(-np.inf), queries @ keys * common["scale"])))

    def backward() -> None:
        queries, keys, values, upstream = (
            x.bits[0].transpose(1, 0, 2).repeat(heads // x.shape[2], 0) for x in (q, k, v, q)
        )
        weights = weights_of()
        slopes = upstream @ values.swapaxes(1, 2)
        slopes = weights * (slopes - (slopes * weights).sum(-1, keepdims=True)) * common["scale"]
        _ = slopes @ keys, slopes.swapaxes(1, 2) @ queries, weights.swapaxes(1, 2) @ upstream

    name = f"{tokens} tokens, {heads} and {kv_heads} heads of {size}"
    yield (
        f"attention, {name}",
        lambda: kernels.attention(q, k, v, **common),
        lambda: weights_of() @ v.bits[0].transpose(1, 0, 2).repeat(group, 0),
        0.0,
    )
    yield (
        f"attention backward, {name}",
        lambda: kernels.attention_backward(q, k, v, d_out=q, **common, **gradients),
        backward,
        0.0,
    )


def naive_log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


if __name__ == "__main__":
    main()
