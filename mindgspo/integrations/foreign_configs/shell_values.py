"""Values of shell variables, from the assignments of one script alone.

What enters: the words of `shell_words`. What leaves: texts, or `Unresolved` with the reason. Nothing is run, and of the
environment nothing is read but the home folder and the current one. Called by `verl_source`.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from mindgspo.integrations.foreign_configs.shell_words import Kind, Piece, Word, quoted_word
from mindgspo.text import shorten

_MOST_CHARACTERS = 65_536
_MOST_ALTOGETHER = 4_000_000
_MOST_DEFAULTS = 20  # within one default
_LARGEST = 2**63
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: lambda left, right: left - right * _quotient(left, right),
    ast.Div: lambda left, right: _quotient(left, right),
}
_WITH_DEFAULT = re.compile(r"([A-Za-z_]\w*|\d+)(:?-|:?=)(.*)", re.DOTALL)
_BLANKS = re.compile(r"[ \t\n]+")
_CUT = "\0"  # in no file: a text with it is refused
_ARRAY = re.compile(r"([A-Za-z_]\w*)\[[@*]\]")


class Unresolved(Exception):  # noqa: N818  (says what it is; nothing went wrong)
    """A word whose value is not in the file. The message says what is missing."""


class Variables:
    """What the script has assigned so far. Values are texts, lists of texts, or the reason why there is none."""

    def __init__(self) -> None:
        self._values: dict[str, str | list[Word] | Unresolved] = {
            "HOME": str(Path.home()),
            "PWD": str(Path.cwd()),
        }
        self.taken_defaults: dict[str, str] = {}
        self._made = 0

    def assign(self, name: str, word: Word) -> None:
        """name=word."""
        try:
            self._values[name] = self.text(word)
        except Unresolved as reason:
            self._values[name] = reason

    def assign_list(self, name: str, words: list[Word], *, is_added: bool) -> None:
        """name=(words), or name+=(words) of a list. A word without a value stays one, with the reason for it."""
        before = self._values.get(name) if is_added else None
        try:
            added = [element for word in words for element in self._elements(word)]
            self._values[name] = [*before, *added] if isinstance(before, list) else added
        except Unresolved as reason:
            self._values[name] = reason

    def _elements(self, word: Word) -> list[Word]:
        if self.list_of(word) is not None:
            return self.words(word)
        try:
            return [Word((Piece(Kind.TEXT, self.text(word)),), word.line)]
        except Unresolved as reason:
            known = Piece(Kind.TEXT, leading_text(word)) if "=" in leading_text(word) else Piece(Kind.TEXT, "")
            return [Word((known, Piece(Kind.UNKNOWN, str(reason))), word.line)]

    def forget(self, name: str, why: str) -> None:
        """The variable may have any value from here on."""
        self._values[name] = Unresolved(f"${name} {why}")

    def list_of(self, word: Word) -> str | None:
        """The name of the list that the word "${NAME[@]}" stands for; None for any other word."""
        pieces = [piece for piece in word.pieces if piece.text]
        found = _ARRAY.fullmatch(pieces[0].text) if len(pieces) == 1 and pieces[0].kind is Kind.VARIABLE else None
        return found[1] if found else None

    def words(self, word: Word) -> list[Word]:
        """The word itself, or the words of the list or of the unquoted variable that it stands for. Raises
        Unresolved."""
        name = self.list_of(word)
        if name is None:
            return self._split(word)
        value = self._values.get(name)
        if isinstance(value, list):
            self._count(sum(len(piece.text) + 1 for element in value for piece in element.pieces))
            return value
        raise value if isinstance(value, Unresolved) else Unresolved(f"the list {name} is not in the file")

    def _split(self, word: Word) -> list[Word]:
        """The word as bash hands it on: cut at blanks of variables outside of quotes, gone where nothing is left."""
        if not any(map(_is_cut, word.pieces)):
            return [word]
        try:
            texts = [(self._piece(piece), _is_cut(piece)) for piece in word.pieces]
        except Unresolved:
            return [word]  # whoever asks for its text learns why
        self._count(sum(len(text) for text, _ in texts))
        marked = "".join(_BLANKS.sub(_CUT, text) if is_cut else text for text, is_cut in texts)
        fields = [field for field in marked.split(_CUT) if field]
        return [Word((Piece(Kind.TEXT, field),), word.line) for field in fields]

    def text(self, word: Word) -> str:
        """The word with everything put in. Raises Unresolved."""
        parts, length = [], 0
        for piece in word.pieces:
            parts.append(self._piece(piece))
            length += len(parts[-1])
            if length > _MOST_CHARACTERS:
                raise Unresolved(f"it grows beyond {_MOST_CHARACTERS:,} characters")
        self._count(length)
        return "".join(parts)

    def _count(self, characters: int) -> None:
        """Variables that double each other would fill the memory."""
        if self._made + characters > _MOST_ALTOGETHER:
            raise Unresolved(f"values of the file grow beyond {_MOST_ALTOGETHER:,} characters together")
        self._made += characters

    def _piece(self, piece: Piece) -> str:
        if piece.kind is Kind.TEXT:
            return piece.text
        if piece.kind is Kind.UNKNOWN:
            raise Unresolved(piece.text)
        if piece.kind is Kind.COMMAND:
            raise Unresolved(f"it holds the output of a command, {_short(piece.text)}, which is not run")
        if piece.kind is Kind.ARITHMETIC:
            return str(self._arithmetic(piece.text))
        return self._variable(piece.text)

    def _variable(self, inside: str) -> str:
        with_default = _WITH_DEFAULT.fullmatch(inside)
        name = with_default[1] if with_default else inside
        if not re.fullmatch(r"\w+", name):
            raise Unresolved(f"the form ${{{_short(inside)}}} is not read")
        value = self._values.get(name)
        if isinstance(value, Unresolved):
            raise value
        if isinstance(value, list):
            raise Unresolved(f"${name} is a list")
        if value is not None and (value or not with_default):
            return value
        if with_default:
            default = self._nested(with_default[3])
            self.taken_defaults[name] = default
            return default
        raise Unresolved(f"${name} has no value in the file")

    def _nested(self, text: str) -> str:
        """The default of ${name:-default}, which may hold variables itself."""
        try:
            if text.count("${") > _MOST_DEFAULTS:
                raise ValueError("defaults within defaults")
            return self.text(quoted_word(text))
        except (ValueError, RecursionError):
            raise Unresolved(f"the default {_short(text)} is not read") from None

    def _arithmetic(self, text: str) -> int:
        if len(text) > 200:
            raise Unresolved("its arithmetic is longer than 200 characters")
        if "$(" in text or "`" in text:
            raise Unresolved(f"it holds the output of a command, {_short(text)}, which is not run")
        try:
            plain = re.sub(r"\$\{?(\w+)\}?", r"\1", text).strip()
            return self._number(ast.parse(plain, mode="eval").body)
        except (SyntaxError, RecursionError, MemoryError, ValueError, ZeroDivisionError):
            raise Unresolved(f"the arithmetic $(({_short(text)})) is not read") from None

    def _number(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            value = node.value
        elif isinstance(node, ast.Name):
            text = self._variable(node.id).strip()
            if re.fullmatch(r"[+-]?0\d+", text):
                raise ValueError("octal")
            value = int(text)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = -self._number(node.operand)
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            value = _ARITHMETIC[type(node.op)](self._number(node.left), self._number(node.right))
        else:
            raise ValueError("an operator that is not read")
        if abs(value) >= _LARGEST:
            raise ValueError("too large")
        return value


def _quotient(left: int, right: int) -> int:
    """Cut towards 0, as the shell divides."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def _is_cut(piece: Piece) -> bool:
    return piece.kind is Kind.VARIABLE and not piece.is_quoted


def leading_text(word: Word) -> str:
    """What the word says before the first thing that has to be put in."""
    texts = []
    for piece in word.pieces:
        if piece.kind is not Kind.TEXT:
            break
        texts.append(piece.text)
    return "".join(texts)


def _short(text: str) -> str:
    line = " ".join(text.split()).encode("unicode_escape").decode("ascii")
    return shorten(line, 40)
