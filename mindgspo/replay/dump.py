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
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from mindgspo.config import ExperimentConfig, load_config
from mindgspo.errors import CheckpointError, ConfigError, WeightsError
from mindgspo.io import read_bytes, read_json
from mindgspo.models.names import trained_shapes, weight_shapes
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.writer import read_safetensors
from mindgspo.text import counted
from mindgspo.trainer.dump import FORMAT, MOMENT
from mindgspo.trainer.updates import batch_file
from mindgspo.types import Batch

_MOST_UPDATES, _MOST_DIRECTORY, _MOST_TURNS = 1 << 16, 1 << 16, 1 << 8
_INTEGERS = ("num_sequences", "num_tokens")
_FLOATS = ("logp_NK", "advantages_NK", "correction_NK")
_REMEDY = "the dump is damaged or was changed: copy it again, or dump the step anew"


class UpdateFacts(BaseModel):
    """An update of the dumped step."""

    model_config = ConfigDict(strict=True)

    is_skipped: bool = False
    """Whether its loss or gradients were not finite; it then has neither."""
    micro_batches: int = Field(ge=1, le=_MOST_UPDATES)
    lr: FiniteFloat
    kl_coef: FiniteFloat
    loss: FiniteFloat = 0.0
    grad_norm: FiniteFloat = 0.0


