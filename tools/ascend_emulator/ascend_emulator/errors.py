"""What can be wrong with the machine that emulates."""

from __future__ import annotations


class EmulatorError(RuntimeError):
    """Stand-ins cannot be built, or the shared folder of a job cannot be made; the message says why."""


class EmulatorUnavailable(EmulatorError):  # noqa: N818  (nothing went wrong)
    """Something that emulation takes is missing here; the message says what to install."""
