"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def cpu_runtime() -> None:
    """MindSpore on the CPU in graph mode; ask for it in every test that builds or runs a cell."""
    from mindgspo.parallel.runtime import set_up_runtime

    set_up_runtime("CPU")
