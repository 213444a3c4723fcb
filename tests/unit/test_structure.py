"""The shape of the code: one name for one idea, and no part larger than its budget."""

from __future__ import annotations

import ast
from collections import defaultdict

from running import PROJECT, python

FILES = sorted([*(PROJECT / "mindgspo").rglob("*.py"), *(PROJECT / "tools/math_answers/math_answers").glob("*.py")])


def test_no_two_modules_define_one_public_name() -> None:
    found = defaultdict(list)
    for path in FILES:
        for node in ast.parse(path.read_text("utf-8")).body:
            names = [node.name] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
            if isinstance(node, ast.Assign):  # type aliases and variables
                names = [one.id for one in node.targets if isinstance(one, ast.Name) and not one.id.isupper()]
                names = [name for name in names if name[0].isupper()]
            for name in names:
                if not name.startswith("_"):
                    found[name].append(str(path.relative_to(PROJECT)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_every_part_keeps_its_budget() -> None:
    done = python("tools/size_budget.py", cwd=PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_can_be_imported() -> None:
    """Children import some of them alone, in processes of their own."""
    modules = [
        ".".join(path.relative_to(PROJECT).with_suffix("").parts).removeprefix("tools.math_answers.")
        for path in FILES
        if path.name not in ("__init__.py", "__main__.py")
    ]
    code = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
    done = python("-c", code, *modules, cwd=PROJECT)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_package_brings_the_license() -> None:
    copies = [path.parent / "LICENSE" for path in (PROJECT / "tools").glob("*/pyproject.toml")]
    assert len(copies) == 6 and {path.read_bytes() for path in copies} == {(PROJECT / "LICENSE").read_bytes()}
