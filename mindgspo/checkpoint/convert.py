"""Convert a model's weights to another layout, dtype or number of files. Needs no MindSpore.

Only one chunk of a weight is in memory at a time, whatever the size of the model; of MindFormers' mcore models one
matrix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from mindgspo.checkpoint.adapted import open_all_weights
from mindgspo.checkpoint.export import (
    METADATA,
    MINDSPORE_INDEX_FILE,
    Weight,
    WeightFormat,
    filled_folder,
    num_bytes,
    write_adapters,
    write_model_files,
)
from mindgspo.checkpoint.manifest import MANIFEST_FILE, verify
from mindgspo.checkpoint.store import CHECKPOINT_FILES, PARAMETERS_FILE
from mindgspo.config import ModelSection, load_config
from mindgspo.config.huggingface_config import (
    generation_config,
    huggingface_config,
    left_out_record,
    read_model_section,
)
from mindgspo.config.lora import LoraSection
from mindgspo.errors import CheckpointError, WeightsError
from mindgspo.io import json_bytes, parse_json, read_bytes
from mindgspo.metrics.files import CONFIG_FILE
from mindgspo.models import mcore
from mindgspo.models.lora import BASE_KEY, merged_weight, peft_names, pet_config, read_pet_config
from mindgspo.models.names import (
    CORRECTION,
    adapter_name,
    hugging_face_name,
    is_adapter,
    mindformers_name,
    weight_shapes,
)
from mindgspo.models.principal import plain_model
from mindgspo.models.weight_check import require_weights
from mindgspo.progress import byte_progress
from mindgspo.tensor_files.formats import titled_names
from mindgspo.tensor_files.reader import INDEX_FILE, SINGLE_FILE, open_tensors
from mindgspo.tensor_files.tensors import FILE_DTYPES, TensorInfo, TensorSource, float32_of
from mindgspo.tensor_files.writer import WeightDtype
from mindgspo.tokenization import load_tokenizer
from mindgspo.tokenization.files import read_files

# Name of MindFormers' weights in a folder without safetensors.
CKPT_FILE = "model.ckpt"
GENERATION_CONFIG = "generation_config.json"
_MARK_OF_MINDFORMERS = "model.tok_embeddings.embedding_weight"
WeightNaming = Literal["huggingface", "mindformers", "mindformers-mcore"]
# A chunk becomes several arrays of its size while it is rounded.
_CHUNK_BYTES = 4 << 20
_ADAPTER = "adapter"
PET_CONFIG = "pet_config.yaml"
"""What MindFormers' configuration must say of the adapters among its weights."""
_METADATA: Mapping[WeightNaming, Mapping[str, str]] = {
    "huggingface": METADATA,
    "mindformers": {"format": "ms"},
    "mindformers-mcore": {"format": "ms"},
}
_INDEX_NAMES: Mapping[WeightNaming, tuple[str, ...]] = {
    "huggingface": (INDEX_FILE,),
    "mindformers": (INDEX_FILE, MINDSPORE_INDEX_FILE),
    "mindformers-mcore": (),
}
_MCORE_STEM = "model-0000000-0000001"
"""Of the one file of one card. MindFormers takes a folder with model.safetensors, or an index, for Hugging Face's."""
_MCORE_FILE = re.compile(r"(?:.+-)?model-\d{7}-\d{7}\.safetensors")
_DTYPE_KEYS = ("dtype", "torch_dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model without its weights."""

    section: ModelSection
    config: bytes
    """The content of config.json."""
    files: Mapping[str, bytes]
    """The other files, by name."""
    seed: int = 0
    """Of a run: what random weights are drawn from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model to be converted, its files open."""

    tensors: TensorSource
    stored_names: Mapping[str, str]
    """{Hugging Face name: name there} of every weight, in the table's order."""
    description: Description


@contextmanager
def open_model_source(
    source: Path, *, model_folder: Path | None, contiguous: mcore.Contiguous = ()
) -> Iterator[ModelSource]:
    """Open a model for conversion.

    source: a Hugging Face folder; a folder with MindFormers' weights and config.json; a file of either; or the folder
    `step_XXXXXXXX` of a run. model_folder: where config.json and the tokenizer are, if elsewhere. contiguous: of files
    of an mcore model. Raises WeightsError, CheckpointError, TokenizerError: something is missing or damaged, the
    architecture is unknown, names or shapes do not fit it.
    """
    try:
        is_checkpoint = (source / MANIFEST_FILE).is_file()
    except OSError as error:
        raise WeightsError(f"{source}: cannot be read ({error.strerror}); give a folder that you may read") from error
    in_run = is_checkpoint and model_folder is None
    description = _describe_run(source) if in_run else _read_description(model_folder or source)
    if is_checkpoint:
        verify(source, required=CHECKPOINT_FILES)
    section = description.section
    holds_adapters = in_run and section.lora is not None
    if holds_adapters:
        description = replace(description, section=plain_model(section))
    with (
        open_all_weights(source, section, description.seed)
        if holds_adapters
        else open_tensors(_weights_path(source, is_checkpoint=is_checkpoint))
    ) as tensors:
        found: TensorSource = tensors
        if holds_adapters:
            stored_names = {name: name for name in weight_shapes(description.section)}
        else:
            if mcore.MARK in tensors.tensors:
                found = mcore.UnfusedTensors(tensors, section, contiguous)
            stored_names = _stored_names(found, section, where=source)
        yield ModelSource(tensors=found, stored_names=stored_names, description=description)


def _weights_path(source: Path, *, is_checkpoint: bool) -> Path:
    if is_checkpoint:
        return source / PARAMETERS_FILE
    if any((source / name).is_file() for name in (SINGLE_FILE, INDEX_FILE)):
        return source
    of_ranks = sorted(path for path in source.glob("*.safetensors") if _MCORE_FILE.fullmatch(path.name))
    if len(of_ranks) > 1:
        raise WeightsError(
            f"{source}: {len(of_ranks)} files of MindFormers' ranks, {of_ranks[0].name} and so on; each holds slices, "
            "which are not put together here: load them in MindFormers and save from one card"
        )
    return next(iter(of_ranks), source / CKPT_FILE if (source / CKPT_FILE).is_file() else source)


def _read_description(folder: Path) -> Description:
    """A Hugging Face folder's."""
    if folder.is_file():
        raise WeightsError(f"{folder}: a file with weights alone; name a folder with its config.json by --model-folder")
    if not folder.is_dir():
        raise WeightsError(f"{folder}: no such file or folder")
    if (folder / CONFIG_FILE).is_file() and (folder / "checkpoints").is_dir():
        raise WeightsError(f"{folder}: a run; give its export, or one of its checkpoints/step_XXXXXXXX")
    if not (folder / "config.json").is_file():
        raise WeightsError(f"{folder}: holds no config.json; name a folder that does by --model-folder")
    section = read_model_section(folder)
    files = dict(read_files(folder).contents)
    if (folder / PET_CONFIG).is_file():
        section = section.model_copy(update={"lora": read_pet_config(folder / PET_CONFIG)})
    try:
        if (folder / GENERATION_CONFIG).is_file():
            files[GENERATION_CONFIG] = read_bytes(folder / GENERATION_CONFIG)
        return Description(section=section, config=read_bytes(folder / "config.json"), files=files)
    except OSError as error:
        raise WeightsError(f"{folder}: cannot be read ({error})") from error


def _describe_run(checkpoint: Path) -> Description:
    """Describe the model as the run's export would, from the run's own configuration."""
    path = checkpoint.resolve().parent.parent / CONFIG_FILE
    if not path.is_file():
        raise CheckpointError(
            f"{checkpoint}: not inside a run folder ({path} is not there); name a folder with the model's config.json "
            "and tokenizer by --model-folder"
        )
    config = load_config(path, check_files=False)
    tokenizer = load_tokenizer(config.tokenizer, config.model.vocab_size)
    ids = {"eos_ids": tokenizer.eos_ids, "pad_id": tokenizer.pad_id}
    generation = generation_config(**ids, base=config.model.path)
    return Description(
        section=config.model,
        seed=config.seed,
        config=json_bytes(huggingface_config(config.model, **ids)),
        files={**tokenizer.files.contents, GENERATION_CONFIG: json_bytes(generation)},
    )


def _stored_names(tensors: TensorSource, section: ModelSection, *, where: Path) -> dict[str, str]:
    """{Hugging Face name: name in the file} of exactly the weights that the architecture has."""
    stored = {name: name for name in tensors.tensors}
    if _MARK_OF_MINDFORMERS in stored:
        stored = _translated(stored, where)
        if section.lora is None and any(map(is_adapter, stored)):
            raise WeightsError(
                f"{where}: has adapters, whose scale is not among the weights; write the section pet_config of "
                f"MindFormers' configuration into {PET_CONFIG} beside config.json"
            )
    return require_weights(section, tensors, stored)


def _translated(names: Iterable[str], where: Path) -> dict[str, str]:
    """{Hugging Face name: MindFormers' name}."""
    translated, unknown = {}, []
    for name in names:
        try:
            translated[hugging_face_name(name)] = name
        except WeightsError:
            unknown.append(name)
    if unknown:
        raise WeightsError(
            f"{where}: has MindFormers' names, and {len(unknown)} that are no weights of its dense Qwen2 or Llama. Of "
            "a training checkpoint take the files of checkpoint_network, which have no optimizer state; w_qkv and "
            "w_gate_hidden come from qkv_concat=True, which is not supported\n"
            + "\n".join(titled_names("unknown", sorted(unknown)))
        )
    return translated


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """One conversion of a model."""

    source: Path
    """A source that `open_model_source` reads."""
    out: Path
    """A folder that is absent or empty."""
    model_folder: Path | None = None
    """A source that `open_model_source` reads."""
    layout: WeightNaming = "huggingface"
    contiguous: mcore.Contiguous = ()
    """Of an mcore model, read or written: see `models.mcore`."""
    dtype: WeightDtype | None = None
    """Type of all weights; None keeps each as it is."""
    file_format: WeightFormat = "safetensors"
    max_shard_bytes: int | None = None
    """None writes one file."""
    merges: bool = False
    """Add adapters to their weights; else they go into the folder `adapter` as PEFT writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """The outcome of a conversion."""

    files: tuple[Path, ...]
    """Files with weights."""
    num_weights: int
    num_bytes: int
    """Of all weights, headers aside."""
    travelled: tuple[str, ...]
    """Names of the other files."""

    def lines(self) -> list[str]:
        """What a command prints."""
        return [
            *map(str, self.files),
            f"{self.num_weights} weights, {self.num_bytes:,} bytes; with {', '.join(self.travelled)}",
        ]


def convert_model(conversion: Conversion, *, shows_progress: bool = False) -> Converted:
    """Write the folder `conversion.out`, whole or not at all.

    shows_progress: a bar on stderr, if that is a terminal. Raises WeightsError, CheckpointError, TokenizerError: the
    source is damaged or does not fit its config.json, a value overflows the dtype, a weight has no name in the layout,
    the target holds something, the disk is full.
    """
    assert conversion.file_format == "safetensors" or (
        conversion.layout == "mindformers" and conversion.max_shard_bytes is None
    ), f"{conversion}: the command line refuses this"
    opened = open_model_source(
        conversion.source, model_folder=conversion.model_folder, contiguous=conversion.contiguous
    )
    with opened as source:
        return write_model(source, conversion, shows_progress=shows_progress)


def write_model(source: ModelSource, conversion: Conversion, *, shows_progress: bool = False) -> Converted:
    """`convert_model` for a source that is open; `conversion.source` names it, and is not read."""
    out = conversion.out
    weights = _weights(source, conversion)
    description = source.description
    files = {"config.json": _config(description, conversion.dtype), **description.files}
    lora = None if conversion.merges else description.section.lora
    if lora is not None and conversion.layout == "mindformers":
        if lora.train_norms:
            raise WeightsError(
                f"{conversion.source}: norms were trained beside the adapters, which MindFormers' pet cannot hold; "
                "export merged weights first (mindgspo checkpoint export --merge)"
            )
        files[PET_CONFIG] = pet_config(lora)
    total = num_bytes(weights)
    with (
        filled_folder(out, run_id=None, num_bytes=total) as filled,
        byte_progress("converting", total, is_wanted=shows_progress) as written,
    ):
        paths = write_model_files(
            filled,
            weights,
            file_format=conversion.file_format,
            max_shard_bytes=conversion.max_shard_bytes,
            metadata=_METADATA[conversion.layout] if conversion.file_format == "safetensors" else None,
            index_names=_INDEX_NAMES[conversion.layout],
            stem=_MCORE_STEM if conversion.layout == "mindformers-mcore" else "model",
            written=written,
        )
        for name, content in files.items():
            (filled / name).write_bytes(content)
        if lora is not None and conversion.layout == "huggingface":
            (filled / _ADAPTER).mkdir()
            adapters = {
                name: float32_of(source.tensors, source.stored_names[name]) for name in peft_names(description.section)
            }
            base = source.tensors.metadata.get(BASE_KEY)
            write_adapters(filled / _ADAPTER, description.section, adapters, base=base)
            files[_ADAPTER] = b""
    return Converted(
        files=tuple(out / path.name for path in paths),
        num_weights=len(weights),
        num_bytes=total,
        travelled=tuple(sorted(files)),
    )


def _weights(source: ModelSource, conversion: Conversion) -> list[Weight]:
    """Every weight under its new name, with its new dtype; adapters among them where MindFormers has them."""
    if conversion.layout == "mindformers-mcore":
        return _fused_weights(source, conversion)
    is_theirs = conversion.layout == "mindformers"
    rename: Callable[[str], str] = mindformers_name if is_theirs else str
    tensors, lora = source.tensors, source.description.section.lora
    has_adapters = is_theirs and not conversion.merges
    stored_names = {
        name: stored for name, stored in source.stored_names.items() if has_adapters or not is_adapter(name)
    }
    if lora is not None and not conversion.merges:
        of_base = {name: f"base.{name}" for name in stored_names}
        stored_names |= {name: stored for name, stored in of_base.items() if stored in tensors.tensors}

    def weight(name: str, stored_name: str) -> Weight:
        info = tensors.tensors[stored_name]
        dtype = info.dtype if lora is None else "F32"  # the base may be stored in another type
        if name.endswith(CORRECTION):
            dtype = "F32"
        elif conversion.dtype is not None and not is_adapter(name):
            dtype = FILE_DTYPES[conversion.dtype]
        chunks = partial(tensors.chunks, stored_name, _CHUNK_BYTES)
        if lora is not None and conversion.merges and (of_a := adapter_name(name, "A")) in source.stored_names:
            parts = (source.stored_names[each] for each in (name, of_a, adapter_name(name, "B")))
            chunks = partial(_merged, lora, tensors, tuple(parts))
            info = TensorInfo(dtype="F32", shape=info.shape)
        return Weight(name=rename(name), stored=info, dtype=dtype, chunks=chunks)

    return [weight(name, stored_name) for name, stored_name in stored_names.items()]


def _fused_weights(source: ModelSource, conversion: Conversion) -> list[Weight]:
    """Every tensor of an mcore model's file."""
    tensors, stored_names = source.tensors, source.stored_names
    weights = []
    for fused in mcore.fused_tensors(source.description.section, conversion.contiguous):
        names = {stored_names[part.names[0]] for block in fused.blocks for part in block}
        dtypes = sorted({tensors.tensors[name].dtype for name in names})
        if len(dtypes) > 1:
            raise WeightsError(f"{conversion.source}: {fused.name} joins weights of the types {', '.join(dtypes)}")
        info = TensorInfo(dtype=dtypes[0], shape=fused.shape)
        dtype = dtypes[0] if conversion.dtype is None else FILE_DTYPES[conversion.dtype]
        chunks = partial(fused.fused, tensors, stored_names)
        weights.append(Weight(name=fused.name, stored=info, dtype=dtype, chunks=chunks))
    return weights


def _merged(lora: LoraSection, tensors: TensorSource, names: tuple[str, ...]) -> Iterator[np.ndarray]:
    """A weight with its adapter, flat. names: of W, A and B."""
    yield merged_weight(lora, *(float32_of(tensors, name) for name in names)).reshape(-1)


def _config(description: Description, dtype: WeightDtype | None) -> bytes:
    """config.json: byte for byte, unless it names another dtype than the weights now have, or layers that are left
    out."""
    content = parse_json(description.config)
    wanted = left_out_record(description.section)
    if dtype is not None:
        wanted |= dict.fromkeys([key for key in _DTYPE_KEYS if key in content] or _DTYPE_KEYS[-1:], dtype)
    if all(content.get(key) == value for key, value in wanted.items()):
        return description.config
    try:
        return json_bytes({**content, **wanted})
    except ValueError as error:
        raise WeightsError(f"config.json: cannot be changed ({error}); repair it first") from error
