"""Fixtures of the tests of rewards."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest


@pytest.fixture
def ctrl_c_interrupts() -> None:
    """SIGINT raises KeyboardInterrupt. MindSpore, where another test has imported it, puts a handler of its own there,
    unseen by Python, that ends the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def task() -> Callable:
    """The symbolic comparison that runs in workers."""
    pytest.importorskip("math_verify", reason="the symbolic comparison needs the package math-verify")
    from math_answers.symbolic import are_symbolically_same

    return lambda arguments: are_symbolically_same(**arguments)
