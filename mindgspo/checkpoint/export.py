"""Weights as a Hugging Face folder: one file or shards with an index, published atomically.

Never more than a chunk of a weight is in memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from mindgspo.config import ModelSection
from mindgspo.errors import CheckpointError
from mindgspo.io import (
    check_free_space,
    fsync_tree,
    publish_folder,
    read_json,
    remove_leftovers,
    temporary_path,
    write_error,
    write_json,
)
from mindgspo.models.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, BASE_KEY, peft_config, peft_names
from mindgspo.tensor_files.formats import library_order
from mindgspo.tensor_files.reader import INDEX_FILE
from mindgspo.tensor_files.tensors import FILE_DTYPES, FLOAT_DTYPES, ArraySource, TensorInfo, rounded
from mindgspo.tensor_files.writer import WeightDtype, write_tensor_file, write_tensors
from mindgspo.tokenization import Tokenizer

WeightFormat = Literal["safetensors", "ckpt"]
# The index of shards as MindSpore's load_distributed_checkpoint looks for it.
MINDSPORE_INDEX_FILE = "param_name_map.json"
# Marks a folder as ours; transformers ignores it.
_MARKER = "mindgspo_export.json"
_TOKENIZER_BYTES = 48 << 20  # the largest ones
# Without it transformers rejects a file.
METADATA = {"format": "pt"}
_CHUNK_BYTES = 4 << 20  # in memory at once, whatever the size of a tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A weight on its way into a file."""

    name: str
    """In the file."""
    stored: TensorInfo
    """Type in the source; a float."""
    dtype: str
    """Type in the file, by its name in safetensors."""
    chunks: Callable[[], Iterator[np.ndarray]]
    """Its stored bits, flat, in pieces, in order."""

    def __post_init__(self) -> None:
        """Refuse what cannot be rounded."""
        assert {self.stored.dtype, self.dtype} <= FLOAT_DTYPES, f"{self.name}: {self.stored.dtype} to {self.dtype}"

    @property
    def info(self) -> TensorInfo:
        """The weight in the file."""
        return TensorInfo(dtype=self.dtype, shape=self.stored.shape)

    def pieces(self, path: Path) -> Iterator[np.ndarray]:
        """Yield the bits as the file `path` will hold them. Raises WeightsError: a finite value becomes infinite."""
        for chunk in self.chunks():
            yield rounded(chunk, source=self.stored.dtype, target=self.dtype, name=self.name, path=path)


def num_bytes(weights: Sequence[Weight]) -> int:
    """Bytes of all weights in their files, headers aside."""
    return sum(weight.info.num_bytes for weight in weights)


def write_model_files(
    folder: Path,
    weights: Sequence[Weight],
    *,
    file_format: WeightFormat = "safetensors",
    max_shard_bytes: int | None = None,
    metadata: Mapping[str, str] | None = None,
    index_names: Sequence[str] = (INDEX_FILE,),
    stem: str = "model",
    written: Callable[[int], None] = lambda num_bytes: None,
) -> list[Path]:
    """Write `<stem>.<format>`, or `model-00001-of-00003.<format>` and so on with an index; returns the files.

    Shards take the weights in the order given, as many as go into max_shard_bytes (None: all); a larger weight has a
    shard of its own. written: called with the bytes just done. Raises OSError, WeightsError.
    """
    shards = _shards(weights, max_shard_bytes)
    assert file_format == "safetensors" or len(shards) == 1, "nothing reads shards of ckpt"
    suffix = f".{file_format}"
    names = [f"model-{number:05d}-of-{len(shards):05d}{suffix}" for number in range(1, len(shards) + 1)]
    paths = [folder / name for name in (names if len(shards) > 1 else [f"{stem}{suffix}"])]
    for path, shard in zip(paths, shards, strict=True):
        _write_file(path, shard, metadata, written)
    if len(shards) > 1:
        place = {weight.name: path.name for path, shard in zip(paths, shards, strict=True) for weight in shard}
        index = {"metadata": {"total_size": num_bytes(weights)}, "weight_map": dict(sorted(place.items()))}
        for name in index_names:
            write_json(folder / name, index)
    return paths


def _shards(weights: Sequence[Weight], max_shard_bytes: int | None) -> list[list[Weight]]:
    """Divide the weights into shards; there is at least one."""
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


