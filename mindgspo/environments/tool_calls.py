"""Tool calls in the text of an assistant's turn, in the forms that published chat templates teach.

hermes   <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them        Qwen2.5, Qwen3
llama3   <|python_tag|>{"name": ..., "parameters": {...}}; {...}, with or without the tag    Llama 3.1 and later
none     no calls

The text is what a model wrote: work and memory are bounded, and what cannot be read is an error that the model can be
shown. Worker processes import this module by itself, so it needs the standard library alone.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

STYLES = ("hermes", "llama3", "none")
MALFORMED = "malformed"
"""The kind of all errors that `parse` finds."""

MAX_CALLS = 16
MAX_CALL_BYTES = 64 << 10
MAX_DEPTH = 32
MAX_DIGITS = 100
"""Of an integer."""
MAX_NAME = 128

_OPEN, _CLOSE, _PYTHON_TAG = "<tool_call>", "</tool_call>", "<|python_tag|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that can be read; whether there is such a tool is not known here."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A turn in parts."""

    calls: tuple[ToolCall, ...]
    errors: tuple[str, ...]
    """Short messages for the model, one per call that cannot be read."""
    content: str
    """The text outside of calls, without white space around it."""


class _MalformedError(ValueError):
    """A short message for the model."""


def style_of(text: str) -> str:
    """The style that a prompt teaches; "none" if it teaches none of those known here. text: a conversation with tools,
    as the chat template renders it."""
    if _OPEN in text and '"arguments"' in text:  # some templates want XML inside of the tags
        return "hermes"
    if '"parameters": ' in text and ("ipython" in text or _PYTHON_TAG in text):
        return "llama3"
    return "none"


def parse(text: str, style: str) -> Parsed:
    """The calls of an assistant's turn, in order. text: with the tags of calls, without the token that ended the turn.

    At most 16 calls of 64 KiB each are read, 32 levels deep; NaN, infinities, integers of more than 100 digits, equal
    keys and half surrogate pairs are malformed. Never raises for a text.
    """
    assert style in STYLES, style
    if style == "none":
        return Parsed(calls=(), errors=(), content=text.strip())
    return _hermes(text) if style == "hermes" else _llama3(text)


def _hermes(text: str) -> Parsed:
    calls: list[ToolCall] = []
    errors: list[str] = []
    outside: list[str] = []
    place = 0
    while (start := text.find(_OPEN, place)) >= 0:
        outside.append(text[place:start])
        if len(calls) + len(errors) == MAX_CALLS:
            return _too_many(calls, errors, outside)
        try:
            call, place = _call(text, start + len(_OPEN), "arguments")
            end = _after_space(text, place)
            if not text.startswith(_CLOSE, end):
                raise _MalformedError(f"expected {_CLOSE} behind the JSON object")
            place = end + len(_CLOSE)
            calls.append(call)
        except _MalformedError as error:
            errors.append(f"malformed tool call: {error}")
            close = text.find(_CLOSE, start)
            place = len(text) if close < 0 else close + len(_CLOSE)
    outside.append(text[place:])
    return _parsed(calls, errors, outside)


_LOOKS_LIKE_A_CALL = re.compile(r'\{\s*"(name|type|parameters)"')


def _llama3(text: str) -> Parsed:
    place = _after_space(text, 0)
    if text.startswith(_PYTHON_TAG, place):
        place = _after_space(text, place + len(_PYTHON_TAG))
    elif not _LOOKS_LIKE_A_CALL.match(text, place):
        return _parsed([], [], [text])
    calls: list[ToolCall] = []
    errors: list[str] = []
    while place < len(text):
        if len(calls) == MAX_CALLS:
            return _too_many(calls, errors, [])
        try:
            call, place = _call(text, place, "parameters")
            place = _after_space(text, place)
            if place < len(text) and text[place] != ";":
                raise _MalformedError("expected ; or the end of the turn behind the JSON object")
            place = _after_space(text, place + 1)
            calls.append(call)
        except _MalformedError as error:  # where the next call begins cannot be known
            errors.append(f"malformed tool call: {error}")
            break
    if not calls and not errors:
        errors.append(f"malformed tool call: expected a JSON object behind {_PYTHON_TAG}")
    return _parsed(calls, errors, [])


def _too_many(calls: list[ToolCall], errors: list[str], outside: list[str]) -> Parsed:
    return _parsed(calls, [*errors, f"more than {MAX_CALLS} tool calls in one turn; the rest is not read"], outside)


def _parsed(calls: list[ToolCall], errors: list[str], outside: list[str]) -> Parsed:
    return Parsed(calls=tuple(calls), errors=tuple(errors), content="".join(outside).strip())


def _call(text: str, place: int, key: str) -> tuple[ToolCall, int]:
    """The call whose JSON object stands at `place`, and the place behind it. Raises _MalformedError."""
    start = _after_space(text, place)
    end = _end_of_object(text, start)
    value = _json_object(text[start:end])
    name, arguments = value.get("name"), value.get(key)
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise _MalformedError(f'expected "name" with the name of a tool, of at most {MAX_NAME} characters')
    if not isinstance(arguments, dict):
        raise _MalformedError(f'expected "{key}" with a JSON object')
    return ToolCall(name=name, arguments=arguments), end


# A string, which may lack its end, or a bracket.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)


def _end_of_object(text: str, start: int) -> int:
    """The place behind the JSON object that begins at `start`. Raises _MalformedError for one that does not end, is too
    deep or too long, before any parser reads it."""
    if not text.startswith("{", start):
        raise _MalformedError("expected a JSON object")
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text, start, start + MAX_CALL_BYTES + 1):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match[0], 0)
        if depth > MAX_DEPTH:
            raise _MalformedError(f"nested more than {MAX_DEPTH} deep")
        if depth == 0:
            return match.end()
    if len(text) - start > MAX_CALL_BYTES:
        raise _MalformedError(f"more than {MAX_CALL_BYTES >> 10} KiB")
    raise _MalformedError("the JSON object does not end")


def _json_object(text: str) -> dict[str, Any]:
    try:
        if len(text.encode()) > MAX_CALL_BYTES:
            raise _MalformedError(f"more than {MAX_CALL_BYTES >> 10} KiB")
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refused, parse_int=_integer, parse_float=_finite
        )
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise _MalformedError(f"not JSON (character {error.pos}: {error.msg})") from None
    except UnicodeEncodeError:
        raise _MalformedError("holds half a surrogate pair, which is no character") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _MalformedError("a key is given twice")
    return found


def _refused(name: str) -> float:
    raise _MalformedError(f"{name} is no JSON")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _MalformedError(f"an integer of more than {MAX_DIGITS} digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _MalformedError(f"{digits[:20]} is too large")
    return value


_SPACE = re.compile(r"[ \t\n\r]*")


def _after_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    assert found is not None, "it matches nothing as well"
    return found.end()
