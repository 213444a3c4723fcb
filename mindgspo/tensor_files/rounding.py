"""Floating-point numbers from one file dtype to another.

What enters: stored bits and the dtypes. What leaves: stored bits, rounded to nearest with ties to even, as torch
rounds. Called by `arrays` and by the conversion of weights, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mindgspo.errors import WeightsError
from mindgspo.tensor_files.bfloat16 import bfloat16_bits, widen_bfloat16

# What people write, and what files say.
FILE_DTYPES: Mapping[str, str] = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
_SPELLED = {"F64": "float64", **{name: spelled for spelled, name in FILE_DTYPES.items()}}


def rounded(bits: np.ndarray, *, source: str, target: str, name: str, path: Path) -> np.ndarray:
    """The bits of the nearest numbers of dtype `target`; both dtypes are floats as files name them.

    name, path: of the weight and the file to be written, for messages.
    Raises WeightsError: finite values that become infinite.
    """
    if source == target:
        return bits
    values = widen_bfloat16(bits) if source == "BF16" else bits
    with np.errstate(over="ignore"):
        # torch takes the way over float32 as well.
        single = np.asarray(values, dtype=np.float64 if target == "F64" else np.float32)
        if target == "BF16":
            result = bfloat16_bits(single)
            kept = widen_bfloat16(result)
        else:
            kept = result = single.astype(np.float16) if target == "F16" else single
    overflowed = int(np.count_nonzero(np.isinf(kept) & np.isfinite(values)))
    if overflowed:
        raise WeightsError(
            f"{path}: {overflowed} values of {name} are too large for {_SPELLED[target]} (largest magnitude "
            f"{np.abs(values[np.isfinite(values)]).max():g}); write float32 instead"
        )
    return result
