"""Whole files of tensors as arrays in memory, and back.

What enters: a folder or file with model weights, or named arrays. What leaves: named arrays, or a complete file. Called
by `models.weights` and `checkpoint`. Where a model does not fit into memory, see `tensor_folder` and `writer`.

numpy has no bfloat16, so such tensors are read as float32, which holds every bfloat16 value exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from mindgspo.errors import WeightsError
from mindgspo.tensor_files.bfloat16 import widen_bfloat16
from mindgspo.tensor_files.rounding import FILE_DTYPES, rounded
from mindgspo.tensor_files.safetensors_format import library_order
from mindgspo.tensor_files.tensor_folder import open_tensors
from mindgspo.tensor_files.tensor_info import info_of
from mindgspo.tensor_files.writer import write_tensors

WeightDtype = Literal["float32", "bfloat16", "float16"]


def read_safetensors(folder_or_file: Path) -> dict[str, np.ndarray]:
    """All tensors of one file, of a folder's `model.safetensors`, or of the shards its index names.

    bfloat16 becomes float32 with the same values; every other dtype and all shapes are kept. The arrays are
    copies: they stay valid when the file goes away.
    Raises WeightsError: nothing to read, a truncated or damaged file, a missing shard, an index that
    contradicts its shards, a dtype that numpy has not.
    """
    with open_tensors(folder_or_file) as source:
        return {
            name: widen_bfloat16(source.read(name)) if info.dtype == "BF16" else source.read(name)
            for name, info in source.tensors.items()
        }


def write_safetensors(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    *,
    metadata: Mapping[str, str] | None = None,
    dtype: WeightDtype = "float32",
) -> None:
    """Write float tensors as one file of a single dtype; `path` is the old or the new file, never part of it.

    metadata: text pairs of the header; None: {"format": "pt"}, without which transformers refuses a file.
    Raises WeightsError: a tensor that is not floating point, or a finite value that overflows `dtype`.
    """
    for name, tensor in tensors.items():
        if tensor.dtype.kind != "f":
            raise WeightsError(f"{path}: weight {name} is {tensor.dtype}; only floating-point weights are written")
    target = FILE_DTYPES[dtype]
    write_tensor_file(
        path,
        {
            name: rounded(tensor, source=info_of(tensor).dtype, target=target, name=name, path=path)
            for name, tensor in tensors.items()
        },
        metadata={"format": "pt"} if metadata is None else metadata,
        bfloat16_bits=dtype == "bfloat16",
    )


def write_tensor_file(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    *,
    metadata: Mapping[str, str] | None = None,
    bfloat16_bits: bool = False,
    seen: Callable[[memoryview], None] | None = None,
) -> None:
    """Write arrays bit for bit, each in its own dtype, aside and flushed to disk; then rename to `path`.

    bfloat16_bits: the arrays are uint16 and hold the bits of bfloat16 numbers. seen: see `write_tensors`.
    Raises OSError where the file system refuses.
    """
    infos = library_order({name: info_of(tensor, bfloat16_bits=bfloat16_bits) for name, tensor in tensors.items()})
    write_tensors(path, infos, ((name, tensors[name]) for name in infos), metadata=metadata, seen=seen)
