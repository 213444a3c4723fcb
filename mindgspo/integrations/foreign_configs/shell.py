"""verl's overrides out of a shell script, a command line or a list of them. Nothing is run.

tree-sitter-bash takes the script apart. Assignments, lists, defaults and arithmetic are evaluated in the order of the
script; of the environment nothing is read but the home folder and the current one. Of `if` and `case` that branch is
followed that the script's own values lead to. Where they do not say which, a variable keeps what all branches agree on:
of a list the settings that are in it either way.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import tree_sitter_bash
import yaml
from tree_sitter import Language, Node, Parser

from mindgspo.config.yaml_dialect import parse_value
from mindgspo.integrations.foreign_configs import shell_conditions
from mindgspo.integrations.foreign_configs.tables import Finding, Reading, Status, one_line

_TRAINER = re.compile(r"(verl|recipe)(\.\w+)*\.main_\w+|(.*/)?main_\w+\.py")
_OVERRIDE = re.compile(r"(?P<sign>\+{0,2}|~)(?P<key>\w+(?:\.\w+)+)(?P<rest>=.*|)", re.DOTALL)
_CONFIG_OPTIONS = ("--config-name", "--config-path")
_SINGLE_WORDS = (*_CONFIG_OPTIONS, "model_engine")
_REPEATED = ("while_statement", "for_statement", "c_style_for_statement", "subshell")
_CHOICES = {"if_statement": shell_conditions.branches_of_if, "case_statement": shell_conditions.branches_of_case}
_NOT_FOLLOWED = "is set under a condition or in a loop, which is not followed"
# verl's scripts find out what they run on with this variable; this project runs on Ascend.
_DEVICE, _ON_ASCEND = "DEVICE", "npu"
_COMMANDS = ("command", "unset_command")
_SUBSTITUTIONS = ("command_substitution", "process_substitution")
_MOST_CHARACTERS, _MOST_IN_A_WORD, _MOST_ALTOGETHER = 200_000, 65_536, 4_000_000
_MOST_DEFAULTS = 20  # within one default
_MOST_CHOICES = 500  # that are followed; each keeps a copy of the variables
_MOST_TEXTS = 20  # that a variable may have behind a condition
_MOST_SECONDS = 20  # of parsing; what is broken at every character takes the parser minutes
_LARGEST = 2**63
_WITH_DEFAULT = re.compile(r"([A-Za-z_]\w*|\d+)(:?-|:?=)(.*)", re.DOTALL)
_LIST = re.compile(r"([A-Za-z_]\w*)\[[@*]\]")
_CONTINUED = re.compile(r"(\\\n)+")
# What the grammar takes wrongly is parsed with other characters of the same length, and read as it is in the file:
# ${section.key}, which belongs to Hydra, the default in ${name:-default}, which is parsed by itself, and in $a/$b/c the
# character behind $b, at which the word would end.
_OF_HYDRA = re.compile(rb"\$\{\w+(\.\w+)+\}")
_OF_DEFAULT = re.compile(rb"(\$\{\w+:?[-=])([^{}\n]*)(?=\})")
_BEHIND_A_NAME = re.compile(rb"(\$\(\(.*?\)\)|\$(?:[A-Za-z_]\w*|[0-9@*]))([/.,+~*^-]?)", re.DOTALL)


class Unresolved(Exception):  # noqa: N818  (says what it is; nothing went wrong)
    """A word whose value is not in the file. The message says what is missing."""


class _OneOf(Unresolved):
    """A variable with several possible texts."""

    def __init__(self, reason: str, texts: Sequence[str]) -> None:
        super().__init__(reason)
        self.texts = texts


@dataclass(frozen=True, slots=True)
class _Part:
    """Part of a word. value: its text, or the reason why it has none. shown: as the report has it. is_literal: it is
    written out in the script. is_split: blanks in it end the word."""

    value: str | Unresolved
    shown: str
    is_literal: bool = False
    is_split: bool = False


@dataclass(frozen=True, slots=True)
class _Unread:
    """A word without a value. known: what it says before the first thing that has none."""

    known: str
    shown: str
    reason: str


_Value = str | list[str | _Unread] | Unresolved
_Variables = dict[str, _Value]


def read_overrides(text: str) -> Reading:
    """Every override of the one training command in the script, or of a plain list of them.

    Raises ValueError: no override in it, several training commands, no shell script, or one beyond all bounds.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"is longer than {_MOST_CHARACTERS:,} characters, so it is no command line")
    if "\0" in text:
        raise ValueError("holds a zero byte, so it is no command line")
    source = text.replace("\r\n", "\n").encode()
    root = _parse(source)
    _check(root, source)
    script = _Script(source)
    try:
        script.visit(root, is_sure=True)
    except RecursionError:
        raise ValueError("nests too deeply, so it is no command line") from None
    return script.reading()


