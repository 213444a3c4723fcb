"""Hands weights over to servers through a folder in Hugging Face layout, or adapters in PEFT's, which any server reads.

A manifest with the SHA-256 of each tensor lets our own servers prove that they hold the weights that were written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo.config import ExperimentConfig, ModelSection
from mindgspo.config.huggingface_config import huggingface_config
from mindgspo.errors import WeightsError
from mindgspo.io import make_folder, publish_folder, read_json, remove_folder, temporary_path, write_file
from mindgspo.models.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, BASE_KEY, peft_config, peft_names
from mindgspo.models.names import compute_type
from mindgspo.tensor_files.formats import library_order
from mindgspo.tensor_files.reader import SINGLE_FILE, open_tensors
from mindgspo.tensor_files.tensors import FILE_DTYPES, TensorInfo, TensorSource, info_of, rounded
from mindgspo.tensor_files.writer import write_tensors

MANIFEST = "weights.json"


def weights_folder(config: ExperimentConfig) -> Path:
    """Return the folder of this run, which empties it; it has a name of its own below a shared
    `rollout.servers.weights_dir`."""
    assert config.run_dir is not None, "config is not resolved"
    run_dir, shared = config.run_dir.absolute(), config.rollout.servers.weights_dir
    if shared is None:
        return run_dir / "rollout_weights"
    digest = hashlib.sha256(os.fsencode(run_dir)).hexdigest()
    return shared.absolute() / f"mindgspo-{run_dir.name}-{digest[:12]}"


def write_weights(
    folder: Path, tensors: Mapping[str, np.ndarray], model: ModelSection, version: int, *, base: str | None = None
) -> int:
    """Publish `folder` atomically; returns the tensors' bytes there. Nothing is flushed to disk, because the folder is
    removed as soon as the servers have read it.

    tensors: float32 under Hugging Face names; they are rounded to the types of a generating model. base: digest of what
    they are the adapters of; None: whole weights.
    """
    file, metadata = SINGLE_FILE, {"format": "pt"}
    if base is None:
        config_file, config = "config.json", huggingface_config(model, eos_ids=(), pad_id=0)
    else:
        tensors = {theirs: tensors[ours] for ours, theirs in peft_names(model).items()}
        file, metadata = ADAPTER_WEIGHTS, {**metadata, BASE_KEY: base}
        config_file, config = ADAPTER_CONFIG, peft_config(model)
    targets = {name: FILE_DTYPES[compute_type(name, model.dtype)] for name in tensors}
    infos = library_order(
        {name: TensorInfo(dtype=targets[name], shape=tensor.shape) for name, tensor in tensors.items()}
    )
    filled = temporary_path(folder)
    remove_folder(filled)
    make_folder(filled)
    path, digests = filled / file, {}

    def parts() -> Iterator[tuple[str, np.ndarray]]:
        for name in infos:
            source = info_of(tensors[name]).dtype
            bits = rounded(tensors[name], source=source, target=targets[name], name=name, path=path)
            digests[name] = _digest(bits)
            yield name, bits

    write_tensors(path, infos, parts(), metadata=metadata, sync=False)
    write_file(filled / config_file, json.dumps(config).encode(), sync=False)
    write_file(filled / MANIFEST, json.dumps({"version": version, "sha256": digests}).encode(), sync=False)
    publish_folder(filled, folder)
    return sum(info.num_bytes for info in infos.values())


@dataclass(frozen=True, slots=True)
class HandedOver:
    """An open folder of weights."""

    version: int
    tensors: TensorSource
    digests: Mapping[str, str]
    """SHA-256 of each tensor, in hexadecimal digits."""

    def verify(self, name: str) -> None:
        """Compare a tensor with the manifest. Raises WeightsError."""
        found = _digest(self.tensors.read(name))
        if found != self.digests[name]:
            raise WeightsError(
                f"{self.tensors.path}: {name} has SHA-256 {found[:12]}..., {self.digests[name][:12]}... was written; "
                "check the storage that trainer and servers share"
            )


@contextmanager
def open_weights(folder: Path) -> Iterator[HandedOver]:
    """Open a folder that `write_weights` has written. Raises WeightsError."""
    try:
        manifest: Any = read_json(folder / MANIFEST)
        version, digests = int(manifest["version"]), {str(k): str(v) for k, v in manifest["sha256"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise WeightsError(f"{folder / MANIFEST}: cannot be read as a manifest of weights ({error})") from error
    adapters = folder / ADAPTER_WEIGHTS
    with open_tensors(adapters if adapters.exists() else folder) as tensors:
        if missing := digests.keys() ^ tensors.tensors.keys():
            raise WeightsError(f"{folder}: {sorted(missing)[0]} is in {MANIFEST} or in the tensor file, not in both")
        yield HandedOver(version, tensors, digests)


def _digest(bits: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(bits).reshape(-1).view(np.uint8)).hexdigest()
