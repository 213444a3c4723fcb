#!/usr/bin/env python3
"""Show what the tests notice: draw small mistakes in the code at random, and run tests with one of them at a time.

    python tools/mutants.py mindgspo/rewards --seed 1 --draw 20                               # a JSON list of mutants
    python tools/mutants.py mindgspo/rewards --seed 1 --draw 20 --run tests/unit/rewards/test_math.py ...

A mutant is one changed expression or statement of a function: file, line, function, operator, text before and after.
Lines are drawn first, without repetition, then one change on each. Messages of errors, `assert`, annotations and
f-strings stay as they are, and nothing is changed that stops every call at once: what `__init__` stores, or the type of
what is returned. With `--run`, each mutant is written into a copy of the project (never into the project itself:
MindSpore reads a cell's source when it compiles it) and the given tests run there until one fails:

- `killed`: a test failed; `by` names it;
- `timeout`: the tests, which end within `--cpu-seconds` on the code as it is, used more than that. Seconds of all
  processes are counted, not the clock: a busy machine kills no mutant;
- `survived`: all tests passed. Either the mutant does the same as the code, or a test is missing.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import TypeAlias

import psutil

PROJECT = Path(__file__).resolve().parents[1]
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_OTHERS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
_SAME_IF_SWAPPED = {"min", "max", "minimum", "maximum", "gcd", "lcm", "isclose", "isinstance"}
_UNTOUCHED = (ast.JoinedStr, ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """One change. `start` and `end` are the bytes of `file` that `before` takes and `after` replaces."""

    file: str
    line: int
    function: str
    operator: str
    before: str
    after: str
    start: int
    end: int


def _changes(node: ast.AST, function: Function) -> Iterator[tuple[str, ast.AST]]:
    """All replacements of one node of a function, each with the name of its operator."""

    def changed(**fields: object) -> ast.AST:
        twin = copy.copy(node)
        for name, value in fields.items():
            setattr(twin, name, value)
        return twin

    def negated(test: ast.expr) -> ast.expr:
        return ast.UnaryOp(op=ast.Not(), operand=test)

    if isinstance(node, ast.Compare):
        for place, op in enumerate(node.ops):
            yield "comparison", changed(ops=[*node.ops[:place], _OTHERS[type(op)](), *node.ops[place + 1 :]])
    elif isinstance(node, ast.BoolOp):
        yield "boolean", changed(op=_OTHERS[type(node.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "condition", node.operand
    elif isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OTHERS:
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
        if not any(isinstance(side, ast.JoinedStr | ast.List) or _is_text(side) for side in sides):
            yield "arithmetic", changed(op=_OTHERS[type(node.op)]())
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", changed(value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield from (("constant", changed(value=node.value + step)) for step in (1, -1))
    elif isinstance(node, ast.Call) and len(node.args) > 1:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        is_alike = len({isinstance(one, ast.Constant | ast.JoinedStr) for one in node.args[:2]}) == 1
        if is_alike and name not in _SAME_IF_SWAPPED and not any(isinstance(one, ast.Starred) for one in node.args):
            yield "arguments", changed(args=[node.args[1], node.args[0], *node.args[2:]])
    elif isinstance(node, ast.Slice):
        for field in ("lower", "upper"):
            bound = getattr(node, field)
            for op in (ast.Add(), ast.Sub()) if bound is not None else ():
                yield "slice", changed(**{field: ast.BinOp(left=bound, op=op, right=ast.Constant(1))})
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "condition", negated(node.test)
    elif isinstance(node, ast.comprehension):
        yield from (("condition", negated(test)) for test in node.ifs)
    elif isinstance(node, ast.Return) and node.value is not None and function.returns is not None:
        returned = ast.unparse(function.returns)
        if returned == "bool":
            yield "return", changed(value=negated(node.value))
        elif "None" in returned and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield "return", changed(value=ast.Constant(None))
    if _may_go(node, function):
        yield "statement", ast.Pass()


def _may_go(node: ast.AST, function: Function) -> bool:
    """Whether a function without this statement still runs."""
    if isinstance(node, ast.Expr):
        return not _is_text(node.value) and "super()" not in ast.unparse(node)
    if isinstance(node, ast.Assign) and function.name != "__init__":
        return all(isinstance(one, ast.Attribute | ast.Subscript) for one in node.targets)
    return isinstance(node, ast.AugAssign | ast.Break | ast.Continue | ast.Raise)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that are changed: those of the body, but for functions inside it, messages and annotations."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, Function | ast.ClassDef):
                yield child
                if not isinstance(child, _UNTOUCHED):
                    yield from _parts(child)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """All functions with their qualified names, those inside others too."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, Function | ast.ClassDef):
            name = prefix + child.name
            if isinstance(child, Function):
                yield name, child
            yield from functions(child, name + ".")
        else:
            yield from functions(child, prefix)


