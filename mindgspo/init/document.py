"""An experiment as YAML with comments, for people to read and change."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from mindgspo.config.yaml_dialect import parse_document
from mindgspo.text import printable

_WIDTH = 110
_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./-]*")


def commented_document(title: str, mapping: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """YAML of the mapping, its sections one below the other. comments: by dotted key, put above the line."""
    lines = [*_comment(title, 0)]
    for key, value in mapping.items():
        if isinstance(value, Mapping) or key == next(iter(mapping)):
            lines.append("")
        lines += _lines(key, value, comments, "", is_section=True)
    text = "\n".join(lines) + "\n"
    assert parse_document(text) == mapping, "what is written is not what was meant"
    return text


def _lines(key: str, value: Any, comments: Mapping[str, str], above: str, *, is_section: bool = False) -> Iterator[str]:
    """A key with its comment: on one line if it fits there and is no section. above: dotted, of what it stands in."""
    indent = 2 * above.count(".")
    yield from _comment(comments.get(above + key, ""), indent)
    line = f"{' ' * indent}{key}: {_flow(value)}"
    if not isinstance(value, Mapping) or not (is_section or len(line) > _WIDTH):
        yield line
        return
    yield f"{' ' * indent}{key}:"
    for name, below in value.items():
        yield from _lines(name, below, comments, f"{above}{key}.")


def _comment(text: str, indent: int) -> Iterator[str]:
    prefix = " " * indent + "# "
    for paragraph in printable(text).splitlines():
        yield from textwrap.wrap(paragraph, _WIDTH, initial_indent=prefix, subsequent_indent=prefix)


def _flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(str(key))}: {_flow(below)}" for key, below in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and parse_document(value) == value:
        return value
    return json.dumps(value, ensure_ascii=not (isinstance(value, str) and value.isprintable()))
