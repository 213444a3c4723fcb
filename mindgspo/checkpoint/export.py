"""The trained model as a Hugging Face folder.

What enters: weights under Hugging Face names, the two configurations, the tokenizer. What leaves: a folder
that `transformers` and inference engines load. Called by the trainer at the end and by the `convert` command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from mindgspo.checkpoint.model_folder import filled_folder
from mindgspo.checkpoint.weight_files import Weight, num_bytes, write_weights
from mindgspo.io import write_json
from mindgspo.tensor_files import FILE_DTYPES, WeightDtype, info_of

# Without it transformers refuses a file.
METADATA = {"format": "pt"}
_CHUNK_ELEMENTS = 1 << 20


class SavesItself(Protocol):
    """What the export asks of a tokenizer."""

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into an existing folder."""


def export_huggingface(
    folder: Path,
    *,
    tensors: Mapping[str, np.ndarray],
    model_config: Mapping[str, object],
    generation_config: Mapping[str, object],
    tokenizer: SavesItself,
    run_id: str | None = None,
    dtype: WeightDtype = "float32",
    max_shard_bytes: int | None = None,
) -> None:
    """Write the weights, config.json, generation_config.json and the tokenizer's files into `folder`.

    The folder is filled aside and renamed: it is absent, or the old one, or the new one, never half of it.
    run_id: the run that exports (`RunFolder.run_id`). An existing export of the same run is replaced; with
    None nothing is ever replaced. dtype: of the weights in the file; must agree with model_config where
    that names one. max_shard_bytes: None writes one model.safetensors, else shards with an index.
    Raises CheckpointError: the folder holds something else, or the write failed.
    """
    for key in ("dtype", "torch_dtype"):
        assert model_config.get(key, dtype) == dtype, f"config.json says {model_config[key]}, the file {dtype}"
    weights = [
        Weight(name=name, stored=info_of(tensor), dtype=FILE_DTYPES[dtype], chunks=partial(_chunks, tensor))
        for name, tensor in tensors.items()
    ]
    with filled_folder(folder, run_id=run_id, num_bytes=num_bytes(weights)) as filled:
        write_weights(filled, weights, max_shard_bytes=max_shard_bytes, metadata=METADATA)
        write_json(filled / "config.json", dict(model_config))
        write_json(filled / "generation_config.json", dict(generation_config))
        tokenizer.save(filled)


def _chunks(tensor: np.ndarray) -> Iterator[np.ndarray]:
    flat = np.ascontiguousarray(tensor).reshape(-1)
    for start in range(0, flat.size, _CHUNK_ELEMENTS):
        yield flat[start : start + _CHUNK_ELEMENTS]
