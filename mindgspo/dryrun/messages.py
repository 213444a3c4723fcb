"""What MindSpore says when it refuses a graph, cut to the lines that matter.

MindSpore raises a few words with pages of call stacks, and logs the reason with its numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mindgspo.dryrun.job import Failure

_MOST_REASONS = 3
_MOST_CHARACTERS = 600

# From here on a message is call stacks.
_STACKS = re.compile(r"\n\s*-{20,}\n|\n\nAt:\n|\n# \d+ In file | \(See file ")
# [ERROR] PARALLEL(3372,7f4a4fe4cb80,python):2026-11-22-00:15:00 [mindspore/ccsrc/a/b.cc:248] Function] text
# but what it says about Python packages of CANN, which stand-ins do without.
_LOGGED = re.compile(
    r"^\[(?:ERROR|CRITICAL)\] \w+\([^)]*\):\S+ \[(?!mindspore/run_check/)[^\]]*\] (?:\w+\] )?(?P<text>.*)$",
    re.MULTILINE,
)
# What follows from a reason that was logged just before, or repeats what is raised.
_CONSEQUENCE = re.compile(
    r"\b(?:Check\w*|Init|Infer\w*) ?failed\.?$|infer failed, failed info: |Exception happened, check the information"
)
# "# 3 In file /a/b.py:40, 15~42" or without the number; the line of code follows. A range of lines is a whole function.
_FRAME = re.compile(r"^#(?: \d+)? In file (?P<file>[^\n]+?):(?P<line>\d+), [^\n]*\n(?P<code>[^\n]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """message: what was raised. reasons: what was logged about it, with numbers. place: our line of code, or ""."""

    message: str
    reasons: tuple[str, ...]
    place: str


def cut(failure: Failure, log: str) -> Refusal:
    """log: all that the process said; "" if that is not known."""
    message = _STACKS.split(failure.text, maxsplit=1)[0].strip().removeprefix("Failure:")
    if not message:
        message = failure.kind
    elif failure.phase in ("compile", "reading the graph"):
        message = f"{failure.kind}: {message}"
    return Refusal(
        message=_short(message), reasons=_reasons(log, message), place=_place(failure.text) or _shown(failure.place)
    )


def _reasons(log: str, message: str) -> tuple[str, ...]:
    found: dict[str, None] = {}  # an ordered set
    for match in _LOGGED.finditer(log):
        text = match["text"].strip()
        if text and text not in message and not _CONSEQUENCE.search(text):
            found[_short(text)] = None
    return tuple(found)[-_MOST_REASONS:]


def _place(text: str) -> str:
    """The innermost line of a cell outside of installed packages: stacks list callers first."""
    frames = [frame for frame in _FRAME.finditer(text) if "site-packages" not in frame["file"]]
    return _shown(f"{frames[-1]['file']}:{frames[-1]['line']}: {frames[-1]['code'].strip()}") if frames else ""


def _shown(place: str) -> str:
    """Paths of our own package from its name on."""
    package = Path(__file__).resolve().parents[2]
    return place.removeprefix(f"{package}/")


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."
