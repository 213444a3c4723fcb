"""Conversions of texts, what came out, and the cases in the YAML files beside this one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mindgspo.config.yaml_dialect import parse_document
from mindgspo_migrate.convert import Conversion, convert
from mindgspo_migrate.tables import Finding, dotted

FILES = Path(__file__).resolve().parents[1] / "files"
"""Whole files in the manner of each suite."""


def converted(
    folder: Path, text: str, suite: str | None = None, *, name: str = "given.txt", overrides: tuple[str, ...] = ()
) -> Conversion:
    """The conversion of one file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return convert([path], suite, overrides)


def model_folder(folder: Path, **changed: Any) -> Path:
    """Sizes of a small model, its stop tokens, and their names."""
    content = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 16, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**content, **changed}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 5], "pad_token_id": 6}))
    named = [{"id": 5, "content": "<|end|>"}, {"id": 6, "content": "<|pad|>"}, {"id": 7, "content": "<|turn|>"}]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": named}))
    return folder


def flat(conversion: Conversion) -> dict[str, Any]:
    """The YAML of a conversion as dotted keys."""
    return dict(dotted(parse_document(conversion.yaml)))


def findings_of(conversion: Conversion, source: str) -> list[Finding]:
    """What the report says about a key; an assertion fails if it says nothing."""
    found = [finding for finding in conversion.findings if finding.source == source]
    assert found, f"the report says nothing about {source}"
    return found


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as sections."""
    made: dict[str, Any] = {}
    for key, value in settings.items():
        *above, leaf = key.split(".")
        place = made
        for step in above:
            place = place.setdefault(step, {})
        place[leaf] = value
    return made


def cases(suite: str) -> list[tuple[str, Any, dict[str, Any]]]:
    """(key of a row, what the file says, values here) of `<suite>.yaml`. None: nothing is set there."""
    content = yaml.safe_load(Path(__file__).with_name(f"{suite}.yaml").read_text(encoding="utf-8"))
    return [
        (key, given, {target: _expanded(value) for target, value in wanted.items()}) for key, given, wanted in content
    ]


def _expanded(value: Any) -> Any:
    return str(Path(value).expanduser()) if isinstance(value, str) and value.startswith("~/") else value
