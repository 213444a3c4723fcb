"""Python functions as tools: the JSON schema that a chat template presents, and calls with checked arguments.

Worker processes import this module by itself, so it needs the standard library alone.
"""

from __future__ import annotations

import difflib
import inspect
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

MAX_MESSAGE = 500
"""Characters of an error that the model is shown."""

UNKNOWN_TOOL, BAD_ARGUMENTS, FAILED = "unknown_tool", "bad_arguments", "failed"

_JSON_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_CONTAINERS = {list: "array", dict: "object"}
_HINTS = "str, int, float, bool, list[...], dict, Literal[...] and Optional[...]"


class ToolError(Exception):
    """A call that gave no result. kind: "unknown_tool", "bad_arguments" or "failed"; message: for the model."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, " ".join(message.split())[:MAX_MESSAGE]


def schema(function: Callable[..., object]) -> dict[str, Any]:
    """The function as chat templates take it: {"type": "function", "function": {name, description, parameters}}.

    The parameters' types come from the type hints, the descriptions from the docstring in Google's style, with a line
    per argument below "Args:", as of transformers' `get_json_schema`. Raises ValueError if one of them is missing, and
    for hints other than str, int, float, bool, list, dict, Literal, Optional.
    """
    name = _name(function)
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"the tool {name} is async; write it as an ordinary function (def, not async def)")
    description, of_arguments = _described(inspect.getdoc(function) or "")
    if not description:
        raise ValueError(f"the tool {name} has no docstring; the model chooses tools by it")
    properties: dict[str, Any] = {}
    required: list[str] = []
    for argument, (hint, parameter) in _parameters(function).items():
        if argument not in of_arguments:
            raise ValueError(f'the tool {name}: its docstring has no line "{argument}: ..." below "Args:"')
        properties[argument] = {**_hint_schema(hint, f"{name}({argument})"), "description": of_arguments[argument]}
        if parameter.default is parameter.empty:
            required.append(argument)
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def find_tool(functions: Mapping[str, Callable[..., object]], name: str) -> Callable[..., object]:
    """The function of that name. Raises ToolError "unknown_tool"."""
    if name in functions:
        return functions[name]
    close = difflib.get_close_matches(name, functions, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(functions)}" if functions else ""
    raise ToolError(UNKNOWN_TOOL, f"there is no tool {name[:80]!r}{hint}")


def call(function: Callable[..., object], arguments: Mapping[str, object]) -> object:
    """The function's result. arguments: values of JSON.

    Raises ToolError: "bad_arguments" for one that is unknown, missing or of another type than the hint; "failed" if
    the function raises an Exception.
    """
    name, parameters = _name(function), _parameters(function)
    unknown = [given for given in arguments if given not in parameters]
    if unknown:
        known = ", ".join(parameters) or "none"
        raise ToolError(BAD_ARGUMENTS, f"{name}: there is no argument {unknown[0][:80]!r}; its arguments: {known}")
    missing = [
        argument
        for argument, (_, parameter) in parameters.items()
        if argument not in arguments and parameter.default is parameter.empty
    ]
    if missing:
        raise ToolError(BAD_ARGUMENTS, f"{name}: missing: {', '.join(missing)}")
    checked = {given: _checked(value, parameters[given][0], f"{name}: {given}") for given, value in arguments.items()}
    try:
        return function(**checked)
    except Exception as error:
        raise ToolError(FAILED, f"{name}: {type(error).__name__}: {_text(error)}") from error


def _name(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _parameters(function: Callable[..., object]) -> dict[str, tuple[Any, inspect.Parameter]]:
    """{argument: (type hint, parameter)}; without the `self` of a method."""
    name = _name(function)
    try:
        hints = get_type_hints(function)
    except Exception as error:  # hints are evaluated: a name that is not there, say
        raise ValueError(f"the tool {name}: its type hints cannot be read: {error}") from error
    found: dict[str, tuple[Any, inspect.Parameter]] = {}
    for argument, parameter in inspect.signature(function).parameters.items():
        if argument in ("self", "cls") and argument not in hints:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"the tool {name}: {parameter} cannot be given by name; write arguments with names")
        if argument not in hints:
            raise ValueError(f"the tool {name}: the argument {argument} has no type hint; take one of {_HINTS}")
        found[argument] = hints[argument], parameter
    return found


_SECTIONS = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Example|Examples):[ \t]*$", re.MULTILINE)
_ARGUMENT = re.compile(r"(\w+)(?:[ \t]*\([^()\n]*\))?:[ \t]*(.*)")


def _described(doc: str) -> tuple[str, dict[str, str]]:
    """What a docstring says before its first section, and about each argument; an argument's lines are joined."""
    description, *sections = _SECTIONS.split(doc)
    found: dict[str, str] = {}
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        lines = [line for line in text.split("\n") if line.strip()] if title in ("Args", "Arguments") else []
        indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
        last = ""
        for line in lines:
            match = None if line[indent].isspace() else _ARGUMENT.match(line, indent)
            if match:
                last, found[match[1]] = match[1], match[2].strip()
            elif last:
                found[last] = f"{found[last]} {line.strip()}".strip()
    return description.strip(), {name: text for name, text in found.items() if text}


