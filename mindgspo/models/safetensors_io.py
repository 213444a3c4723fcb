"""Hugging Face safetensors files as numpy arrays, and back.

What enters: a folder or file with model weights, or named arrays. What leaves: named arrays, or a complete
file. Called by the weight-name tables of this room, by `checkpoint` and by the `convert` command. Needs
neither MindSpore nor torch.

numpy has no bfloat16, so such tensors are read as float32, which holds every bfloat16 value exactly.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, TensorSpec, safe_open, serialize_file

from mindgspo.errors import WeightsError

WeightDtype = Literal["float32", "bfloat16", "float16"]

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# The format's dtype names that can be read; numpy has all but BF16. 8-bit and 4-bit floats are refused.
_READABLE = frozenset(["F64", "F32", "F16", "BF16", "I64", "U64", "I32", "U32", "I16", "U16", "I8", "U8", "BOOL"])
# How many names of one kind a message shows.
_LISTED = 8


def read_safetensors(folder_or_file: Path) -> dict[str, np.ndarray]:
    """All tensors of one file, of a folder's `model.safetensors`, or of the shards its index names.

    bfloat16 becomes float32 with the same values; every other dtype and all shapes are kept. The arrays are
    copies: they stay valid when the file goes away.
    Raises WeightsError: nothing to read, a truncated or damaged file, a missing shard, an index that
    contradicts its shards, a dtype that numpy has not.
    """
    if folder_or_file.is_file():
        return _read_file(folder_or_file)
    if not folder_or_file.is_dir():
        raise WeightsError(f"{folder_or_file}: no such file or folder; give a folder with {SINGLE_FILE}")
    single, index = folder_or_file / SINGLE_FILE, folder_or_file / INDEX_FILE
    if single.is_file() and index.is_file():
        raise WeightsError(
            f"{folder_or_file}: holds both {SINGLE_FILE} and {INDEX_FILE}, so it is not clear which weights "
            "are meant; remove the one that is out of date"
        )
    if single.is_file():
        return _read_file(single)
    if index.is_file():
        return _read_shards(index)
    raise WeightsError(
        f"{folder_or_file}: neither {SINGLE_FILE} nor {INDEX_FILE} is there; {_what_is_there(folder_or_file)}"
    )


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
    write_tensor_file(
        path,
        {name: _cast(name, tensor, dtype, path) for name, tensor in tensors.items()},
        metadata={"format": "pt"} if metadata is None else metadata,
        bfloat16_bits=dtype == "bfloat16",
    )


def write_tensor_file(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    *,
    metadata: Mapping[str, str] | None = None,
    bfloat16_bits: bool = False,
) -> None:
    """Write arrays bit for bit, each in its own dtype, aside and flushed to disk; then rename to `path`.

    bfloat16_bits: the arrays are uint16 and hold the bits of bfloat16 numbers.
    Raises OSError where the file system refuses.
    """
    assert "__metadata__" not in tensors, "the safetensors format keeps this name for itself"
    # The arrays must outlive the call below: the specs hold bare pointers into them.
    arrays = {name: _little_endian(tensor) for name, tensor in tensors.items()}
    specs = {
        name: TensorSpec(
            dtype="bfloat16" if bfloat16_bits else array.dtype.name,
            shape=array.shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in arrays.items()
    }
    aside = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        aside.touch()
        mode = aside.stat().st_mode  # follows the user's umask; safetensors would leave 0600
        serialize_file(specs, aside, metadata=None if metadata is None else dict(metadata))
        aside.chmod(mode)
        flush_to_disk(aside)
        os.replace(aside, path)
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error  # a full disk, say: names and shapes are sound by now
    finally:
        aside.unlink(missing_ok=True)
    flush_to_disk(path.parent)


def flush_to_disk(path: Path) -> None:
    """Make a file's content, or a folder's list of names, survive a power cut (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_names(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, np.ndarray], *, where: Path) -> None:
    """Refuse weights that do not fit the model exactly: names, shapes, and floating-point values.

    expected: shape of every weight of the model, by its name in the file. where: named in the message.
    Raises WeightsError that lists what is missing, unexpected, of another shape or no float, with near names.
    """
    missing = sorted(expected.keys() - found.keys())
    unexpected = sorted(found.keys() - expected.keys())
    common = sorted(expected.keys() & found.keys())
    problems = [
        *_listed("missing", missing, lambda name: name + _near(name, unexpected)),
        *_listed("unexpected", unexpected, lambda name: name + _near(name, missing)),
        *_listed(
            "wrong shape",
            [name for name in common if found[name].shape != tuple(expected[name])],
            lambda name: f"{name}: the model has {tuple(expected[name])}, the file {found[name].shape}",
        ),
        *_listed(
            "not floating point (quantised weights are not supported)",
            [name for name in common if found[name].dtype.kind != "f"],
            lambda name: f"{name}: {found[name].dtype}",
        ),
    ]
    if problems:
        raise WeightsError(
            f"{where}: the weights do not fit the configured model ({len(expected)} weights expected, "
            f"{len(found)} found); compare the `model` section with the weights' config.json\n" + "\n".join(problems)
        )


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


def _read_file(path: Path) -> dict[str, np.ndarray]:
    """Tensors of one file. safetensors itself checks the header and that it covers the file exactly."""
    try:
        with safe_open(path, framework="np") as file:
            dtypes = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118 (no mapping)
            refused = [name for name, dtype in dtypes.items() if dtype not in _READABLE]
            if refused:
                raise WeightsError(
                    f"{path}: dtypes that cannot be read here (use float32, float16 or bfloat16 weights)\n"
                    + "\n".join(_listed("refused", refused, lambda name: f"{name}: {dtypes[name]}"))
                )
            tensors = {name: file.get_tensor(name) for name, dtype in dtypes.items() if dtype != "BF16"}
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"{path}: truncated, damaged or unreadable ({error}); its size is {_size(path)}. "
            "Copy or download the file again and compare its size and checksum with the source"
        ) from error
    bfloat16_names = [name for name, dtype in dtypes.items() if dtype == "BF16"]
    tensors.update(_read_bfloat16(path, bfloat16_names))
    return {name: tensors[name] for name in dtypes}


