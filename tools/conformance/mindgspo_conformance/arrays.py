"""Arrays of a case, checked: float64 or bool of a known shape, or a DataError that names the array. numpy only.

N  responses    T  token slots per response
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mindgspo.algorithms.advantages.groups import Float64Array, Int64Array
from mindgspo.errors import DataError
from mindgspo.types import BoolArray


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


def whole_numbers(name: str, values: ArrayLike, shape: tuple[int | None, ...]) -> Int64Array:
    """int64; DataError if a value has a fraction."""
    array = finite_numbers(name, values, shape)
    if (array != np.rint(array)).any():
        raise DataError(f"{name}: {_first_bad(array, array != np.rint(array))}, but every value must be whole")
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
