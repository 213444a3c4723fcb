"""What the README says: its example, its functions, and that nothing else is needed."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MODULES = sorted(path.stem for path in (ROOT / "math_answers").glob("[a-z]*.py"))


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return found


def test_the_example_prints_what_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="the symbolic comparison needs the package math-verify")
    done = subprocess.run(
        [sys.executable, "-c", block("python")], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout == block("text")


def test_the_functions_named_exist() -> None:
    named = re.findall(r"`(\w+)\.([A-Za-z]\w+)`", README)
    assert len(named) >= 6
    for module, name in named:
        assert module in MODULES and hasattr(importlib.import_module(f"math_answers.{module}"), name), name


def test_all_but_the_symbolic_comparison_needs_the_standard_library_alone() -> None:
    code = "import importlib, sys; [importlib.import_module(f'math_answers.{name}') for name in sys.argv[1:]]"
    modules = [name for name in MODULES if name != "symbolic"]
    # -S: without site-packages.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, *modules], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
