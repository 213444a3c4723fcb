"""Which branches of a shell script are run, as far as the script itself says so.

A verdict is True, False, or None: not known from the file.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from tree_sitter import Node

Verdict = bool | None
TextOf = Callable[[Node], "str | None"]
"""The text of a word, None where the file does not say it."""
Branch = tuple[Verdict, Sequence[Node]]

_WORDS = (
    "word",
    "number",
    "string",
    "raw_string",
    "concatenation",
    "simple_expansion",
    "expansion",
    "arithmetic_expansion",
)
_GLOB = re.compile(r"[*?\[]")
_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}


def conditions_of_if(node: Node) -> Iterator[Node]:
    """The statements between `if` or `elif` and `then`, in order."""
    for clause in (node, *(one for one in node.named_children if one.type == "elif_clause")):
        tokens = [child.type for child in clause.children]
        end = tokens.index("then") if "then" in tokens else 0
        yield from (one for one in clause.children[1:end] if one.is_named)


def branches_of_if(node: Node, text_of: TextOf) -> Iterator[Branch]:
    """(whether it is taken where the ones before are not, its commands) of `if`, each `elif`, and `else`."""
    clauses = [one for one in node.named_children if one.type in ("elif_clause", "else_clause")]
    for clause in (node, *clauses):
        tokens = [child.type for child in clause.children]
        end = tokens.index("then") if "then" in tokens else 0
        body = [one for one in clause.children[end + 1 :] if one.is_named and one not in clauses]
        if clause.type == "else_clause":
            yield True, clause.named_children
        else:
            conditions = [one for one in clause.children[1:end] if one.is_named]
            yield (decided(conditions[0], text_of) if len(conditions) == 1 else None), body


def branches_of_case(node: Node, text_of: TextOf) -> Iterator[Branch]:
    """The same of every item of `case`."""
    word = node.child_by_field_name("value")
    value = None if word is None else text_of(word)
    for item in (one for one in node.named_children if one.type == "case_item"):
        patterns = item.children_by_field_name("value")
        body = [one for one in item.named_children if one not in patterns]
        yield _any(_fits(value, one, text_of) for one in patterns), body


def falls_through(node: Node) -> bool:
    """Whether several items of `case` may be run."""
    return any(item.children[-1].type in (";&", ";;&") for item in node.named_children if item.type == "case_item")


def decided(node: Node, text_of: TextOf) -> Verdict:
    """The verdict of a test: [ ... ], [[ ... ]], and those joined by && and ||; None for any other command."""
    parts = node.named_children
    if node.type == "test_command" and node.children[0].type == "[":
        text_of = _one_word(text_of)
    if node.type in ("test_command", "parenthesized_expression", "compound_statement") and len(parts) == 1:
        is_arithmetic = node.type == "compound_statement" and node.children[0].type != "{"
        return None if is_arithmetic else decided(parts[0], text_of)
    if node.type in ("list", "binary_expression") and len(parts) == 2:
        sign = next((one.type for one in node.children if one not in parts), "")
        if node.type == "list" and not _is_test(parts[0]):
            return None  # what else is run may change what is tested after it
        if sign == "&&":
            return _not(_any(_not(decided(one, text_of)) for one in parts))
        if sign == "||":
            return _any(decided(one, text_of) for one in parts)
    if node.type == "unary_expression":
        return _of_one(node, text_of)
    return _of_two(node, text_of) if node.type == "binary_expression" else None


def _is_test(node: Node) -> bool:
    """Whether nothing but tests is run."""
    is_made_of = node.type == "list" or (node.type == "compound_statement" and node.children[0].type == "{")
    return node.type == "test_command" or (is_made_of and all(map(_is_test, node.named_children)))


def _one_word(text_of: TextOf) -> TextOf:
    """In [ ... ] a variable without quotes may be no word or several, which changes the test."""

    def found(node: Node) -> str | None:
        text = text_of(node)
        is_whole = node.type in ("string", "raw_string") or bool(text and not re.search(r"[\s*?\[]", text))
        return text if is_whole else None

    return found


def _of_one(node: Node, text_of: TextOf) -> Verdict:
    sign, operand = node.children[0], node.children[-1]
    if sign.type == "!":
        return _not(decided(operand, text_of))
    value = text_of(operand) if operand.type in _WORDS else None
    if value is None or sign.text not in (b"-z", b"-n"):
        return None
    return (value == "") == (sign.text == b"-z")


def _of_two(node: Node, text_of: TextOf) -> Verdict:
    if len(node.children) != 3:
        return None
    first, sign, second = node.children
    if first.type == "unary_expression" and first.children[0].type == "!":  # the grammar takes it to the first word
        return _not(_compared(first.children[-1], sign, second, text_of))
    return _compared(first, sign, second, text_of)


def _compared(first: Node, sign: Node, second: Node, text_of: TextOf) -> Verdict:
    name = (sign.text or b"").decode()
    left, right = (text_of(one) if one.type in _WORDS else None for one in (first, second))
    if left is None or right is None:
        return None
    if name in ("=", "==", "!="):
        return None if _is_pattern(second, right) else (left == right) == (name != "!=")
    if name in _NUMBERS and all(re.fullmatch(r"[+-]?(0|[1-9]\d{0,17})", one) for one in (left, right)):
        return _NUMBERS[name](int(left), int(right))
    return None


def _fits(value: str | None, pattern: Node, text_of: TextOf) -> Verdict:
    if pattern.text == b"*":
        return True
    wanted = text_of(pattern)
    if wanted is not None and _is_pattern(pattern, wanted):
        return None
    return None if value is None or wanted is None else value == wanted


def _is_pattern(node: Node, text: str) -> bool:
    return node.type not in ("string", "raw_string") and bool(_GLOB.search((node.text or b"").decode() + text))


def _any(verdicts: Iterator[Verdict]) -> Verdict:
    found = set(verdicts)
    return True if True in found else (None if None in found else False)


def _not(verdict: Verdict) -> Verdict:
    return None if verdict is None else not verdict
