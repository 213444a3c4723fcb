"""A model on disk, whatever a user names: an exported folder, a run, or a step of one. No MindSpore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindgspo.checkpoint.manifest import MANIFEST_FILE, verify
from mindgspo.checkpoint.store import CHECKPOINT_FILES, PARAMETERS_FILE, newest_checkpoint
from mindgspo.config import ModelSection, TokenizerSection, load_config
from mindgspo.config.huggingface_config import read_model_section
from mindgspo.errors import CheckpointError, WeightsError
from mindgspo.metrics.files import CONFIG_FILE
from mindgspo.tokenization.tokenizer import read_object, tokenizer_section_of

MAX_NEW_TOKENS = 2048
"""Longest response where neither an option nor the folder's generation_config.json says; half of the model's positions
where these are few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """place: what was taken, for messages. section: the architecture. tokenizer: with the tokens that end a response.
    weights: a folder or file with tensors under Hugging Face names. generation: what generation_config.json says."""

    place: Path
    section: ModelSection
    tokenizer: TokenizerSection
    weights: Path
    generation: Mapping[str, object]

    @property
    def positions(self) -> int:
        """Most tokens of prompt and response together."""
        return self.section.max_position_embeddings


def default_length(model: ModelSection) -> int:
    """See `MAX_NEW_TOKENS`."""
    return max(1, min(MAX_NEW_TOKENS, model.max_position_embeddings // 2))


def find_model(path: Path, *, tokenizer: Path | None = None, eos_tokens: Sequence[str] = ()) -> FoundModel:
    """The model at a path: of a run its export, while it has none its newest complete checkpoint.

    tokenizer, eos_tokens: instead of what the folder says. Raises WeightsError, CheckpointError, TokenizerError and
    ConfigError for what is no model.
    """
    step = _step_of_run(path)
    if step is not None:
        return _in_step(step, tokenizer, eos_tokens)
    folder = path / "export" if _is_run(path) else path
    section = read_model_folder(folder)
    return FoundModel(
        place=folder,
        section=section,
        tokenizer=tokenizer_section_of(folder, tokenizer or folder, eos_tokens),
        weights=folder,
        generation=read_object(folder / "generation_config.json"),
    )


def read_model_folder(folder: Path) -> ModelSection:
    """The architecture in config.json, `path` made absolute. Raises WeightsError for a folder without one or without
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
    """The step that a path means; None for a folder with a model."""
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
    if tokenizer is not None or eos_tokens:
        folder = tokenizer or section.path
        if folder is None:
            section = section.model_copy(update={"eos_tokens": tuple(eos_tokens)})
        else:
            section = tokenizer_section_of(folder, folder, eos_tokens or section.eos_tokens)
    return FoundModel(
        place=step,
        section=config.model.model_copy(update={"path": None}),
        tokenizer=section,
        weights=step / PARAMETERS_FILE,
        generation={},
    )
