"""Foreign files, read and told apart by their keys: shell commands of verl, YAML of MindFormers, MindRLHF, MindSpeed-RL
and TRL.

YAML becomes a flat mapping of dotted keys in bounded time and memory. It is PyYAML's own dialect (YAML 1.1, with
aliases), because the suites read their files with it; tags that make anything but plain data are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from mindgspo.config.yaml_dialect import explain
from mindgspo.errors import ConfigError
from mindgspo_migrate.shell import read_overrides
from mindgspo_migrate.tables import Reading

_MOST_BYTES, _MOST_VALUES, _DEEPEST = 1_000_000, 20_000, 40
_MOST_DIGITS = 400
_CONSTRUCTED = ("null", "bool", "int", "float", "str", "seq", "map", "timestamp")
_MARKS = {
    "mindspeed": ("megatron_training.",),  # before MindRLHF, whose names of sections it shares
    "mindrlhf": ("rl_config.", "actor_config.", "generate_config."),
    "mindformers": (
        *("run_mode", "model.model_config.", "parallel_config.", "runner_config.", "pretrained_model_dir"),
        *("parallelism.", "training.local_batch_size", "lr_scheduler."),
    ),
    "trl": ("model_name_or_path", "dataset_name", "reward_funcs", "loss_type", "num_generations"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One foreign file. suite: the table that reads it."""

    path: Path
    suite: str
    reading: Reading

    @property
    def name(self) -> str:
        """What the report calls it."""
        return self.path.name


def read_source(path: Path, suite: str | None) -> Source:
    """The file, as one of `suite`, or of the one that its keys tell. Raises ConfigError with path and reason."""
    text = _text(path)
    if path.suffix == ".py":
        raise ConfigError(
            f"{path}: Python is not read, as nothing is run; TRL is read from its YAML (trl grpo --config)"
        )
    try:
        if suite == "verl" or (suite is None and path.suffix not in (".yaml", ".yml")):
            return Source(path=path, suite="verl", reading=read_overrides(text))
        values, twice = read_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {explain(error)}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    reading = Reading(values=values)
    for key in twice:
        reading.remark(key, "", "given twice in one place; the last one counts")
    found = suite or _suite_of(values)
    if found is None:
        raise ConfigError(
            f"{path}: no key of MindFormers (run_mode, parallel_config, ...), MindRLHF (rl_config, ...), MindSpeed-RL "
            "(megatron_training, ...) or TRL (model_name_or_path, ...) in it; verl is read from a command line or a "
            "list of overrides; if it is one of them, say so with --from"
        )
    return Source(path=path, suite=found, reading=reading)


def _text(path: Path) -> str:
    try:
        if path.is_file() and path.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{path}: has {path.stat().st_size:,} bytes, a configuration at most {_MOST_BYTES:,}")
        with path.open("rb") as file:  # a pipe or device does not say how long it is
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ConfigError(f"{path}: longer than the {_MOST_BYTES:,} bytes that a configuration has at most")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _suite_of(values: Mapping[str, Any]) -> str | None:
    for suite, marks in _MARKS.items():
        sections = tuple(mark for mark in marks if mark.endswith("."))
        if any(key in marks or key.startswith(sections) for key in values):
            return suite
    is_model = any(key.endswith((".ffn_hidden_size", ".num_query_groups")) for key in values)
    return "mindspeed" if is_model else None


class _Loader(yaml.SafeLoader):
    """Makes mappings, lists and scalars only; refuses merge keys, whose copies grow without bound; notes keys that
    stand twice."""

    yaml_constructors: ClassVar[dict[Any, Any]] = {
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in _CONSTRUCTED
    }

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.twice: list[str] = []

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.rpartition(":")[2]
        if kind in ("int", "float") and len(node.value) > _MOST_DIGITS:  # 59:59:59 is read in groups of 60
            raise yaml.constructor.ConstructorError(None, None, "a number is too long", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, OverflowError):
            problem = f"{str(node.value)[:60]!r} is no {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                problem = "merge keys (<<) are not read; write the keys out"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        made = super().construct_mapping(node, deep)
        counted = Counter(self.construct_object(key_node, deep=True) for key_node, _ in node.value)
        self.twice += [str(key) for key, count in counted.items() if count > 1]
        return made


def read_yaml(text: str) -> tuple[dict[str, Any], list[str]]:
    """The document as dotted keys, and names of keys that stand twice (the last one counts).

    Raises yaml.YAMLError for what is no YAML, and ValueError for what is no mapping, or too large or deep a one.
    """
    loader = _Loader(text)
    try:
        document = loader.get_single_data()
    except RecursionError:
        raise ValueError(f"nests deeper than {_DEEPEST} levels") from None
    finally:
        loader.dispose()
    if not isinstance(document, Mapping):
        what = "nothing: it is empty" if document is None else type(document).__name__
        raise ValueError(f"expected `key: value` lines, got {what}")
    found: dict[str, Any] = {}
    for count, (key, value) in enumerate(_flat(document, "", 0)):
        found[key] = value
        if count >= _MOST_VALUES:
            raise ValueError(f"holds more than {_MOST_VALUES:,} values, its aliases written out")
    return found, loader.twice


def _flat(value: Any, key: str, depth: int) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf. Entries of a list of mappings go by their `type`, else by their number."""
    if depth > _DEEPEST:
        raise ValueError(f"nests deeper than {_DEEPEST} levels")
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _flat(below, f"{key}.{name}" if key else str(name), depth + 1)
    elif isinstance(value, list) and any(isinstance(entry, (Mapping, list)) for entry in value):
        types = Counter(str(entry.get("type", "")) for entry in value if isinstance(entry, Mapping))
        for number, entry in enumerate(value):
            kind = str(entry.get("type", "")) if isinstance(entry, Mapping) else ""
            yield from _flat(entry, f"{key}.{kind if kind and types[kind] == 1 else number}", depth + 1)
    else:
        yield key, value