def mutants_of(function: Function, name: str, source: bytes, file: str) -> list[Mutant]:
    """All mutants of one function, in an order that only its code decides."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in _parts(function):
        for operator, twin in _changes(node, function):
            # conditions stand inside their statement: only they are replaced
            old = node
            if operator == "condition" and not isinstance(node, ast.UnaryOp):
                tests = [node.test] if hasattr(node, "test") else node.ifs
                old = next(test for test in tests if test is twin.operand)
            if isinstance(node, ast.Slice):
                old, twin = (node.lower, twin.lower) if node.lower is not twin.lower else (node.upper, twin.upper)
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            before, after = source[start:end].decode(), ast.unparse(ast.fix_missing_locations(copy.deepcopy(twin)))
            after = f"({after})" if isinstance(old, ast.expr) and not isinstance(old, ast.Constant) else after
            found.append(Mutant(file, old.lineno, name, operator, before, after, start, end))
    return found


def mutants_below(paths: list[str], project: Path = PROJECT) -> list[Mutant]:
    """All mutants of these files and folders, whose paths are relative to the project."""
    found = []
    for path in paths:
        top = project / path
        for file in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
            source, name = file.read_bytes(), file.relative_to(project).as_posix()
            for of_function, function in functions(ast.parse(source)):
                found += mutants_of(function, of_function, source, name)
    return found


def draw(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """At most `count` of them, on as many lines."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for mutant in mutants:
        by_line.setdefault((mutant.file, mutant.line), []).append(mutant)
    chance = random.Random(seed)
    return [chance.choice(by_line[line]) for line in chance.sample(sorted(by_line), min(count, len(by_line)))]


def copied_project(folder: Path, project: Path = PROJECT) -> Path:
    """A copy to change. Its compiled files are checked by content: two mutants may have one size and one second."""
    skip = shutil.ignore_patterns(".*", "__pycache__", "runs", "site")
    shutil.copytree(project, folder, ignore=skip, symlinks=True)
    for part in ("mindgspo", "tools"):
        compileall.compile_dir(folder / part, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return folder


def used_seconds(process: psutil.Process) -> float:
    """Processor seconds of a process and of its children, ended ones included."""
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += sum(one.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


def run_tests(tree: Path, tests: list[str], cpu_seconds: float) -> tuple[str, str]:
    """Run tests of a tree until one fails; return the outcome, and the test or pytest's last line."""
    packages = [tree, *(file.parent for file in tree.glob("tools/*/pyproject.toml"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages)), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "--tb=line", "-p", "no:cacheprovider"]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        child = psutil.Popen([*command, *tests], cwd=tree, env=environment, stdout=output, stderr=subprocess.STDOUT)
        while child.poll() is None:
            time.sleep(0.2)
            if used_seconds(child) > cpu_seconds:
                for one in [*child.children(recursive=True), child]:
                    one.kill()
                child.wait()
                return "timeout", ""
        output.seek(0)
        lines = output.read().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if child.returncode == 0:
        return "survived", lines[-1]
    return "killed", failed[0] if failed else f"exit code {child.returncode}: {lines[-1] if lines else ''}"


def try_out(mutant: Mutant, tree: Path, tests: list[str], cpu_seconds: float) -> tuple[str, str]:
    """Run tests with one mutant in the copied project `tree`, which is as before afterwards."""
    file = tree / mutant.file
    source = file.read_bytes()
    assert source[mutant.start : mutant.end].decode() == mutant.before
    file.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.end :])
    try:
        return run_tests(tree, tests, cpu_seconds)
    finally:
        file.write_bytes(source)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", help="files and folders of the project whose functions are changed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", type=int, default=10, metavar="N", help="this many mutants (default 10)")
    parser.add_argument("--run", nargs="+", metavar="TEST", help="run these tests, in pytest's form, with each")
    parser.add_argument("--cpu-seconds", type=float, default=60.0, help="limit of processor seconds per mutant")
    options = parser.parse_args()
    drawn = [asdict(mutant) for mutant in draw(mutants_below(options.paths), options.draw, options.seed)]
    if options.run:
        with tempfile.TemporaryDirectory() as folder:
            tree = copied_project(Path(folder) / PROJECT.name)
            outcome, by = run_tests(tree, options.run, options.cpu_seconds)
            if outcome != "survived":
                print(f"without a mutant: {outcome} {by}", file=sys.stderr)
                return 1
            for one in drawn:
                one["outcome"], one["by"] = try_out(Mutant(**one), tree, options.run, options.cpu_seconds)
    print(json.dumps(drawn, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
