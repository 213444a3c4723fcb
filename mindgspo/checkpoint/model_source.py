"""A model to be converted: its weights, unread, its architecture, and the files that travel with it.

What enters: a Hugging Face folder, a folder or file of MindFormers, or a checkpoint of a run. What leaves: the weights
under Hugging Face names, checked against the architecture. Called by the conversion of weights. Needs no MindSpore.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mindgspo.checkpoint.manifest import MANIFEST_FILE, verify
from mindgspo.checkpoint.steps import CHECKPOINT_FILES, PARAMETERS_FILE
from mindgspo.config import ModelSection, load_config
from mindgspo.errors import CheckpointError, WeightsError
from mindgspo.io import json_bytes
from mindgspo.metrics.files import CONFIG_FILE
from mindgspo.models.huggingface_config import generation_config, huggingface_config, read_model_section
from mindgspo.models.mindformers_names import hugging_face_name
from mindgspo.models.weight_check import require_weights
from mindgspo.tensor_files import INDEX_FILE, SINGLE_FILE, TensorSource, open_tensors
from mindgspo.tensor_files.file_bytes import titled_names
from mindgspo.tokenization import load_tokenizer
from mindgspo.tokenization.files import read_files

# What MindFormers' weights are kept in, where a folder has no safetensors.
CKPT_FILE = "model.ckpt"
_GENERATION_CONFIG = "generation_config.json"
_MARK_OF_MINDFORMERS = "model.tok_embeddings.embedding_weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model without its weights. config: the bytes of config.json. files: the others, by name."""

    section: ModelSection
    config: bytes
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """tensors: open files. stored_names: {Hugging Face name: name there} of every weight, in the table's order."""

    tensors: TensorSource
    stored_names: Mapping[str, str]
    description: Description


@contextmanager
def open_model_source(source: Path, *, model_folder: Path | None) -> Iterator[ModelSource]:
    """Open a model for conversion.

    source: a Hugging Face folder; a folder with MindFormers' weights and config.json; a file of either; or the folder
    `step_XXXXXXXX` of a run. model_folder: where config.json and the tokenizer are instead.
    Raises WeightsError, CheckpointError, TokenizerError: something is missing or damaged, the architecture is unknown,
    names or shapes do not fit it.
    """
    try:
        is_checkpoint = (source / MANIFEST_FILE).is_file()
    except OSError as error:
        raise WeightsError(f"{source}: cannot be read ({error.strerror}); give a folder that you may read") from error
    if model_folder is not None:
        description = _read_description(model_folder)
    elif is_checkpoint:
        description = _describe_run(source)
    else:
        description = _read_description(source)
    if is_checkpoint:
        verify(source, required=CHECKPOINT_FILES)
    with open_tensors(_weights_path(source, is_checkpoint=is_checkpoint)) as tensors:
        stored_names = _stored_names(tensors, description.section, where=source)
        yield ModelSource(tensors=tensors, stored_names=stored_names, description=description)


def _weights_path(source: Path, *, is_checkpoint: bool) -> Path:
    if is_checkpoint:
        return source / PARAMETERS_FILE
    has_safetensors = any((source / name).is_file() for name in (SINGLE_FILE, INDEX_FILE))
    return source / CKPT_FILE if (source / CKPT_FILE).is_file() and not has_safetensors else source


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
    try:
        if (folder / _GENERATION_CONFIG).is_file():
            files[_GENERATION_CONFIG] = (folder / _GENERATION_CONFIG).read_bytes()
        return Description(section=section, config=(folder / "config.json").read_bytes(), files=files)
    except OSError as error:
        raise WeightsError(f"{folder}: cannot be read ({error})") from error


def _describe_run(checkpoint: Path) -> Description:
    """What the run's export has beside the weights, from the run's own configuration."""
    path = checkpoint.resolve().parent.parent / CONFIG_FILE
    if not path.is_file():
        raise CheckpointError(
            f"{checkpoint}: not inside a run folder ({path} is not there); name a folder with the model's config.json "
            "and tokenizer by --model-folder"
        )
    config = load_config(path, check_files=False)
    tokenizer = load_tokenizer(config.tokenizer, config.model.vocab_size)
    ids = {"eos_ids": tokenizer.eos_ids, "pad_id": tokenizer.pad_id}
    generation = generation_config(**ids, max_new_tokens=config.rollout.max_new_tokens)
    return Description(
        section=config.model,
        config=json_bytes(huggingface_config(config.model, **ids)),
        files={**tokenizer.files.contents, _GENERATION_CONFIG: json_bytes(generation)},
    )


def _stored_names(tensors: TensorSource, section: ModelSection, *, where: Path) -> dict[str, str]:
    """{Hugging Face name: name in the file} of exactly the weights that the architecture has."""
    stored = {name: name for name in tensors.tensors}
    if _MARK_OF_MINDFORMERS in stored:
        stored = _translated(stored, where)
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