def _read_bfloat16(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Named bfloat16 tensors of a file that safetensors has already accepted (its numpy door refuses them).

    Layout: 8 bytes little-endian header length, JSON header, then tensors at `data_offsets` after the header.
    """
    tensors = {}
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
        for name in names:
            start, end = header[name]["data_offsets"]
            file.seek(8 + header_bytes + start)
            bits = np.frombuffer(file.read(end - start), dtype="<u2")
            tensors[name] = widen_bfloat16(bits).reshape(header[name]["shape"])
    return tensors


def _read_shards(index: Path) -> dict[str, np.ndarray]:
    """Tensors of all shards of an index; index and shards must agree on every name."""
    shard_of = _read_index(index)
    shards = sorted(set(shard_of.values()))
    absent = [shard for shard in shards if not (index.parent / shard).is_file()]
    if absent:
        raise WeightsError(
            f"{index}: {len(absent)} of {len(shards)} shards are not there: {', '.join(absent[:_LISTED])}; "
            "copy or download them into the same folder"
        )
    tensors: dict[str, np.ndarray] = {}
    for shard in shards:
        loaded = _read_file(index.parent / shard)
        listed = {name for name, owner in shard_of.items() if owner == shard}
        problems = [
            *_listed("named by the index but not in the shard", sorted(listed - loaded.keys())),
            *_listed("in the shard but not placed there by the index", sorted(loaded.keys() - listed)),
        ]
        if problems:
            raise WeightsError(
                f"{index.parent / shard}: does not agree with {INDEX_FILE}; index and shards come from "
                "different saves, fetch them together again\n" + "\n".join(problems)
            )
        tensors.update(loaded)
    return tensors


def _read_index(index: Path) -> dict[str, str]:
    """Weight name -> shard file name. The index is untrusted: a shard is a plain name in the same folder."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"), object_pairs_hook=_unique)
        weight_map = content["weight_map"]
        shard_of = {str(name): str(shard) for name, shard in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(
            f'{index}: not a readable index ({error}); expected JSON with "weight_map": {{name: shard}}. '
            "Copy or download it again"
        ) from error
    plain_name = re.compile(r"[^/\\\0]+\.safetensors")
    outside = sorted({shard for shard in shard_of.values() if not plain_name.fullmatch(shard)})
    if outside:
        raise WeightsError(f"{index}: {outside[0]!r} is not the name of a .safetensors file in this folder")
    if not shard_of:
        raise WeightsError(f"{index}: its weight_map is empty; copy or download it again")
    return shard_of


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """JSON object in which no key stands twice (json.loads would keep the last one silently)."""
    seen: dict[str, object] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"{key!r} stands there twice")
        seen[key] = value
    return seen


def _what_is_there(folder: Path) -> str:
    """What stands in a folder without weights, and what would help."""
    names = sorted(entry.name for entry in folder.iterdir())
    shards = [name for name in names if name.endswith(".safetensors")]
    if shards:
        return f"there is {', '.join(shards[:3])}: shards need their index, a single file the name {SINGLE_FILE}"
    pickled = [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    if pickled:
        return f"{pickled[0]} is a pickle, which is never loaded: save the model as safetensors first"
    return f"there is {', '.join(names[:_LISTED]) or 'nothing'}"


def _size(path: Path) -> str:
    return f"{path.stat().st_size:,} bytes" if path.is_file() else "unknown"


def _cast(name: str, tensor: np.ndarray, dtype: WeightDtype, path: Path) -> np.ndarray:
    """The tensor in the file's dtype; bfloat16 as uint16 bits."""
    if tensor.dtype.kind != "f":
        raise WeightsError(f"{path}: weight {name} is {tensor.dtype}; only floating-point weights are written")
    with np.errstate(over="ignore"):
        if dtype == "bfloat16":
            bits = bfloat16_bits(np.asarray(tensor, dtype=np.float32))
            stored, result = widen_bfloat16(bits), bits
        else:
            stored = result = np.asarray(tensor, dtype=dtype)
    overflowed = int(np.count_nonzero(np.isinf(stored) & np.isfinite(tensor)))
    if overflowed:
        raise WeightsError(
            f"{path}: {overflowed} values of {name} are too large for {dtype} (largest magnitude "
            f"{np.abs(tensor[np.isfinite(tensor)]).max():g}); write float32 instead"
        )
    return result


def _little_endian(tensor: np.ndarray) -> np.ndarray:
    """C-contiguous, little-endian; shape () stays ()."""
    return np.asarray(tensor, dtype=tensor.dtype.newbyteorder("<"), order="C")


def _near(name: str, candidates: list[str]) -> str:
    """A `did you mean` for one name, or nothing."""
    close = difflib.get_close_matches(name, candidates, n=1, cutoff=0.8)
    return f" (did you mean {close[0]}?)" if close else ""


def _listed(title: str, names: list[str], describe: Callable[[str], str] = str) -> list[str]:
    """A titled block with the first few names and how many more there are; nothing where there are none."""
    if not names:
        return []
    more = [f"    ... and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
    return [f"  {title} ({len(names)}):", *(f"    {describe(name)}" for name in names[:_LISTED]), *more]
