"""Inputs that users name: a model on disk (an exported folder, a run, or a step of one) and prompts. No MindSpore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindgspo.checkpoint.adapted import open_all_weights
from mindgspo.checkpoint.manifest import MANIFEST_FILE, verify
from mindgspo.checkpoint.store import CHECKPOINT_FILES, PARAMETERS_FILE, newest_checkpoint
from mindgspo.config import ModelSection, TokenizerSection, load_config
from mindgspo.config.huggingface_config import read_model_section
from mindgspo.data.source_rows import messages_of
from mindgspo.data.sources import read_file
from mindgspo.errors import CheckpointError, DataError, WeightsError
from mindgspo.io import decoded, read_lines
from mindgspo.metrics.files import CONFIG_FILE
from mindgspo.models.principal import plain_model
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.tensor_files.tensors import TensorSource
from mindgspo.tokenization import ChatMessage, Tokenizer
from mindgspo.tokenization.tokenizer import read_object, tokenizer_section_of
from mindgspo.types import Int32Array

MAX_NEW_TOKENS = 2048
"""Longest response where neither an option nor the folder's generation_config.json says; half of the model's positions
where these are few."""

PromptText = str | Sequence[ChatMessage]
"""A question, or a conversation that ends with one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A model on disk that `find_model` has located; its weights are not read yet."""

    place: Path
    """Folder that was taken, for messages."""
    section: ModelSection
    """Architecture."""
    tokenizer: TokenizerSection
    """Tokenizer, with the tokens that end a response."""
    weights: Path
    """Folder or file with tensors under Hugging Face names."""
    generation: Mapping[str, object]
    """Content of generation_config.json; empty for a step of a run."""
    base: tuple[ModelSection, int] | None = None
    """Of a step of a run: its model with the base's folder, and its seed."""

    def open(self) -> AbstractContextManager[TensorSource]:
        """Tensors under Hugging Face names, for a block."""
        return open_tensors(self.weights) if self.base is None else open_all_weights(self.place, *self.base)

    @property
    def positions(self) -> int:
        """Most tokens of prompt and response together."""
        return self.section.max_position_embeddings


