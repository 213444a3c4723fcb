"""Kernels of CPU graphs against numpy in float64, on sizes that fill no tile: one token, none, long rows, no experts.

Legend: M tokens, H hidden units, O outputs, V vocabulary, P predictions, E experts, K experts per token, D head size.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindgspo_kernels import binding
from mindgspo_kernels.build import KernelsUnavailable, library

try:
    library()
except KernelsUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

THREADS = st.integers(1, 3)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def seen(array: np.ndarray) -> SimpleNamespace:
    """A tensor as the kernels take it."""
    return SimpleNamespace(bits=array, dtype=str(array.dtype))


def of(array: np.ndarray) -> SimpleNamespace:
    return seen(np.ascontiguousarray(array))


def floats(rng: np.random.Generator, *shape: int) -> SimpleNamespace:
    return of(rng.standard_normal(shape).astype(np.float32))


def empty(*shape: int, dtype: str = "float32") -> SimpleNamespace:
    """Nothing that was there before may come out."""
    return of(np.full(shape, np.nan if dtype == "float32" else -7, dtype))


def wide(x: SimpleNamespace) -> np.ndarray:
    return x.bits.astype(np.float64)


def softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


@given(
    st.integers(0, 130),
    st.integers(1, 300),
    st.lists(st.integers(1, 70), min_size=1, max_size=3),
    st.booleans(),
    THREADS,
)
@settings(max_examples=25)
def test_linear_layers_and_their_gradients(
    tokens: int, inputs: int, outputs: list[int], biased: bool, threads: int
) -> None:
    rng = np.random.default_rng(tokens)
    x, layers = floats(rng, tokens, inputs), [floats(rng, out, inputs) for out in outputs]
    biases = [floats(rng, out) if biased else None for out in outputs]
    outs = [empty(tokens, out) for out in outputs]
    binding.call("linear", x, len(layers), layers, biases, outs, threads)
    for layer, bias, out in zip(layers, biases, outs, strict=True):
        expected = wide(x) @ wide(layer).T + (wide(bias) if bias else 0.0)
        np.testing.assert_allclose(out.bits, expected, rtol=1e-5, atol=1e-5 * inputs**0.5)
    d_outs = [floats(rng, tokens, out) for out in outputs]
    d_x, d_layers = empty(tokens, inputs), [empty(out, inputs) for out in outputs]
    d_biases = [empty(out) if biased else None for out in outputs]
    binding.call("linear_backward", x, len(layers), layers, d_outs, d_x, d_layers, d_biases, threads)
    expected = sum(wide(d) @ wide(layer) for d, layer in zip(d_outs, layers, strict=True))
    np.testing.assert_allclose(d_x.bits, expected, rtol=1e-5, atol=1e-5 * sum(outputs) ** 0.5)
    for d_out, d_layer, d_bias in zip(d_outs, d_layers, d_biases, strict=True):
        np.testing.assert_allclose(d_layer.bits, wide(d_out).T @ wide(x), rtol=1e-5, atol=1e-5 * (1 + tokens**0.5))
        if d_bias:
            np.testing.assert_allclose(d_bias.bits, wide(d_out).sum(axis=0), rtol=1e-5, atol=1e-5 * (1 + tokens**0.5))


@given(st.integers(1, 200), st.integers(1, 600), st.integers(1, 80))
@settings(max_examples=15)
def test_a_token_is_the_same_in_every_batch_and_with_packed_weights(tokens: int, inputs: int, outputs: int) -> None:
    rng = np.random.default_rng(tokens)
    x, weight, out = floats(rng, tokens, inputs), floats(rng, outputs, inputs), empty(tokens, outputs)
    binding.call("linear", x, 1, [weight], [None], [out], 2)
    columns = binding.panel_columns()
    panels = empty(-(-outputs // columns), inputs, columns)
    binding.call("pack_linear", weight, x, panels, 2)
    for token in {0, tokens // 2, tokens - 1}:
        alone, packed = empty(1, outputs), empty(1, outputs)
        binding.call("linear", of(x.bits[token : token + 1]), 1, [weight], [None], [alone], 1)
        binding.call("packed_linear", of(x.bits[token : token + 1]), 1, [panels], [None], [packed], 1)
        np.testing.assert_array_equal(alone.bits[0], out.bits[token])
        np.testing.assert_array_equal(packed.bits[0], out.bits[token])


@given(
    st.integers(0, 130),
    st.integers(1, 300),
    st.lists(st.tuples(st.integers(1, 70), st.integers(0, 40)), min_size=1, max_size=3),
    st.booleans(),
    THREADS,
)
@settings(max_examples=25)
def test_layers_with_adapters_and_their_gradients(
    tokens: int, inputs: int, sizes: list[tuple[int, int]], biased: bool, threads: int
) -> None:
    """sizes: outputs and rank of each layer; rank 0: it has no adapter."""
    rng, scale = np.random.default_rng(tokens), 1.5
    x, count = floats(rng, tokens, inputs), len(sizes)
    layers = [floats(rng, out, inputs) for out, _ in sizes]
    biases = [floats(rng, out) if biased else None for out, _ in sizes]
    a = [floats(rng, rank, inputs) if rank else None for _, rank in sizes]
    b = [floats(rng, out, rank) if rank else None for out, rank in sizes]
    outs = [empty(tokens, out) for out, _ in sizes]
    binding.call("adapted_linear", x, count, layers, biases, a, b, scale, outs, threads)
    merged = [
        wide(layer) + (scale * wide(own_b) @ wide(own_a) if own_a else 0.0)
        for layer, own_a, own_b in zip(layers, a, b, strict=True)
    ]
    for weight, bias, out, (_, rank) in zip(merged, biases, outs, sizes, strict=True):
        expected = wide(x) @ weight.T + (wide(bias) if bias else 0.0)
        np.testing.assert_allclose(out.bits, expected, rtol=1e-5, atol=1e-5 * (inputs * (1 + rank)) ** 0.5)
    d_outs = [floats(rng, tokens, out) for out, _ in sizes]
    d_x = empty(tokens, inputs)
    d_a = [empty(rank, inputs) if rank else None for _, rank in sizes]
    d_b = [empty(out, rank) if rank else None for out, rank in sizes]
    binding.call("adapted_linear_backward", x, count, layers, a, b, scale, d_outs, d_x, d_a, d_b, threads)
    expected = sum(wide(d) @ weight for d, weight in zip(d_outs, merged, strict=True))
    largest = max(out * (1 + rank) for out, rank in sizes) * count
    np.testing.assert_allclose(d_x.bits, expected, rtol=1e-5, atol=1e-5 * largest**0.5)
    for d_out, own_a, own_b, own_d_a, own_d_b in zip(d_outs, a, b, d_a, d_b, strict=True):
        if own_a is None:
            continue
        close = {"rtol": 1e-5, "atol": 1e-5 * (1 + tokens * inputs) ** 0.5}
        np.testing.assert_allclose(own_d_b.bits, scale * wide(d_out).T @ (wide(x) @ wide(own_a).T), **close)
        close["atol"] = 1e-5 * (1 + tokens * own_b.bits.shape[0]) ** 0.5
        np.testing.assert_allclose(own_d_a.bits, scale * (wide(d_out) @ wide(own_b)).T @ wide(x), **close)


@given(st.integers(1, 200), st.integers(1, 600), st.integers(1, 80), st.integers(1, 40))
@settings(max_examples=15)
def test_a_token_of_layers_with_adapters_is_the_same_in_every_batch(
    tokens: int, inputs: int, outputs: int, rank: int
) -> None:
    rng = np.random.default_rng(tokens)
    x, weights = floats(rng, tokens, inputs), [floats(rng, outputs, inputs) for _ in range(2)]
    a, b = [floats(rng, rank, inputs), None], [floats(rng, outputs, rank), None]

    def called(x: SimpleNamespace, threads: int) -> list[SimpleNamespace]:
        outs = [empty(len(x.bits), outputs) for _ in weights]
        binding.call("adapted_linear", x, 2, weights, [None, None], a, b, 0.7, outs, threads)
        return outs

    both, plain = called(x, 2), empty(tokens, outputs)
    binding.call("linear", x, 1, [weights[1]], [None], [plain], 1)
    np.testing.assert_array_equal(both[1].bits, plain.bits)
    for token in {0, tokens // 2, tokens - 1}:
        alone = called(of(x.bits[token : token + 1]), 1)
        for one, whole in zip(alone, both, strict=True):
            np.testing.assert_array_equal(one.bits[0], whole.bits[token])


def test_linear_layers_in_16_bits_round_weights_and_results_once() -> None:
    rng = np.random.default_rng(0)
    x, weight = of(rng.standard_normal((9, 33)).astype(np.float16)), floats(rng, 7, 33)
    out = of(np.zeros((9, 7), np.float16))
    binding.call("linear", x, 1, [weight], [None], [out], 1)
    exact = wide(x) @ weight.bits.astype(np.float16).astype(np.float64).T
    np.testing.assert_allclose(out.bits, exact, rtol=2**-11, atol=1e-4)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), THREADS)
@settings(max_examples=15)
def test_grouped_layers_are_the_layers_of_each_expert(sizes: list[int], threads: int) -> None:
    rng, experts, ends = np.random.default_rng(len(sizes)), len(sizes), np.cumsum(sizes)
    x, weights = floats(rng, int(ends[-1]), 18), [floats(rng, experts, 5, 18), floats(rng, experts, 9, 18)]
    outs = [empty(int(ends[-1]), 5), empty(int(ends[-1]), 9)]
    c_ends = (ctypes.c_int64 * experts)(*ends)
    binding.call("grouped_linear", x, c_ends, 2, weights, outs, threads)
    d_outs, d_x = [floats(rng, *out.bits.shape) for out in outs], empty(*x.bits.shape)
    d_weights = [empty(*weight.bits.shape) for weight in weights]
    binding.call("grouped_linear_backward", x, c_ends, 2, weights, d_outs, d_x, d_weights, threads)
    alone = empty(*x.bits.shape)  # of frozen weights
    binding.call("grouped_linear_backward", x, c_ends, 2, weights, d_outs, alone, None, threads)
    np.testing.assert_array_equal(alone.bits, d_x.bits)
    for expert, (start, stop) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        own = wide(x)[start:stop]
        np.testing.assert_allclose(
            d_x.bits[start:stop],
            sum(wide(d)[start:stop] @ wide(w)[expert] for d, w in zip(d_outs, weights, strict=True)),
            **CLOSE,
        )
        for weight, out, d_out, d_weight in zip(weights, outs, d_outs, d_weights, strict=True):
            np.testing.assert_allclose(out.bits[start:stop], own @ wide(weight)[expert].T, rtol=1e-5, atol=1e-4)
            np.testing.assert_allclose(d_weight.bits[expert], wide(d_out)[start:stop].T @ own, rtol=1e-5, atol=1e-4)


class Rule(NamedTuple):
    """How a router scores and chooses; DeepSeek-V3's scores are sigmoids."""

    is_sigmoid: bool
    is_normed: bool
    groups: int = 1
    best_groups: int = 1
    scale: float = 1.0


