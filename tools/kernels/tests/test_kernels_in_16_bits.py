"""Kernels in bfloat16 and float16, as cells of graphs with their gradients, against float64 twins.

A twin computes from the numbers that the kernel reads: inputs and weights rounded to the dtype. A result differs by
its own rounding, `unit` of it, and by sums in float32, a few FLOAT32 of the sum of the terms' absolute values.

Legend: M tokens, H hidden units, O outputs, I inner features, A query heads, B key/value heads, D head size, V
vocabulary, P predictions, E experts, K experts per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

from mindgspo.parallel.ops import kernels as cells
from mindgspo_kernels import binding
from mindgspo_kernels.build import KernelsUnavailable, library

try:
    library()
except KernelsUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

pytestmark = pytest.mark.usefixtures("cpu_runtime")

FLOAT32 = 2.0**-24
TOKENS = 19


@dataclass(frozen=True)
class Half:
    """unit: of the rounding, half of the distance of neighbours above 1."""

    name: str
    unit: float

    def tensor(self, array: np.ndarray):
        return ms.Tensor(array.astype(np.float32), getattr(ms, self.name))

    def memory(self, array: np.ndarray) -> np.ndarray:
        """The nearest values of the dtype."""
        return array.astype(np.float32).astype(ms.dtype_to_nptype(getattr(ms, self.name)))

    def rounded(self, array: np.ndarray) -> np.ndarray:
        """The same as float64."""
        return self.memory(array).astype(np.float64)


def seen(array: np.ndarray) -> SimpleNamespace:
    """A tensor as the kernels take it."""
    return SimpleNamespace(bits=array, dtype=array.dtype.name)


@pytest.fixture(params=[Half("bfloat16", 2.0**-8), Half("float16", 2.0**-11)], ids=["bfloat16", "float16"])
def half(request: pytest.FixtureRequest) -> Half:
    return request.param


def wide(tensor) -> np.ndarray:
    return tensor.asnumpy().astype(np.float64)


def vjp(cell, inputs, d_outs):
    """Outputs of a cell, and gradients of all its inputs, in one graph; None in d_outs: of an output nobody reads."""

    class Graph(nn.Cell):
        def __init__(self):
            super().__init__()
            self.cell, self.gradient = cell, ops.GradOperation(get_all=True, sens_param=True)

        def construct(self, *given):
            some = given[: len(inputs)]
            sens = given[len(inputs) :]
            return self.cell(*some), self.gradient(self.cell)(*some, sens[0] if len(d_outs) == 1 else sens)

    outs, gradients = Graph()(*inputs, *d_outs)
    return outs, gradients


def check(found: np.ndarray, exact: np.ndarray, unit: float, terms: np.ndarray | float, name: str) -> None:
    """terms: a bound of what float32, and roundings on the way, add to a result's own rounding."""
    excess = np.abs(found - exact) - (unit * np.abs(exact) + terms)
    assert excess.max() <= 0, f"{name}: off by {excess.max():.3g} more than allowed"


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape)


def of_tokens(count: int = TOKENS):
    return ms.Tensor([count], ms.int32)


def float32(array: np.ndarray):
    return ms.Tensor(array.astype(np.float32))