def _parse(source: bytes) -> Node:
    masked = _OF_HYDRA.sub(lambda found: found[0].replace(b".", b"_"), source)
    masked = _OF_DEFAULT.sub(lambda found: found[1] + b"_" * len(found[2]), masked)
    masked = _BEHIND_A_NAME.sub(
        lambda found: found[1] + (found[2] if found[1].endswith(b")") else b":" * len(found[2])), masked
    )
    parser, end = Parser(Language(tree_sitter_bash.language())), time.monotonic() + _MOST_SECONDS
    try:
        return parser.parse(lambda at, _: masked[at:], progress_callback=lambda *_: time.monotonic() > end).root_node
    except ValueError:
        raise ValueError(f"is not parsed within {_MOST_SECONDS} seconds, so it is no command line") from None


def _check(root: Node, source: bytes) -> None:
    """Raise ValueError for what the grammar could not read."""
    waiting = [root] if root.has_error else []
    while waiting:
        node = waiting.pop()
        if node.is_missing:
            opened = node.parent.start_point.row + 1 if node.parent is not None else node.start_point.row + 1
            raise ValueError(f"line {opened}: {node.type} is missing: a quote or bracket is not closed")
        if node.type == "ERROR" and (rest := source[node.start_byte :].strip()):
            line = node.start_point.row + 1
            raise ValueError(
                f"line {line}: a quote or bracket is not closed, or no shell script: {_short(rest.decode())}"
            )
        waiting += [child for child in reversed(node.children) if child.has_error or child.is_missing]


