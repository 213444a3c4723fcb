"""bfloat16 numbers, which numpy has not, as bits in uint16.

What enters and leaves: arrays of any shape. Called by the readers and writers of tensor files, and by conversions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16 numbers, ties to even, as torch rounds; a NaN stays a NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # Half of the last kept bit's weight (less one where that bit is 0) carries exactly where rounding is up.
    upper = bits >> np.uint32(16)
    rounded = (bits + (np.uint32(0x7FFF) + (upper & np.uint32(1)))) >> np.uint32(16)
    quiet_nan = upper | np.uint32(0x0040)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, quiet_nan, rounded).astype(np.uint16).reshape(np.shape(values))


def widen_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 numbers with the same values: bfloat16 is float32's upper half."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
