"""Error codes in a log and their meaning; those that name the cause come first. The table is
error_codes.yaml. Logs are huge: only their ends are read."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import yaml

from mindgspo.text import printable, shorten

MOST_BYTES = 4 << 20
_MOST_TOLD = 2
_WIDTH = 200

# EI0006, EZ9999, E19999, ERR00100; longer words that contain such letters are not codes.
_LETTERS = re.compile(r"(?<![A-Za-z0-9_])(E[0-9A-Z]\d{4}|ERR\d{5})(?![0-9A-Za-z_])")
# `ret: 507011`, `error code is 107020`, `ErrCode=507899`, `ret[207001]`: a number alone may be anything.
_NUMBER = re.compile(
    r"(?:err(?:or)?[ _]?no|code|ret|retval|result|status)[\s:=\[(]{0,4}(?:is[\s:=\[(]{1,3})?(\d{6})(?!\d)",
    re.IGNORECASE,
)
# HcclResult: `hcclRet -> 9`, `HCCL function error: ..., error code is 4`, `errNo[0x0000000005000009]`.
_HCCL = re.compile(
    r"hcclRet -> (\d{1,2})|HCCL function error.{0,300}?error code is (\d{1,2})(?!\d)|"
    r"errNo\[0x0*5[0-9a-f]{4}([0-9a-f]{2})\]"
)


class Kind(IntEnum):
    """Significance of a code.

    CAUSE: the code is the reason itself. ECHO: mostly a consequence of another rank's failure. VAGUE: alone it says
        little.
    """

    VAGUE = 1
    ECHO = 2
    CAUSE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCode:
    """See error_codes.yaml."""

    code: str
    says: str
    cause: str
    fix: str
    kind: Kind
    text: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The first occurrence of a code in a log. number: line number from 1, within what was read. line: the line, or a
    piece of it."""

    error: ErrorCode
    number: int
    line: str


@functools.cache
def table() -> Mapping[str, ErrorCode]:
    """All codes, by code."""
    entries = yaml.safe_load(Path(__file__).with_name("error_codes.yaml").read_text(encoding="utf-8"))
    return {
        code: ErrorCode(
            code=code,
            **{**entry, "kind": Kind[entry["kind"].upper()], "text": tuple(entry.get("text", ()))},
        )
        for code, entry in entries.items()
    }


def find(lines: Iterable[str]) -> list[Seen]:
    """Codes of a log, each once: those that name the cause first, then in the order of the log."""
    known, seen = table(), {}
    pieces = {text: entry for entry in known.values() for text in entry.text}
    any_piece = re.compile("|".join(map(re.escape, pieces)))
    for number, line in enumerate(lines, 1):
        codes = [(code, start) for code, start in _codes(line) if code in known]
        if found := any_piece.search(line.lower()):
            codes.append((pieces[found[0]].code, found.start()))
        for code, start in codes:
            seen.setdefault(code, Seen(error=known[code], number=number, line=_around(line, start)))
    return sorted(seen.values(), key=lambda one: -one.error.kind)


def _codes(line: str) -> list[tuple[str, int]]:
    """The codes of a line, with their positions."""
    codes = [(found[1], found.start()) for pattern in (_LETTERS, _NUMBER) for found in pattern.finditer(line)]
    for found in _HCCL.finditer(line):
        decimal, of_function, hexadecimal = found.groups()
        codes.append((f"HCCL_{decimal or of_function or int(hexadecimal, 16)}", found.start()))
    return codes


def _around(line: str, start: int) -> str:
    """A short line whole; of a long one the piece around the code."""
    begin = max(0, start - _WIDTH // 3) if len(line) > _WIDTH else 0
    return f"{'...' if begin else ''}{line[begin : begin + _WIDTH].strip()}"


def find_in_file(path: Path) -> list[Seen]:
    """Find codes in a file's last four megabytes. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - MOST_BYTES))
        return find(file.read(MOST_BYTES).decode("utf-8", "replace").splitlines())


def told(seen: list[Seen], *, where: str = "") -> list[str]:
    """Message about the most informative codes: meaning, cause and fix. where: whose log it is, instead of line
    numbers."""
    if not seen:
        return []
    by_fix = {one.error.fix: one for one in reversed(seen) if one.error.kind == seen[0].error.kind}
    best = [one for one in seen if one in by_fix.values()][:_MOST_TOLD]
    lines = []
    for one in best:
        error = one.error
        lines += [
            f"{error.code}: {error.says}",
            f"  seen   {where or f'line {one.number}: '}{shorten(printable(one.line), _WIDTH + 3)}",
            f"  cause  {error.cause}",
            f"  fix    {error.fix}",
        ]
    others = [one.error.code for one in seen if one not in best]
    return [*lines, f"also in it: {', '.join(others[:12])}"] if others else lines
