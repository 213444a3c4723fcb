"""One row of a data source before tokenizing, and the checked reading of its fields."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np

from mindgspo.errors import DataError
from mindgspo.text import closest, listed, shorten
from mindgspo.tokenization import ChatMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """A question and its gold answer."""

    where: str
    """File and row for messages, e.g. "train.jsonl:17"."""
    messages: tuple[ChatMessage, ...]
    """The conversation that asks."""
    answer: str
    """Gold answer as text, never empty."""
    data_source: str
    """The name that chooses the reward."""
    solution: str = ""
    """Worked solution that ends in the answer ("#### 72", a box), or the JSON of a conversation that does; "" if the
    source has none."""
    extra_info: Mapping[str, object] = field(default_factory=dict)
    """JSON values only; others are converted by `json_object`."""
    nulled: Sequence[str] = field(default=(), init=False)
    """Kinds of the values of extra_info that JSON cannot express, which became null."""

    def __post_init__(self) -> None:
        assert self.messages and self.answer, f"{self.where}: a source row needs a question and an answer"
        extra_info, nulled = json_object(self.extra_info)
        object.__setattr__(self, "extra_info", extra_info)
        object.__setattr__(self, "nulled", nulled)

    @property
    def prompt_key(self) -> str:
        """A key that is equal for rows that ask the same: roles and words are equal, whitespace does not count."""
        words = [(message["role"], " ".join(message["content"].split())) for message in self.messages]
        return hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedRow:
    """A row that is left out."""

    where: str
    reason: str
    """Counted in dataset.json."""
    answer: str
    """What its gold answer says, as far as known."""


ROLES = ("system", "user", "assistant", "tool")
"""What chat templates know; they leave a message of any other role out without a word."""

# What other suites call these roles.
_OTHER_NAMES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "function": "tool"}


def text_of(row: Mapping[str, object], key: str, where: str) -> str:
    """The non-empty text at `key`."""
    if key not in row:
        raise DataError(f"{where}: {key}: expected a non-empty text, got {only_fields(row)}")
    return checked_text(row[key], f"{where}: {key}")


def checked_text(value: object, place: str) -> str:
    """`value` if it is a non-empty text that can be encoded as UTF-8."""
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{place}: expected a non-empty text, got {value_text(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{place}: holds half a surrogate pair, which is no character ({error.reason})") from None
    return value


def optional_text(value: object, place: str) -> str:
    """`checked_text`, but "" for None and the empty text."""
    return "" if value is None or value == "" else checked_text(value, place)


def first_key(row: Mapping[str, object], keys: Iterable[str], where: str) -> str:
    """The first of `keys` that the row has."""
    for key in keys:
        if key in row:
            return key
    raise DataError(f"{where}: {' or '.join(keys)}: missing; the row has {only_fields(row)}")


def answer_text(value: object, place: str) -> str:
    """A gold answer, text or number, as text. A whole float ("72.0") is written as the integer it is."""
    if isinstance(value, str) and value.strip():
        return checked_text(value, place)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, (float, Decimal)) and math.isfinite(value):
        return str(int(value)) if value == int(value) else str(value)
    raise DataError(f"{place}: the row has no gold answer (text or number), got {value!r}")


def is_blank(value: object) -> bool:
    """Whether a field is present but empty: null, or only white space."""
    return value is None or (isinstance(value, str) and not value.strip())


def messages_of(prompt: object, place: str) -> tuple[ChatMessage, ...]:
    """A conversation that ends with the message to answer."""
    messages = turns_of(prompt, place)
    if messages[-1]["role"] not in ("user", "tool"):
        last = f"{place}[{len(messages) - 1}]: role"
        raise DataError(f"{last}: the last message must be of user or tool, got {messages[-1]['role']!r}")
    return messages


def turns_of(prompt: object, place: str) -> tuple[ChatMessage, ...]:
    """A conversation: a non-empty list of {role, content}, both text, of known roles."""
    if not isinstance(prompt, list) or not prompt:
        raise DataError(f"{place}: expected a list of {{role, content}} messages, got {value_text(prompt)}")
    messages: list[ChatMessage] = []
    for i, message in enumerate(prompt):
        if not isinstance(message, Mapping):
            raise DataError(f"{place}[{i}]: expected {{role, content}}, got {value_text(message)}")
        one = f"{place}[{i}]"
        role = _checked_role(text_of(message, "role", one), f"{one}: role")
        messages.append({"role": role, "content": text_of(message, "content", one)})
    return tuple(messages)


def _checked_role(role: str, place: str) -> str:
    if role in ROLES:
        return role
    name = role.strip().lower()
    meant = _OTHER_NAMES.get(name) or closest(name, ROLES)
    hint = f"; did you mean {meant!r}?" if meant else ""
    raise DataError(f"{place}: expected one of {', '.join(ROLES)}, got {role[:60]!r}{hint}")


def asks(question: str) -> tuple[ChatMessage, ...]:
    """The conversation that consists of a user's question."""
    return ({"role": "user", "content": question},)


def json_object(value: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """`value` as JSON returns it, and the kinds of the values that JSON cannot express: NaN and infinity, bytes that
    are not text, foreign objects. These become null; decimals, times and bytes become text, arrays become lists."""
    nulled: list[str] = []
    try:
        return json.loads(json.dumps(value, allow_nan=False)), ()
    except (TypeError, ValueError):
        return json.loads(json.dumps(_json_value(value, nulled))), tuple(nulled)


def _json_value(value: object, nulled: list[str]) -> object:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _json_value(one, nulled) for key, one in value.items()}
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if isinstance(value, (list, tuple, set, np.ndarray)):
        return [_json_value(one, nulled) for one in value]
    if isinstance(value, (float, np.floating, Decimal)):
        if not math.isfinite(value):
            nulled.append("NaN or infinity")
            return None
        return str(value) if isinstance(value, Decimal) else shortest(value)
    if isinstance(value, (np.integer, np.bool_)):
        return value.item()
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (datetime.timedelta, np.datetime64, np.timedelta64, uuid.UUID)):
        return str(value)
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    nulled.append("bytes that are no text" if isinstance(value, bytes) else type(value).__name__)
    return None


def shortest(value: float | np.floating) -> float:
    """The number with the fewest decimals that equals `value` in its own type: 0.1 for the float32 0.1."""
    return float(str(value)) if isinstance(value, np.floating) else value


def present(row: Mapping[str, object], keys: Iterable[str]) -> dict[str, object]:
    """The fields of `keys` that the row has and that hold something."""
    return {key: row[key] for key in keys if row.get(key) is not None}


def only_fields(row: Mapping[str, object]) -> str:
    """The row's fields for a message."""
    return f"only the fields {listed([shorten(name) for name in row], 20) or '(none)'}"


def value_text(value: object) -> str:
    """A value for a message: its type and its beginning."""
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
