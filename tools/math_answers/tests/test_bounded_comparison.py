"""The symbolic comparison under limits: what exceeds one costs its own answer only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from math_answers.bounded import BoundedComparison

FOLDER = Path(__file__).resolve().parents[1]
EQUAL = (r"2\sqrt{2}", r"\sqrt{8}")
ENDLESS = ("(x+1)^{20000}", "x^2+1")


@pytest.fixture(autouse=True)
def _math_verify() -> None:
    pytest.importorskip("math_verify", reason="the symbolic comparison needs the package math-verify")


@pytest.fixture
def comparison() -> Iterator[BoundedComparison]:
    with BoundedComparison(seconds=2.0) as comparison:
        yield comparison


def test_what_takes_too_long_has_no_answer_and_the_next_pair_has_one(comparison: BoundedComparison) -> None:
    assert comparison.are_same(*EQUAL) is True
    assert comparison.are_same(*ENDLESS) is None
    assert comparison.are_same("x+1", "x+2") is False
    comparison.close()
    comparison.close()
    assert comparison.are_same(*EQUAL) is True


def test_threads_take_turns_and_any_text_crosses_the_pipe(comparison: BoundedComparison) -> None:
    pairs = [EQUAL, ("x", "y"), ("\ud800\n", "\x00"), ("}{", "5"), ("x" * 100_000, "x")] * 3
    with ThreadPoolExecutor(4) as threads:
        replies = list(threads.map(lambda pair: comparison.are_same(*pair), pairs))
    assert replies == [True, False, False, False, False] * 3


def test_memory_that_runs_out_is_no_answer_and_too_little_for_sympy_is_said() -> None:
    with pytest.raises(ImportError, match=r"math-answers\[symbolic\]"), BoundedComparison(memory_mb=1) as comparison:
        comparison.are_same(*EQUAL)


def test_a_process_that_was_killed_is_replaced(comparison: BoundedComparison) -> None:
    assert comparison.are_same(*EQUAL) is True
    comparison._process.kill()
    comparison._process.wait()
    assert comparison.are_same(*EQUAL) is True


def test_without_math_verify_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('absent')\n")
    code = "from math_answers.bounded import BoundedComparison; BoundedComparison().are_same('x', 'x+0')"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(FOLDER)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ImportError: absent" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("it needs pip install 'math-answers[symbolic]'")
