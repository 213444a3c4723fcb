"""The words of the pages in Chinese, from pages_cn.yaml: labels, titles of panels, findings of the diagnosis.

English is what the code writes. `{}` of an entry stands for a part that changes (a number, a name), which is translated
itself where it has an entry; the parts come back in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml

_FILE = Path(__file__).with_name("pages_cn.yaml")
_LONGEST = 2_000


@cache
def words() -> dict[str, str]:
    """English and Chinese, as the file has them."""
    return yaml.load(_FILE.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def _forms() -> list[tuple[list[str], str]]:
    """The texts around the parts that change, and the Chinese form; those with the most words of their own first."""
    forms = [(english.split("{}"), chinese) for english, chinese in words().items() if "{}" in english]
    return sorted(forms, key=lambda form: -sum(map(len, form[0])))


def chinese(text: str) -> str | None:
    """The text in Chinese; None where there is no entry for it."""
    if text in words():
        return words()[text]
    if len(text) > _LONGEST:
        return None
    for pieces, form in _forms():
        parts = _parts(text, pieces)
        if parts:
            return form.format(*(chinese(part) or part for part in parts))
    return None


def _parts(text: str, pieces: Sequence[str]) -> list[str]:
    """What stands between the pieces, each part as short as can be; nothing where the text is another. Names in a text
    come from data: no pattern that a hostile one could keep busy."""
    end = len(text) - len(pieces[-1])
    if not text.startswith(pieces[0]) or not text.endswith(pieces[-1]):
        return []
    parts, place = [], len(pieces[0])
    for piece in pieces[1:-1]:
        found = text.find(piece, place + 1, end)
        if found < 0:
            return []
        parts.append(text[place:found])
        place = found + len(piece)
    return [*parts, text[place:end]] if place < end else []
