"""An interpreter with MindFormers, and how programs are run in it.

    MINDGSPO_MINDFORMERS_PYTHON=/path/to/mf/bin/python ./run_tests.sh tests/integrations_mindformers

The variable names an interpreter with mindformers 1.9.0, mindspore 2.9.0 and this project's dependencies; without it
these tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from running import environment

VARIABLE = "MINDGSPO_MINDFORMERS_PYTHON"
LIMIT_S = 600.0


@pytest.fixture(scope="session")
def mindformers_python() -> str:
    """Skips without the variable; a wrong one fails the tests."""
    path = os.environ.get(VARIABLE)
    if not path:
        pytest.skip(f"needs {VARIABLE}, an interpreter with mindformers 1.9.0: see docs/integrations.md")
    return path


@pytest.fixture(scope="session")
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    """run(python, *arguments, cwd=...): to the end, with the project under test on its path."""

    def run_(python: str, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, *map(str, arguments)],
            cwd=cwd,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    return run_
