"""Markdown taken apart, and the commands of the program, for the tests that hold documents against the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import typer

from mindgspo.cli.program import app


def code_blocks(text: str) -> list[tuple[str, str]]:
    """(language, content) of every fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def code_spans(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(text))


def headings(text: str) -> list[tuple[int, str]]:
    """(level, title) in order."""
    return [(len(marks), title) for marks, title in re.findall(r"^(#+) (.+)$", prose(text), flags=re.MULTILINE)]


def tables(text: str) -> list[list[list[str]]]:
    """Rows of cells of every table, the header first, the ruler left out."""
    found: list[list[list[str]]] = [[]]
    for line in prose(text).splitlines():
        if line.startswith("|"):
            if not re.fullmatch(r"[|\s:-]+", line):
                found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def shell_lines(text: str) -> list[str]:
    """Commands of the bash and console blocks, continuation lines joined, comments and output left out."""
    lines = []
    for language, content in code_blocks(text):
        if language not in ("bash", "console"):
            continue
        for line in content.replace("\\\n", " ").splitlines():
            if language == "console" and not line.startswith("$ "):
                continue
            command = re.sub(r"(^|\s)# .*", "", line.removeprefix("$ ")).strip()
            if command:
                lines.append(re.sub(r"\s+", " ", command))
    return lines


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `file`: the file that it is the content of, named by the line above, e.g. `my_data.yaml`:.
    `reason`: why it is not run, from the comment above, or "". `output`: what the block behind it shows."""

    language: str
    content: str
    file: str
    reason: str
    output: str


def blocks(text: str) -> list[Block]:
    """Every fenced block at the start of a line, with what stands around it."""
    found = []
    pattern = (
        r"(?:^`([\w./-]+)`[:\uff1a]\n\n)?(?:^<!-- not run: ([^\n]+) -->\n)?"
        r"^```(\w*)\n(.*?)^```$(?=(?:\n\n```text\n(.*?)^```$)?)"
    )
    for file, reason, language, content, output in re.findall(pattern, text, flags=re.MULTILINE | re.DOTALL):
        found.append(Block(language, content, file, reason, output))
    return found


def _below(group: object, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for name, command in group.commands.items():
        yield (*words, name), command
        if hasattr(command, "commands"):
            yield from _below(command, (*words, name))


COMMANDS = dict(_below(typer.main.get_command(app)))
"""(words, command) of every command and group of commands."""


def options_of(*words: str) -> set[str]:
    """Options of a command."""
    return {option for parameter in COMMANDS[words].params for option in parameter.opts}