def test_linear_layers_by_head(half: Half) -> None:
    rng = np.random.default_rng(1)
    x, d = half.rounded(numbers(rng, TOKENS, 40)), [half.rounded(numbers(rng, TOKENS, n, 4)) for n in (4, 2, 2)]
    weights, biases = [numbers(rng, 4 * n, 40) for n in (4, 2, 2)], [numbers(rng, 4 * n) for n in (4, 2, 2)]
    given = [float32(array) for pair in zip(weights, biases, strict=True) for array in pair]
    cell = cells.LinearKernel(3, has_bias=True, head_dim=4)
    outs, gradients = vjp(cell, [half.tensor(x), of_tokens(), *given], [half.tensor(one) for one in d])
    d_x, terms_of_d_x = np.zeros_like(x), np.zeros_like(x)
    for i, (weight, bias, d_out) in enumerate(zip(weights, biases, d, strict=True)):
        weight, bias, d_out = half.rounded(weight), half.rounded(bias), d_out.reshape(TOKENS, -1)
        terms = 42 * FLOAT32 * (np.abs(x) @ np.abs(weight).T + np.abs(bias))
        assert outs[i].shape == (TOKENS, weight.shape[0] // 4, 4)
        check(wide(outs[i]).reshape(TOKENS, -1), x @ weight.T + bias, half.unit, terms, "out")
        d_x += d_out @ weight
        terms_of_d_x += 66 * FLOAT32 * (np.abs(d_out) @ np.abs(weight))
        d_weight, d_bias = gradients[2 + 2 * i], gradients[3 + 2 * i]
        assert str(d_weight.dtype) == str(d_bias.dtype) == "Float32", "not rounded to the dtype"
        check(wide(d_weight), d_out.T @ x, 0, TOKENS * FLOAT32 * (np.abs(d_out).T @ np.abs(x)), "d_weight")
        check(wide(d_bias), d_out.sum(0), 0, TOKENS * FLOAT32 * np.abs(d_out).sum(0), "d_bias")
    check(wide(gradients[0]), d_x, half.unit, terms_of_d_x, "d_x")


def test_layers_with_adapters_by_head(half: Half) -> None:
    """The middle one has none. The products with A, and the gradients that come to them, are rounded on the way."""
    rng, rank, scale = np.random.default_rng(1), 5, 1.5
    x, d = half.rounded(numbers(rng, TOKENS, 40)), [half.rounded(numbers(rng, TOKENS, n, 4)) for n in (4, 2, 2)]
    cell = cells.AdaptedLinearKernel([True, False, True], scale=scale, has_bias=True, head_dim=4)
    layers = [(numbers(rng, 4 * n, 40), numbers(rng, 4 * n), numbers(rng, rank, 40), numbers(rng, 4 * n, rank))
              for n in (4, 2, 2)]  # fmt: skip
    given = [float32(array) for layer in layers for array in layer]
    outs, gradients = vjp(cell, [half.tensor(x), of_tokens(), *given], [half.tensor(one) for one in d])
    d_x, terms_of_d_x = np.zeros_like(x), np.zeros_like(x)
    for i, ((weight, bias, a, b), d_out) in enumerate(zip(layers, d, strict=True)):
        weight, bias, b, d_out = half.rounded(weight), half.rounded(bias), half.rounded(b), d_out.reshape(TOKENS, -1)
        a = half.rounded(np.float32(scale) * a.astype(np.float32))
        low, d_low = x @ a.T, d_out @ b
        has = i != 1
        terms = 48 * FLOAT32 * (np.abs(x) @ np.abs(weight).T + np.abs(bias))
        terms = terms + has * (half.unit + 50 * FLOAT32) * (np.abs(x) @ np.abs(a).T) @ np.abs(b).T
        check(wide(outs[i]).reshape(TOKENS, -1), x @ weight.T + bias + has * low @ b.T, half.unit, terms, "out")
        d_x += d_out @ weight + has * d_low @ a
        terms_of_d_x += 66 * FLOAT32 * (np.abs(d_out) @ np.abs(weight))
        terms_of_d_x += has * (half.unit + 80 * FLOAT32) * (np.abs(d_out) @ np.abs(b)) @ np.abs(a)
        d_a, d_b = gradients[4 + 4 * i], gradients[5 + 4 * i]
        if not has:
            continue
        assert str(d_a.dtype) == str(d_b.dtype) == "Float32", "not rounded to the dtype"
        terms = (half.unit + 80 * FLOAT32) * np.abs(d_out).T @ (np.abs(x) @ np.abs(a).T)
        check(wide(d_b), d_out.T @ low, 0, terms, "d_b")
        terms = scale * (half.unit + 80 * FLOAT32) * (np.abs(d_out) @ np.abs(b)).T @ np.abs(x)
        check(wide(d_a), scale * d_low.T @ x, 0, terms, "d_a")
    check(wide(gradients[0]), d_x, half.unit, terms_of_d_x, "d_x")


@pytest.mark.parametrize(("tokens", "inputs", "outputs", "rank"), [(1, 1, 1, 1), (45, 512, 64, 16), (113, 65, 45, 33)])
def test_a_token_of_layers_with_adapters_is_the_same_in_every_batch(
    half: Half, tokens: int, inputs: int, outputs: int, rank: int
) -> None:
    rng = np.random.default_rng(inputs)
    x, d_out = half.memory(numbers(rng, tokens, inputs)), half.memory(numbers(rng, tokens, outputs))
    weight, a, b = (seen(numbers(rng, *shape).astype(np.float32))
                    for shape in ((outputs, inputs), (rank, inputs), (outputs, rank)))  # fmt: skip

    def called(some: slice, threads: int) -> tuple[np.ndarray, np.ndarray]:
        out, d_x, d_a, d_b = (
            half.memory(np.full(shape, np.nan)) if i < 2 else np.full(shape, np.nan, np.float32)
            for i, shape in enumerate((d_out[some].shape, x[some].shape, a.bits.shape, b.bits.shape))
        )
        binding.call("adapted_linear", seen(x[some]), 1, [weight], [None], [a], [b], 0.7, [seen(out)], threads)
        given = seen(x[some]), 1, [weight], [a], [b], 0.7, [seen(d_out[some])], seen(d_x)
        binding.call("adapted_linear_backward", *given, [seen(d_a)], [seen(d_b)], threads)
        return out, d_x

    whole = called(slice(None), 2)
    for token in {0, tokens // 2, tokens - 1}:
        for one, all_tokens in zip(called(slice(token, token + 1), 1), whole, strict=True):
            np.testing.assert_array_equal(one[0], all_tokens[token])


@pytest.mark.parametrize(
    ("tokens", "inputs", "outputs"),
    [(1, 1, 1), (29, 1, 33), (17, 33, 31), (45, 512, 64), (64, 513, 70), (113, 1025, 5)],
)
def test_a_product_is_the_same_in_every_batch_with_packed_weights_and_in_log_probs(
    half: Half, tokens: int, inputs: int, outputs: int
) -> None:
    rng = np.random.default_rng(inputs)
    x, weight = half.memory(numbers(rng, tokens, inputs)), numbers(rng, outputs, inputs).astype(np.float32)

    def linear(x: np.ndarray, weight: np.ndarray, threads: int) -> np.ndarray:
        out = np.full((len(x), len(weight)), np.nan, np.float32)
        binding.call("linear", seen(x), 1, [seen(weight)], [None], [seen(out)], threads)
        return out

    out = linear(x, weight, 2)
    exact, rounded = x.astype(np.float64), half.rounded(weight)
    terms = (inputs + 2) * FLOAT32 * (np.abs(exact) @ np.abs(rounded).T)
    check(out.astype(np.float64), exact @ rounded.T, 0, terms, "out")
    columns = binding.panel_columns()
    panels = seen(np.full((-(-outputs // columns), inputs, columns), np.nan, np.float32))
    binding.call("pack_linear", seen(weight), seen(x), panels, 2)
    for count in (1, tokens):
        packed = np.full((count, outputs), np.nan, np.float32)
        binding.call("packed_linear", seen(x[:count]), 1, [panels], [None], [seen(packed)], 1)
        np.testing.assert_array_equal(packed, out[:count])
    for token in range(tokens):
        np.testing.assert_array_equal(linear(x[token : token + 1], weight, 1)[0], out[token])
    for output in range(outputs):
        np.testing.assert_array_equal(linear(x, weight[output : output + 1], 1)[:, 0], out[:, output])
    np.testing.assert_array_equal(linear(x, np.asfortranarray(weight), 1), out)
    # Of a vocabulary of one entry, the logarithm of the softmax's denominator is the logit.
    rows, targets = np.arange(tokens, dtype=np.int32), np.zeros(tokens, np.int32)
    log_prob, logits = np.full(tokens, np.nan, np.float32), np.full(tokens, np.nan, np.float32)
    places = [seen(array) for array in (x, rows, weight[:1], targets)]
    binding.call("log_prob", *places, 1.0, seen(log_prob), seen(logits), None, 1)
    np.testing.assert_array_equal(logits, out[:, 0])


@pytest.mark.parametrize(("tokens", "inputs", "outputs"), [(1, 1, 1), (15, 33, 20), (64, 70, 31), (515, 7, 45)])
def test_a_gradient_is_the_same_in_every_batch(half: Half, tokens: int, inputs: int, outputs: int) -> None:
    rng = np.random.default_rng(tokens)
    x, d_out = half.memory(numbers(rng, tokens, inputs)), half.memory(numbers(rng, tokens, outputs))
    weight = numbers(rng, outputs, inputs).astype(np.float32)

    def backward(x: np.ndarray, weight: np.ndarray, d_out: np.ndarray, threads: int) -> tuple[np.ndarray, np.ndarray]:
        d_x, d_weight = np.full(x.shape, np.nan, np.float32), np.full(weight.shape, np.nan, np.float32)
        given = [seen(weight)], [seen(d_out)], seen(d_x), [seen(d_weight)], [None]
        binding.call("linear_backward", seen(x), 1, *given, threads)
        return d_x, d_weight

    d_x, d_weight = backward(x, weight, d_out, 2)
    wide_x, wide_d, rounded = x.astype(np.float64), d_out.astype(np.float64), half.rounded(weight)
    terms = (outputs + 2) * FLOAT32 * (np.abs(wide_d) @ np.abs(rounded))
    check(d_x.astype(np.float64), wide_d @ rounded, 0, terms, "d_x")
    terms = (tokens + 2) * FLOAT32 * (np.abs(wide_d).T @ np.abs(wide_x))
    check(d_weight.astype(np.float64), wide_d.T @ wide_x, 0, terms, "d_weight")
    for token in {0, tokens // 2, tokens - 1}:
        alone, _ = backward(x[token : token + 1], weight, d_out[token : token + 1], 1)
        np.testing.assert_array_equal(alone[0], d_x[token])
    for output in range(outputs):
        _, alone = backward(x, weight[output : output + 1], d_out[:, output : output + 1], 1)
        np.testing.assert_array_equal(alone[0], d_weight[output])
    for feature in range(inputs):
        alone = backward(x[:, feature : feature + 1], weight[:, feature : feature + 1], d_out, 1)
        np.testing.assert_array_equal(alone[0][:, 0], d_x[:, feature])
        np.testing.assert_array_equal(alone[1][:, 0], d_weight[:, feature])


def test_norms_of_sums(half: Half) -> None:
    class OfSum(cells.RMSNormKernel):
        def construct(self, x, delta, weight, tokens):
            return self.of_sum(x, delta, weight, tokens)

    rng = np.random.default_rng(2)
    x, delta, d_y, d_sum = (half.rounded(numbers(rng, TOKENS, 33)) for _ in range(4))
    weight = numbers(rng, 33)
    inputs = [half.tensor(x), half.tensor(delta), float32(weight), of_tokens()]
    (y, total), (d_x, d_delta, d_weight, _) = vjp(OfSum(1e-6), inputs, [half.tensor(d_y), half.tensor(d_sum)])
    weight = half.rounded(weight)
    np.testing.assert_array_equal(wide(total), half.rounded(x.astype(np.float32) + delta.astype(np.float32)))
    total = wide(total)  # what is normed, and what the next layer adds to
    rstd = 1 / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-6)
    normal = total * rstd
    check(wide(y), normal * weight, half.unit, 12 * FLOAT32 * np.abs(normal * weight), "y")
    scaled = d_y * weight
    terms = rstd * (np.abs(scaled) + np.abs(normal) * (np.abs(scaled * normal)).mean(-1, keepdims=True))
    exact = rstd * (scaled - normal * (scaled * normal).mean(-1, keepdims=True)) + d_sum
    check(wide(d_x), exact, half.unit, 50 * FLOAT32 * (terms + np.abs(d_sum)), "d_x")
    np.testing.assert_array_equal(wide(d_delta), wide(d_x))
    assert str(d_weight.dtype) == "Float32", "not rounded to the dtype"
    terms = (TOKENS + 12) * FLOAT32 * np.abs(d_y * normal).sum(0)
    check(wide(d_weight), (d_y * normal).sum(0), 0, terms, "d_weight")


def test_gates_and_rotary_positions(half: Half) -> None:
    rng = np.random.default_rng(3)
    gate, up, d = (half.rounded(numbers(rng, TOKENS, 21)) for _ in range(3))
    out, (d_gate, d_up, _) = vjp(
        cells.SwiGLUKernel(), [half.tensor(gate), half.tensor(up), of_tokens()], [half.tensor(d)]
    )
    share = 1 / (1 + np.exp(-gate))
    silu, slope = gate * share, share * (1 + gate * (1 - share))
    check(wide(out), silu * up, half.unit, 12 * FLOAT32 * np.abs(silu * up), "out")
    check(wide(d_up), d * silu, half.unit, 12 * FLOAT32 * np.abs(d * silu), "d_up")
    terms = 24 * FLOAT32 * np.abs(d * up) * share * (1 + np.abs(gate))
    check(wide(d_gate), d * up * slope, half.unit, terms, "d_gate")

    query, key = half.rounded(numbers(rng, TOKENS, 3, 8)), half.rounded(numbers(rng, TOKENS, 1, 8))
    positions = rng.permutation(TOKENS)
    angles = np.tile(np.outer(np.arange(TOKENS), 10.0 ** -np.arange(4)), 2)
    cos, sin = (np.float32(f(angles)).astype(np.float64) for f in (np.cos, np.sin))
    inputs = [half.tensor(query), half.tensor(key), ms.Tensor(positions, ms.int32), float32(cos), float32(sin)]
    outs, gradients = vjp(cells.RotaryKernel(), [*inputs, of_tokens()], [half.tensor(query), half.tensor(key)])
    cos, sin = cos[positions][:, None], sin[positions][:, None]
    for i, x in enumerate((query, key)):
        turned = np.concatenate([-x[..., 4:], x[..., :4]], -1)
        terms = 4 * FLOAT32 * (np.abs(x * cos) + np.abs(turned * sin))
        check(wide(outs[i]), x * cos + turned * sin, half.unit, terms, "rotated")
        check(wide(gradients[i]), x * cos - turned * sin, half.unit, terms, "gradient of what was rotated")


def test_attention(half: Half) -> None:
    rng, ends, size = np.random.default_rng(4), (7, 8, TOKENS), 8
    query, d = half.rounded(numbers(rng, TOKENS, 4, size)), half.rounded(numbers(rng, TOKENS, 4 * size))
    key, value = (half.rounded(numbers(rng, TOKENS, 2, size)) for _ in range(2))
    inputs = [half.tensor(query), half.tensor(key), half.tensor(value), ms.Tensor(ends, ms.int32)]
    out, (d_query, d_key, d_value, _) = vjp(cells.AttentionKernel(size**-0.5), inputs, [half.tensor(d)])
    assert out.shape == (TOKENS, 4 * size)
    out, d = wide(out).reshape(TOKENS, 4, size), d.reshape(TOKENS, 4, size)
    q, k, v, g = (x.transpose(1, 0, 2) for x in (query, np.repeat(key, 2, 1), np.repeat(value, 2, 1), d))
    of_segment = np.searchsorted(ends, np.arange(TOKENS), side="right")
    seen = (of_segment[:, None] == of_segment) & np.tri(TOKENS, dtype=bool)
    scale = size**-0.5
    scores = np.where(seen, q @ k.transpose(0, 2, 1) * scale, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    # What float32 leaves of a probability: the score's sum and exponent, and the sum over keys.
    loose = p * (4 * size * FLOAT32 * (np.abs(q) @ np.abs(k).transpose(0, 2, 1) * scale).max() + 2 * TOKENS * FLOAT32)

    def by_token(x: np.ndarray) -> np.ndarray:
        return x.transpose(1, 0, 2)

    def by_group(x: np.ndarray) -> np.ndarray:
        return by_token(x).reshape(TOKENS, 2, 2, size).sum(2)

    check(out, by_token(p @ v), half.unit, by_token(loose @ np.abs(v)), "out")
    d_p = g @ v.transpose(0, 2, 1)
    d_scores = p * (d_p - (g * (p @ v)).sum(-1, keepdims=True))
    # The backward pass reads the rounded output: the mean of d_p is off by as much.
    of_mean = (np.abs(g) * (half.unit * np.abs(p @ v) + loose @ np.abs(v))).sum(-1, keepdims=True)
    of_d_p = 2 * size * FLOAT32 * np.abs(g) @ np.abs(v).transpose(0, 2, 1)
    off = p * (of_mean + of_d_p) + loose * (np.abs(d_p) + np.abs(d_p).max(-1, keepdims=True))
    both = 1 + 2 * TOKENS * FLOAT32
    check(wide(d_query), by_token(d_scores @ k * scale), half.unit, by_token(both * off @ np.abs(k) * scale), "d_query")
    off, d_scores = (x.transpose(0, 2, 1) for x in (off, d_scores))
    check(wide(d_key), by_group(d_scores @ q * scale), half.unit, by_group(both * off @ np.abs(q) * scale), "d_key")
    terms = by_group((loose + 2 * TOKENS * FLOAT32 * p).transpose(0, 2, 1) @ np.abs(g))
    check(wide(d_value), by_group(p.transpose(0, 2, 1) @ g), half.unit, terms, "d_value")


def test_log_probs(half: Half) -> None:
    rng, temperature = np.random.default_rng(5), 0.8
    hidden, weight = half.rounded(numbers(rng, TOKENS, 24)), 0.3 * numbers(rng, 50, 24)
    rows, targets = rng.integers(0, TOKENS, 30), rng.integers(0, 50, 30)
    d_logp, d_entropy = (numbers(rng, 30).astype(np.float32).astype(np.float64) for _ in range(2))
    inputs = [half.tensor(hidden), float32(weight), ms.Tensor(rows, ms.int32), ms.Tensor(targets, ms.int32)]
    cell = cells.LogProbKernel(temperature=temperature, with_entropy=True)
    outs, gradients = vjp(cell, [*inputs, of_tokens()], [float32(d_logp), float32(d_entropy)])
    weight, states = half.rounded(weight), hidden[rows]
    logits = states @ weight.T / temperature
    log_p = logits - logits.max(-1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
    p, entropy = np.exp(log_p), -(np.exp(log_p) * log_p).sum(-1)
    # Of a logit, and of a sum over the vocabulary.
    loose = 26 * FLOAT32 * (np.abs(states) @ np.abs(weight).T / temperature).max() + 60 * FLOAT32
    largest = 1 + np.abs(log_p).max()
    check(wide(outs[0]), log_p[np.arange(30), targets], 0, 4 * loose * largest, "log-probs: float32, not rounded")
    check(wide(outs[1]), entropy, 0, 4 * loose * largest, "entropies: float32, not rounded")
    d_logits = -p * (d_logp[:, None] + d_entropy[:, None] * (log_p + entropy[:, None]))
    d_logits[np.arange(30), targets] += d_logp
    d_logits /= temperature
    off = 8 * loose * (p * (np.abs(d_logp) + np.abs(d_entropy) * 2 * largest)[:, None] + FLOAT32)
    off[np.arange(30), targets] += 4 * FLOAT32 * np.abs(d_logp)
    off += (half.name == "bfloat16") * half.unit * np.abs(d_logits)  # rounded for products
    d_hidden, terms = np.zeros_like(hidden), np.zeros_like(hidden)
    np.add.at(d_hidden, rows, d_logits @ weight)
    np.add.at(terms, rows, off @ np.abs(weight) + 60 * FLOAT32 * np.abs(d_logits) @ np.abs(weight))
    check(wide(gradients[0]), d_hidden, half.unit, terms, "d_hidden")
    assert str(gradients[1].dtype) == "Float32", "not rounded to the dtype"
    terms = off.T @ np.abs(states) + 60 * FLOAT32 * np.abs(d_logits).T @ np.abs(states)
    check(wide(gradients[1]), d_logits.T @ states, 0, terms, "d_weight")


def test_experts(half: Half) -> None:
    """Forward; the gradients are those of the layers above."""

    class Experts(nn.Cell):
        def __init__(self):
            super().__init__()
            self.kernel = cells.ExpertsKernel(
                5, chosen, rule=(0, 1, 1, 1, 1), own=range(5), gate_up=cells.GroupedLinearKernel(2),
                down=cells.GroupedLinearKernel(1),
            )  # fmt: skip

        def construct(self, *given):
            return self.kernel(*given)[0]

    rng, chosen = np.random.default_rng(6), 2
    x, router = half.rounded(numbers(rng, TOKENS, 16)), numbers(rng, 5, 16).astype(np.float32).astype(np.float64)
    weights = [numbers(rng, 5, 12, 16), numbers(rng, 5, 12, 16), numbers(rng, 5, 16, 12)]
    d = half.rounded(numbers(rng, TOKENS, 16))
    inputs = [half.tensor(x), *map(float32, (router, np.zeros(5), *weights)), of_tokens()]
    out, gradients = vjp(Experts(), inputs, [half.tensor(d)])
    assert {str(gradient.dtype) for gradient in gradients[1:6]} == {"Float32"}, "not rounded to the dtype"
    gate, up, down = (half.rounded(weight) for weight in weights)
    logits = x @ router.T  # of weights that are not rounded
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    unit, exact, terms = half.unit + 64 * FLOAT32, np.zeros_like(x), np.zeros_like(x)
    best = np.argsort(-shares, axis=-1)[:, :chosen]
    for m in range(TOKENS):
        own = shares[m, best[m]] / shares[m, best[m]].sum()
        for share, e in zip(own, best[m], strict=True):
            of_gate, of_up = gate[e] @ x[m], up[e] @ x[m]
            silu = of_gate / (1 + np.exp(-of_gate))
            # Roundings of gate (silu's slope is below 1.1), up and their product, then of the expert's output.
            off = unit * (1.1 * np.abs(of_gate * of_up) + 2 * np.abs(silu * of_up)) * (1 + unit) ** 2
            exact[m] += share * (down[e] @ (silu * of_up))
            off = np.abs(down[e]) @ (off + 14 * FLOAT32 * np.abs(silu * of_up))
            terms[m] += share * (off + unit * (np.abs(down[e] @ (silu * of_up)) + off)) * (1 + 40 * FLOAT32)
    check(wide(out), exact, unit, terms * (1 + unit), "out")
