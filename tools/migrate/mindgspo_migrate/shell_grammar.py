"""The syntax tree of a shell script, by tree-sitter-bash, in bounded time and memory."""

from __future__ import annotations

import re
import resource
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from mindgspo_migrate.tables import one_line

_MOST_CHARACTERS, _DEEPEST, _MOST_NESTING = 200_000, 100, 2_000
_MOST_SECONDS, _MOST_KILOBYTES = 20, 400_000  # of parsing; what is broken at every character takes the parser minutes
_COMMENT_IN_BACKTICKS = re.compile(rb"(?m)`[ \t]*#[^`\n]*`(?=\s|$)")
_CONTINUED = re.compile(rb"(?<=[^\s\\])(?:\\\n)+(?=\S)")
_LITERAL = ("raw_string", "ansi_c_string", "comment", "heredoc_body", "heredoc_content", "string", "string_content")
# What the grammar takes wrongly is parsed with other characters of the same length, and read as it is in the file:
# ${section.key}, which belongs to Hydra, the default in ${name:-default}, which is parsed by itself, and in $a/$b/c the
# character behind $b, at which the word would end; and a / alone in a test.
_SLASH_IN_A_TEST = re.compile(rb"(?<=\s)/(?=\s+\])")
_OF_HYDRA = re.compile(rb"\$\{\w+(\.\w+)+\}")
_OF_DEFAULT = re.compile(rb"(\$\{\w+:?[-=])([^{}\n]*)(?=\})")
_BEHIND_A_NAME = re.compile(rb"(\$\(\(.{0,500}?\)\)|\$(?:[A-Za-z_]\w*|[0-9@*]))([/.,+~*^-]?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tree:
    """A script and its syntax tree. joined: where lines were made one. in_background: ids of nodes with & behind them.
    is_inner: it is the text of an eval."""

    source: bytes
    root: Node
    joined: Sequence[int] = ()
    in_background: Set[int] = frozenset()
    is_inner: bool = False

    def line(self, node: Node) -> int:
        """The line of the file that the node begins in."""
        return node.start_point.row + 1 + bisect_right(self.joined, node.start_byte)


def read_script(text: str) -> Tree:
    """The script, lines that go on inside a word made one. Raises ValueError: beyond all bounds, or no shell script."""
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"is longer than {_MOST_CHARACTERS:,} characters, so it is no command line")
    if "\0" in text:
        raise ValueError("holds a zero byte, so it is no command line")
    _check_depth(text)
    text = text.replace("\r\n", "\n")
    if (len(text) - len(text.rstrip("\\"))) % 2:
        text = text[:-1]  # a backslash that nothing follows; bash drops it, too
    source = text.encode()
    tree = Tree(source, parse(source))
    if tree.root.has_error and _COMMENT_IN_BACKTICKS.search(source):
        source = _COMMENT_IN_BACKTICKS.sub(lambda found: b" " * len(found[0]), source)
        tree = Tree(source, parse(source))
    for end in sorted(_ends_of_assignments(tree), reverse=True):
        source = source[:end] + b";" + source[end:]
    if source is not tree.source:
        tree = Tree(source, parse(source))
    cuts = [one for one in _CONTINUED.finditer(source) if not _is_literal(tree.root, one.start())]
    if cuts:
        kept, joined, end = b"", [], 0
        for one in cuts:
            kept += source[end : one.start()]
            joined += [len(kept)] * (len(one[0]) // 2)
            end = one.end()
        source = kept + source[end:]
        tree = Tree(source, parse(source), joined)
    _check(tree)
    pairs = (pair for node in _nodes(tree.root) for pair in pairwise(node.children))
    return replace(tree, in_background={one.id for one, following in pairs if following.type == "&"})


def _check_depth(text: str) -> None:
    """Raise ValueError for what would exhaust the parser's stack or time."""
    depth = deepest = 0
    for sign in re.findall(r"[(){}\[\]]", text):
        depth = max(0, depth + (1 if sign in "({[" else -1))
        deepest = max(deepest, depth)
    if deepest > _DEEPEST or len(re.findall(r"[$<>]\(|`|\|", text)) > _MOST_NESTING:
        raise ValueError("nests too deeply, so it is no command line")


def _nodes(root: Node) -> Iterator[Node]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        waiting += node.named_children
        yield node


def _ends_of_assignments(tree: Tree) -> Iterator[int]:
    """Where A=1 B=2 ends a line, which the grammar takes to the command on the next."""
    for node in (one for one in _nodes(tree.root) if one.type == "command"):
        for one, following in pairwise(node.named_children):
            gap = tree.source[one.end_byte : following.start_byte].replace(b"\\\n", b"")
            if one.type == "variable_assignment" and b"\n" in gap:
                yield one.end_byte


def _is_literal(root: Node, position: int) -> bool:
    """Whether a backslash there belongs to a comment or to a text in quotes, which has its own way to go on."""
    node = root.descendant_for_byte_range(position, position + 1)
    return node is not None and node.type in _LITERAL


def parse(source: bytes) -> Node:
    """The root of the syntax tree, mistakes and all. Raises ValueError where it takes too long."""
    masked = _OF_HYDRA.sub(lambda found: found[0].replace(b".", b"_"), source)
    masked = _OF_DEFAULT.sub(lambda found: found[1] + b"_" * len(found[2]), masked)
    masked = _BEHIND_A_NAME.sub(
        lambda found: found[1] + (found[2] if found[1].endswith(b")") else b":" * len(found[2])), masked
    )
    masked = _SLASH_IN_A_TEST.sub(b"_", masked)
    end, most = time.monotonic() + _MOST_SECONDS, _peak() + _MOST_KILOBYTES

    def is_too_much(*_: object) -> bool:
        return time.monotonic() > end or _peak() > most

    try:
        parser = Parser(Language(tree_sitter_bash.language()))
        return parser.parse(lambda at, _: masked[at:], progress_callback=is_too_much).root_node
    except ValueError:
        bounds = f"{_MOST_SECONDS} seconds and {_MOST_KILOBYTES // 1000} MB"
        raise ValueError(f"is not parsed within {bounds}, so it is no command line") from None


def _peak() -> int:
    """The most memory of this process so far, in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _check(tree: Tree) -> None:
    """Raise ValueError for what the grammar could not read."""
    waiting = [(tree.root, tree.root)] if tree.root.has_error else []
    while waiting:
        node, parent = waiting.pop()
        if node.is_missing:
            raise ValueError(f"line {tree.line(parent)}: {node.type} is missing: a quote or bracket is not closed")
        if node.type == "ERROR" and (rest := tree.source[node.start_byte :].strip()):
            why = f"a quote or bracket is not closed, or no shell script: {short(rest.decode())}"
            raise ValueError(f"line {tree.line(node)}: {why}")
        waiting += [(child, node) for child in reversed(node.children) if child.has_error or child.is_missing]


def short(text: str) -> str:
    """The beginning of a text, on one line."""
    return one_line(" ".join(text.split()), 40)