def default_length(model: ModelSection, generation: Mapping[str, object]) -> int:
    """Longest response unless an option sets it: that of generation_config.json, else see `MAX_NEW_TOKENS`."""
    named = generation.get("max_new_tokens")
    if type(named) is int and named >= 1:
        return named
    return max(1, min(MAX_NEW_TOKENS, model.max_position_embeddings // 2))


def find_model(path: Path, *, tokenizer: Path | None = None, eos_tokens: Sequence[str] = ()) -> FoundModel:
    """Find the model at a path: the export of a run, or its newest complete checkpoint while it has no export.

    tokenizer, eos_tokens: instead of those of the folder. Raises WeightsError, CheckpointError, TokenizerError and
    ConfigError where there is no model.
    """
    step = _step_of_run(path)
    if step is not None:
        return _in_step(step, tokenizer, eos_tokens)
    folder = path / "export" if _is_run(path) else path
    return FoundModel(
        place=folder,
        section=read_model_folder(folder),
        tokenizer=tokenizer_section_of(folder, tokenizer or folder, eos_tokens),
        weights=folder,
        generation=read_object(folder / "generation_config.json"),
    )


def read_model_folder(folder: Path) -> ModelSection:
    """Read the architecture from config.json, `path` made absolute. Raises WeightsError if there is none, or no
    weights."""
    if (folder / MANIFEST_FILE).is_file():
        raise WeightsError(f"{folder}: a checkpoint of a run; `mindgspo checkpoint export {folder} DIR`, then give DIR")
    if _is_run(folder):
        raise WeightsError(f"{folder}: a run; give its export folder, or `mindgspo checkpoint export` one of its steps")
    section = read_model_section(folder)
    if not any(folder.glob("*.safetensors")):
        raise WeightsError(f"{folder}: holds no *.safetensors; give a Hugging Face folder with config.json and weights")
    return section.model_copy(update={"path": folder.absolute()})


def _is_run(path: Path) -> bool:
    return (path / "checkpoints").is_dir() and not (path / "config.json").is_file()


def _step_of_run(path: Path) -> Path | None:
    """The checkpoint at a path; None for a folder with a model."""
    if (path / MANIFEST_FILE).is_file():
        return path
    if not _is_run(path) or (path / "export").is_dir():
        return None
    step = newest_checkpoint(path / "checkpoints", clears=False)
    if step is None:
        raise CheckpointError(f"{path}: a run without an export and without a checkpoint; wait for its first one")
    return step


def _in_step(step: Path, tokenizer: Path | None, eos_tokens: Sequence[str]) -> FoundModel:
    path = step.absolute().parent.parent / CONFIG_FILE
    if not path.is_file():
        raise CheckpointError(
            f"{step}: not inside a run folder ({path} is not there), which says what model it is; give the whole run, "
            "or an export"
        )
    verify(step, required=CHECKPOINT_FILES, hashes=False)
    config = load_config(path, check_files=False)
    section = config.tokenizer
    folder = tokenizer or section.path
    if folder is not None and (tokenizer is not None or eos_tokens):
        section = tokenizer_section_of(folder, folder, eos_tokens or section.eos_tokens)
    elif eos_tokens:
        section = section.model_copy(update={"eos_tokens": tuple(eos_tokens)})
    model = plain_model(config.model)
    lora = model.lora and model.lora.model_copy(update={"path": None})
    model = model.model_copy(update={"path": None, "lora": lora})
    return FoundModel(
        place=step,
        section=model,
        tokenizer=section,
        weights=step / PARAMETERS_FILE,
        generation={},
        base=(config.model, config.seed),
    )


# ----- prompts


def encode_prompt(
    tokenizer: Tokenizer, prompt: PromptText, where: str, *, system_prompt: str | None = None, is_raw: bool = False
) -> Int32Array:
    """Encode a prompt up to the start of the answer; int32 [L].

    where: its name in errors. system_prompt: for a conversation without one of its own. is_raw: text to go on with; no
    chat template. Raises DataError for a prompt without a token, TokenizerError where the chat template is missing or
    fails.
    """
    if is_raw:
        if not isinstance(prompt, str):
            raise DataError(f"{where}: a conversation goes through the chat template; raw prompts are text")
        text = prompt
    else:
        messages: list[ChatMessage]
        if isinstance(prompt, str):
            messages = [{"role": "user", "content": prompt}]
        else:
            messages = [*messages_of(list(prompt) if isinstance(prompt, Sequence) else prompt, where)]
        if system_prompt is not None and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system_prompt})
        text = tokenizer.render_chat(messages)
    ids = tokenizer.encode(text)
    if not ids:
        raise DataError(f"{where}: holds no token")
    return np.array(ids, dtype=np.int32)


def read_prompts(path: Path) -> list[PromptText]:
    """Read the prompts of a file: of *.jsonl the key `prompt`, a text or a list of messages, or `messages`; of any
    other file every line that is not empty. Raises DataError naming file and line."""
    prompts: list[PromptText]
    if path.suffix == ".jsonl":
        prompts = [_prompt_of(row, where) for where, row in read_file(path)]
    else:
        try:
            prompts = [decoded(line).rstrip("\r\n") for _, line in read_lines(path, DataError) if line.strip()]
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: cannot be read ({error}); give a file with prompts") from error
    if not prompts:
        raise DataError(f"{path}: holds no prompt")
    return prompts


def _prompt_of(row: Mapping[str, object], where: str) -> PromptText:
    key = only_key(row, "prompt", "messages", where)
    value = row[key]
    return value if isinstance(value, str) and key == "prompt" else messages_of(value, f"{where}: {key}")


def only_key(row: Mapping[str, object], first: str, second: str, where: str) -> str:
    """Which of two keys a row has. Raises DataError if it has both or neither."""
    keys = [key for key in (first, second) if key in row]
    if len(keys) != 1:
        raise DataError(f'{where}: expected either "{first}" or "{second}", got {", ".join(keys) or "neither"}')
    return keys[0]
