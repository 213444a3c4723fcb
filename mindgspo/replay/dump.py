"""A dumped step, read without trust: its files are checked against each other and the configuration before anything is
computed with them. Somebody may have sent it."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.errors import CheckpointError, ConfigError, WeightsError
from mindgspo.io import read_bytes, read_json
from mindgspo.models.names import parameter_shapes, weight_shapes
from mindgspo.tensor_files import open_tensors, read_safetensors
from mindgspo.text import counted
from mindgspo.trainer.dump import FORMAT, MOMENT
from mindgspo.trainer.updates import batch_file
from mindgspo.types import Batch

_MOST_UPDATES, _MOST_DIRECTORY = 1 << 16, 1 << 16
_INTEGERS = ("num_sequences", "num_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """A folder of `trainer.dump.StepDump`. facts: its step.json."""

    folder: Path
    config: ExperimentConfig
    facts: Mapping[str, Any]

    @classmethod
    def open(cls, folder: Path) -> Dump:
        """Raises CheckpointError where it is no dump, one of another format, or one whose parts do not fit each other;
        ConfigError for its configuration."""
        try:
            facts = read_json(folder / "step.json")
        except (OSError, ValueError) as error:
            why = "it holds no step.json" if isinstance(error, (FileNotFoundError, NotADirectoryError)) else error
            raise CheckpointError(
                f"{folder}: no dumped step ({why}); --set trainer.dump_step=5 writes one to <run_dir>/dumps"
            ) from error
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            raise CheckpointError(f"{folder}: a dump of another version of mindgspo; this one reads format {FORMAT}")
        if wrong := _wrong_facts(facts):
            raise CheckpointError(f"{folder}/step.json: {wrong} is not what a dump has; {_REMEDY}")
        # Weights are in the dump, the model's folder need not be here.
        config = load_config(folder / "config.yaml", ["model.path="], check_files=False)
        if config.model.backend != "native":
            raise ConfigError(f"{folder}: model.backend={config.model.backend} cannot be run again; native can")
        dump = cls(folder=folder, config=config, facts=facts)
        dump._check_tensors()
        return dump

    def batches(self, number: int) -> list[Batch]:
        """Of the update number `number`, from 1 on. Raises CheckpointError."""
        count = self.facts["updates"][number - 1]["micro_batches"]
        return [_read_batch(batch_file(self.folder, f"update_{number}", index), self.config) for index in range(count)]

    def path(self, name: str) -> Path:
        """Of a file of tensors."""
        return self.folder / f"{name}.safetensors"

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        """Of one of its files; {} where it was not written."""
        return read_safetensors(self.path(name)) if self.path(name).exists() else {}

    def _check_tensors(self) -> None:
        """Names and shapes, by the headers: so a model is no larger than the files."""
        model = self.config.model
        weights, parameters = weight_shapes(model), parameter_shapes(model)
        moments = {f"{MOMENT}{name}": shape for name, shape in parameters.items()}
        for name, expected in {
            "weights": weights, "weights_after": weights, "optimizer": moments, "gradients": parameters
        }.items():  # fmt: skip
            if name == "gradients" and not self.path(name).exists():  # the first update was skipped
                continue
            found = self._shapes(name)
            if name == "optimizer":  # `load_tensors` compares the rest
                found = {key: shape for key, shape in found.items() if key.startswith(MOMENT)}
            if found != expected:
                key = min(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
                raise CheckpointError(
                    f"{self.path(name)}: {key} has shape {found.get(key, 'none (missing)')}, and the model "
                    f"{expected.get(key, 'none of that name')}; {_REMEDY}"
                )

    def _shapes(self, name: str) -> dict[str, tuple[int, ...]]:
        try:
            with open_tensors(self.path(name)) as file:
                wrong = next((key for key, one in file.tensors.items() if one.shape and one.dtype != "F32"), None)
                if wrong is not None:
                    raise CheckpointError(f"{self.path(name)}: {wrong} is {file.tensors[wrong].dtype}; {_REMEDY}")
                return {key: info.shape for key, info in file.tensors.items()}
        except WeightsError as error:
            raise CheckpointError(f"{error}; {_REMEDY}") from error

    def __str__(self) -> str:
        device = f"{'emulated ' if self.facts['is_emulated'] else ''}{self.facts['device']}"
        ranks = counted(self.facts["world_size"], "rank")
        versions = ", ".join(f"{name} {version}" for name, version in self.facts["versions"].items())
        return f"step {self.facts['step']} of {self.config.experiment}, {device}, {ranks}; {versions}"


_REMEDY = "the dump is damaged or was changed: copy it again, or dump the step anew"
_FACTS = {"step": int, "device": str, "is_emulated": bool, "world_size": int, "versions": dict, "updates": list}
_UPDATE = {"is_skipped": bool, "micro_batches": int, "lr": float, "kl_coef": float}
_RESULT = {"loss": float, "grad_norm": float}


def _wrong_facts(facts: Mapping[str, Any]) -> str | None:
    """The first key whose value is not of its kind."""
    wrong = _wrong_key(facts, _FACTS)
    if wrong is not None:
        return wrong
    if not all(isinstance(one, str) for one in facts["versions"].values()):
        return "versions"
    if not 1 <= len(facts["updates"]) <= _MOST_UPDATES:
        return "updates"
    for number, update in enumerate(facts["updates"], 1):
        if not isinstance(update, dict):
            return f"updates, number {number}"
        wrong = _wrong_key({"is_skipped": False} | update, _UPDATE | ({} if update.get("is_skipped") else _RESULT))
        if wrong is not None or not 1 <= update["micro_batches"] <= _MOST_UPDATES:
            return f"{wrong or 'micro_batches'} of update {number}"
    return None


def _wrong_key(found: Mapping[str, Any], kinds: Mapping[str, type]) -> str | None:
    for key, kind in kinds.items():
        value = found.get(key)
        if type(value) is not kind and not (kind is float and type(value) is int and abs(value) < 1 << 53):
            return key
        if kind is float and not math.isfinite(value):
            return key
    return None


def _read_batch(path: Path, config: ExperimentConfig) -> Batch:
    try:
        arrays = read_arrays(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}; {_REMEDY}") from error
    if problem := _wrong_array(arrays, config):
        raise CheckpointError(f"{path}: {problem}; {_REMEDY}")
    given: dict[str, Any] = {name: int(one) if name in _INTEGERS else one for name, one in arrays.items()}
    return Batch(**given)


def _wrong_array(arrays: Mapping[str, np.ndarray], config: ExperimentConfig) -> str | None:
    """What keeps the arrays from being a batch for the model; its graphs look nothing up outside of their tables."""
    names = {field.name for field in fields(Batch)}
    if not names - {"experts_RTX"} <= arrays.keys() <= names:
        return f"it has {', '.join(sorted(arrays)) or 'no arrays'} instead of {', '.join(sorted(names))}"
    for name, array in arrays.items():
        kind = np.bool_ if name == "mask_NK" else np.float32 if name.endswith(_FLOATS) else np.int32
        if name in _INTEGERS:
            if array.shape != () or array.dtype.kind not in "iu" or not 0 < int(array) < 1 << 53:
                return f"{name} is no positive number"
        elif name == "experts_RTX":
            if array.dtype.kind not in "iu" or array.ndim != 3:
                return f"{name} is {array.dtype} with {array.ndim} axes"
        elif array.dtype != kind or array.ndim != len(name.rpartition("_")[2]):
            return f"{name} is {array.dtype} with {array.ndim} axes"
    rows, slots = arrays["ids_RT"].shape, arrays["mask_NK"].shape
    shapes = {"RT": rows, "NK": slots, "P": arrays["predict_P"].shape, "N": slots[:1], "RTX": rows}
    for name, array in arrays.items():
        axes = name.rpartition("_")[2]
        if name not in _INTEGERS and (array.shape[: len(shapes[axes])] != shapes[axes] or not array.size):
            return f"{name} has shape {list(array.shape)}, beside {list(shapes[axes])} of others"
    if not arrays["mask_NK"].any():
        return "mask_NK has no token"
    limits = {
        "ids_RT": config.model.vocab_size, "targets_P": config.model.vocab_size, "segments_RT": rows[1] + 1,
        "positions_RT": min(config.model.max_position_embeddings, rows[1]), "predict_P": math.prod(rows),
        "place_NK": shapes["P"][0], "experts_RTX": config.model.num_experts or 0,
    }  # fmt: skip
    for name, limit in limits.items():
        array = arrays.get(name)
        if array is not None and array.size and not 0 <= int(array.min()) <= int(array.max()) < limit:
            return f"{name} has numbers from {array.min()} to {array.max()}, and 0 to {limit - 1} are possible"
    return None


_FLOATS = ("logp_NK", "advantages_NK", "correction_NK")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file as numpy writes it. Raises OSError; ValueError for anything else: compressed members
    (which may be a thousand times as large as the file), pickles, headers that promise more than there is."""
    content = read_bytes(path)
    end = content[-22:]  # what zipfile would look up is read here first: a directory of millions of names fills memory
    if len(end) < 22 or end[:4] != b"PK\5\6" or content[-42:-38] == b"PK\6\7":
        raise ValueError("is no npz file as numpy writes it, or its end is missing")
    if int.from_bytes(end[12:16], "little") > _MOST_DIRECTORY:
        raise ValueError("has a directory that is too large")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if any(one.compress_type != zipfile.ZIP_STORED or one.flag_bits & 1 for one in members):
                raise ValueError("has compressed members, which are not read")
            if len({one.filename for one in members}) < len(members) or sum(m.file_size for m in members) > len(
                content
            ):
                raise ValueError("has members that overlap")
            return {one.filename.removesuffix(".npy"): _array(one.filename, archive.read(one)) for one in members}
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise ValueError(f"is no npz file that can be read ({error})") from error


def _array(name: str, content: bytes) -> np.ndarray:
    """One member, which is an array with a header before it."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[
            version
        ]
        shape, is_fortran, dtype = read_header(file)
    except (ValueError, KeyError, TypeError, RecursionError, MemoryError, OverflowError) as error:
        raise ValueError(f"{name} is no array ({type(error).__name__}: {error})") from error
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ValueError(f"{name} holds {dtype}, which is not read")
    rest = content[file.tell() :]
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError(f"{name} has {len(rest):,} bytes for shape {shape!s:.80} of {dtype}")
    return np.frombuffer(rest, dtype).reshape(shape, order="F" if is_fortran else "C").copy()