def _alternatives(hint: Any) -> tuple[Any, bool]:
    """(X, True) of Optional[X], else (hint, False)."""
    if get_origin(hint) in (Union, types.UnionType):
        others = [one for one in get_args(hint) if one is not type(None)]
        if len(others) == 1:
            return others[0], len(others) < len(get_args(hint))
    return hint, False


def _hint_schema(hint: Any, where: str) -> dict[str, Any]:
    hint, is_optional = _alternatives(hint)
    kind, inside = get_origin(hint) or hint, get_args(hint)
    found: dict[str, Any]
    if kind is Literal and all(type(one) in _JSON_NAMES for one in inside):
        names = list(dict.fromkeys(_JSON_NAMES[type(one)] for one in inside))
        found = {"type": names[0] if len(names) == 1 else names, "enum": list(inside)}
    elif kind is list:
        found = {"type": "array"}
        if inside:
            found["items"] = _hint_schema(inside[0], where)
    elif kind is dict and inside[:1] in ((), (str,)):
        found = {"type": "object"}
        if inside:
            found["additionalProperties"] = _hint_schema(inside[1], where)
    elif kind is Any:
        found = {}
    elif kind in _JSON_NAMES:
        found = {"type": _JSON_NAMES[kind]}
    else:
        raise ValueError(f"the tool's {where}: the type hint {hint} has no JSON form here; take one of {_HINTS}")
    return {**found, "nullable": True} if is_optional else found


def _checked(value: object, hint: Any, where: str) -> Any:
    """The value as its hint has it: JSON's 3 is a float's 3.0, and its 3.0 an int's 3. Raises ToolError."""
    hint, is_optional = _alternatives(hint)
    kind, inside = get_origin(hint) or hint, get_args(hint)
    if (value is None and is_optional) or kind is Any:
        return value
    if kind is Literal:
        if any(type(value) is type(one) and value == one for one in inside):
            return value
        raise ToolError(BAD_ARGUMENTS, f"{where}: expected one of {', '.join(map(repr, inside))}, got {_shown(value)}")
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise ToolError(BAD_ARGUMENTS, f"{where}: {_shown(value)} is too large") from None
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    if type(value) is not kind:
        expected = {**_JSON_NAMES, **_CONTAINERS}.get(kind, str(kind))
        raise ToolError(BAD_ARGUMENTS, f"{where}: expected {expected}, got {_shown(value)}")
    if isinstance(value, list) and inside:
        return [_checked(one, inside[0], f"{where}[{number}]") for number, one in enumerate(value)]
    if isinstance(value, dict) and inside:
        return {key: _checked(one, inside[1], f"{where}[{key[:40]!r}]") for key, one in value.items()}
    return value


def _shown(value: object) -> str:
    name = "null" if value is None else {**_JSON_NAMES, **_CONTAINERS}.get(type(value), type(value).__name__)
    text = repr(value) if isinstance(value, (str, int, float)) and value is not None else ""
    return f"{name} {text[:60]}".strip()


def _text(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # __str__ of a user's class
        return "its text cannot be shown, because __str__ raised"
