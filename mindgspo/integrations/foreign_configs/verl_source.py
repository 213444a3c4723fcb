"""verl's overrides out of a shell script, a command line or a list; nothing is run.

What enters: text. What leaves: dotted key -> value, and a remark on everything that is no plain override. Called by
`sources`.
"""

from __future__ import annotations

import re

import yaml

from mindgspo.config.yaml_dialect import parse_value
from mindgspo.integrations.foreign_configs.reading import Reading
from mindgspo.integrations.foreign_configs.shell_values import Unresolved, Variables, leading_text
from mindgspo.integrations.foreign_configs.shell_words import Kind, Word, statements
from mindgspo.integrations.foreign_configs.table import Fate

_TRAINER = re.compile(r"(verl|recipe)(\.\w+)*\.main_\w+|(.*/)?main_\w+\.py")
_OVERRIDE = re.compile(r"(?P<sign>\+{0,2}|~)(?P<key>\w+(?:\.\w+)+)(?P<rest>=.*|)", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_OPENING = ("if", "for", "while", "until", "case", "function")
_CLOSING = ("fi", "done", "esac")
_CONTINUING = ("then", "else", "elif", "do")
_ASSIGNING = ("export", "local", "readonly", "declare", "typeset")
_CONFIG_OPTIONS = ("--config-name", "--config-path")
_SINGLE_WORDS = (*_CONFIG_OPTIONS, "model_engine")
_REDIRECTIONS = (">", ">>", "<", "&>", ">&", "<<<")


def read_overrides(text: str) -> Reading:
    """Every override of the one training command in the script, or of a plain list of them.

    Raises ValueError: no override in it, several training commands, an open quote.
    """
    script = _Script()
    for statement, is_conditional in statements(text):
        script.take(statement, is_conditional)
    return script.reading()


class _Script:
    """Walks the statements in order."""

    def __init__(self) -> None:
        self._variables = Variables()
        self._reading = Reading()
        self._depth = 0
        self._commands: list[int] = []
        self._others: list[str] = []

    def take(self, statement: list[Word], is_conditional: bool) -> None:
        words = self._without_keywords(statement)
        while words and words[0].literal in _ASSIGNING:
            words = [word for word in words[1:] if not (word.literal or "").startswith("-")]
        while words and (found := _ASSIGNMENT.match(leading_text(words[0]))):
            words = self._assign(found[1], words, is_added=bool(found[2]), is_sure=not (self._depth or is_conditional))
        if not words:
            return
        trainer = next((n for n, word in enumerate(words) if _TRAINER.fullmatch(word.literal or "")), None)
        if trainer is not None:
            self._commands.append(words[trainer].line)
            self._reading.values.clear()  # overrides that stood alone before it were for people to read
            self._arguments(words[trainer + 1 :])
        elif not self._commands and _OVERRIDE.fullmatch(leading_text(words[0])):
            self._arguments(words)
        elif _OVERRIDE.fullmatch(leading_text(words[0])):
            why = "stands behind the end of the training command; the line above it must end with a backslash"
            self._reading.unread(leading_text(words[0]).partition("=")[0], str(words[0]).partition("=")[2], why)
        else:
            self._others.append(str(words[0]))

    def _without_keywords(self, words: list[Word]) -> list[Word]:
        """The statement without `then`, `do`, ...; counts how deep it stands in them."""
        while words:
            first = words[0].literal
            if first in _OPENING:
                self._depth += 1
                if first == "for" and len(words) > 1:
                    self._variables.forget(str(words[1]), "is set by a loop")
                return []
            if first in _CLOSING:
                self._depth = max(0, self._depth - 1)
            elif first not in _CONTINUING:
                return words
            words = words[1:]
        return words

    def _assign(self, name: str, words: list[Word], *, is_added: bool, is_sure: bool) -> list[Word]:
        """Takes `name=...` off the front."""
        rest = words[1:]
        is_list = bool(rest) and rest[0].is_operator and rest[0].literal == "("
        end = next((n for n, word in enumerate(rest) if word.is_operator and word.literal == ")"), len(rest) - 1)
        if not is_sure:
            self._variables.forget(name, "is set under a condition or in a loop, which is not followed")
        elif is_list:
            self._variables.assign_list(name, rest[1:end], is_added=is_added)
        elif is_added:
            self._variables.forget(name, "is added to, which is read for lists alone")
        else:
            self._variables.assign(name, _after_equals(words[0]))
        return rest[end + 1 :] if is_list else rest

    def _arguments(self, words: list[Word]) -> None:
        skip = False
        for number, word in enumerate(words):
            following = words[number + 1] if number + 1 < len(words) else None
            if word.is_operator:
                skip = word.literal in _REDIRECTIONS
                continue
            is_descriptor = following is not None and following.is_operator and (word.literal or "").isdigit()
            if word.literal in _CONFIG_OPTIONS and following is not None:
                self._override(f"{word.literal}={following.literal or ''}")
                skip = True
                continue
            if not skip and not is_descriptor:
                self._argument(word)
            skip = False

    def _argument(self, word: Word) -> None:
        if [(piece.kind, piece.text) for piece in word.pieces if piece.text] in (
            [(Kind.VARIABLE, "@")],
            [(Kind.VARIABLE, "*")],
        ):
            self._reading.unread("$@", "", "arguments that the script is called with are not in the file; use --set")
            return
        try:
            words = self._variables.words(word)
        except Unresolved as reason:
            self._reading.unread(str(word), "", str(reason))
            return
        for one in words:
            try:
                self._override(self._variables.text(one))
            except Unresolved as reason:
                key = _OVERRIDE.fullmatch(leading_text(one))
                value = str(one).partition("=")[2]
                self._reading.unread(key["key"] if key else str(one), value, str(reason))

    def _override(self, text: str) -> None:
        found = _OVERRIDE.fullmatch(text)
        option, _, value = text.partition("=")
        if option in _SINGLE_WORDS and value:
            self._reading.values[option] = value
        elif found is None and text.strip():
            self._reading.remark(text, "", "no override of the form section.key=value", Fate.UNKNOWN)
        elif found is None:
            return
        elif found["sign"] == "~":
            self._reading.values.pop(found["key"], None)
            self._reading.remark(f"~{found['key']}", "", "a key that is taken out there; here it is as if never given")
        elif not found["rest"]:
            self._reading.remark(text, "", "no override of the form section.key=value", Fate.UNKNOWN)
        else:
            self._set(found["key"], found["rest"][1:])

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

    def reading(self) -> Reading:
        if len(self._commands) > 1:
            lines = ", ".join(map(str, self._commands))
            raise ValueError(f"holds {len(self._commands)} training commands (lines {lines}); leave one of them in")
        if not self._reading.values and not self._reading.unread_keys:
            raise ValueError("holds no override of the form section.key=value")
        for name, default in self._variables.taken_defaults.items():
            self._reading.assumed(f"${name}", default, "the script's own default of a variable of the environment")
        if self._others:
            names = ", ".join(sorted(set(self._others))[:8])
            self._reading.remark(f"{len(self._others)} other commands", names, "nothing of the script is run")
        return self._reading


def _after_equals(word: Word) -> Word:
    """The word behind its first `=`."""
    pieces = list(word.pieces)
    while pieces:
        piece = pieces.pop(0)
        if "=" in piece.text:
            rest = piece.text.partition("=")[2]
            return Word((type(piece)(Kind.TEXT, rest), *pieces), word.line)
    return Word((), word.line)
