"""Words of a shell script, as far as the script says what they are: variables, defaults, quotes, arithmetic, lists.

Nothing is run. What has no value in the file has a reason in its place.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tree_sitter import Node

from mindgspo_migrate.shell_grammar import parse, short

SUBSTITUTIONS = ("command_substitution", "process_substitution")
NOT_FOLLOWED = "is set under a condition or in a loop, which is not followed"
OF_THE_CALLER = "arguments that the script is called with are not in the file; use --set"
# verl's scripts find out what they run on with this variable; this project runs on Ascend.
_DEVICE, _ON_ASCEND = "DEVICE", "npu"
_MOST_IN_A_WORD, _MOST_ALTOGETHER = 65_536, 4_000_000
_MOST_DEFAULTS = 20  # within one default
_MOST_TEXTS = 20  # that a variable may have behind a condition
_LARGEST = 2**63
_WITH_DEFAULT = re.compile(r"([A-Za-z_]\w*|\d+)(:?[-=?])(.*)", re.DOTALL)
_LIST = re.compile(r"([A-Za-z_]\w*\[[@*]\]|[@*])")
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_LITERAL = ("word", "number", "brace_expression", "extglob_pattern", "regex", "test_operator", "variable_name")
_BLANKS = " \t\n"


class Unresolved(Exception):  # noqa: N818  (says what it is; nothing went wrong)
    """A word whose value is not in the file. The message says what is missing."""


class OneOf(Unresolved):
    """A variable with several possible texts."""

    def __init__(self, reason: str, texts: Sequence[str]) -> None:
        super().__init__(reason)
        self.texts = texts


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a word. value: its text, or the reason why it has none. shown: as the report has it. is_literal: it is
    written out in the script. is_split: blanks in it end the word. bare: what stands in it outside of quotes."""

    value: str | Unresolved
    shown: str
    is_literal: bool = False
    is_split: bool = False
    bare: str = "_"


@dataclass(frozen=True, slots=True)
class Unread:
    """A word without a value. known: what it says before the first thing that has none."""

    known: str
    shown: str
    reason: str


Field = str | Unread
"""One word that a command is given."""
Value = str | list[Field] | Unresolved
Variables = dict[str, Value]


