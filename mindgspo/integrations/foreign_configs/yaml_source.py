"""Foreign YAML as a flat mapping of dotted keys: plain data, in bounded time and memory.

What enters: text. What leaves: dotted key -> scalar or list of scalars, and the keys that stand there twice. Called by
`sources`. PyYAML's own dialect (YAML 1.1, with aliases), because the suites read their files with it; its safe loader
makes plain data only, a tag that asks for more is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, ClassVar

import yaml

_MOST_VALUES = 20_000
_DEEPEST = 40
_CONSTRUCTED = ("null", "bool", "int", "float", "str", "seq", "map", "timestamp")


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
        raise ValueError(f"expected `key: value` lines, got {type(document).__name__}")
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
        types = Counter(str(entry.get("type")) for entry in value if isinstance(entry, Mapping))
        for number, entry in enumerate(value):
            kind = str(entry.get("type")) if isinstance(entry, Mapping) else ""
            yield from _flat(entry, f"{key}.{kind if types[kind] == 1 else number}", depth + 1)
    else:
        yield key, value
