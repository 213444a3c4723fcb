"""Files of tensors: safetensors and MindSpore's ckpt, read by need and written in a stream, with numpy alone."""

from mindgspo.tensor_files.array_source import ArraySource
from mindgspo.tensor_files.arrays import WeightDtype, read_safetensors, write_safetensors, write_tensor_file
from mindgspo.tensor_files.bfloat16 import bfloat16_bits, widen_bfloat16
from mindgspo.tensor_files.rounding import FILE_DTYPES, rounded
from mindgspo.tensor_files.safetensors_format import library_order
from mindgspo.tensor_files.tensor_file import TensorFile, open_tensor_file
from mindgspo.tensor_files.tensor_folder import INDEX_FILE, SINGLE_FILE, TensorFolder, open_tensors
from mindgspo.tensor_files.tensor_info import CHUNK_BYTES, FLOAT_DTYPES, TensorInfo, TensorSource, info_of
from mindgspo.tensor_files.writer import write_tensors

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
