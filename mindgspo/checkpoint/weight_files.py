"""Weights as the files of a model folder: one, or shards of limited size with an index.

What enters: weights that are read when their turn comes. What leaves: their files in a folder. Called by the export of
a run and by the conversion of weights. Never more than a chunk of a weight is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from mindgspo.io import write_json
from mindgspo.tensor_files import FLOAT_DTYPES, INDEX_FILE, TensorInfo, library_order, rounded, write_tensors

FileFormat = Literal["safetensors", "ckpt"]
# The index of shards as MindSpore's load_distributed_checkpoint looks for it.
MINDSPORE_INDEX_FILE = "param_name_map.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A weight on its way into a file.

    name: in the file. stored: what it is where it comes from, a float. dtype: what it becomes. chunks: its bits as they
    are stored there, flat, in pieces, in order.
    """

    name: str
    stored: TensorInfo
    dtype: str
    chunks: Callable[[], Iterator[np.ndarray]]

    def __post_init__(self) -> None:
        """Refuse what cannot be rounded."""
        assert {self.stored.dtype, self.dtype} <= FLOAT_DTYPES, f"{self.name}: {self.stored.dtype} to {self.dtype}"

    @property
    def info(self) -> TensorInfo:
        """What it will be in the file."""
        return TensorInfo(dtype=self.dtype, shape=self.stored.shape)

    def pieces(self, path: Path) -> Iterator[np.ndarray]:
        """Its bits as they will stand in the file `path`. Raises WeightsError: a finite value becomes infinite."""
        for chunk in self.chunks():
            yield rounded(chunk, source=self.stored.dtype, target=self.dtype, name=self.name, path=path)


def num_bytes(weights: Sequence[Weight]) -> int:
    """Of all weights in their files, headers aside."""
    return sum(weight.info.num_bytes for weight in weights)


def write_weights(
    folder: Path,
    weights: Sequence[Weight],
    *,
    file_format: FileFormat = "safetensors",
    max_shard_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
    index_names: Sequence[str] = (INDEX_FILE,),
    written: Callable[[int], None] = lambda num_bytes: None,
) -> list[Path]:
    """Write `model.<format>`, or `model-00001-of-00003.<format>` and so on with an index; returns the files.

    Shards take the weights in the order given, as many as go into max_shard_bytes (None: all); a larger weight has a
    shard of its own. written: called with the bytes just done. Raises OSError, WeightsError.
    """
    shards = _shards(weights, max_shard_bytes)
    assert file_format == "safetensors" or len(shards) == 1, "nothing reads shards of ckpt"
    suffix = f".{file_format}"
    names = [f"model-{number:05d}-of-{len(shards):05d}{suffix}" for number in range(1, len(shards) + 1)]
    paths = [folder / name for name in (names if len(shards) > 1 else [f"model{suffix}"])]
    for path, shard in zip(paths, shards, strict=True):
        _write_file(path, shard, metadata, written)
    if len(shards) > 1:
        place = {weight.name: path.name for path, shard in zip(paths, shards, strict=True) for weight in shard}
        index = {"metadata": {"total_size": num_bytes(weights)}, "weight_map": dict(sorted(place.items()))}
        for name in index_names:
            write_json(folder / name, index)
    return paths


def _shards(weights: Sequence[Weight], max_shard_bytes: int | None) -> list[list[Weight]]:
    """At least one shard."""
    if max_shard_bytes is None:
        return [list(weights)]
    shards: list[list[Weight]] = [[]]
    for weight in weights:
        if shards[-1] and num_bytes([*shards[-1], weight]) > max_shard_bytes:
            shards.append([])
        shards[-1].append(weight)
    return shards


def _write_file(
    path: Path, shard: Sequence[Weight], metadata: Mapping[str, str] | None, written: Callable[[int], None]
) -> None:
    of = {weight.name: weight for weight in shard}
    infos = {name: weight.info for name, weight in of.items()}
    if path.suffix == ".safetensors":
        infos = library_order(infos)

    def pieces() -> Iterator[tuple[str, np.ndarray]]:
        for name in infos:
            for piece in of[name].pieces(path):
                yield name, piece
                written(piece.nbytes)

    write_tensors(path, infos, pieces(), metadata=metadata)
