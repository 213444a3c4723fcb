"""Converters that several tables share.

What enters: a value as a foreign file has it. What leaves: the value here, or an `Outcome`; `ValueError` says what was
expected.
"""

from __future__ import annotations

import re
from typing import Any

from mindgspo.integrations.foreign_configs.given import Given, text, whole
from mindgspo.integrations.foreign_configs.table import adjusted, left_out


def file_list(value: Any) -> list[str]:
    """One text, or a list of them."""
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise ValueError("expected a text, or a list of texts, got an empty list")
    return [text(entry) for entry in entries]


def never_below_one(value: Any, given: Given | None = None) -> int:
    """A count of at least 1."""
    count = whole(value)
    if count < 1:
        raise ValueError(f"expected a number of at least 1, got {count}")
    return count


def unlimited_below_one(value: Any, given: Given) -> Any:
    """A count; 0, -1 and nothing stand for none."""
    if value is None or whole(value) < 1:
        return left_out("none is set, as by default here")
    return whole(value)


def name_of_file(file: str) -> str:
    """An experiment's name after a file's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", file.rpartition(".")[0] or file).strip("-._")[:100] or "converted"


def run_name(value: Any, given: Given | None = None) -> Any:
    """A name that a folder can have."""
    given_name = text(str(value))
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", given_name).strip("-._")[:100]
    if not name:
        raise ValueError(f"expected a name with letters or digits, got {given_name[:60]!r}")
    return name if name == given_name else adjusted({"experiment": name}, "a folder is named after it")
