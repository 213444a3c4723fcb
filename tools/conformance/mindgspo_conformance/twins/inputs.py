"""The arrays of a batch, checked and cut to real tokens; exp, clamp, larger and smaller with torch's derivatives.

Arrays may be of any float type, right-padded or with holes, with anything in masked slots. One `Response` per row holds
its real tokens only, so that what stands in masked slots is never read.

A clamp passes the gradient on its closed interval; where two branches of a maximum or minimum are equal, each gets one
half.

    N  responses    K  response-token slots    L  real tokens of one response
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mindgspo.errors import DataError

Float64Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One row of a batch; the arrays are float64 [L], in the order of the slots; `slots` are int64, `selected` bool.

    own_advantage: the advantage of the response as a whole: the given one where there is one per response, else the
    mean over its real tokens, 0 where it has none. correction: 1 where none was given. ref_logp, entropy: None where
    none was given.
    """

    logp: Float64Array
    old_logp: Float64Array
    advantages: Float64Array
    own_advantage: float
    correction: Float64Array
    ref_logp: Float64Array | None
    entropy: Float64Array | None
    slots: NDArray[np.int64]
    sampler_logp: Float64Array
    selected: BoolArray

    @property
    def difference(self) -> Float64Array:
        """d = logp - old_logp."""
        return self.logp - self.old_logp

    @property
    def length(self) -> int:
        """|y|, the number of real tokens."""
        return self.logp.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses:
    """A checked batch: the mask [N, K] and one `Response` per row."""

    mask_NK: BoolArray
    rows: tuple[Response, ...]

    def __iter__(self) -> Iterator[tuple[int, Response]]:
        return iter(enumerate(self.rows))


def read_responses(
    *,
    logp_NK: ArrayLike,
    old_logp_NK: ArrayLike,
    advantages_NK: ArrayLike,
    mask_NK: ArrayLike,
    ref_logp_NK: ArrayLike | None = None,
    correction_NK: ArrayLike | None = None,
    entropy_NK: ArrayLike | None = None,
    sampler_logp_NK: ArrayLike | None = None,
    selected_NK: ArrayLike | None = None,
) -> Responses:
    """Check shapes and cut every row down to its real tokens.

    advantages_NK: [N], one per response, or [N, K]. sampler_logp_NK: old_logp_NK by default. selected_NK: 0 and 1, 0 by
    default. Raises DataError where a shape or the mask is wrong.
    """
    mask_NK = read_mask(mask_NK)
    shape = mask_NK.shape
    logp_NK = read_matrix("logp", logp_NK, shape)
    old_logp_NK = read_matrix("old_logp", old_logp_NK, shape)
    advantages = _float64("advantages", advantages_NK)
    if advantages.shape not in (shape[:1], shape):
        raise DataError(
            f"advantages: expected one per response, shape {list(shape[:1])}, or one per token, shape {list(shape)}, "
            f"got shape {list(advantages.shape)}"
        )
    ref_logp_NK = None if ref_logp_NK is None else read_matrix("ref_logp", ref_logp_NK, shape)
    correction_NK = np.ones(shape) if correction_NK is None else read_matrix("correction", correction_NK, shape)
    entropy_NK = None if entropy_NK is None else read_matrix("entropy", entropy_NK, shape)
    sampler_logp_NK = old_logp_NK if sampler_logp_NK is None else read_matrix("sampling_logp", sampler_logp_NK, shape)
    selected_NK = np.zeros(shape) if selected_NK is None else read_matrix("selected", selected_NK, shape)

    rows = []
    for row, real in enumerate(mask_NK):
        if advantages.ndim == 1:
            own_advantage = float(advantages[row])
            token_advantages = np.full(int(real.sum()), own_advantage)
        else:
            token_advantages = advantages[row, real]
            own_advantage = float(token_advantages.mean()) if real.any() else 0.0
        rows.append(
            Response(
                logp=logp_NK[row, real],
                old_logp=old_logp_NK[row, real],
                advantages=token_advantages,
                own_advantage=own_advantage,
                correction=correction_NK[row, real],
                ref_logp=None if ref_logp_NK is None else ref_logp_NK[row, real],
                entropy=None if entropy_NK is None else entropy_NK[row, real],
                slots=np.flatnonzero(real),
                sampler_logp=sampler_logp_NK[row, real],
                selected=selected_NK[row, real] != 0,
            )
        )
    return Responses(mask_NK=mask_NK, rows=tuple(rows))


def read_mask(mask_NK: ArrayLike) -> BoolArray:
    """bool [N, K] of an array of 0 and 1, or of booleans. Raises DataError for any other rank or value."""
    mask = mask_NK if isinstance(mask_NK, np.ndarray) else _float64("mask", mask_NK)
    if mask.ndim != 2:
        raise DataError(f"mask: expected [responses, token slots], got shape {list(mask.shape)}")
    wrong = mask[(mask != 0) & (mask != 1)]
    if wrong.size:
        raise DataError(f"mask: expected 0 and 1 only, got {wrong.flat[0]} ({wrong.size} such values)")
    return mask.astype(np.bool_)


def read_matrix(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Float64Array:
    """float64 array of exactly this shape. Raises DataError for any other."""
    matrix = _float64(name, values)
    if matrix.shape != shape:
        raise DataError(f"{name}: expected the mask's shape {list(shape)}, got {list(matrix.shape)}")
    return matrix


def _float64(name: str, values: ArrayLike) -> Float64Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: expected rows of numbers, all of one length ({error})") from error


# e^350 = 1e152: the product of two such factors, a ratio and the exponential of k3, is still a float64.
LARGEST_EXPONENT = 350.0


def exponential(x: Float64Array) -> tuple[Float64Array, Float64Array]:
    """e^x and its derivative. Beyond LARGEST_EXPONENT the value stays where it is and the derivative is 0."""
    value = np.exp(np.minimum(x, LARGEST_EXPONENT))
    return value, np.where(x <= LARGEST_EXPONENT, value, 0.0)


def clamp(x: Float64Array, low: float | None, high: float | None) -> tuple[Float64Array, Float64Array]:
    """x between the bounds (None: no bound), and 1 where it was within them, bounds included, else 0."""
    low = -np.inf if low is None else low
    high = np.inf if high is None else high
    return np.minimum(np.maximum(x, low), high), ((x >= low) & (x <= high)).astype(np.float64)


def larger(first: Float64Array, second: Float64Array) -> tuple[Float64Array, Float64Array]:
    """max(first, second), and the share of the gradient that goes to `first`: 1, 0, or 0.5 where they are equal."""
    return np.maximum(first, second), np.where(first == second, 0.5, first > second)


def smaller(first: Float64Array, second: Float64Array) -> tuple[Float64Array, Float64Array]:
    """min(first, second), and the share of the gradient that goes to `first`: 1, 0, or 0.5 where they are equal."""
    return np.minimum(first, second), np.where(first == second, 0.5, first < second)
