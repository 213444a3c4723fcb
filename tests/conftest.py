"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

# Nothing asserts on time: a worker may wait for its neighbour.
hypothesis.settings.register_profile("mindgspo", deadline=None)
hypothesis.settings.load_profile("mindgspo")

SHARED_DATA = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"


@pytest.fixture(scope="session")
def shared_rows() -> Callable[[str], list[dict]]:
    """shared_rows(name): the rows of a JSON Lines file of the published data beside the project; skips without it."""

    def rows(name: str) -> list[dict]:
        path = SHARED_DATA / name
        if not path.is_file():
            pytest.skip(f"needs {name} of the shared data folder, absent at {SHARED_DATA}")
        with path.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    return rows


@pytest.fixture(scope="session")
def cpu_runtime() -> None:
    """MindSpore on the CPU in graph mode; ask for it in every test that builds or runs a cell."""
    from mindgspo.parallel.runtime import set_up_runtime

    set_up_runtime("CPU")


# What takes longest, measured: node ids, or functions with all of their parameters. Marked slow while it is collected.
SLOW_TESTS = Path(__file__).parent / "slow_tests.txt"


def slow_tests() -> frozenset[str]:
    """The lines of `slow_tests.txt`, without comments."""
    lines = SLOW_TESTS.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before pytest selects by marker."""
    slow = slow_tests()
    for item in items:
        if item.nodeid in slow or item.nodeid.split("[")[0] in slow:
            item.add_marker(pytest.mark.slow)
