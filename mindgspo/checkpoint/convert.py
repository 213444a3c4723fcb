"""A model's weights in another layout, dtype or number of files.

What enters: a model (see `model_source`) and what it shall become. What leaves: a new folder with the weights,
config.json and whatever travels with a model. Called by `mindgspo convert weights` and tools/convert_weights.py. A
chunk of one weight is in memory at a time, whatever the size of the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from mindgspo.checkpoint.byte_progress import byte_progress
from mindgspo.checkpoint.export import METADATA
from mindgspo.checkpoint.model_folder import filled_folder
from mindgspo.checkpoint.model_source import Description, ModelSource, open_model_source
from mindgspo.checkpoint.weight_files import MINDSPORE_INDEX_FILE, FileFormat, Weight, num_bytes, write_weights
from mindgspo.errors import WeightsError
from mindgspo.io import json_bytes
from mindgspo.models.mindformers_names import mindformers_name
from mindgspo.tensor_files import FILE_DTYPES, INDEX_FILE, WeightDtype

Layout = Literal["huggingface", "mindformers"]

# A chunk becomes several arrays of its size while it is rounded.
_CHUNK_BYTES = 4 << 20
_METADATA: Mapping[Layout, Mapping[str, str]] = {"huggingface": METADATA, "mindformers": {"format": "ms"}}
_INDEX_NAMES: Mapping[Layout, tuple[str, ...]] = {
    "huggingface": (INDEX_FILE,),
    "mindformers": (INDEX_FILE, MINDSPORE_INDEX_FILE),
}
_DTYPE_KEYS = ("dtype", "torch_dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """source, model_folder: as `open_model_source` takes them. out: a folder that is absent or empty. dtype: of all
    weights, None keeps each as it is. max_shard_bytes: None writes one file."""

    source: Path
    out: Path
    model_folder: Path | None = None
    layout: Layout = "huggingface"
    dtype: WeightDtype | None = None
    file_format: FileFormat = "safetensors"
    max_shard_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """files: with weights. num_bytes: of all weights. travelled: names of the other files."""

    files: tuple[Path, ...]
    num_weights: int
    num_bytes: int
    travelled: tuple[str, ...]


def convert_weights(conversion: Conversion, *, shows_progress: bool = False) -> Converted:
    """Write the folder `conversion.out`; it is absent, or whole.

    shows_progress: a bar on stderr, if that is a terminal. Raises WeightsError, CheckpointError, TokenizerError: the
    source is damaged or does not fit its config.json, a value overflows the dtype, a weight has no name in the layout,
    the target holds something, the disk is full.
    """
    assert conversion.file_format == "safetensors" or (
        conversion.layout == "mindformers" and conversion.max_shard_bytes is None
    ), f"{conversion}: the command line refuses this"
    out = conversion.out
    with open_model_source(conversion.source, model_folder=conversion.model_folder) as source:
        weights = _weights(source, conversion)
        description = source.description
        files = {"config.json": _config(description, conversion.dtype), **description.files}
        total = num_bytes(weights)
        with (
            filled_folder(out, run_id=None, num_bytes=total) as filled,
            byte_progress("converting", total, is_wanted=shows_progress) as written,
        ):
            paths = write_weights(
                filled,
                weights,
                file_format=conversion.file_format,
                max_shard_bytes=conversion.max_shard_bytes,
                metadata=_METADATA[conversion.layout] if conversion.file_format == "safetensors" else None,
                index_names=_INDEX_NAMES[conversion.layout],
                written=written,
            )
            for name, content in files.items():
                (filled / name).write_bytes(content)
    return Converted(
        files=tuple(out / path.name for path in paths),
        num_weights=len(weights),
        num_bytes=total,
        travelled=tuple(sorted(files)),
    )


def _weights(source: ModelSource, conversion: Conversion) -> list[Weight]:
    """Every weight under its new name, with its new dtype."""
    rename: Callable[[str], str] = mindformers_name if conversion.layout == "mindformers" else str
    weights = []
    for name, stored_name in source.stored_names.items():
        stored = source.tensors.tensors[stored_name]
        weights.append(
            Weight(
                name=rename(name),
                stored=stored,
                dtype=stored.dtype if conversion.dtype is None else FILE_DTYPES[conversion.dtype],
                chunks=partial(source.tensors.chunks, stored_name, _CHUNK_BYTES),
            )
        )
    return weights


def _config(description: Description, dtype: WeightDtype | None) -> bytes:
    """config.json: byte for byte, unless it names another dtype than the weights now have."""
    content = json.loads(description.config)
    present = [key for key in _DTYPE_KEYS if key in content]
    if dtype is None or (present and all(content[key] == dtype for key in present)):
        return description.config
    try:
        return json_bytes({**content, **dict.fromkeys(present or _DTYPE_KEYS[-1:], dtype)})
    except ValueError as error:
        raise WeightsError(f"config.json: cannot be written with another dtype ({error}); repair it first") from error
