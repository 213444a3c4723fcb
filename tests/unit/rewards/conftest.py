"""What the tests of rewards need from the process they run in."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture
def ctrl_c_interrupts() -> None:
    """SIGINT raises KeyboardInterrupt. MindSpore, where another test has imported it, puts a handler of its own there,
    unseen by Python, that ends the process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
