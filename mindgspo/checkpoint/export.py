"""The trained model as a Hugging Face folder.

What enters: weights under Hugging Face names, the two configurations, the tokenizer. What leaves: a folder
that `transformers` and inference engines load. Called by the trainer at the end and by the `convert` command.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np

from mindgspo.checkpoint.durable import clear_leftovers, flush_tree, put_in_place, temporary_name, write_json
from mindgspo.errors import CheckpointError
from mindgspo.models.safetensors_io import SINGLE_FILE, WeightDtype, write_safetensors

# Marks a folder as ours; transformers ignores it.
_MARKER = "mindgspo_export.json"


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
) -> None:
    """Write model.safetensors, config.json, generation_config.json and the tokenizer's files into `folder`.

    The folder is filled aside and renamed: it is absent, or the old one, or the new one, never half of it.
    run_id: the run that exports (`RunFolder.run_id`). An existing export of the same run is replaced; with
    None nothing is ever replaced. dtype: of the weights in the file; must agree with model_config where
    that names one. Raises CheckpointError: the folder holds something else, or the write failed.
    """
    for key in ("dtype", "torch_dtype"):
        assert model_config.get(key, dtype) == dtype, f"config.json says {model_config[key]}, the file {dtype}"
    filled = temporary_name(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(folder.parent, folder.name)
        _refuse_foreign(folder, run_id)
        filled.mkdir()
        write_safetensors(filled / SINGLE_FILE, tensors, dtype=dtype)
        write_json(filled / "config.json", dict(model_config))
        write_json(filled / "generation_config.json", dict(generation_config))
        tokenizer.save(filled)
        write_json(filled / _MARKER, {"run_id": run_id})
        flush_tree(filled)
        put_in_place(filled, folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: the model could not be exported ({error})") from error
    finally:
        shutil.rmtree(filled, ignore_errors=True)


def _refuse_foreign(folder: Path, run_id: str | None) -> None:
    """Only an absent or empty folder, or this run's own export, may be replaced."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    marker = folder / _MARKER
    owner: object = None
    if marker.is_file():
        try:
            owner = json.loads(marker.read_text(encoding="utf-8"))["run_id"]
        except (ValueError, KeyError, TypeError):
            owner = None
    if owner is None or owner != run_id:
        raise CheckpointError(
            f"{folder}: already there and no export of this run, so it is not replaced; "
            "move it away or choose another folder"
        )
