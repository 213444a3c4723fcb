"""Tensors of one file, or of a folder with one file or an index of shards, read on demand.

Only headers are read at first; reads are positional, so threads may share a file. The index of a folder is untrusted: a
shard is a plain name in the same folder, and index and shards must agree on every name.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mindgspo.errors import WeightsError
from mindgspo.io import Closing, check_is_fetched, read_json, unique_keys
from mindgspo.tensor_files.formats import (
    LISTED,
    FileContent,
    PlacedBytes,
    damaged,
    looks_like_ckpt,
    looks_like_safetensors,
    read_ckpt,
    read_header,
    titled_names,
)
from mindgspo.tensor_files.tensors import CHUNK_BYTES, TensorInfo

# Fill an array with the tensor's bytes from this byte on.
ReadInto = Callable[[int, np.ndarray], None]

# Shorter runs are not read one by one: whole rows are, and the run is cut out of them.
_SHORT_RUN_BYTES = 4096
# What a processor's cache holds, so that cutting costs no second way to memory.
_BLOCK_BYTES = 256 << 10
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_SHARD_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,200}\.safetensors")


def _read_runs(
    info: TensorInfo, index: tuple[slice, ...], read_into: ReadInto, out: np.ndarray | None = None
) -> np.ndarray:
    """The part of a tensor that `index` names, its bits as stored. out: a contiguous array to read it into."""
    ranges = _ranges(info.shape, index)
    shape = tuple(stop - start for start, stop in ranges)
    part = np.empty(shape, dtype=info.bits) if out is None else out
    assert part.shape == shape and part.dtype == info.bits and part.flags.c_contiguous, (part.shape, part.dtype, shape)
    if part.size == 0:
        return part
    # After the last axis that is cut, elements lie side by side.
    cut = [axis for axis, bounds in enumerate(ranges) if bounds != (0, info.shape[axis])]
    last = cut[-1] if cut else 0
    if part.ndim == 0 or part[(0,) * last].nbytes >= min(_SHORT_RUN_BYTES, part.nbytes):
        _read_each(info, ranges, last, part, read_into)
    else:
        _read_blocks(info, ranges, part, read_into)
    return part


def _ranges(shape: tuple[int, ...], index: tuple[slice, ...]) -> list[tuple[int, int]]:
    """First and last element per axis."""
    assert len(index) <= len(shape), f"{len(index)} slices of {len(shape)} axes"
    assert all(one.step in (None, 1) for one in index), f"only steps of 1: {index}"
    cut = [one.indices(size)[:2] for one, size in zip(index, shape, strict=False)]
    return [(start, max(start, stop)) for start, stop in cut] + [(0, size) for size in shape[len(index) :]]


def _read_each(
    info: TensorInfo, ranges: list[tuple[int, int]], last: int, part: np.ndarray, read_into: ReadInto
) -> None:
    """Read run by run: one for every choice of elements on the axes before `last`."""
    strides = [math.prod(info.shape[axis + 1 :]) for axis in range(len(info.shape))]
    for outer in itertools.product(*(range(start, stop) for start, stop in ranges[:last])):
        position = sum(one * stride for one, stride in zip(outer, strides, strict=False))
        position += ranges[last][0] * strides[last] if ranges else 0
        inside = tuple(one - start for one, (start, _) in zip(outer, ranges, strict=False))
        read_into(position * info.bits.itemsize, part[inside] if inside else part)


def _read_blocks(info: TensorInfo, ranges: list[tuple[int, int]], part: np.ndarray, read_into: ReadInto) -> None:
    """Read whole rows of the first axis, some MB at a time, and keep what is wanted of them."""
    row_elements = math.prod(info.shape[1:])
    step = max(_BLOCK_BYTES // (row_elements * info.bits.itemsize), 1)
    first, stop = ranges[0]
    wanted = tuple(slice(*bounds) for bounds in ranges[1:])
    buffer = np.empty((min(step, stop - first), *info.shape[1:]), dtype=info.bits)
    for row in range(first, stop, step):
        block = buffer[: stop - row]
        read_into(row * row_elements * info.bits.itemsize, block)
        part[row - first : row - first + len(block)] = block[(slice(None), *wanted)]


class OpenTensors(Closing):
    """Open files whose tensors have one set of names, read on demand; made by `open_tensors`. A context manager."""

    def __init__(
        self, path: Path, files: Sequence[FileContent], placed: Mapping[str, PlacedBytes], metadata: Mapping[str, str]
    ) -> None:
        """placed: the tensors in the order in which they are listed. metadata: text that all files have."""
        self.path = path
        self.metadata = metadata
        self.tensors: Mapping[str, TensorInfo] = {name: place.info for name, place in placed.items()}
        self._files = files
        self._placed = placed

    def read(self, name: str) -> np.ndarray:
        """A whole tensor, its bits as stored: bfloat16 comes as uint16."""
        return self.read_slice(name, ())

    def read_slice(self, name: str, index: tuple[slice, ...], out: np.ndarray | None = None) -> np.ndarray:
        """A part of a tensor, its bits as stored; only the rows that it needs are read.

        index: slices of step 1 for the leading axes; the others are whole. out: a contiguous array to read it into.
        """

        def read_into(start: int, array: np.ndarray) -> None:
            self.read_into(name, start, _bytes_of(array))

        return _read_runs(self.tensors[name], index, read_into, out)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the tensor's bytes from byte `start` on."""
        assert start + buffer.nbytes <= self.tensors[name].num_bytes, f"{name}: {start}+{buffer.nbytes}"
        for extent in self._placed[name].extents:
            if start < extent.length and buffer.nbytes:
                count = min(extent.length - start, buffer.nbytes)
                extent.file.fill(buffer[:count], extent.start + start)
                buffer, start = buffer[count:], 0
            else:
                start -= extent.length

    def chunks(self, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[NDArray]:
        """The whole tensor as flat arrays of at most `chunk_bytes`, in order; each is a fresh array."""
        info = self.tensors[name]
        step = max(chunk_bytes // info.bits.itemsize, 1)
        for first in range(0, info.num_elements, step):
            chunk = np.empty(min(step, info.num_elements - first), dtype=info.bits)
            self.read_into(name, first * info.bits.itemsize, _bytes_of(chunk))
            yield chunk

    def close(self) -> None:
        """Close the files; nothing can be read any more."""
        for file in self._files:
            file.close()


def _open_file(path: Path) -> OpenTensors:
    """Open one file. Its content decides which format it has, not its name."""
    content = FileContent(path)
    try:
        check_is_fetched(path, bytes(content.at_most(0, 64)), WeightsError)
        if looks_like_safetensors(content) or path.suffix == ".safetensors":
            placed, metadata = read_header(content)
        elif looks_like_ckpt(content) or path.suffix == ".ckpt":
            placed, metadata = read_ckpt(content)
        else:
            raise damaged(path, "neither safetensors nor a MindSpore checkpoint; pickled weights are never loaded")
    except BaseException:
        content.close()
        raise
    return OpenTensors(path, [content], placed, metadata)


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of a contiguous array, byte by byte."""
    return memoryview(array.reshape(-1).view(np.uint8))


def open_tensors(path: Path) -> OpenTensors:
    """Open one file, a folder's `model.safetensors`, or the shards that its index names.

    Raises WeightsError: nothing to read, a truncated or damaged file, a missing shard, an index that contradicts its
    shards, a dtype that numpy has not.
    """
    if not path.exists():
        name = path.name if path.suffix == ".safetensors" else SINGLE_FILE
        raise WeightsError(f"{path}: no such file or folder; give a folder with {name}")
    if not path.is_dir():
        return _open_file(path)
    single, index = path / SINGLE_FILE, path / INDEX_FILE
    if single.is_file() and index.is_file():
        raise WeightsError(
            f"{path}: holds both {SINGLE_FILE} and {INDEX_FILE}, so it is not clear which weights "
            "are meant; remove the one that is out of date"
        )
    if single.is_file():
        return _open_file(single)
    if index.is_file():
        return _open_shards(index)
    raise WeightsError(f"{path}: neither {SINGLE_FILE} nor {INDEX_FILE} is there; {_what_is_there(path)}")


def weight_files(folder: Path) -> list[Path]:
    """The files that `open_tensors` reads of a folder with weights, by name. Raises WeightsError."""
    with open_tensors(folder) as opened:
        return sorted({file.path for file in opened._files})


def _open_shards(index: Path) -> OpenTensors:
    """The shards of an index, by name; index and shards must agree on every name."""
    shard_of = _read_index(index)
    shards = sorted(set(shard_of.values()))
    absent = [shard for shard in shards if not (index.parent / shard).is_file()]
    if absent:
        raise WeightsError(
            f"{index}: {len(absent)} of {len(shards)} shards are not there: {', '.join(absent[:LISTED])}; "
            "copy or download them into the same folder"
        )
    with ExitStack() as opened:
        files = [opened.enter_context(_open_file(index.parent / shard)) for shard in shards]
        for shard, file in zip(shards, files, strict=True):
            _compare(file, {name for name, owner in shard_of.items() if owner == shard})
        opened.pop_all()
    return joined(index.parent, files)


def joined(path: Path, files: Sequence[OpenTensors]) -> OpenTensors:
    """The tensors of several open files that have no name in common."""
    metadata = dict(sorted(set.intersection(*(set(file.metadata.items()) for file in files))))
    contents = [content for file in files for content in file._files]
    return OpenTensors(
        path, contents, {name: place for file in files for name, place in file._placed.items()}, metadata
    )


def _compare(file: OpenTensors, expected: set[str]) -> None:
    problems = [
        *titled_names("named by the index but not in the shard", sorted(expected - file.tensors.keys())),
        *titled_names("in the shard but not placed there by the index", sorted(file.tensors.keys() - expected)),
    ]
    if problems:
        raise WeightsError(
            f"{file.path}: does not agree with {INDEX_FILE}; index and shards come from "
            "different saves, fetch them together again\n" + "\n".join(problems)
        )


def _read_index(index: Path) -> dict[str, str]:
    """Weight name -> shard file name."""
    try:
        content = read_json(index, object_pairs_hook=unique_keys)
        shard_of = {str(name): str(shard) for name, shard in content["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError) as error:
        raise WeightsError(
            f'{index}: not a readable index ({error}); expected JSON with "weight_map": {{name: shard}}. '
            "Copy or download it again"
        ) from error
    outside = sorted({shard for shard in shard_of.values() if not _SHARD_NAME.fullmatch(shard)})
    if outside:
        raise WeightsError(f"{index}: {outside[0]!r} is not the name of a .safetensors file in this folder")
    if not shard_of:
        raise WeightsError(f"{index}: its weight_map is empty; copy or download it again")
    return shard_of


def _what_is_there(folder: Path) -> str:
    """The content of a folder without weights, and what would help."""
    names = sorted(entry.name for entry in folder.iterdir())
    has_shards = any(name.endswith(".safetensors") for name in names)
    pickled = [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    if pickled and not has_shards:
        return f"{pickled[0]} is a pickle, which is never loaded: save the model as safetensors first"
    return f"there is {', '.join(names[:LISTED]) or 'nothing'}{'; shards need their index' if has_shards else ''}"
