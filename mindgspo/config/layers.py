"""From files and overrides to one plain mapping: included files < the file itself < `--set`, the later wins.

What enters: a YAML path and texts such as "trainer.max_steps=20". What leaves: one mapping of plain values in
which every relative `path` has become absolute, and so has the file of a function. Called by `config.load`; nothing
here knows the schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from mindgspo.config.reward_section import file_function
from mindgspo.config.yaml_dialect import explain, parse_document, parse_value
from mindgspo.errors import ConfigError
from mindgspo.text import did_you_mean


def read_layers(path: Path, overrides: Iterable[str]) -> dict[str, Any]:
    """The merged mapping of the file, what it includes, and the overrides in their order.

    Raises ConfigError for a missing or unreadable file, an include cycle, an override that is not
    `a.b=value`.
    """
    return with_overrides(_read_file(path, including=()), overrides)


def with_overrides(mapping: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """The mapping with the overrides in their order. Raises ConfigError for one that is not `a.b=value`."""
    merged = dict(mapping)
    for override in overrides:
        merged = merge(merged, _read_override(override))
    return merged


def merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` over `base`: mappings are merged key by key at every depth, anything else (lists too) is
    replaced."""
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        both_are_mappings = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if both_are_mappings else value
    return merged


def _read_file(path: Path, including: tuple[Path, ...]) -> dict[str, Any]:
    """One file merged over its includes. `including`: the files on the way here, outermost first."""
    resolved = path.resolve()
    if resolved in including:
        chain = " -> ".join(str(one) for one in (*including, resolved))
        raise ConfigError(f"{including[-1]}: include makes a circle: {chain}; remove one of these includes")
    own = dict(_parse_file(path, including))
    included: dict[str, Any] = {}
    for name in _included_names(path, own.pop("include", None)):
        included = merge(included, _read_file(path.parent / name, (*including, resolved)))
    return merge(included, _with_absolute_paths(own, path.parent))


def _parse_file(path: Path, including: tuple[Path, ...]) -> Mapping[str, Any]:
    named_by = f"{including[-1]}: include: " if including else ""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{named_by}{path}: no such file{_similar_files(path)}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{named_by}{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{named_by}{path}: cannot be read: {error.strerror}") from None
    try:
        document = parse_document(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{named_by}{path}: {explain(error)}") from None
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise ConfigError(f"{named_by}{path}: expected `section: ...` lines, got {type(document).__name__}")
    return document


def _included_names(path: Path, include: object) -> list[str]:
    names = [] if include is None else include if isinstance(include, list) else [include]
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"{path}: include: expected a path or a list of paths, got {name!r}")
    return names


def _read_override(override: str) -> dict[str, Any]:
    """ "a.b=c" as {"a": {"b": c}}."""
    dotted, equals, text = override.partition("=")
    keys = dotted.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"--set {override}: expected section.key=value, e.g. --set trainer.max_steps=20")
    try:
        value = parse_value(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override}: {explain(error)}") from None
    for key in reversed(keys):
        value = {key: value}
    return _with_absolute_paths(value, Path.cwd())


def _with_absolute_paths(mapping: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Every key named `path`, at any depth, made absolute; so are the files of `functions`."""

    def absolute(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: absolute(name, below) for name, below in value.items()}
        if key == "path" and isinstance(value, str):
            return str(_absolute_path(value, folder))
        if key == "functions" and isinstance(value, list):
            return [_absolute_function(text, folder) for text in value]
        return value

    return {key: absolute(key, value) for key, value in mapping.items()}


def _absolute_function(text: Any, folder: Path) -> Any:
    """A user's "file.py:function" with the file made absolute; anything else as it is."""
    file = file_function(text) if isinstance(text, str) else None
    return text if file is None else f"{_absolute_path(str(file.path), folder)}:{file.name}"


def _absolute_path(text: str, folder: Path) -> Path:
    """`text` counted from `folder`, `~/` expanded. The last name stays as it is: a download cache may link
    `train.jsonl` to a file without a suffix."""
    path = folder / (Path.home() / text[2:] if text.startswith("~/") else text)
    return path.parent.resolve() / path.name


def _similar_files(path: Path) -> str:
    """'; did you mean x.yaml?' from the YAML files beside the missing one."""
    if not path.parent.is_dir():
        return f" (there is no folder {path.parent})"
    beside = sorted(one.name for one in path.parent.iterdir() if one.suffix in (".yaml", ".yml"))
    return did_you_mean(path.name, beside, show=lambda name: str(path.parent / name))
