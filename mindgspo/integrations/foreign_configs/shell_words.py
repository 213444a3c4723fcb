"""A shell script taken apart into statements and words; nothing is run and nothing is looked up.

What enters: text. What leaves: statements, each a list of words, each a list of pieces that `shell_values` puts values
into. What would run a program, $(...), `...` and <(...), becomes a piece of its own kind. Called by `verl_source`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

_MOST_CHARACTERS = 200_000
_OPERATORS = ("&&", "||", ";;", "|&", "<<<", ">>", "<<", "&>", ">&", "\n", ";", "|", "&", "<", ">", "(", ")")
_ENDS = ("&&", "||", ";;", "|&", "\n", ";", "|", "&")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_CLOSING = {"(": ")", "{": "}"}
QUOTE = '"'


class Kind(Enum):
    """What a piece of a word is; UNKNOWN: something without a value, its text the reason."""

    TEXT = "text"
    VARIABLE = "variable"
    ARITHMETIC = "arithmetic"
    COMMAND = "command"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a word. text: what it says; of a variable what stands between the braces. is_quoted: its value is one
    word whatever it holds."""

    kind: Kind
    text: str
    is_quoted: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    """One word, or one operator such as ( or >."""

    pieces: tuple[Piece, ...]
    line: int
    is_operator: bool = False

    @property
    def literal(self) -> str | None:
        """Its text where nothing has to be put in."""
        return "".join(piece.text for piece in self.pieces) if self.is_literal else None

    @property
    def is_literal(self) -> bool:
        """Whether it says all by itself."""
        return all(piece.kind is Kind.TEXT for piece in self.pieces)

    def __str__(self) -> str:
        forms = {
            Kind.TEXT: "{}",
            Kind.VARIABLE: "${{{}}}",
            Kind.ARITHMETIC: "$(({}))",
            Kind.COMMAND: "$({})",
            Kind.UNKNOWN: "?",
        }
        return "".join(forms[piece.kind].format(piece.text) for piece in self.pieces)


def statements(text: str) -> Iterator[tuple[list[Word], bool]]:
    """The statements of a script in order, and whether one runs only if the one before it did or did not fail.

    An array (a b c) is part of its statement.

    Raises ValueError for an open quote or bracket, and for too many characters or a zero byte.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"is longer than {_MOST_CHARACTERS:,} characters, so it is no command line")
    if "\0" in text:
        raise ValueError("holds a zero byte, so it is no command line")
    statement: list[Word] = []
    depth, is_conditional = 0, False
    for word in _Scanner(text.replace("\r\n", "\n")).words():
        operator = word.literal if word.is_operator else None
        depth += (operator == "(") - (operator == ")")
        if operator in _ENDS and not (operator == "\n" and depth > 0):
            if statement:
                yield statement, is_conditional
            statement, depth, is_conditional = [], 0, operator in ("&&", "||")
        elif operator != "\n":
            statement.append(word)
    if statement:
        yield statement, is_conditional


def quoted_word(text: str) -> Word:
    """The word that a text is between double quotes, its own double quotes left out: a default of ${name:-default}."""
    return Word(tuple(_Scanner(f"{text.replace(QUOTE, '')}{QUOTE}").in_double_quotes()), 1)


class _Scanner:
    """Reads words from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1

    def words(self) -> Iterator[Word]:
        while self._skip_blanks():
            line, operator = self._line, self._operator()
            if operator is not None:
                yield Word((Piece(Kind.TEXT, operator),), line, is_operator=True)
                if operator == "<<":
                    raise ValueError(f"line {line}: a here-document (<<) is not read; write the overrides out")
            else:
                yield Word(tuple(self._pieces()), line)

    def _skip_blanks(self) -> bool:
        """Past blanks, comments and continued lines; whether something is left."""
        while self._at < len(self._text):
            if self._text.startswith("\\\n", self._at):
                self._advance(2)
            elif self._text[self._at] in " \t":
                self._advance(1)
            elif self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._advance((end if end >= 0 else len(self._text)) - self._at)
            else:
                return True
        return False

    def _advance(self, count: int) -> str:
        passed = self._text[self._at : self._at + count]
        self._at += count
        self._line += passed.count("\n")
        return passed

    def _operator(self) -> str | None:
        if self._text.startswith(("<(", ">("), self._at):
            return None
        found = next((one for one in _OPERATORS if self._text.startswith(one, self._at)), None)
        return None if found is None else self._advance(len(found))

    def _pieces(self) -> Iterator[Piece]:
        while self._at < len(self._text):
            character = self._text[self._at]
            if self._text.startswith("\\\n", self._at):
                self._advance(2)
            elif character == "\\":
                yield Piece(Kind.TEXT, self._advance(2)[1:])
            elif character == "'":
                yield Piece(Kind.TEXT, self._until("'"))
            elif character == '"':
                self._advance(1)
                yield Piece(Kind.TEXT, "")  # "" is a word too
                yield from self.in_double_quotes()
            elif self._text.startswith(("<(", ">("), self._at):
                self._advance(1)
                yield Piece(Kind.COMMAND, self._bracketed())
            elif character in "$`":
                yield self._substitution()
            elif character in " \t\n;|&<>()":
                return
            else:
                yield Piece(Kind.TEXT, self._advance(1))

    def _until(self, quote: str) -> str:
        line, end = self._line, self._text.find(quote, self._at + 1)
        if end < 0:
            raise ValueError(f"line {line}: the quote {quote} is not closed")
        return self._advance(end + 1 - self._at)[1:-1]

    def in_double_quotes(self) -> Iterator[Piece]:
        """What stands before the next double quote."""
        line = self._line
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == '"':
                self._advance(1)
                return
            if character == "\\" and self._text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\", "\n"):
                yield Piece(Kind.TEXT, self._advance(2)[1:].replace("\n", ""))
            elif character in "$`":
                yield replace(self._substitution(), is_quoted=True)
            else:
                yield Piece(Kind.TEXT, self._advance(1))
        raise ValueError(f'line {line}: the quote " is not closed')

    def _substitution(self) -> Piece:
        if self._text[self._at] == "`":
            return Piece(Kind.COMMAND, self._until("`"))
        self._advance(1)
        if self._text.startswith("((", self._at):
            inside = self._bracketed()
            return Piece(Kind.ARITHMETIC, inside[1:-1]) if inside.endswith(")") else Piece(Kind.COMMAND, inside)
        if self._text.startswith("(", self._at):
            return Piece(Kind.COMMAND, self._bracketed())
        if self._text.startswith("{", self._at):
            return Piece(Kind.VARIABLE, self._bracketed())
        name = _NAME.match(self._text, self._at)
        return Piece(Kind.VARIABLE, self._advance(name.end() - self._at)) if name else Piece(Kind.TEXT, "$")

    def _bracketed(self) -> str:
        """What stands between a bracket and the one that closes it."""
        opening, line, start, depth = self._text[self._at], self._line, self._at, 0
        closing = _CLOSING[opening]
        while self._at < len(self._text):
            character = self._advance(1)
            depth += (character == opening) - (character == closing)
            if depth == 0:
                return self._text[start + 1 : self._at - 1]
        raise ValueError(f"line {line}: the bracket {opening} is not closed")
