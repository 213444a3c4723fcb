"""The fused ops of Ascend in numpy and float64, by what MindSpore's documentation says of them.

Legend: T tokens, N heads, S sequence, D head size.
"""

from __future__ import annotations

import numpy as np


def rms_norm(x: np.ndarray, gamma: np.ndarray, *, epsilon: float) -> np.ndarray:
    """`RmsNorm`, its first output."""
    x = x.astype(np.float64)
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * gamma


def swiglu(stacked: np.ndarray, dim: int) -> np.ndarray:
    """`Swiglu`: swish of the first half along `dim`, times the second half."""
    a, b = np.split(stacked.astype(np.float64), 2, axis=dim)
    return a / (1 + np.exp(-a)) * b


def rotate_half(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """`RotaryPositionEmbedding` in mode 0; x: [1, S, N, D], tables [1, S, 1, D]."""
    assert cos.shape == sin.shape == (1, x.shape[1], 1, x.shape[3]) and x.shape[0] == 1
    x = x.astype(np.float64)
    first, second = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate([-second, first], axis=-1) * sin


def flash_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, ends: np.ndarray, *, scale: float
) -> np.ndarray:
    """`FlashAttentionScore`, its last output, in layout TND ([T, N, D]) and sparse mode 3: sequences lie behind each
    other, number b up to the cumulative length ends[b] of queries and of keys alike; aligned at their ends, a query
    sees no later key. With N1 heads of queries and N2 of keys, head n reads key/value head n // (N1 / N2)."""
    query, key, value = (x.astype(np.float64) for x in (query, key, value))
    assert ends[-1] == len(query) == len(key) and (np.diff(ends) > 0).all(), ends
    group, out = query.shape[1] // key.shape[1], np.full(query.shape, np.nan)
    for start, stop in zip([0, *ends[:-1]], ends, strict=True):
        allowed = np.tri(stop - start, dtype=bool)
        for head in range(query.shape[1]):
            scores = scale * query[start:stop, head] @ key[start:stop, head // group].T
            weights = np.exp(np.where(allowed, scores, -np.inf))
            out[start:stop, head] = weights / weights.sum(axis=1, keepdims=True) @ value[start:stop, head // group]
    return out
