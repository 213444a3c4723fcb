"""Checked arrays, and the groups of responses to one prompt.

Every array that an estimator is given passes through here first: anything `numpy.asarray` reads becomes float64 or bool
of a known shape, or a DataError that names the array. numpy only.

    N responses    T token slots per response    F reward functions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mindgspo.errors import DataError
from mindgspo.types import BoolArray

Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]


def numbers(name: str, values: ArrayLike, shape: tuple[int | None, ...]) -> Float64Array:
    """float64 of the given shape, None standing for any length; NaN and inf pass. DataError otherwise."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: not an array of numbers ({error})") from error
    fits = array.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(array.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise DataError(f"{name}: expected shape [{wanted}], got {list(array.shape)}")
    return array


def finite_numbers(name: str, values: ArrayLike, shape: tuple[int | None, ...]) -> Float64Array:
    """As `numbers`, and every value finite."""
    array = numbers(name, values, shape)
    if not np.isfinite(array).all():
        raise DataError(f"{name}: {_first_bad(array, ~np.isfinite(array))}, but every value must be finite")
    return array


def whole_numbers(
    name: str, values: ArrayLike, shape: tuple[int | None, ...], *, least: int | None = None
) -> Int64Array:
    """int64; DataError if a value has a fraction or lies below `least`."""
    array = finite_numbers(name, values, shape)
    if (array != np.rint(array)).any():
        raise DataError(f"{name}: {_first_bad(array, array != np.rint(array))}, but every value must be whole")
    if least is not None and (array < least).any():
        raise DataError(f"{name}: {_first_bad(array, array < least)}, but no value may be below {least}")
    return array.astype(np.int64)


def token_mask(values: ArrayLike) -> BoolArray:
    """bool [N, T]; DataError if it holds anything but 0 and 1."""
    array = numbers("mask", values, (None, None))
    other = (array != 0) & (array != 1)
    if other.any():
        raise DataError(f"mask: {_first_bad(array, other)}, but a mask holds only 0 and 1")
    return array == 1


def masked_numbers(name: str, values: ArrayLike, mask_NT: BoolArray) -> Float64Array:
    """float64 [N, T] with 0 in masked slots, whatever stood there; DataError if a real slot is not finite."""
    array_NT = np.where(mask_NT, numbers(name, values, mask_NT.shape), 0.0)
    return finite_numbers(name, array_NT, mask_NT.shape)


def _first_bad(array: NDArray[np.generic], is_bad: BoolArray) -> str:
    place = tuple(int(i) for i in np.argwhere(is_bad)[0])
    return f"{array[place]:g} at {list(place)}"


Singleton = Literal["zero", "raw", "nan"]
_NOISE = 1e-12
"""Of the largest reward, at least of 1: sums of parts in another order differ by less (0.1 + 0.2 and 0.3)."""


def are_equal(low: ArrayLike, high: ArrayLike) -> NDArray[np.bool_]:
    """Whether rewards from low to high are all the same but for rounding, element by element."""
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        return (low == high) | (high - low <= _NOISE * np.maximum(1.0, np.maximum(abs(low), abs(high))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The partition of N responses into groups.

    index_N: int64, number of each response's group, 0 to G - 1. sizes_N: int64, responses in that group.
    """

    index_N: Int64Array
    sizes_N: Int64Array

    @property
    def alone(self) -> BoolArray:
        """Whether a response has no sibling, bool [N]."""
        return self.sizes_N == 1

    def sum(self, values_N: Float64Array) -> Float64Array:
        """Sum over each response's group, float64 [N]."""
        return np.bincount(self.index_N, weights=values_N)[self.index_N] if values_N.size else values_N

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

    def std(self, values_N: Float64Array, *, ddof: int, var_floor: float | None = None) -> Float64Array:
        """Standard deviation over each response's group, float64 [N]: root of sum (r - mean)^2 / (n - ddof).

        var_floor: lower bound of the variance. 1 for a group of one, as in verl: nothing to divide by.
        """
        squares_N = self.sum((values_N - self.mean(values_N)) ** 2)
        variance_N = squares_N / np.maximum(self.sizes_N - ddof, 1)
        if var_floor is not None:
            variance_N = np.maximum(variance_N, var_floor)
        return np.where(self.alone, 1.0, np.sqrt(variance_N))

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
        """What is subtracted from each reward, float64 [N]: the mean of its group.

        For a group of one: the reward itself (zero: it has advantage 0), 0 (raw: it keeps its reward) or NaN (nan:
        what a sample deviation of one value is).
        """
        lone_N = {"zero": values_N, "raw": np.zeros_like(values_N), "nan": np.full_like(values_N, np.nan)}[singleton]
        return np.where(self.alone, lone_N, self.mean(values_N, weights_N))


def groups_of(ids_N: ArrayLike, num_responses: int) -> Groups:
    """Responses with the same id (any whole number) are siblings, wherever they stand.

    Raises DataError if there are not `num_responses` ids or one has a fraction.
    """
    whole_N = whole_numbers("group", ids_N, (num_responses,))
    _, index_N, sizes_G = np.unique(whole_N, return_inverse=True, return_counts=True)
    return Groups(index_N=index_N, sizes_N=sizes_G[index_N])


def blocks_of(num_responses: int, group_size: int) -> Int64Array:
    """Group ids int64 [N] of responses that stand group after group, `group_size` (>= 1) in each."""
    return np.arange(num_responses) // group_size
