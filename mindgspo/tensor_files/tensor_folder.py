"""Tensors of a file, or of a folder with one file or an index of shards, as one.

What enters: a path. What leaves: one mapping over all shards. Called by `arrays`, conversions and checkpoint tools. The
index is untrusted: a shard is a plain name in the same folder, and index and shards must agree on every name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from mindgspo.errors import WeightsError
from mindgspo.tensor_files.damage import LISTED, listed
from mindgspo.tensor_files.safetensors_format import unique_keys
from mindgspo.tensor_files.tensor_file import TensorFile, open_tensor_file
from mindgspo.tensor_files.tensor_info import CHUNK_BYTES, TensorInfo

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_SHARD_NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,200}\.safetensors")


class TensorFolder:
    """Open files that share one set of names; made by `open_tensors`. A context manager."""

    def __init__(self, path: Path, files: Sequence[TensorFile]) -> None:
        """files: in the order in which their tensors are listed."""
        self.path = path
        self.files = tuple(files)
        self.file_of: Mapping[str, TensorFile] = {name: file for file in files for name in file.tensors}
        self.tensors: Mapping[str, TensorInfo] = {name: file.tensors[name] for name, file in self.file_of.items()}
        pairs = [set(file.metadata.items()) for file in files]
        self.metadata: Mapping[str, str] = dict(sorted(set.intersection(*pairs)))

    def read(self, name: str) -> np.ndarray:
        """A whole tensor, its bits as stored."""
        return self.file_of[name].read(name)

    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """A part of a tensor, its bits as stored."""
        return self.file_of[name].read_slice(name, index)

    def chunks(self, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[NDArray]:
        """A whole tensor, flat, in pieces."""
        return self.file_of[name].chunks(name, chunk_bytes)

    def close(self) -> None:
        """Let the files go."""
        for file in self.files:
            file.close()

    def __enter__(self) -> TensorFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_tensors(path: Path) -> TensorFolder:
    """One file, a folder's `model.safetensors`, or the shards that its index names.

    Raises WeightsError: nothing to read, a truncated or damaged file, a missing shard, an index that contradicts its
    shards, a dtype that numpy has not.
    """
    if path.is_file():
        return TensorFolder(path, [open_tensor_file(path)])
    if not path.is_dir():
        raise WeightsError(f"{path}: no such file or folder; give a folder with {SINGLE_FILE}")
    single, index = path / SINGLE_FILE, path / INDEX_FILE
    if single.is_file() and index.is_file():
        raise WeightsError(
            f"{path}: holds both {SINGLE_FILE} and {INDEX_FILE}, so it is not clear which weights "
            "are meant; remove the one that is out of date"
        )
    if single.is_file():
        return TensorFolder(path, [open_tensor_file(single)])
    if index.is_file():
        return TensorFolder(path, _open_shards(index))
    raise WeightsError(f"{path}: neither {SINGLE_FILE} nor {INDEX_FILE} is there; {_what_is_there(path)}")


def _open_shards(index: Path) -> list[TensorFile]:
    """The shards of an index, by name; index and shards must agree on every name."""
    shard_of = _read_index(index)
    shards = sorted(set(shard_of.values()))
    absent = [shard for shard in shards if not (index.parent / shard).is_file()]
    if absent:
        raise WeightsError(
            f"{index}: {len(absent)} of {len(shards)} shards are not there: {', '.join(absent[:LISTED])}; "
            "copy or download them into the same folder"
        )
    files: list[TensorFile] = []
    try:
        for shard in shards:
            files.append(open_tensor_file(index.parent / shard))
            _compare(files[-1], {name for name, owner in shard_of.items() if owner == shard})
    except BaseException:
        for file in files:
            file.close()
        raise
    return files


def _compare(file: TensorFile, expected: set[str]) -> None:
    problems = [
        *listed("named by the index but not in the shard", sorted(expected - file.tensors.keys())),
        *listed("in the shard but not placed there by the index", sorted(file.tensors.keys() - expected)),
    ]
    if problems:
        raise WeightsError(
            f"{file.path}: does not agree with {INDEX_FILE}; index and shards come from "
            "different saves, fetch them together again\n" + "\n".join(problems)
        )


def _read_index(index: Path) -> dict[str, str]:
    """Weight name -> shard file name."""
    try:
        content = json.loads(index.read_text(encoding="utf-8"), object_pairs_hook=unique_keys)
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
    """What stands in a folder without weights, and what would help."""
    names = sorted(entry.name for entry in folder.iterdir())
    shards = [name for name in names if name.endswith(".safetensors")]
    if shards:
        return f"there is {', '.join(shards[:3])}: shards need their index, a single file the name {SINGLE_FILE}"
    pickled = [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    if pickled:
        return f"{pickled[0]} is a pickle, which is never loaded: save the model as safetensors first"
    return f"there is {', '.join(names[:LISTED]) or 'nothing'}"
