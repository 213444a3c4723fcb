"""What the tests of the packages here share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def cpu_runtime() -> None:
    """MindSpore on the CPU, in graph mode: cells that a test calls become graphs."""
    import mindspore

    mindspore.set_device("CPU")
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