def chosen_by(merits: np.ndarray, rule: Rule, chosen: int) -> np.ndarray:
    """The experts [M, K] with the largest merits [M, E] among those of the best groups, the largest first."""
    by_group = merits.reshape(len(merits), rule.groups, -1)
    of_groups = np.sort(by_group, axis=2)[:, :, -2:].sum(axis=2)
    worst = np.argsort(-of_groups, axis=1)[:, rule.best_groups :]
    left = by_group.copy()
    np.put_along_axis(left, worst[:, :, None], -np.inf, axis=1)
    return np.argsort(-left.reshape(merits.shape), axis=1)[:, :chosen]


RULES = st.sampled_from([
    Rule(False, False), Rule(False, True), Rule(False, True, 4, 3, 1.5),
    Rule(True, False), Rule(True, True), Rule(True, True, 4, 2, 2.5), Rule(True, False, 2, 1, 0.5),
])  # fmt: skip


@given(st.integers(1, 30), st.integers(2, 9), st.integers(1, 3), RULES, st.booleans(), THREADS)
@settings(max_examples=30)
def test_router_slots_and_sums_of_experts(
    tokens: int, experts: int, chosen: int, rule: Rule, is_corrected: bool, threads: int
) -> None:
    experts *= rule.groups
    rng, chosen = np.random.default_rng(tokens), min(chosen, experts // rule.groups * rule.best_groups)
    x, weight, bias = floats(rng, tokens, 11), floats(rng, experts, 11), of(np.zeros(experts, np.float32))
    if is_corrected:
        bias.bits[:] = rng.standard_normal(experts)
    probs, numbers, shares = empty(tokens, experts), empty(tokens, chosen, dtype="int32"), empty(tokens, chosen)
    binding.call("route", x, weight, bias, None, *rule, probs, numbers, shares, threads)
    logits = wide(x) @ wide(weight).T
    expected = 1 / (1 + np.exp(-logits)) if rule.is_sigmoid else softmax(logits)
    np.testing.assert_allclose(probs.bits, expected, **CLOSE)
    best = chosen_by(expected + wide(bias), rule, chosen)
    np.testing.assert_array_equal(numbers.bits, best)
    best = np.take_along_axis(expected, best, axis=1)
    scale = best.sum(axis=1, keepdims=True) if rule.is_normed else 1.0
    np.testing.assert_allclose(shares.bits, best / scale * rule.scale, **CLOSE)
    # Given experts are weighed, and what the router would choose is told as before.
    wanted, chosen_before = empty(tokens, chosen, dtype="uint8"), numbers.bits.copy()
    wanted.bits[:] = rng.permuted(np.tile(np.arange(experts), (tokens, 1)), axis=1)[:, :chosen]
    given_shares = empty(tokens, chosen)
    binding.call("route", x, weight, bias, wanted, *rule, probs, numbers, given_shares, threads)
    of_given = np.take_along_axis(expected, wanted.bits.astype(np.int64), axis=1)
    scale = of_given.sum(axis=1, keepdims=True) if rule.is_normed else 1.0
    np.testing.assert_allclose(given_shares.bits, of_given / scale * rule.scale, **CLOSE)
    np.testing.assert_array_equal(numbers.bits, chosen_before)

    rows, d_out, d_rows = floats(rng, tokens * chosen, 6), floats(rng, tokens, 6), empty(tokens * chosen, 6)
    # A process that has a run of the experts leaves the others' assignments out.
    for first, last in ((experts // 3, experts // 3 + max(1, experts // 2)), (0, experts)):
        is_own = (numbers.bits >= first) & (numbers.bits < last)
        slots, owner = empty(tokens, chosen, dtype="int32"), empty(tokens * chosen, dtype="int32")
        ends, out, d_shares = empty(last - first, dtype="int64"), empty(tokens, 6), empty(tokens, chosen)
        binding.call("expert_slots", numbers, first, experts, slots, owner, ends)
        assert ends.bits.tolist() == np.cumsum([(numbers.bits == e).sum() for e in range(first, last)]).tolist()
        assert (slots.bits[~is_own] == -1).all()
        np.testing.assert_array_equal(owner.bits[slots.bits[is_own]], np.nonzero(is_own)[0])
        found = np.searchsorted(ends.bits, slots.bits[is_own], side="right") + first
        np.testing.assert_array_equal(found, numbers.bits[is_own])
        binding.call("combine", rows, slots, shares, out, threads)
        terms = np.where(is_own[..., None], wide(shares)[..., None] * wide(rows)[slots.bits], 0)
        np.testing.assert_allclose(out.bits, terms.sum(axis=1), **CLOSE)
        binding.call("combine_backward", rows, slots, shares, d_out, d_rows, d_shares, threads)
        products = (wide(d_out)[:, None] * wide(rows)[slots.bits]).sum(axis=2)
        np.testing.assert_allclose(d_shares.bits, np.where(is_own, products, 0), **CLOSE)
        expected_rows = (wide(shares)[:, :, None] * wide(d_out)[:, None])[is_own]
        np.testing.assert_allclose(d_rows.bits[slots.bits[is_own]], expected_rows, **CLOSE)

    d_x, d_weight = empty(tokens, 11), empty(experts, 11)
    of_rule, given_route = (rule.is_sigmoid, rule.is_normed, rule.scale), (probs, numbers, shares, d_shares)
    binding.call("route_backward", x, weight, *of_rule, *given_route, d_x, d_weight, threads)
    own = np.take_along_axis(expected, numbers.bits.astype(np.int64), 1)
    d_own = wide(d_shares) * rule.scale
    if rule.is_normed:
        total = own.sum(axis=1, keepdims=True)
        d_own = (d_own - (d_own * own / total).sum(axis=1, keepdims=True)) / total
    d_scores = np.zeros_like(expected)
    np.put_along_axis(d_scores, numbers.bits.astype(np.int64), d_own, 1)
    if rule.is_sigmoid:
        d_logits = expected * (1 - expected) * d_scores
    else:
        d_logits = expected * (d_scores - (d_scores * expected).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(d_x.bits, d_logits @ wide(weight), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(d_weight.bits, d_logits.T @ wide(x), rtol=1e-4, atol=1e-5)


@given(
    st.integers(0, 40), st.integers(1, 20), st.sampled_from([1, 5, 33, 4096, 4100, 9000]),
    st.sampled_from([1.0, 0.7, 2.0]), st.booleans(), THREADS,
)  # fmt: skip
@settings(max_examples=20)
def test_log_probs_entropies_and_their_gradients(
    predictions: int, size: int, vocabulary: int, temperature: float, with_entropy: bool, threads: int
) -> None:
    rng, tokens = np.random.default_rng(predictions), predictions + 3
    hidden, weight = floats(rng, tokens, size), floats(rng, vocabulary, size)
    places = rng.integers(0, tokens, predictions).astype(np.int32)  # some rows predict several tokens
    rows = of(np.concatenate([places, np.full(2, -1, np.int32)]))
    targets = of(rng.integers(0, vocabulary, rows.bits.size).astype(np.int32))
    found = [empty(rows.bits.size) for _ in range(3)]
    entropies = found[2] if with_entropy else None
    given_head = hidden, rows, weight, targets, 1.0 / temperature
    binding.call("log_prob", *given_head, found[0], found[1], entropies, threads)
    logits = wide(hidden)[places] @ wide(weight).T / temperature
    probs, real = softmax(logits), slice(0, predictions)
    log_probs = np.log(np.maximum(probs, 1e-300))
    chosen = targets.bits[real]
    np.testing.assert_allclose(found[0].bits[real], log_probs[np.arange(predictions), chosen], rtol=1e-5, atol=2e-5)
    assert not found[0].bits[predictions:].any() and not found[1].bits[predictions:].any()
    entropy = -(probs * log_probs).sum(axis=1)
    if with_entropy:
        np.testing.assert_allclose(found[2].bits[real], entropy, rtol=1e-5, atol=2e-5)
    d_logp, d_entropy = floats(rng, rows.bits.size), floats(rng, rows.bits.size)
    d_hidden, d_weight = empty(tokens, size), empty(vocabulary, size)
    more = (entropies, d_logp, d_entropy if with_entropy else None)
    binding.call("log_prob_backward", *given_head, found[1], *more, d_hidden, d_weight, threads)
    d_logits = -probs * wide(d_logp)[real, None]
    d_logits[np.arange(predictions), chosen] += wide(d_logp)[real]
    if with_entropy:
        d_logits -= wide(d_entropy)[real, None] * probs * (log_probs + entropy[:, None])
    d_logits /= temperature
    expected = np.zeros((tokens, size))
    np.add.at(expected, places, d_logits @ wide(weight))
    np.testing.assert_allclose(d_hidden.bits, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(d_weight.bits, d_logits.T @ wide(hidden)[places], rtol=1e-4, atol=1e-4)
    alone = empty(tokens, size)
    binding.call("log_prob_backward", *given_head, found[1], *more, alone, None, threads)
    np.testing.assert_array_equal(alone.bits, d_hidden.bits)


@given(st.integers(1, 9), st.sampled_from([1, 7, 100, 5000]), st.sampled_from([0, 1, 3]), st.sampled_from([1.0, 0.6]))
@settings(max_examples=20)
def test_drawn_tokens_are_those_of_the_inverse_distribution(
    rows: int, vocabulary: int, top_k: int, top_p: float
) -> None:
    rng = np.random.default_rng(rows)
    logits, uniforms = floats(rng, rows, vocabulary), of((1.0 - rng.random(rows)).astype(np.float32))
    scale, greedy = of(np.full(rows, 1.5, np.float32)), of(rng.random(rows) < 0.3)
    ids, log_probs = empty(rows, dtype="int32"), empty(rows)
    binding.call("sample", logits, uniforms, scale, greedy, top_k, top_p, ids, log_probs, 2)
    probs = softmax(wide(logits) * 1.5)
    np.testing.assert_allclose(log_probs.bits, np.log(probs[np.arange(rows), ids.bits]), rtol=1e-5, atol=1e-5)
    for row in range(rows):
        if greedy.bits[row]:
            assert ids.bits[row] == logits.bits[row].argmax()
            continue
        order = np.sort(probs[row])[::-1][: top_k or None]
        kept = order[np.cumsum(order) - order < top_p * order.sum()]
        cut = np.where(probs[row] >= kept[-1] * (1 - 1e-6), probs[row], 0.0)
        cdf, wanted = np.cumsum(cut), float(uniforms.bits[row]) * cut.sum()
        assert cut[ids.bits[row]] > 0
        below = cdf[ids.bits[row] - 1] if ids.bits[row] else 0.0
        assert below - 1e-5 <= wanted <= cdf[ids.bits[row]] + 1e-5  # within what float32 sums are off


@given(st.integers(1, 50), st.sampled_from([2, 6, 64]), THREADS)
@settings(max_examples=10)
def test_embedding_rotary_and_gate_with_their_gradients(tokens: int, size: int, threads: int) -> None:
    rng = np.random.default_rng(tokens)
    ids, table, out = of(rng.integers(0, 9, tokens).astype(np.int32)), floats(rng, 9, size), empty(tokens, size)
    binding.call("embedding", ids, table, out, threads)
    np.testing.assert_array_equal(out.bits, table.bits[ids.bits])
    d_out, d_table, expected = floats(rng, tokens, size), empty(9, size), np.zeros((9, size))
    binding.call("embedding_backward", ids, d_out, d_table, threads)
    np.add.at(expected, ids.bits, wide(d_out))
    np.testing.assert_allclose(d_table.bits, expected, **CLOSE)

    heads, turned, back = floats(rng, tokens, 3, size), empty(tokens, 3, size), empty(tokens, 3, size)
    angle = np.outer(np.arange(9), np.linspace(1, 0.1, size // 2))
    cos, sin = (of(np.tile(f(angle), (1, 2)).astype(np.float32)) for f in (np.cos, np.sin))
    binding.call("rotate_heads", heads, ids, cos, sin, False, False, turned, threads)
    first, second = np.split(wide(heads), 2, axis=2)
    rotated = np.concatenate([-second, first], axis=2)
    at = ids.bits
    np.testing.assert_allclose(turned.bits, wide(heads) * wide(cos)[at, None] + rotated * wide(sin)[at, None], **CLOSE)
    binding.call("rotate_heads", turned, ids, cos, sin, False, True, back, threads)  # its transpose is its inverse
    np.testing.assert_allclose(back.bits, heads.bits, **CLOSE)
    part = 2 * ((size // 2 + 1) // 2)  # of each head, by neighbours
    cos, sin = (of(np.repeat(f(angle[:, : part // 2]), 2, 1).astype(np.float32)) for f in (np.cos, np.sin))
    binding.call("rotate_heads", heads, ids, cos, sin, True, False, turned, threads)
    pairs = wide(heads)[..., :part]
    rotated = np.stack([-pairs[..., 1::2], pairs[..., ::2]], -1).reshape(pairs.shape)
    np.testing.assert_allclose(
        turned.bits[..., :part], pairs * wide(cos)[at, None] + rotated * wide(sin)[at, None], **CLOSE
    )
    np.testing.assert_array_equal(turned.bits[..., part:], heads.bits[..., part:])
    binding.call("rotate_heads", turned, ids, cos, sin, True, True, back, threads)
    np.testing.assert_allclose(back.bits, heads.bits, **CLOSE)

    gate, up, out = floats(rng, tokens, size), floats(rng, tokens, size), empty(tokens, size)
    binding.call("gated", gate, up, out, threads)
    sigmoid = 1 / (1 + np.exp(-wide(gate)))
    np.testing.assert_allclose(out.bits, wide(gate) * sigmoid * wide(up), **CLOSE)
    d_gate, d_up = empty(tokens, size), empty(tokens, size)
    binding.call("gated_backward", d_out, gate, up, d_gate, d_up, threads)
    np.testing.assert_allclose(d_up.bits, wide(d_out) * wide(gate) * sigmoid, **CLOSE)
    slope = sigmoid * (1 + wide(gate) * (1 - sigmoid))
    np.testing.assert_allclose(d_gate.bits, wide(d_out) * wide(up) * slope, **CLOSE)


@pytest.mark.parametrize("by_columns", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("size", [128, 16])
def test_a_query_over_the_cache_is_the_query_in_its_sequence(by_columns: bool, size: int) -> None:
    """Bit for bit, whatever the layout of the cache and its blocks, at lengths around those of a block."""
    rng, heads, kv_heads, d = np.random.default_rng(1), 4, 2, 8
    for length in (1, 2, 127, 128, 129, 300):
        q, k, v = (
            floats(rng, 1, length, heads, d),
            floats(rng, 1, length, kv_heads, d),
            floats(rng, 1, length, kv_heads, d),
        )
        out, highest, total = empty(1, length, heads, d), empty(1, length, heads, 1), empty(1, length, heads, 1)
        binding.attention(q, k, v, scale=0.3, out=out, highest=highest, total=total,
                          visible=binding.Visible(after=0, from_end=True), threads=2)  # fmt: skip
        blocks = -(-length // size)
        table = of(rng.permutation(blocks + 2)[:blocks].astype(np.int32)[None])
        shape = (blocks + 2, kv_heads, d, size) if by_columns else (blocks + 2, size, kv_heads, d)
        caches = []
        for x in (k, v):
            memory = np.full(shape, np.nan, np.float32)
            view = memory.transpose(0, 3, 1, 2) if by_columns else memory
            slots = table.bits[0][np.arange(length) // size] * size + np.arange(length) % size
            caches.append(seen(view))
            binding.call("store_tokens", of(x.bits[0]), of(slots.astype(np.int32)), caches[-1], 2)
        last, lengths = empty(1, heads, d), of(np.array([length], np.int32))
        query = of(q.bits[:, -1])
        binding.paged_attention(query, *caches, table, lengths, scale=0.3, out=last)
        np.testing.assert_array_equal(last.bits[0], out.bits[0, -1])


def test_negative_slots_are_not_stored() -> None:
    cache = of(np.zeros((2, 4, 1, 2), np.float32))
    binding.call("store_tokens", of(np.ones((2, 1, 2), np.float32)), of(np.array([-1, 5], np.int32)), cache, 1)
    assert cache.bits.sum() == 2 and cache.bits[1, 1].sum() == 2


class Step(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_double) for name in ("clip", "size", "epsilon", "decay", "beta1", "beta2"))


def test_gradients_add_up_and_adamw_updates_in_place() -> None:
    rng, shapes = np.random.default_rng(0), [(3, 5), (70_000,), (1,)]
    gradients = [floats(rng, *shape) for shape in shapes]
    sums = [empty(*shape) for shape in shapes]
    squares = ctypes.c_double()
    binding.call("accumulate", 3, gradients, sums, 0, ctypes.byref(squares), 2)
    for one, total in zip(gradients, sums, strict=True):
        np.testing.assert_array_equal(total.bits, one.bits)
    binding.call("accumulate", 3, gradients, sums, 1, ctypes.byref(squares), 2)
    for one, total in zip(gradients, sums, strict=True):
        np.testing.assert_array_equal(total.bits, one.bits * 2)
    assert squares.value == pytest.approx(sum((wide(total) ** 2).sum() for total in sums), rel=1e-12)

    weights, first, second = ([floats(rng, *shape) for shape in shapes] for _ in range(3))
    for v in second:
        np.abs(v.bits, out=v.bits)
    before = [[wide(one) for one in group] for group in (weights, first, second)]
    decays = (ctypes.c_int64 * 3)(1, 0, 0)
    step = Step(0.5, 1e-2, 1e-3, 1e-1, 0.9, 0.99)
    binding.call("adamw", 3, weights, first, second, sums, decays, step, 2)
    for number, (p, m, v) in enumerate(zip(*before, strict=True)):
        g = wide(sums[number]) * 0.5
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        p = p * (1 - 0.1 * (number == 0)) - 1e-2 * m / (np.sqrt(v) + 1e-3)
        for found, expected in ((weights, p), (first, m), (second, v)):
            np.testing.assert_allclose(found[number].bits, expected, rtol=2e-5, atol=1e-6)


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(ValueError, match="does not take 3 features"):
        binding.call("linear", empty(2, 3), 1, [empty(4, 2)], [None], [empty(2, 4)], 1)
    with pytest.raises(ValueError, match="id 9 is not one of 4"):
        binding.call("embedding", of(np.array([9], np.int32)), empty(4, 2), empty(1, 2), 1)
    hidden, rows = floats(np.random.default_rng(0), 2, 3), of(np.array([1, 1], np.int32))
    head = hidden, rows, floats(np.random.default_rng(0), 5, 3), rows, 1.0
    found = empty(2), empty(2)
    binding.call("log_prob", *head, *found, None, 1)
    with pytest.raises(ValueError, match="prediction of row 1, which is not in use"):
        binding.call("log_prob_backward", *head, found[1], None, empty(2), None, empty(1, 3), empty(5, 3), 1)
