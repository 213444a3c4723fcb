"""Files of weights for tests: float arrays as one safetensors file, as a model folder has it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mindgspo.tensor_files.tensors import FILE_DTYPES, info_of, rounded
from mindgspo.tensor_files.writer import WeightDtype, write_tensor_file


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], *, dtype: WeightDtype = "float32") -> None:
    """Write float arrays in one dtype, with the metadata without which transformers refuses a file."""
    target = FILE_DTYPES[dtype]
    arrays = {
        name: rounded(tensor, source=info_of(tensor).dtype, target=target, name=name, path=path)
        for name, tensor in tensors.items()
    }
    write_tensor_file(path, arrays, metadata={"format": "pt"}, bfloat16_bits=dtype == "bfloat16")