class StepFacts(BaseModel):
    """The content of step.json that a replay needs."""

    model_config = ConfigDict(strict=True)

    step: int
    device: str
    is_emulated: bool
    world_size: int
    versions: dict[str, str]
    updates: list[UpdateFacts] = Field(min_length=1, max_length=_MOST_UPDATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """A folder of `trainer.dump.StepDump`."""

    folder: Path
    config: ExperimentConfig
    facts: StepFacts

    @classmethod
    def open(cls, folder: Path) -> Dump:
        """Raises CheckpointError if it is no dump, one of another format, or one whose parts do not fit each other;
        ConfigError for its configuration."""
        facts = _read_facts(folder)
        # Weights are in the dump, the model's folder need not be here.
        config = load_config(folder / "config.yaml", ["model.path="], check_files=False)
        if config.model.backend != "native":
            raise ConfigError(f"{folder}: model.backend={config.model.backend} cannot be run again; native can")
        dump = cls(folder=folder, config=config, facts=facts)
        dump._check_tensors()
        return dump

    def batches(self, number: int) -> list[Batch]:
        """Micro-batches of the update `number`, from 1 on. Raises CheckpointError."""
        count = self.facts.updates[number - 1].micro_batches
        return [_read_batch(batch_file(self.folder, f"update_{number}", index), self.config) for index in range(count)]

    def path(self, name: str) -> Path:
        """Path of a file of tensors."""
        return self.folder / f"{name}.safetensors"

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        """Tensors of one of its files; {} if it was not written."""
        return read_safetensors(self.path(name)) if self.path(name).exists() else {}

    def _check_tensors(self) -> None:
        """Names and shapes, by the headers: so a model is no larger than the files."""
        model = self.config.model
        weights, trained = weight_shapes(model), trained_shapes(model)
        moments = {f"{MOMENT}{name}": shape for name, shape in trained.items()}
        for name, expected in {
            "weights": weights, "weights_after": weights, "optimizer": moments, "gradients": trained
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
        facts = self.facts
        device = f"{'emulated ' if facts.is_emulated else ''}{facts.device}"
        versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
        return (
            f"step {facts.step} of {self.config.experiment}, {device}, {counted(facts.world_size, 'rank')}; {versions}"
        )


def _read_facts(folder: Path) -> StepFacts:
    try:
        found = read_json(folder / "step.json")
    except (OSError, ValueError) as error:
        why = "it holds no step.json" if isinstance(error, (FileNotFoundError, NotADirectoryError)) else error
        raise CheckpointError(
            f"{folder}: no dumped step ({why}); --set trainer.dump_step=5 writes one to <run_dir>/dumps"
        ) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CheckpointError(f"{folder}: a dump of another version of mindgspo; this one reads format {FORMAT}")
    try:
        return StepFacts.model_validate(found)
    except ValidationError as error:
        wrong = ".".join(map(str, error.errors()[0]["loc"]))
        raise CheckpointError(f"{folder}/step.json: {wrong} is not what a dump has; {_REMEDY}") from error


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
    """Why the arrays are no batch for the model, whose graphs look nothing up outside of their tables."""
    names = {field.name for field in fields(Batch)}
    algorithm, optional = config.algorithm, {"experts_RTX"}
    optional |= {"turns_NK"} if algorithm.ratio_over == "response" else set()
    optional |= {"selected_NK"} if algorithm.name not in ("clip_cov", "kl_cov") else set()
    if not names - optional <= arrays.keys() <= names:
        return f"it has {', '.join(sorted(arrays)) or 'no arrays'} instead of {', '.join(sorted(names))}"
    for name, array in arrays.items():
        axes = 0 if name in _INTEGERS else len(name.rpartition("_")[2])
        if array.ndim != axes or not _has_dtype(name, array):
            return f"{name} is {array.dtype} with {array.ndim} axes"
    if wrong := next((name for name in _INTEGERS if not 0 < int(arrays[name]) < 1 << 53), None):
        return f"{wrong} is no positive number"
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
        "place_NK": shapes["P"][0], "experts_RTX": config.model.num_experts or 0, "turns_NK": _MOST_TURNS,
    }  # fmt: skip
    for name, limit in limits.items():
        array = arrays.get(name)
        if array is not None and array.size and not 0 <= int(array.min()) <= int(array.max()) < limit:
            return f"{name} has numbers from {array.min()} to {array.max()}, and 0 to {limit - 1} are possible"
    return None


def _has_dtype(name: str, array: np.ndarray) -> bool:
    if name in _INTEGERS or name == "experts_RTX":
        return array.dtype.kind in "iu"
    return array.dtype == (
        np.bool_ if name in ("mask_NK", "selected_NK") else np.float32 if name.endswith(_FLOATS) else np.int32
    )


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file as numpy writes it. Raises OSError; ValueError for anything else: compressed members
    (which may be a thousand times as large as the file), pickles, headers that promise more than there is."""
    content = read_bytes(path)
    # What zipfile would look up is read here first: a directory of millions of names fills memory.
    end = content[-22:]
    if len(end) < 22 or end[:4] != b"PK\5\6" or content[-42:-38] == b"PK\6\7":
        raise ValueError("is no npz file as numpy writes it, or its end is missing")
    if int.from_bytes(end[12:16], "little") > _MOST_DIRECTORY:
        raise ValueError("has a directory that is too large")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if any(one.compress_type != zipfile.ZIP_STORED or one.flag_bits & 1 for one in members):
                raise ValueError("has compressed members, which are not read")
            names, size = {one.filename for one in members}, sum(one.file_size for one in members)
            if len(names) < len(members) or size > len(content):
                raise ValueError("has members that overlap")
            return {one.filename.removesuffix(".npy"): _array(one.filename, archive.read(one)) for one in members}
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise ValueError(f"is no npz file that can be read ({error})") from error


def _array(name: str, content: bytes) -> np.ndarray:
    """One member, which is an array with a header before it."""
    file = io.BytesIO(content)
    try:
        np.lib.format.read_magic(file)
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    except (ValueError, TypeError, RecursionError, MemoryError, OverflowError) as error:
        raise ValueError(f"{name} is no array ({type(error).__name__}: {error})") from error
    if dtype.kind not in "biuf" or dtype.itemsize > 8:
        raise ValueError(f"{name} holds {dtype}, which is not read")
    rest = content[file.tell() :]
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError(f"{name} has {len(rest):,} bytes for shape {shape!s:.80} of {dtype}")
    return np.frombuffer(rest, dtype).reshape(shape, order="F" if is_fortran else "C").copy()