class Words:
    """Reads words against `variables`, which holds texts, lists, or the reason why there is no value."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self.variables: Variables = {"HOME": str(Path.home()), "PWD": str(Path.cwd())}
        self.defaults: dict[str, tuple[str, str]] = {}
        self._made = 0

    def text(self, node: Node) -> str:
        """The node as it stands in the script."""
        return self.source[node.start_byte : node.end_byte].decode()

    def text_if_known(self, node: Node) -> str | None:
        """The word of a test, None where the file does not say it."""
        try:
            return self.joined(list(self.parts(node)))
        except Unresolved:
            return None

    def set_default(self, name: str, value: str | Unresolved) -> None:
        """${name:=value} found no value."""
        self.variables[name] = value

    # Fields

    def words_of(self, nodes: Sequence[Node]) -> list[list[Part]]:
        """Words of a command; a piece that is glued to the one before it is part of it."""
        words: list[list[Part]] = []
        end = -1
        for child in nodes:
            if child.start_byte != end:
                words.append(list(self.parts(child)))
            elif child.type in SUBSTITUTIONS:  # the grammar ends a word at <(
                words[-1] += self.parts(child)
            else:
                reason = f"{short(self.text(child))} is not read; put the whole word into quotes"
                words[-1].append(Part(Unresolved(reason), self.text(child)))
            end = child.end_byte
        return words

    def fields(self, word: list[Part]) -> list[Field]:
        """The words that bash hands on: those of a list, or the word itself cut at blanks of unquoted variables. Raises
        Unresolved for a list without a value."""
        if has_braces(word):
            start = _literal_start(word).partition("{")[0]
            return [Unread(start, shown_word(word), "braces are not read; put them into quotes")]
        name = _list_name(word)
        if name is not None:
            return self._list(name, is_split=any(part.is_split for part in word))
        if len(word) == 1 and word[0].is_split and isinstance(word[0].value, OneOf):
            self._count(sum(map(len, word[0].value.texts)))
            return agreed([text.split() for text in word[0].value.texts], str(word[0].value))
        try:
            text = self.joined(word)
        except Unresolved as reason:
            return [Unread(_literal_start(word), shown_word(word), str(reason))]
        split = [part for part in word if part.is_split]
        if not split:
            return [text]
        if not self._splits_at_blanks("".join(str(part.value) for part in split)):
            return [Unread(_literal_start(word), shown_word(word), "IFS is set, so blanks do not end a word")]
        cut = "".join(re.sub(r"[ \t\n]+", "\0", str(part.value)) if part.is_split else str(part.value) for part in word)
        return [one for one in cut.split("\0") if one]

    def _list(self, reference: str, *, is_split: bool) -> list[Field]:
        name = reference.partition("[")[0]
        value = self.variables.get("@" if name == "*" else name)
        if value is None and name in "@*":
            return [Unread("", f"${{{name}}}", OF_THE_CALLER)]
        if not isinstance(value, list):
            raise value if isinstance(value, Unresolved) else Unresolved(f"the list {name} is not in the file")
        self._count(sum(len(one if isinstance(one, str) else one.shown) + 1 for one in value))
        texts = [one if isinstance(one, str) else one.shown for one in value]
        if is_split:
            if not self._splits_at_blanks("".join(texts)):
                raise Unresolved("IFS is set, so blanks do not end a word")
            return [part for one in value for part in (one.split() if isinstance(one, str) else [one])]
        if "*" in reference and len(value) > 1:
            return [Unread(texts[0], f'"${{{reference}}}"', "it is the whole list as one word")]
        return value

    def _splits_at_blanks(self, text: str) -> bool:
        """Whether blanks alone end words in this text."""
        ifs = self.variables.get("IFS", _BLANKS)
        return isinstance(ifs, str) and not set(text) & set(ifs).symmetric_difference(_BLANKS)

    def joined(self, word: list[Part]) -> str:
        """The text of a word. Raises Unresolved."""
        for part in word:
            if isinstance(part.value, Unresolved):
                raise part.value
        length = sum(len(str(part.value)) for part in word)
        if length > _MOST_IN_A_WORD:
            raise Unresolved(f"it grows beyond {_MOST_IN_A_WORD:,} characters")
        self._count(sum(len(str(part.value)) for part in word if not part.is_literal))
        return "".join(str(part.value) for part in word)

    def _count(self, characters: int) -> None:
        """Variables that double each other would fill the memory."""
        if self._made + characters > _MOST_ALTOGETHER:
            raise Unresolved(f"values of the file grow beyond {_MOST_ALTOGETHER:,} characters together")
        self._made += characters

    # Parts

    def parts(
        self, node: Node, *, is_quoted: bool = False, is_value: bool = False, is_start: bool = True
    ) -> Iterator[Part]:
        """The parts of a word. is_value: it is assigned, so that blanks do not end it. is_start: ~ is a folder."""
        text = self.text(node).lstrip() if is_quoted else self.text(node)
        is_split = not is_quoted and not is_value
        if node.type in ("concatenation", "command_name", "translated_string"):
            end = node.start_byte
            for child in node.named_children:
                yield from self.parts(child, is_value=is_value, is_start=end == node.start_byte)
                end = child.end_byte
            if end < node.end_byte:
                yield _literal_part(self.source[end : node.end_byte].decode())
        elif node.type == "raw_string":
            yield Part(text[1:-1], text[1:-1], is_literal=True)
        elif node.type == "string":
            yield from self.quoted(node)
        elif node.type in ("simple_expansion", "expansion"):
            inside = text[2:-1] if text.startswith("${") else text[1:]
            shown = f"${{{inside}}}"
            yield self._part(lambda: self._variable(inside, is_quoted, is_split), shown, is_split=is_split)
        elif node.type == "arithmetic_expansion":
            yield self._part(lambda: str(self._arithmetic(node)), f"$(({text[3:-2]}))")
        elif node.type in SUBSTITUTIONS:
            inside = text[1:-1] if text.startswith("`") else text[2:-1]
            reason = Unresolved(f"it holds the output of a command, {short(inside)}, which is not run")
            yield Part(reason, f"$({inside})")
        elif node.type == "ansi_c_string" or (node.named_children and node.type not in _LITERAL):
            yield Part(Unresolved(f"the form {short(text)} is not read"), text)
        elif is_start and re.match(r"~(/|$)", text):
            yield self._part(lambda: self._variable("HOME"), "~")
            yield _literal_part(text[1:])
        else:
            yield _literal_part(text)

    def quoted(self, node: Node) -> Iterator[Part]:
        """What stands between double quotes. Blanks there are in no node of their own."""
        yield Part("", "", is_literal=True)  # "" is a word too
        end = node.start_byte + 1
        for child in [*(one for one in node.named_children if one.type != "string_content"), None]:
            start = node.end_byte - 1 if child is None else self._start(child)
            between = self.source[end:start].decode()
            if between:
                value = re.sub(r'\\([$`"\\]|\n)', lambda found: found[1].strip("\n"), between)
                yield Part(value, value, is_literal=True)
            if child is not None:
                yield from self.parts(child, is_quoted=True)
                end = child.end_byte

    def _start(self, node: Node) -> int:
        """Where the node starts without the blanks that the grammar takes to an expansion between quotes."""
        text = self.source[node.start_byte : node.end_byte]
        return node.end_byte - len(text.lstrip())

    def _part(self, value: Callable[[], str], shown: str, *, is_split: bool = False) -> Part:
        try:
            return Part(value(), shown, is_split=is_split)
        except Unresolved as reason:
            return Part(reason, shown, is_split=is_split)

    def _variable(self, inside: str, is_quoted: bool = True, is_split: bool = False) -> str:
        with_default = _WITH_DEFAULT.fullmatch(inside)
        name, sign = (with_default[1], with_default[2]) if with_default else (inside, "")
        if not re.fullmatch(r"\w+", name):
            raise Unresolved(f"the form ${{{short(inside)}}} is not read")
        value = self.variables.get(name)
        if isinstance(value, Unresolved):
            raise value
        if isinstance(value, list):
            raise Unresolved(f"${name} is a list")
        if value is not None and (value or not sign.startswith(":")):
            return value
        if sign == ":?":
            self.variables[name] = Unresolved(f"${name} must be given, or the script ends")
        if with_default is None or sign.endswith("?"):
            raise Unresolved(f"${name} has no value in the file")
        why = "the script's own default of a variable of the environment"
        try:
            default = self._default(with_default[3], is_quoted, is_split)
        except Unresolved as reason:
            if name != _DEVICE:
                if sign.endswith("="):
                    self.set_default(name, reason)
                raise
            default, why = _ON_ASCEND, "the script finds out what it runs on; this project runs on Ascend"
        if value is None:
            self.defaults[name] = (default, why)
        if sign.endswith("="):
            self.set_default(name, default)
        return default

    def _default(self, text: str, is_quoted: bool, is_split: bool) -> str:
        """The default of ${name:-default}, which may hold variables itself."""
        unread = Unresolved(f"the default {short(text)} is not read")
        if text.count("${") > _MOST_DEFAULTS or (not is_quoted and re.search(r'\\[^$`"\\]', text)):
            raise unread
        if not is_quoted and re.match(r"~(/|$)", text):
            text = f"${{HOME}}{text[1:]}"
        inner = Words(f'x="{_without_quotes(text, is_quoted)}"'.encode())
        inner.variables, inner.defaults, inner.set_default = self.variables, self.defaults, self.set_default
        node = parse(inner.source)
        value = node.named_children[0].child_by_field_name("value") if node.named_children else None
        if node.has_error or value is None or value.type != "string":
            raise unread
        found = inner.joined(list(inner.quoted(value)))
        if is_split and re.search(r"\s", found) and re.search(r"['\"\\]", text):
            raise unread  # blanks between quotes end no word
        return found

    # Arithmetic

    def _arithmetic(self, node: Node) -> int:
        text = self.text(node)[3:-2]
        if len(text) > 200:
            raise Unresolved("its arithmetic is longer than 200 characters")
        if "$(" in text or "`" in text:
            raise Unresolved(f"it holds the output of a command, {short(text)}, which is not run")
        try:
            (formula,) = node.named_children
            return self._number(formula)
        except (ValueError, ZeroDivisionError, RecursionError):
            raise Unresolved(f"the arithmetic $(({short(text)})) is not read") from None

    def _number(self, node: Node) -> int:
        text, parts = self.text(node), node.named_children
        if node.type == "parenthesized_expression" and len(parts) == 1:
            value = self._number(parts[0])
        elif node.type in ("number", "word") and re.fullmatch(r"0|[1-9]\d*", text):
            value = int(text)
        elif node.type in ("variable_name", "word", "simple_expansion", "expansion"):
            found = self._variable(text.strip("${}")).strip()
            if not re.fullmatch(r"[+-]?(0|[1-9]\d*)", found):
                raise ValueError("no decimal number")
            value = int(found)
        elif node.type == "unary_expression" and node.children[0].type == "-":
            value = -self._number(parts[-1])
        elif node.type == "binary_expression" and node.children[1].type in _ARITHMETIC:
            value = _ARITHMETIC[node.children[1].type](self._number(parts[0]), self._number(parts[-1]))
        else:
            raise ValueError("an operator that is not read")
        if abs(value) >= _LARGEST:
            raise ValueError("too large")
        return value


def joint(states: Sequence[Variables]) -> Variables:
    """What is known of every variable after one of several branches."""
    found: Variables = {}
    for name in {name: None for state in states for name in state}:
        values = [state.get(name) for state in states]
        reason = f"${name} {NOT_FOLLOWED}"
        lists = [[] if one is None else one for one in values if one is None or isinstance(one, list)]
        texts = [text for one in values for text in _texts(one)]
        if all(one == values[0] for one in values[1:]) and values[0] is not None:
            found[name] = values[0]
        elif len(lists) == len(values):
            found[name] = agreed(lists, reason)
        elif None not in texts and len(set(texts)) <= _MOST_TEXTS:
            found[name] = OneOf(reason, [str(one) for one in dict.fromkeys(texts)])
        else:
            found[name] = Unresolved(reason)
    return found


def _texts(value: Value | None) -> Sequence[str | None]:
    """The texts that a variable may have; None among them: another one."""
    if isinstance(value, OneOf):
        return value.texts
    return [""] if value is None else [value if isinstance(value, str) else None]


def agreed(lists: Sequence[Sequence[Field]], reason: str) -> list[Field]:
    """The words that are in every list; behind them of the others the key alone."""
    words = {word: all(word in one for one in lists) for word in dict.fromkeys(word for one in lists for word in one)}
    keys = {f"{word.partition('=')[0]}=" for word, is_sure in words.items() if isinstance(word, str) and not is_sure}
    sure = [word for word, is_sure in words.items() if is_sure or isinstance(word, Unread)]
    return [*sure, *(Unread(key, key, reason) for key in sorted(keys))]


def _quotient(left: int, right: int) -> int:
    """Cut towards 0, as the shell divides."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": lambda left, right: left - right * _quotient(left, right),
}


