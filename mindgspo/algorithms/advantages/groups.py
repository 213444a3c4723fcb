"""Groups of responses to one prompt, and their statistics. numpy only.

N  responses    G  groups
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mindgspo.types import BoolArray

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]

Singleton = Literal["zero", "raw", "nan"]
_NOISE = 1e-12
"""Share of the largest reward, at least of 1. Sums of parts in another order differ by less (0.1 + 0.2 and 0.3)."""


def are_equal(low: ArrayLike, high: ArrayLike) -> BoolArray:
    """Whether rewards from low to high are all the same but for rounding, element by element."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return (low == high) | (high - low <= _NOISE * np.maximum(1.0, np.maximum(abs(low), abs(high))))


def weighted_bincount(index_N: NDArray[np.integer], weights_N: Float64Array, *, minlength: int = 0) -> Float64Array:
    """`numpy.bincount` of weights; numpy 1.26 declares it for counts alone."""
    return np.asarray(np.bincount(index_N, weights=weights_N, minlength=minlength), np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The partition of N responses into groups."""

    index_N: Int64Array
    """Number of each response's group, 0 to G - 1."""
    sizes_N: Int64Array
    """Responses in that group."""

    @staticmethod
    def of(ids_N: ArrayLike) -> Groups:
        """Group responses by id (any number); siblings need not stand together."""
        _, index_N, sizes_G = np.unique(np.asarray(ids_N), return_inverse=True, return_counts=True)
        return Groups(index_N=index_N, sizes_N=sizes_G[index_N])

    @property
    def alone(self) -> BoolArray:
        """Whether a response has no sibling, bool [N]."""
        return self.sizes_N == 1

    def sum(self, values_N: Float64Array) -> Float64Array:
        """Sum over each response's group, float64 [N]."""
        return weighted_bincount(self.index_N, values_N)[self.index_N] if values_N.size else values_N

    def mean(self, values_N: Float64Array, weights_N: Float64Array | None = None) -> Float64Array:
        """Mean over each response's group, float64 [N], weighted if weights (>= 0) are given.

        In a group of equal values it is each value itself: a quotient of sums would leave a rounding error (three
        times 0.1, divided by 3, is not 0.1), and advantages of such a group must be exactly 0.
        """
        if weights_N is None or not weights_N.size:
            weights_N = np.ones_like(values_N)
        total_N = self.sum(weights_N)
        mean_N = self.sum(weights_N * values_N) / np.where(total_N > 0, total_N, 1.0)
        return np.where(self.is_flat(values_N), values_N, mean_N)

    def std(self, values_N: Float64Array, *, ddof: int) -> Float64Array:
        """Standard deviation over each response's group, float64 [N]: root of sum (r - mean)^2 / (n - ddof).

        1 for a group of one, as in verl: nothing to divide by.
        """
        squares_N = self.sum((values_N - self.mean(values_N)) ** 2)
        return np.where(self.alone, 1.0, np.sqrt(squares_N / np.maximum(self.sizes_N - ddof, 1)))

    def is_flat(self, values_N: Float64Array) -> BoolArray:
        """Whether all values of a response's group are equal but for rounding, bool [N]."""
        low_G = np.full(self.index_N.size, np.inf)
        high_G = np.full(self.index_N.size, -np.inf)
        np.minimum.at(low_G, self.index_N, values_N)
        np.maximum.at(high_G, self.index_N, values_N)
        return are_equal(low_G, high_G)[self.index_N]

    def baseline(
        self, values_N: Float64Array, singleton: Singleton, weights_N: Float64Array | None = None
    ) -> Float64Array:
        """Mean of each response's group, float64 [N], to be subtracted from its reward.

        For a group of one: the reward itself (zero: it has advantage 0), 0 (raw: it keeps its reward) or NaN (nan:
        the sample deviation of one value).
        """
        lone_N = {"zero": values_N, "raw": np.zeros_like(values_N), "nan": np.full_like(values_N, np.nan)}[singleton]
        return np.where(self.alone, lone_N, self.mean(values_N, weights_N))