@contextmanager
def filled_folder(folder: Path, *, run_id: str | None, num_bytes: int) -> Iterator[Path]:
    """A hidden folder that becomes `folder` if the block succeeds, and is removed otherwise.

    run_id: the run that writes. Its earlier output is replaced; with None nothing is ever replaced. num_bytes: of the
    weights, for which there must be space. Raises CheckpointError: the folder holds something else, too little space,
    or the write failed.
    """
    if not folder.name or folder.is_symlink():
        raise CheckpointError(f"{folder}: is a link or has no name of its own; name a new folder")
    filled = temporary_path(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder.parent, folder.name)
        _refuse_foreign(folder, run_id)
        check_free_space(folder, num_bytes + _TOKENIZER_BYTES, CheckpointError, "make room, or choose a larger disk")
        filled.mkdir()
        yield filled
        write_json(filled / _MARKER, {"run_id": run_id})
        fsync_tree(filled)
        publish_folder(filled, folder)
    except OSError as error:
        raise CheckpointError(f"{write_error(folder, error, num_bytes)}; nothing of it is left behind") from error
    finally:
        shutil.rmtree(filled, ignore_errors=True)


def _refuse_foreign(folder: Path, run_id: str | None) -> None:
    """Only an absent or empty folder, or this run's own export, may be replaced."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    marker = folder / _MARKER
    try:
        owner = read_json(marker)["run_id"]
    except (OSError, ValueError, KeyError, TypeError):
        owner = None
    if owner is None or owner != run_id:
        what = "already there" if run_id is None else "already there and no export of this run"
        raise CheckpointError(f"{folder}: {what}, so it is not replaced; move it away or choose another folder")


def write_adapters(folder: Path, model: ModelSection, tensors: Mapping[str, np.ndarray], *, base: str | None) -> None:
    """Write the adapters among whole tensors as PEFT does, into an existing folder. base: digest of what they belong
    to, where it is known."""
    arrays = {theirs: tensors[ours] for ours, theirs in peft_names(model).items()}
    metadata = METADATA if base is None else {**METADATA, BASE_KEY: base}
    write_tensor_file(folder / ADAPTER_WEIGHTS, arrays, metadata=metadata)
    write_json(folder / ADAPTER_CONFIG, peft_config(model))


def export_adapters(
    folder: Path,
    model: ModelSection,
    tensors: Mapping[str, np.ndarray],
    *,
    run_id: str | None = None,
    base: str | None = None,
) -> None:
    """`write_adapters` into a folder of their own; see `filled_folder`."""
    size = sum(tensors[name].nbytes for name in peft_names(model))
    with filled_folder(folder, run_id=run_id, num_bytes=size) as filled:
        write_adapters(filled, model, tensors, base=base)


def export_huggingface(
    folder: Path,
    *,
    tensors: Mapping[str, np.ndarray],
    model_config: Mapping[str, object],
    generation_config: Mapping[str, object],
    tokenizer: Tokenizer,
    run_id: str | None = None,
    dtype: WeightDtype = "float32",
    max_shard_bytes: int | None = None,
) -> None:
    """Write the weights, config.json, generation_config.json and the tokenizer's files into `folder`.

    The folder is filled under another name and renamed: it is absent, the old one or the new one, never half of it.

    run_id: the run that exports (`RunFolder.run_id`). An existing export of the same run is replaced; with None nothing
        is ever replaced.
    dtype: type of the weights in the file; must agree with model_config if that names one.
    max_shard_bytes: None writes one model.safetensors, else shards with an index.

    Raises CheckpointError if the folder holds something else, or if writing fails.
    """
    for key in ("dtype", "torch_dtype"):
        assert model_config.get(key, dtype) == dtype, f"config.json says {model_config[key]}, the file {dtype}"
    arrays = ArraySource(tensors, path=folder)
    weights = [
        Weight(name=name, stored=info, dtype=FILE_DTYPES[dtype], chunks=partial(arrays.chunks, name, _CHUNK_BYTES))
        for name, info in arrays.tensors.items()
    ]
    with filled_folder(folder, run_id=run_id, num_bytes=num_bytes(weights)) as filled:
        write_model_files(filled, weights, max_shard_bytes=max_shard_bytes, metadata=METADATA)
        write_json(filled / "config.json", dict(model_config))
        write_json(filled / "generation_config.json", dict(generation_config))
        tokenizer.save(filled)
