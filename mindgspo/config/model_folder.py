"""`model.path` alone is enough: what its folder says, put under what the file sets itself. Pure Python."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mindgspo.config.huggingface_config import FILE, contradictions, nearest_model, read_model_section
from mindgspo.config.messages import config_error
from mindgspo.config.model import ModelSection
from mindgspo.errors import WeightsError
from mindgspo.text import listed

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json")
_SENTENCEPIECE = "*.model"
_NEEDED = tuple(name for name, field in ModelSection.model_fields.items() if field.is_required())


def with_model_folder(source: str, mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of an experiment, or of a file of model_configs/, whose section `model` has all that config.json of
    `model.path` says. As it is where the folder need not be read: no path, or no config.json and every size set.

    source: what errors call it. Raises ConfigError: a value that is set and contradicts config.json, a model that is
    not implemented, sizes that stand nowhere.
    """
    given = mapping.get("model")
    path = given.get("path") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(path, str):
        return dict(mapping)
    folder = Path(path)
    if not os.path.isfile(folder / FILE):
        missing = [name for name in _NEEDED if name not in given]
        if missing:
            what = f"has no {FILE}" if os.path.isdir(folder) else "is no folder"
            fix = f"give {nearest_model(folder) or 'a Hugging Face folder'}, or set them"
            raise config_error(
                source, [f"model.path: {folder} {what}, and model.{listed(missing)} are read from there; {fix}"]
            )
        return dict(mapping)
    try:
        found = read_model_section(folder)
    except WeightsError as error:
        raise config_error(source, [f"model.path: {error}"]) from None
    merged = {**found.model_dump(mode="json", exclude={"dtype", "backend"}), **given}
    try:
        configured = ModelSection.model_validate_json(json.dumps(merged), strict=True)
    except ValidationError:
        return {**mapping, "model": merged}  # for the whole configuration's validation to say
    problems = contradictions(configured, found, given)
    if problems:
        raise config_error(source, problems)
    return {**mapping, "model": merged}


def with_tokenizer_folder(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping of an experiment whose tokenizer is that of `model.path`, where it sets no `tokenizer.path` and that
    folder has one."""
    model, tokenizer = mapping.get("model"), mapping.get("tokenizer", {})
    path = model.get("path") if isinstance(model, Mapping) else None
    if not isinstance(path, str) or not isinstance(tokenizer, Mapping) or "path" in tokenizer:
        return dict(mapping)
    return {**mapping, "tokenizer": {"path": path, **tokenizer}} if has_tokenizer(Path(path)) else dict(mapping)


def has_tokenizer(folder: Path) -> bool:
    """Whether files of a tokenizer lie in the folder."""
    named = any(os.path.isfile(folder / name) for name in _TOKENIZER_FILES)
    return named or (os.path.isdir(folder) and any(folder.glob(_SENTENCEPIECE)))
