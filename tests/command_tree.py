"""The commands of `mindgspo`, as the program itself knows them."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from mindgspo.cli.program import app


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
