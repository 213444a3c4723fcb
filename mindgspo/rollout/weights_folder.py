"""Hands weights over to servers through a folder in Hugging Face layout, or adapters in PEFT's, which any server reads.

A manifest with the SHA-256 of each tensor lets our own servers prove that they hold the weights that were written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil

from mindgspo.config import ExperimentConfig, ModelSection
from mindgspo.config.huggingface_config import huggingface_config
from mindgspo.errors import WeightsError
from mindgspo.io import make_folder, publish_folder, read_json, remove_folder, temporary_path, write_file
from mindgspo.models.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, BASE_KEY, peft_config, peft_names
from mindgspo.models.names import compute_type, trained_weight_shapes, weight_shapes
from mindgspo.tensor_files.formats import library_order
from mindgspo.tensor_files.reader import SINGLE_FILE, open_tensors
from mindgspo.tensor_files.tensors import FILE_DTYPES, TensorInfo, TensorSource, info_of, rounded
from mindgspo.tensor_files.writer import write_tensors

MANIFEST = "weights.json"
SHARED_MEMORY = Path("/dev/shm")


def weights_folders(config: ExperimentConfig, *, shared_memory: Path = SHARED_MEMORY) -> tuple[Path, ...]:
    """Return the folders of this run that may hand weights over, the preferred one first. Their names below a folder
    that is shared are their own. shared_memory: folder in memory that all processes of a machine see."""
    assert config.run_dir is not None, "config is not resolved"
    run_dir, servers = config.run_dir.absolute(), config.rollout.servers
    name = f"mindgspo-{run_dir.name}-{hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:12]}"
    if servers.weights_dir is not None:
        return (servers.weights_dir.absolute() / name,)
    hosts = {urlsplit(url).hostname or "" for url in servers.urls}
    in_memory = (shared_memory / name,) if hosts <= {"localhost", "127.0.0.1", "::1"} else ()
    return (*in_memory, run_dir / "rollout_weights")


def claim_weights_folder(folders: Sequence[Path], model: ModelSection, *, only_trained: bool) -> Path:
    """Return the first of `weights_folders` that can be used, for as long as the run lasts. Of several, all but the
    last are in memory: weights take at most half of what is free there, and the folder belongs to this user alone.

    only_trained: adapters and trained norms travel alone.
    """
    shapes = trained_weight_shapes(model) if only_trained else weight_shapes(model.base)
    needed = 2 * sum(
        prod(shape) * (4 if compute_type(name, model.dtype) == "float32" else 2) for name, shape in shapes.items()
    )
    for folder in folders[:-1]:
        with suppress(OSError):
            if min(shutil.disk_usage(folder.parent).free, psutil.virtual_memory().available) >= needed:
                with suppress(FileExistsError):  # of a run that was killed
                    folder.mkdir(mode=0o700)
                found = folder.lstat()
                if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
                    return folder
    return folders[-1]


def write_weights(
    folder: Path, tensors: Mapping[str, np.ndarray], model: ModelSection, version: int, *, base: str | None = None
) -> int:
    """Publish `folder` atomically; returns the tensors' bytes there. Nothing is flushed to disk, because the folder is
    of no use to another run.

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
