"""Variables of a shell script: what is assigned, declared, local and positional, and what has no value any more because
a statement that is not followed may have changed it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tree_sitter import Node

from mindgspo_migrate.shell_grammar import Tree
from mindgspo_migrate.shell_words import (
    NOT_FOLLOWED,
    OF_THE_CALLER,
    Field,
    Part,
    Unread,
    Unresolved,
    Value,
    Words,
    has_braces,
    shown_word,
)

NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[.*\])?(\+?)=(.*)", re.DOTALL)
# An arithmetic that changes a variable, and the places where arithmetic stands.
_CHANGED = re.compile(
    r"(?:\+\+|--)\s*([A-Za-z_]\w*)|([A-Za-z_]\w*)(?:\[[^\]]*\])?\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))"
)
_ARITHMETIC = re.compile(r"\(\(|\$\[|\$\{\w+(?:\[|:(?![-=?+]))")
_DEFAULT_SET = re.compile(r"\$\{(\w+)(?:\[[^\]]*\])?:?=")


class Scope(Words):
    """Variables, and what is known of functions. `_strange`: names that an assignment gives another value than is
    written, and why. `_open_choices`: branches around of which it is not known whether they run."""

    def __init__(self, source: bytes) -> None:
        super().__init__(source)
        self._functions: dict[str, list[tuple[Tree, Node]]] = {}
        self._called: list[str] = []
        self._locals: list[dict[str, Value | None]] = []
        self._strange: dict[str, str] = {}
        self._open_choices = 0
        self._is_sure = False

    def _assign(self, node: Node, is_sure: bool) -> None:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None:
            return
        name = self.text(target).partition("[")[0]
        is_added = any(child.type == "+=" for child in node.children)
        before = self.variables.get(name)
        if not is_sure:
            self.forget(name, NOT_FOLLOWED)
        elif target.type == "subscript":
            self.forget(name, "is set by its number, which is not followed")
        elif name in self._strange:
            self.forget(name, self._strange[name])
        elif value is not None and value.type == "array":
            self.variables[name] = self._array(value, before if is_added else None)
        elif is_added and not isinstance(before, str):
            self.forget(name, "is added to, and what it was is not in the file")
        else:
            try:
                text = "" if value is None else self.joined(list(self.parts(value, is_value=True)))
                self.variables[name] = f"{before}{text}" if is_added else text
            except Unresolved as reason:
                self.variables[name] = reason

    def _array(self, node: Node, before: Value | None) -> list[Field] | Unresolved:
        if isinstance(before, Unresolved):
            return before
        elements = [child for child in node.named_children if child.type != "comment"]
        if any(self.text(child).startswith("[") and "]=" in self.text(child) for child in elements):
            return Unresolved("its elements have names, which are not followed")
        found: list[Field] = [before] if isinstance(before, str) else list(before or ())
        for word in self.words_of(elements):
            found += self._expanded(word)
        return found

    def _expanded(self, word: list[Part]) -> list[Field]:
        try:
            return self.fields(word)
        except Unresolved as reason:
            return [Unread("", shown_word(word), str(reason))]

    def _declare(self, node: Node, is_sure: bool) -> None:
        """export, declare and the like."""
        keyword = self.text(node.children[0])
        if keyword == "local" and not self._called:
            return  # an error, which sets nothing
        flags = "".join(self.text(one)[1:] for one in node.named_children if self.text(one).startswith("-"))
        is_local = keyword in ("local", "declare", "typeset") and "g" not in flags
        strange = set(flags) & set("ilucnA") and keyword not in ("export", "readonly")
        for child in node.named_children:
            is_assignment = child.type == "variable_assignment"
            text = self.text_if_known(child) if not is_assignment else self.text(child)
            if text is not None and text.startswith(("-", "+")):
                continue
            found = ASSIGNMENT.fullmatch(text or "")
            name = found[1] if found else text
            if name is None or not NAME.fullmatch(name):
                self._forget_all(f"may be changed by {keyword}, which is not followed")
                continue
            if is_local:
                self._make_local(name, is_sure)
            if strange:
                self._strange[name] = f"is declared with -{flags}, which is not followed"
            if "n" in flags and found and strange:  # another name for a variable
                self._strange[found[3]] = f"has another name, {name}"
                self.forget(found[3], self._strange[found[3]])
            if is_assignment:
                self._assign(child, is_sure)
            elif found or strange or "f" in flags:
                self.forget(name, f"is set by {keyword}, which is not followed")
            elif is_local and self._locals:
                self.variables.pop(name, None)
            value = child.child_by_field_name("value") if is_assignment else None
            if value is not None and value.type != "array" and has_braces(list(self.parts(value))):
                self.forget(name, "is declared with braces, which are not read")
            if "a" in flags and isinstance(self.variables.get(name), str):
                self.forget(name, "is a list")
            if keyword == "readonly" or "r" in flags:
                self._strange[name] = "is read-only"

    def _unset(self, words: Sequence[Field], is_sure: bool) -> None:
        for word in words:
            if isinstance(word, Unread):
                self._forget_all("may be taken away by unset")
            elif word in self._functions and ("-f" in words or word not in self.variables):
                self._functions[word] *= 2 if self._open_choices or not is_sure else 0  # may be taken away, or is
            elif "-f" in words or word.startswith("-"):
                continue
            elif is_sure and NAME.fullmatch(word) and word not in self._strange:
                self.variables.pop(word, None)
            else:
                self.forget(word.partition("[")[0], "is taken away by unset, which is not followed")

    def _make_local(self, name: str, is_sure: bool) -> None:
        if self._locals and name not in self._locals[-1]:
            is_certain = is_sure and not self._open_choices
            lost = Unresolved(f"${name} {NOT_FOLLOWED}")
            self._locals[-1][name] = self.variables.get(name) if is_certain else lost

    def _positional(self, name: str, words: Sequence[Field], is_sure: bool) -> None:
        given = self.variables.get("@")
        if name == "shift":
            count = words[0] if words else "1"
            if isinstance(given, list) and is_sure and isinstance(count, str) and count.isdecimal():
                self._set_positional(given[int(count) :] if int(count) <= len(given) else given)
            elif "@" in self.variables or not is_sure:
                self._forget_positional(why="is changed by shift, which is not followed")
            return
        start = 0
        while start < len(words) and isinstance(words[start], str) and re.match(r"[-+]\w|-$", words[start]):
            start += 2 if "o" in words[start] else 1  # -o takes a name
        if start >= len(words):
            return
        start += words[start] == "--"
        if is_sure:
            self._set_positional(words[start:])
        else:
            self._forget_positional(why="is changed by set, which is not followed")

    def _set_positional(self, arguments: Sequence[Field]) -> None:
        for key in [key for key in self.variables if is_positional(key)]:
            del self.variables[key]
        if arguments and all(isinstance(one, Unread) and one.reason == OF_THE_CALLER for one in arguments):
            return  # those of the script itself
        self.variables["@"] = list(arguments)
        is_counted = all(isinstance(one, str) or "=" in one.known for one in arguments)
        for number, one in enumerate(arguments, 1):
            is_known = is_counted and isinstance(one, str)
            self.variables[str(number)] = one if is_known else Unresolved(f"${number} has no value in the file")

    def _forget_positional(self, why: str) -> None:
        for key in ["@", *map(str, range(1, 10)), *filter(is_positional, self.variables)]:
            self.variables[key] = Unresolved(f"${key} {why}")

    def set_default(self, name: str, value: str | Unresolved) -> None:
        """${name:=value} found no value."""
        if self._is_sure and name not in self._strange:
            self.variables[name] = value
        else:
            self.forget(name, NOT_FOLLOWED)

    def _put(self, name: str, value: Value | None) -> None:
        if value is None:
            self.variables.pop(name, None)
        else:
            self.variables[name] = value

    def forget(self, name: str, why: str) -> None:
        """From here on the variable has no value."""
        self.variables[name] = Unresolved(f"${name} {why}")

    def _forget_names(self, names: Sequence[str], why: str) -> None:
        for name in names:
            if NAME.fullmatch(name):
                self.forget(name, why)

    def _forget_all(self, why: str) -> None:
        for name in self.variables:
            if name != "HOME" and not isinstance(self.variables[name], Unresolved):
                self.forget(name, why)

    def _forget_changed(self, node: Node, is_sure: bool) -> None:
        """What arithmetic within the node changes, and defaults that it sets where they are not followed."""
        text = self.text(node)
        changed = [name for found in _arithmetic(text) for pair in _CHANGED.findall(found) for name in pair if name]
        self._forget_names(changed, "is changed by arithmetic, which is not followed")
        if not is_sure or node.type not in ("command", "variable_assignment"):
            self._forget_names(_DEFAULT_SET.findall(text), NOT_FOLLOWED)


def _arithmetic(text: str) -> Iterator[str]:
    """Stretches of a statement that are arithmetic, up to where their brackets close."""
    end = 0
    for found in _ARITHMETIC.finditer(text):
        if found.start() < end:
            continue
        depth, end = 0, len(text)
        for sign in re.finditer(r"[()\[\]{}]", text[found.start() :]):
            depth += 1 if sign[0] in "([{" else -1
            if depth == 0:
                end = found.start() + sign.end()
                break
        yield text[found.end() : end]


def is_positional(name: str) -> bool:
    return name == "@" or name.isdecimal()
