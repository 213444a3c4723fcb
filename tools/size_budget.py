#!/usr/bin/env python3
"""Compare the size of each part of the repository with its budget in tools/size_budget.toml.

    python tools/size_budget.py        print a table; exit code 1 if a part exceeds its budget

Code lines are those of Python files that are neither blank, comment nor docstring.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from pathlib import Path

import tomllib

PROJECT = Path(__file__).resolve().parents[1]
BUDGET = PROJECT / "tools/size_budget.toml"
_LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def code_lines(path: Path) -> int:
    """Count the code lines of one file."""
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if token.type not in _LAYOUT]
    lines = {number for token in tokens for number in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(path.read_bytes())):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else []:
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                lines -= set(range(one.lineno, (one.end_lineno or one.lineno) + 1))
    return len(lines)


def sizes(paths: list[str]) -> tuple[int, int]:
    """Return code lines and number of the Python files below these folders."""
    files = [file for path in paths for file in (PROJECT / path).rglob("*.py") if "__pycache__" not in file.parts]
    return sum(map(code_lines, files)), len(files)


def main() -> int:
    budgets = tomllib.loads(BUDGET.read_text("utf-8"))
    is_exceeded = False
    print(f"{'part':<16} {'code lines':>18} {'files':>12}")
    for name, budget in budgets.items():
        lines, files = sizes(budget["paths"])
        over = lines > budget["lines"] or files > budget["files"]
        is_exceeded |= over
        marks = "  exceeds its budget" if over else ""
        print(f"{name:<16} {lines:>8,} of {budget['lines']:>6,} {files:>5} of {budget['files']:>3}{marks}")
    if is_exceeded:
        where = BUDGET.relative_to(PROJECT)
        print(f"make something simpler, or raise the budget in {where} and say why", file=sys.stderr)
    return int(is_exceeded)


if __name__ == "__main__":
    sys.exit(main())