class _Script:
    """Walks the commands in order; `_variables` holds texts, lists, or the reason why there is no value."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._variables: _Variables = {"HOME": str(Path.home()), "PWD": str(Path.cwd())}
        self._defaults: dict[str, tuple[str, str]] = {}
        self._made = 0
        self._choices = 0
        self._has_ended = False
        self._reading = Reading()
        self._commands: list[int] = []
        self._others: list[str] = []

    def visit(self, node: Node, *, is_sure: bool) -> None:
        """is_sure: the node is run exactly once."""
        if self._has_ended:
            return
        if node.type in _COMMANDS:
            self._command(node, [], is_sure)
        elif node.type == "variable_assignment":
            self._assign(node, is_sure)
        elif node.type == "redirected_statement" and (body := node.child_by_field_name("body")) is not None:
            redirects = node.children_by_field_name("redirect")
            if body.type == "command":
                self._command(body, redirects, is_sure)
            else:
                self.visit(body, is_sure=is_sure)
        elif node.type == "list" and len(node.named_children) == 2:
            first, second = node.named_children
            verdict = shell_conditions.decided(first, self._text_if_known)
            if any(one.type == "||" for one in node.children) and verdict is not None:
                verdict = not verdict
            self.visit(first, is_sure=is_sure)
            self._follow([(verdict, [second])], is_sure)
        elif node.type in _CHOICES:
            self._follow(list(_CHOICES[node.type](node, self._text_if_known)), is_sure)
        elif node.type not in _SUBSTITUTIONS:
            if node.type == "for_statement" and (name := node.child_by_field_name("variable")) is not None:
                self._variables[self._text(name)] = Unresolved(f"${self._text(name)} is set by a loop")
            for child in node.named_children:
                self.visit(child, is_sure=is_sure and node.type not in _REPEATED)

    def _follow(self, branches: Sequence[shell_conditions.Branch], is_sure: bool) -> None:
        """Visit the branch that is run; where that is not known, all that may be, each from the same variables."""
        possible: list[Sequence[Node]] = []
        for verdict, body in branches:
            is_taken = verdict if is_sure else None  # in a loop variables may be other ones each time
            possible += [body] if is_taken is not False else []
            if is_taken:
                break
        else:
            possible.append(())
        self._choices += 1
        is_known = len(possible) == 1
        is_followed = is_sure and self._choices <= _MOST_CHOICES
        before, after = self._variables, []
        for body in possible:
            if is_followed and not is_known:
                self._variables = dict(before)
            for child in body:
                self.visit(child, is_sure=is_sure and (is_known or is_followed))
            if not self._has_ended:
                after.append(self._variables)
            self._has_ended = is_known and self._has_ended
        if is_followed and not is_known:
            self._has_ended = not after
            self._variables = _joint(after) if after else before

    def _text_if_known(self, node: Node) -> str | None:
        try:
            return self._joined(list(self._parts(node)))
        except Unresolved:
            return None

    def reading(self) -> Reading:
        reading = self._reading
        if len(self._commands) > 1:
            lines = ", ".join(map(str, self._commands))
            raise ValueError(f"holds {len(self._commands)} training commands (lines {lines}); leave one of them in")
        if not reading.values and not reading.unread_keys:
            raise ValueError("holds no override of the form section.key=value")
        for name, (default, why) in self._defaults.items():
            reading.findings.append(Finding(status=Status.ASSUMED, source=f"${name}", value=default, text=why))
        if self._others:
            names = ", ".join(sorted(set(self._others))[:8])
            reading.remark(f"{len(self._others)} other commands", names, "nothing of the script is run")
        return reading

    # Commands

    def _command(self, node: Node, redirects: Sequence[Node], is_sure: bool) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assign(child, is_sure)
        words = self._words_of(node, redirects)
        if not words:
            return
        first = _literal_start(words[0])
        trainer = next((n for n, word in enumerate(words) if _TRAINER.fullmatch(_literal(word) or "")), None)
        if trainer is not None:
            line = node.start_point.row + 1
            if any(one.type.startswith("heredoc") for one in redirects):
                raise ValueError(f"line {line}: a here-document (<<) is not read; write the overrides out")
            self._commands.append(line)
            self._reading.values.clear()  # overrides that stood alone before it were for people to read
            self._arguments(words[trainer + 1 :])
        elif not _OVERRIDE.fullmatch(first):
            self._has_ended = is_sure and first == "exit"
            self._others.append(_shown(words[0]))
        elif not self._commands:
            self._arguments(words)
        else:
            why = "stands behind the end of the training command; the line above it must end with a backslash"
            self._reading.unread(first.partition("=")[0], _shown(words[0]).partition("=")[2], why)

    def _words_of(self, node: Node, redirects: Sequence[Node]) -> list[list[_Part]]:
        """The words of a command, those behind a redirection included."""
        nodes = [child for child in node.named_children if child.type != "comment"]
        for redirect in redirects:
            if redirect.type == "file_redirect":
                nodes += redirect.children_by_field_name("destination")[1:]
        words: list[list[_Part]] = []
        end = -1
        for child in nodes:
            gap = self._source[end : child.start_byte].decode() if end >= 0 else " "
            if words and (_CONTINUED.fullmatch(gap) or (not gap and child.type in _SUBSTITUTIONS)):
                words[-1] += self._parts(child)  # the grammar ends a word at \ before a line's end, and at <(
            elif not gap:
                why = f"{_short(self._text(child))} is not read; put the whole word into quotes"
                raise ValueError(f"line {child.start_point.row + 1}: {why}")
            elif child.type not in ("variable_assignment", "file_redirect", "herestring_redirect"):
                words.append(list(self._parts(child)))
            end = child.end_byte
        return words

    def _arguments(self, words: list[list[_Part]]) -> None:
        skipped = False
        for word, following in zip_longest(words, words[1:]):
            option = _literal(word)
            if skipped:
                skipped = False
            elif option in _CONFIG_OPTIONS and following is not None:
                self._override(f"{option}={_literal(following) or ''}")
                skipped = True
            elif _shown(word) in ("${@}", "${*}"):
                why = "arguments that the script is called with are not in the file; use --set"
                self._reading.unread("$@", "", why)
            else:
                self._argument(word)

    def _argument(self, word: list[_Part]) -> None:
        try:
            fields = self._fields(word)
        except Unresolved as reason:
            fields = [_Unread(_literal_start(word), _shown(word), str(reason))]
        for one in fields:
            if isinstance(one, str):
                self._override(one)
            elif key := _OVERRIDE.fullmatch(one.known):
                self._reading.unread(key["key"], one.shown.partition("=")[2], one.reason)
            else:
                self._reading.unread(one.shown, one.shown.partition("=")[2], one.reason)
                if not one.known:
                    self._reading.unread_words.append(one.shown)

    def _override(self, text: str) -> None:
        found = _OVERRIDE.fullmatch(text)
        option, _, value = text.partition("=")
        if option in _SINGLE_WORDS and value:
            self._reading.values[option] = value
        elif found is not None and found["sign"] == "~":
            self._reading.values.pop(found["key"], None)
            self._reading.remark(f"~{found['key']}", "", "a key that is taken out there; here it is as if never given")
        elif found is not None and found["rest"]:
            self._set(found["key"], found["rest"][1:])
        elif text.strip():
            self._reading.remark(text, "", "no override of the form section.key=value", Status.UNKNOWN)

    def _set(self, key: str, text: str) -> None:
        if "${" in text:
            self._reading.unread(key, text, "it refers to another setting, which is not followed")
            return
        try:
            value = parse_value(text)
        except (yaml.YAMLError, ValueError, RecursionError):
            value = text
        if key in self._reading.values:
            self._reading.remark(key, self._reading.values[key], "given twice; the last one counts")
        self._reading.values[key] = value

    # Variables

    def _assign(self, node: Node, is_sure: bool) -> None:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None:
            return
        name = self._text(target).partition("[")[0]
        is_added = any(child.type == "+=" for child in node.children)
        if not is_sure:
            self._forget(name, _NOT_FOLLOWED)
        elif target.type == "subscript":
            self._forget(name, "is set by its number, which is not followed")
        elif value is not None and value.type == "array":
            before = self._variables.get(name, []) if is_added else []
            try:
                added = [one for child in value.named_children for one in self._elements(child)]
                if isinstance(before, Unresolved):
                    raise before
                self._variables[name] = [*([before] if isinstance(before, str) else before), *added]
            except Unresolved as reason:
                self._variables[name] = reason
        elif is_added:
            self._forget(name, "is added to, which is read for lists alone")
        else:
            try:
                self._variables[name] = "" if value is None else self._joined(list(self._parts(value)))
            except Unresolved as reason:
                self._variables[name] = reason

    def _forget(self, name: str, why: str) -> None:
        self._variables[name] = Unresolved(f"${name} {why}")

    def _elements(self, node: Node) -> list[str | _Unread]:
        if node.type == "comment":
            return []
        return self._fields(list(self._parts(node)))

    def _fields(self, word: list[_Part]) -> list[str | _Unread]:
        """The words that bash hands on: those of a list, or the word itself cut at blanks of unquoted variables. Raises
        Unresolved for a list without a value."""
        name = _list_name(word)
        if name is not None:
            value = self._variables.get(name)
            if not isinstance(value, list):
                raise value if isinstance(value, Unresolved) else Unresolved(f"the list {name} is not in the file")
            self._count(sum(len(one if isinstance(one, str) else one.shown) + 1 for one in value))
            return value
        if len(word) == 1 and word[0].is_split and isinstance(word[0].value, _OneOf):
            self._count(sum(map(len, word[0].value.texts)))
            return _agreed([text.split() for text in word[0].value.texts], str(word[0].value))
        try:
            text = self._joined(word)
        except Unresolved as reason:
            return [_Unread(_literal_start(word), _shown(word), str(reason))]
        if not any(part.is_split for part in word):
            return [text]
        cut = "".join(re.sub(r"[ \t\n]+", "\0", str(part.value)) if part.is_split else str(part.value) for part in word)
        return [one for one in cut.split("\0") if one]

    def _joined(self, word: list[_Part]) -> str:
        for part in word:
            if isinstance(part.value, Unresolved):
                raise part.value
        length = sum(len(str(part.value)) for part in word)
        if length > _MOST_IN_A_WORD:
            raise Unresolved(f"it grows beyond {_MOST_IN_A_WORD:,} characters")
        self._count(length)
        return "".join(str(part.value) for part in word)

    def _count(self, characters: int) -> None:
        """Variables that double each other would fill the memory."""
        if self._made + characters > _MOST_ALTOGETHER:
            raise Unresolved(f"values of the file grow beyond {_MOST_ALTOGETHER:,} characters together")
        self._made += characters

    # Words

    def _start(self, node: Node) -> int:
        """Where the node starts without the blanks that the grammar takes to an expansion between quotes."""
        text = self._source[node.start_byte : node.end_byte]
        return node.end_byte - len(text.lstrip())

    def _parts(self, node: Node, *, is_quoted: bool = False) -> Iterator[_Part]:
        text = self._text(node).lstrip() if is_quoted else self._text(node)
        if node.type in ("concatenation", "command_name", "translated_string"):
            end = node.start_byte
            for child in node.named_children:
                yield from self._parts(child)
                end = child.end_byte
            if end < node.end_byte:
                yield _literal_part(self._source[end : node.end_byte].decode())
        elif node.type == "raw_string":
            yield _Part(text[1:-1], text[1:-1], is_literal=True)
        elif node.type == "string":
            yield from self._quoted(node)
        elif node.type in ("simple_expansion", "expansion"):
            inside = text[2:-1] if text.startswith("${") else text[1:]
            yield self._part(lambda: self._variable(inside), f"${{{inside}}}", is_split=not is_quoted)
        elif node.type == "arithmetic_expansion":
            yield self._part(lambda: str(self._arithmetic(node)), f"$(({text[3:-2]}))")
        elif node.type in _SUBSTITUTIONS:
            inside = text[1:-1] if text.startswith("`") else text[2:-1]
            reason = Unresolved(f"it holds the output of a command, {_short(inside)}, which is not run")
            yield _Part(reason, f"$({inside})")
        elif node.type == "ansi_c_string":
            yield _Part(Unresolved(f"the form {_short(text)} is not read"), text)
        else:
            yield _literal_part(text)

    def _quoted(self, node: Node) -> Iterator[_Part]:
        """What stands between double quotes. Blanks there are in no node of their own."""
        yield _Part("", "", is_literal=True)  # "" is a word too
        end = node.start_byte + 1
        for child in [*(one for one in node.named_children if one.type != "string_content"), None]:
            start = node.end_byte - 1 if child is None else self._start(child)
            between = self._source[end:start].decode()
            if between:
                value = re.sub(r'\\([$`"\\]|\n)', lambda found: found[1].strip("\n"), between)
                yield _Part(value, value, is_literal=True)
            if child is not None:
                yield from self._parts(child, is_quoted=True)
                end = child.end_byte

    def _part(self, value: Callable[[], str], shown: str, *, is_split: bool = False) -> _Part:
        try:
            return _Part(value(), shown, is_split=is_split)
        except Unresolved as reason:
            return _Part(reason, shown, is_split=is_split)

    def _variable(self, inside: str) -> str:
        with_default = _WITH_DEFAULT.fullmatch(inside)
        name = with_default[1] if with_default else inside
        if not re.fullmatch(r"\w+", name):
            raise Unresolved(f"the form ${{{_short(inside)}}} is not read")
        value = self._variables.get(name)
        if isinstance(value, Unresolved):
            raise value
        if isinstance(value, list):
            raise Unresolved(f"${name} is a list")
        if value is not None and (value or not with_default):
            return value
        if with_default:
            why = "the script's own default of a variable of the environment"
            try:
                default = self._default(with_default[3])
            except Unresolved:
                if name != _DEVICE:
                    raise
                default, why = _ON_ASCEND, "the script finds out what it runs on; this project runs on Ascend"
            self._defaults[name] = (default, why)
            return default
        raise Unresolved(f"${name} has no value in the file")

    def _default(self, text: str) -> str:
        """The default of ${name:-default}, which may hold variables itself."""
        unread = Unresolved(f"the default {_short(text)} is not read")
        if text.count("${") > _MOST_DEFAULTS:
            raise unread
        unquoted = '"' + text.replace('"', "") + '"'
        inner = _Script(f"x={unquoted}".encode())
        inner._variables, inner._defaults = self._variables, self._defaults
        node = _parse(inner._source)
        value = node.named_children[0].child_by_field_name("value") if node.named_children else None
        if node.has_error or value is None or value.type != "string":
            raise unread
        return inner._joined(list(inner._quoted(value)))

    def _arithmetic(self, node: Node) -> int:
        text = self._text(node)[3:-2]
        if len(text) > 200:
            raise Unresolved("its arithmetic is longer than 200 characters")
        if "$(" in text or "`" in text:
            raise Unresolved(f"it holds the output of a command, {_short(text)}, which is not run")
        try:
            (formula,) = node.named_children
            return self._number(formula)
        except (ValueError, ZeroDivisionError, RecursionError):
            raise Unresolved(f"the arithmetic $(({_short(text)})) is not read") from None

    def _number(self, node: Node) -> int:
        text, parts = self._text(node), node.named_children
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

    def _text(self, node: Node) -> str:
        return self._source[node.start_byte : node.end_byte].decode()


def _joint(states: Sequence[_Variables]) -> _Variables:
    """What is known of every variable after one of several branches."""
    found: _Variables = {}
    for name in {name: None for state in states for name in state}:
        values = [state.get(name) for state in states]
        reason = f"${name} {_NOT_FOLLOWED}"
        lists = [[] if one is None else one for one in values if one is None or isinstance(one, list)]
        texts = [text for one in values for text in _texts(one)]
        if all(one == values[0] for one in values[1:]) and values[0] is not None:
            found[name] = values[0]
        elif len(lists) == len(values):
            found[name] = _agreed(lists, reason)
        elif None not in texts and len(set(texts)) <= _MOST_TEXTS:
            found[name] = _OneOf(reason, [str(one) for one in dict.fromkeys(texts)])
        else:
            found[name] = Unresolved(reason)
    return found


def _texts(value: _Value | None) -> Sequence[str | None]:
    """The texts that a variable may have; None among them: another one."""
    if isinstance(value, _OneOf):
        return value.texts
    return [""] if value is None else [value if isinstance(value, str) else None]


def _agreed(lists: Sequence[Sequence[str | _Unread]], reason: str) -> list[str | _Unread]:
    """The words that are in every list; of the others the key alone."""
    found: dict[str | _Unread, None] = {}
    for word in (word for words in lists for word in words):
        if isinstance(word, str) and not all(word in words for words in lists):
            key = f"{word.partition('=')[0]}="
            found[_Unread(key, key, reason)] = None
        else:
            found[word] = None
    return list(found)


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


def _literal_part(text: str) -> _Part:
    value = re.sub(r"\\(.|\n|$)", lambda found: found[1].strip("\n"), text)
    return _Part(value, value, is_literal=True)


def _literal(word: list[_Part]) -> str | None:
    """Its text where all of it stands in the script as it is."""
    return _literal_start(word) if all(part.is_literal for part in word) else None


def _literal_start(word: list[_Part]) -> str:
    """What it says before the first thing that has to be put in."""
    texts = []
    for part in word:
        if not part.is_literal:
            break
        texts.append(str(part.value))
    return "".join(texts)


def _shown(word: list[_Part]) -> str:
    return "".join(part.shown for part in word)


def _list_name(word: list[_Part]) -> str | None:
    """The name of the list that the word "${NAME[@]}" stands for."""
    found = _LIST.fullmatch(_shown(word)[2:-1])
    return found[1] if found and sum(not part.is_literal for part in word) == 1 else None


def _short(text: str) -> str:
    return one_line(" ".join(text.split()), 40)
