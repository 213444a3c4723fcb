"""Files of tensors: safetensors and MindSpore's ckpt, read by need and written in a stream, with numpy alone."""

from mindgspo.tensor_files.reader import (
    INDEX_FILE,
    SINGLE_FILE,
    TensorFile,
    TensorFolder,
    open_tensor_file,
    open_tensors,
)
from mindgspo.tensor_files.safetensors_format import library_order
from mindgspo.tensor_files.tensors import (
    CHUNK_BYTES,
    FILE_DTYPES,
    FLOAT_DTYPES,
    ArraySource,
    TensorInfo,
    TensorSource,
    bfloat16_bits,
    info_of,
    rounded,
    widen_bfloat16,
)
from mindgspo.tensor_files.writer import (
    WeightDtype,
    read_safetensors,
    write_safetensors,
    write_tensor_file,
    write_tensors,
)

__all__ = [
    "CHUNK_BYTES",
    "FILE_DTYPES",
    "FLOAT_DTYPES",
    "INDEX_FILE",
    "SINGLE_FILE",
    "ArraySource",
    "TensorFile",
    "TensorFolder",
    "TensorInfo",
    "TensorSource",
    "WeightDtype",
    "bfloat16_bits",
    "info_of",
    "library_order",
    "open_tensor_file",
    "open_tensors",
    "read_safetensors",
    "rounded",
    "widen_bfloat16",
    "write_safetensors",
    "write_tensor_file",
    "write_tensors",
]
