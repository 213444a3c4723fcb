"""Sizes of a model that a foreign file only names: from its folder, or from model_configs/ where the name is known.

A name that is not in the table is not guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mindgspo
from mindgspo.config.load import read_layers
from mindgspo.errors import MindGSPOError
from mindgspo.integrations.foreign_configs.tables import dotted

_FOLDER = Path(mindgspo.__file__).resolve().parents[1] / "model_configs"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

# Last part of a path or of a hub's name -> file of model_configs/, and what is different in that variant.
KNOWN: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{
        f"Qwen2.5-{name}": (f"qwen2_5_{name.lower().replace('.', '_')}", {})
        for name in ("0.5B", "1.5B", "3B", "7B", "32B")
    },
    **{
        f"Qwen2.5-{name}-Instruct": (
            f"qwen2_5_{name.lower().replace('.', '_')}",
            {"max_position_embeddings": 32768},
        )
        for name in ("0.5B", "1.5B", "3B", "7B", "32B")
    },
    **{f"Qwen3-{name}": (f"qwen3_{name.lower().replace('.', '_')}", {}) for name in ("0.6B", "4B", "8B", "32B")},
    "Qwen3-30B-A3B": ("qwen3_30b_a3b", {}),
    "Llama-3.1-8B": ("llama3_1_8b", {}),
}


def is_local(path: str) -> bool:
    """Whether a model's path is a folder here, or can only be one, and not a name on a hub."""
    return Path(path).expanduser().is_dir() or not _HUB_NAME.fullmatch(path)


def sizes_of(path: str) -> tuple[Mapping[str, Any], str] | None:
    """(keys below `model`, where they are from) of a model's path or hub name; None if neither is known."""
    folder = Path(path).expanduser()
    if (folder / "config.json").is_file():
        return _from_folder(folder)
    known = KNOWN.get(Path(path).name)
    file = _FOLDER / f"{known[0]}.yaml" if known else None
    if known is None or file is None or not file.is_file():
        return None
    sizes = {key: value for key, value in read_layers(file, ())["model"].items() if key not in ("path", "dtype")}
    return dict(dotted({**sizes, **known[1]})), f"model_configs/{file.name}, by the name {Path(path).name}"


def _from_folder(folder: Path) -> tuple[Mapping[str, Any], str] | None:
    from mindgspo.models.huggingface_config import read_model_section

    try:
        section = read_model_section(folder)
    except MindGSPOError as error:
        raise ValueError(str(error)) from error
    sizes = section.model_dump(mode="json", exclude={"path", "dtype"}, exclude_unset=True)
    return dict(dotted(sizes)), f"{folder / 'config.json'}"
