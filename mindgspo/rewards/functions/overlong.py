"""A soft penalty on responses that come close to the longest length, instead of a sudden one at the end.

What enters: response lengths in tokens. What leaves: what is added to their rewards. The scorer calls `Overlong`, the
command `mindgspo conformance` calls `overlong_penalty`.

    N responses
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mindgspo.config.reward import OverlongSection
from mindgspo.errors import DataError
from mindgspo.rewards.candidate import Candidate
from mindgspo.types import Verdict


class Overlong:
    """`overlong_penalty` of one response, at most the section's factor, whether its answer is right or wrong.

    The penalties of all lengths are computed once, because numpy's work on an array of one takes far longer than a
    look-up in a list.
    Raises DataError for a buffer that is longer than max_len.
    """

    def __init__(self, section: OverlongSection) -> None:
        assert section.max_len is not None, "the configuration fills in overlong.max_len"
        self._max_len = section.max_len
        self._penalties: list[float] = overlong_penalty(
            np.arange(section.max_len + 1),
            max_len=section.max_len,
            buffer_len=section.buffer_len,
            factor=section.factor,
            floor=-section.factor,
        ).tolist()

    def value(self, candidate: Candidate, verdict: Verdict | None) -> float:
        """0 up to the buffer, then a line down to -factor at max_len and beyond."""
        assert candidate.num_tokens is not None, "overlong needs the length in tokens"
        return self._penalties[min(candidate.num_tokens, self._max_len)]


def overlong_penalty(
    lengths_N: ArrayLike, *, max_len: int, buffer_len: int, factor: float = 1.0, floor: float | None = None
) -> NDArray[np.float64]:
    """Penalties (<= 0), float64 [N]: DAPO, arXiv 2503.14476, eq. 13.

    0 up to max_len - buffer_len tokens, then a straight line that reaches -factor at max_len.
    floor: smallest penalty, which ends the line: -1 in the paper and TRL, -factor in OpenRLHF. None: the line goes
    on, as in verl. buffer_len 0 is a step from 0 to `floor` beyond max_len.
    lengths_N: whole numbers >= 0.
    Raises DataError for lengths or settings out of range, and for a step that has no floor to fall to.
    """
    lengths_N = np.asarray(lengths_N, dtype=np.float64)
    if lengths_N.ndim != 1:
        raise DataError(f"lengths: expected shape [any], got {list(lengths_N.shape)}")
    wrong_N = ~(np.isfinite(lengths_N) & (lengths_N >= 0) & (lengths_N == np.rint(lengths_N)))
    if wrong_N.any():
        first = int(np.flatnonzero(wrong_N)[0])
        raise DataError(f"lengths: {lengths_N[first]:g} at {first} is not a number of tokens")
    _check_settings(max_len, buffer_len, factor, floor)
    excess_N = np.maximum(lengths_N - (max_len - buffer_len), 0.0)
    if buffer_len == 0:
        return np.where(excess_N > 0, floor, 0.0).astype(np.float64)
    # The order of operations is the peers': -0.2 comes out as the same float64.
    line_N = np.where(excess_N > 0, -excess_N / buffer_len * factor, 0.0)
    return line_N if floor is None else np.maximum(line_N, floor)


def _check_settings(max_len: int, buffer_len: int, factor: float, floor: float | None) -> None:
    if not 0 <= buffer_len <= max_len:
        raise DataError(f"overlong: buffer_len {buffer_len} must lie between 0 and max_len {max_len}")
    if not (math.isfinite(factor) and factor >= 0):
        raise DataError(f"overlong: factor {factor:g} must be 0 or a positive number")
    if floor is not None and not (math.isfinite(floor) and floor <= 0):
        raise DataError(f"overlong: floor {floor:g} must be 0 or a negative number, or None for no floor")
    if buffer_len == 0 and floor is None:
        raise DataError("overlong: buffer_len 0 needs a floor, e.g. -1, because a line of width 0 has no slope")
