"""The header of a safetensors file, read without trust, and written as the safetensors library writes it.

Layout: 8 bytes little-endian header length, JSON header, then the tensors at `data_offsets` behind it, which cover the
rest exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from mindgspo.io import parse_json, unique_keys
from mindgspo.tensor_files.file_bytes import Extent, FileContent, PlacedBytes, damaged, refused_dtypes
from mindgspo.tensor_files.tensors import MAX_AXES, STORED_BITS, TensorInfo

# The library's own limit: a longer header is damage or an attack on memory.
MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}
# Dtypes in the library's order of writing: wide ones first, so that every tensor is aligned.
_WRITING_ORDER = ("U64", "I64", "F64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "I8", "U8", "BOOL")


def looks_like_safetensors(content: FileContent) -> bool:
    """Whether a header of plausible length begins where it must."""
    start = content.at_most(0, 9)
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") <= content.size - 8


def read_header(path: Path, content: FileContent) -> tuple[dict[str, PlacedBytes], dict[str, str]]:
    """{name: info and place} in the order of the bytes, and the metadata.

    Raises WeightsError: truncated, trailing or overlapping bytes, a name that stands twice, an unknown dtype.
    """
    if content.size < 8:
        raise damaged(path, "no room for the length of a header")
    length = int.from_bytes(content.at(0, 8), "little")
    if length > min(MAX_HEADER_BYTES, content.size - 8):
        raise damaged(path, f"its header would have {length:,} bytes")
    try:
        header = parse_json(bytes(content.at(8, length)), object_pairs_hook=unique_keys)
        if not isinstance(header, dict):
            raise ValueError("is no JSON object")
        metadata = _metadata(header.pop(_METADATA, {}))
        entries = {str(name): _entry(name, entry) for name, entry in header.items()}
    except ValueError as error:
        raise damaged(path, f"its header: {error}") from error
    refused = [(name, dtype) for name, (dtype, *_) in entries.items() if dtype not in STORED_BITS]
    if refused:
        raise refused_dtypes(path, refused)
    return _placed(path, entries, data_start=8 + length, end=content.size), metadata


def header_bytes(infos: Mapping[str, TensorInfo], metadata: Mapping[str, str] | None) -> bytes:
    """Length and header of a file that holds these tensors in this order."""
    assert _METADATA not in infos, "the format keeps this name for itself"
    header: dict[str, object] = {} if metadata is None else {_METADATA: dict(metadata)}
    offset = 0
    for name, info in infos.items():
        end = offset + info.num_bytes
        header[name] = {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def library_order(infos: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """The same tensors as the safetensors library orders them in a file: by dtype, then by name."""
    return dict(sorted(infos.items(), key=lambda item: (_WRITING_ORDER.index(item[1].dtype), item[0])))


def _metadata(found: object) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"{_METADATA} must hold text only")
    return found


def _entry(name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    """dtype, shape, first and last byte of one entry."""
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        raise ValueError(f"{name!r} must have {', '.join(sorted(_FIELDS))}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"{name!r} has dtype {dtype!r:.40}, shape {shape!r:.80}, data_offsets {offsets!r:.80}")
    return dtype, tuple(shape), offsets[0], offsets[1]


def _are_counts(values: object) -> bool:
    if not isinstance(values, list) or len(values) > MAX_AXES:
        return False
    return all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _placed(
    path: Path, entries: Mapping[str, tuple[str, tuple[int, ...], int, int]], *, data_start: int, end: int
) -> dict[str, PlacedBytes]:
    """Every tensor's place, once it is certain that together they cover the file."""
    placed, position = {}, 0
    for name, (dtype, shape, first, last) in sorted(entries.items(), key=lambda item: item[1][2:]):
        info = TensorInfo(dtype=dtype, shape=shape)
        if first != position or last - first != info.num_bytes:
            raise damaged(
                path,
                f"tensor {name} of {info.num_bytes:,} bytes ({dtype} {list(shape)}) should lie at "
                f"{position:,}, its header says {first:,} to {last:,}",
            )
        placed[name] = PlacedBytes(info=info, extents=(Extent(start=data_start + first, length=last - first),))
        position = last
    if data_start + position != end:
        raise damaged(path, f"its header describes {data_start + position:,} bytes")
    return placed