_QUOTED = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)""", re.DOTALL)


def _without_quotes(text: str, is_quoted: bool) -> str:
    """A default as it would stand between double quotes. is_quoted: it does stand there, where ' is a letter."""

    def plain(found: re.Match[str]) -> str:
        single, double, escaped = found.groups()
        return double if double is not None else re.sub(r'([$`"\\])', r"\\\1", escaped if single is None else single)

    return re.sub(r'(\\.)|"', lambda found: found[1] or "", text) if is_quoted else _QUOTED.sub(plain, text)


def _literal_part(text: str) -> Part:
    value = re.sub(r"\\(.|\n|$)", lambda found: found[1].strip("\n"), text)
    return Part(value, value, is_literal=True, bare=re.sub(r"\\.", "_", text))


def has_braces(word: list[Part]) -> bool:
    """Whether the word is several, as a{b,c} is."""
    return _BRACES.search("".join(part.bare for part in word)) is not None


def _literal_start(word: list[Part]) -> str:
    """What it says before the first thing that has to be put in."""
    texts = []
    for part in word:
        if not part.is_literal:
            break
        texts.append(str(part.value))
    return "".join(texts)


def shown_word(word: list[Part]) -> str:
    """A word as the report has it."""
    return "".join(part.shown for part in word)


def _list_name(word: list[Part]) -> str | None:
    """The list that the word "${NAME[@]}" stands for."""
    found = _LIST.fullmatch(shown_word(word)[2:-1])
    return found[1] if found and sum(not part.is_literal for part in word) == 1 else None
