#!/usr/bin/env python3
"""Write docs/reference/: every setting from the schema of mindgspo/config, every command from its --help.

    python tools/write_reference.py            rewrite the pages below their marker
    python tools/write_reference.py --check    change nothing; exit code 1 if a page is stale

What stands above the marker is written by hand and kept. Texts are those of the program, which are English.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from annotated_types import Ge, Gt, Le, Lt
from generated_pages import marked_up, row, write_pages
from pydantic.fields import FieldInfo
from typer.testing import CliRunner

from mindgspo.cli.program import app
from mindgspo.config.messages import listed_section, section_of
from mindgspo.config.schema import ExperimentConfig
from mindgspo.config.section import Section

MARKER = "<!-- Everything below is written by tools/write_reference.py. -->"
ENGLISH = {
    "columns": ("setting", "value", "default", "meaning"),
    "top": "Top level",
    "same": "as",
    "required": "required",
}
CHINESE = {"columns": ("配置项", "取值", "默认值", "含义"), "top": "顶层", "same": "同", "required": "必填"}

_SIGNS = {Ge: ("ge", ">="), Gt: ("gt", ">"), Le: ("le", "<="), Lt: ("lt", "<")}
_TYPES = {int: "integer", float: "number", str: "text", Path: "path"}


def settings(words: dict[str, Any]) -> str:
    """A table per section. Sections of one kind, as data.train and data.eval, share the table of the first."""
    return "\n".join(_section(ExperimentConfig, "", words, {}))


def _section(section: type[Section], path: str, words: dict[str, Any], shown: dict[type, str]) -> Iterator[str]:
    """The table of the keys that hold values, then one part for each section below."""
    below = {name: found for name in section.model_fields if (found := section_of(section, name)) is not None}
    yield f"## {f'`{path}`' if path else words['top']}"
    if section in shown:
        yield from ("", f"{words['same']} [`{shown[section]}`](#{shown[section].replace('.', '')})", "")
        return
    shown[section] = path
    fields = {name: field for name, field in section.model_fields.items() if name not in below}
    yield from _table(section, path, words, fields)
    for name, found in below.items():
        yield from _section(found, _joined(path, name), words, shown)
        if (entry := listed_section(section, name)) is not None:
            own = {key: field for key, field in entry.model_fields.items() if key not in found.model_fields}
            yield f"## `{_joined(path, name)}[]`"
            yield from _table(entry, f"{_joined(path, name)}[]", words, own)


def _table(section: type[Section], path: str, words: dict[str, Any], fields: dict[str, FieldInfo]) -> Iterator[str]:
    """What the section is for, and a line for each of these fields."""
    yield from ("", marked_up(" ".join((section.__doc__ or "").split())), "")
    if fields:
        yield from (row(words["columns"]), row(["---"] * 4))
    for name, field in fields.items():
        meaning = marked_up(" ".join((field.description or "").split()))
        yield row((f"`{_joined(path, name)}`", _values(field), _default(field, words), meaning))
    yield ""


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _values(field: FieldInfo) -> str:
    """Type and bounds, e.g. `integer >= 1`."""
    return " or ".join(dict.fromkeys(_forms(field.annotation, field.metadata)))


def _forms(annotation: Any, rules: list[Any]) -> Iterator[str]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _forms(arguments[0], [rule for one in arguments[1:] for rule in getattr(one, "metadata", [one])])
    elif origin in (Union, UnionType):
        for argument in arguments:
            yield from _forms(argument, rules)
    elif origin is Literal:
        yield ", ".join(f"`{argument}`" for argument in arguments)
    elif origin in (tuple, dict):
        yield f"list of {' or '.join(_forms(arguments[0], []))}"
    elif annotation is bool:
        yield "`true`, `false`"
    elif annotation is not NoneType:
        bounds = [f"{sign} {getattr(rule, key):,}" for rule in rules for kind, (key, sign) in _SIGNS.items()
                  if isinstance(rule, kind)]  # fmt: skip
        yield f"{_TYPES[annotation]} {marked_up(', '.join(bounds))}".strip()


def _default(field: FieldInfo, words: dict[str, Any]) -> str:
    if field.is_required():
        return words["required"]
    value = field.default
    if value is None:
        return "none"
    return f"`{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}`" if value != "" else '`""`'


def commands() -> str:
    """The --help of every command."""
    return "\n".join(_help(typer.main.get_command(app), ()))


def _help(command: Any, words: tuple[str, ...]) -> Iterator[str]:
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from _help(below, (*words, name))
        return
    name = " ".join(("mindgspo", *words))
    shown = CliRunner().invoke(app, [*words, "--help"], prog_name="mindgspo", env={"COLUMNS": "80"}).output
    yield from (f"## {name}", "", "```text", shown.strip(), "```", "")


PAGES = {
    "reference/settings.md": partial(settings, ENGLISH),
    "reference/settings_cn.md": partial(settings, CHINESE),
    "reference/commands.md": commands,
    "reference/commands_cn.md": commands,
}

if __name__ == "__main__":
    assert __doc__ is not None
    sys.exit(write_pages(__doc__, MARKER, PAGES))
