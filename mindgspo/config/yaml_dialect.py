"""The YAML this project reads and writes: plain data, without the traps of YAML 1.1; no tag runs code.

Differences from PyYAML's default:

    1e-6           a number (PyYAML: text)          a: 1, a: 2     refused (PyYAML: the last one wins)
    yes, no, on    text (PyYAML: booleans)          010, 1:30      text (PyYAML: octal 8, sexagesimal 90)
    2024-01-01     text (PyYAML: a date)            1: x           refused (keys are text)
    *name, <<      refused: `include` shares settings, and without aliases no document can be endless
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, ClassVar

import yaml
from yaml.composer import ComposerError

from mindgspo.text import shorten

_SCALARS = (
    ("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    ("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        re.compile(
            r"""^[-+]?(?:
                  (?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?
                | [0-9][0-9_]*[eE][-+]?[0-9]+
                | \.(?:inf|Inf|INF)
                )$ | ^\.(?:nan|NaN|NAN)$""",
            re.VERBOSE,
        ),
        list("-+0123456789."),
    ),
    ("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
)

MOST_DEPTH = 50  # real configurations have fewer than 10; PyYAML recurses
MOST_DIGITS = 400
"""The longest float has 309 digits before its point."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_CONSTRUCTED = ("null", "bool", "int", "float", "str", "seq", "map")


class _Loader(yaml.SafeLoader):
    """Safe loader with the scalars above, text keys only, no key twice."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}
    yaml_constructors = {
        f"tag:yaml.org,2002:{kind}": yaml.SafeLoader.yaml_constructors[f"tag:yaml.org,2002:{kind}"]
        for kind in _CONSTRUCTED
    } | {None: yaml.SafeLoader.construct_undefined}

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            problem = f"alias *{event.anchor} is not supported; repeat the value, or share it with `include`"
            raise ComposerError(None, None, problem, event.start_mark)
        self._depth += 1
        if self._depth > MOST_DEPTH:
            problem = f"nested more than {MOST_DEPTH} deep"
            raise ComposerError(None, None, problem, self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        """Refuses half a surrogate pair, which no file can hold, and numbers that take quadratic time to read."""
        text = super().construct_scalar(node)
        if not _is_unicode(text):
            problem = "half a surrogate pair, which is no character"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        if node.tag in _NUMBERS and len(text) > MOST_DIGITS:
            problem = f"a number of {len(text):,} digits; at most {MOST_DIGITS} are read"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return text

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[str, yaml.Node] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                problem = f"a key must be text, got {shorten(repr(key))}"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            if key in seen:
                first = seen[key].start_mark.line + 1
                problem = f"key {shorten(repr(key))} is given twice (first on line {first}); remove one"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen[key] = key_node
        return super().construct_mapping(node, deep)


def _is_unicode(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


class _Dumper(yaml.SafeDumper):
    """Quotes exactly the text that the loader above would not read back as text."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # PyYAML's single quotes lose Unicode's other line breaks; double quotes escape every one.
        style = None if data.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, _pattern, _first)
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)


def parse_document(text: str) -> Any:
    """One YAML document as plain data. Raises yaml.YAMLError, with line and column where they are known."""
    try:
        return yaml.load(text, _Loader)
    except ValueError as error:  # PyYAML's own, e.g. for the escape of a character beyond Unicode
        raise yaml.YAMLError(str(error)) from None


def parse_value(text: str) -> Any:
    """The value of an override: a quoted text, `[...]` or `{...}` as YAML, anything else as one plain scalar.

    A plain scalar keeps `: ` and ` #`, which a document would take for a mapping and a comment.
    Raises yaml.YAMLError.
    """
    text = text.strip()
    if text[:1] in ("[", "{", "'", '"'):
        return parse_document(text)
    loader = _Loader("")
    try:
        tag = loader.resolve(yaml.ScalarNode, text, (True, False))
        return loader.construct_object(yaml.ScalarNode(tag, text))
    finally:
        loader.dispose()


def write_document(mapping: dict[str, Any]) -> str:
    """Plain data as block-style YAML in the given key order; `parse_document` reads back equal data."""
    return yaml.dump(mapping, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def explain(error: yaml.YAMLError) -> str:
    """One line for a user: where and what, without PyYAML's excerpt of the file."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or " ".join(str(error).split())
    return problem if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
