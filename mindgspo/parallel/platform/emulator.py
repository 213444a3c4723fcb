"""Access to the optional package ascend-emulator: stand-ins for CANN, and emulated cards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mindgspo.errors import DryRunError, DryRunUnavailable

if TYPE_CHECKING:
    from ascend_emulator.toolchain import Toolchain


def find_toolchain(environment: Mapping[str, str] = os.environ, *, emulated: bool = False) -> Toolchain:
    """Return the libraries that MindSpore's Ascend front end needs to load. emulated: stand-ins even if CANN is there.

    Raises DryRunUnavailable if a required program is not installed, DryRunError if stand-ins cannot be built.
    """
    with _own_errors():
        from ascend_emulator.toolchain import find_toolchain as find

        return find(environment, emulated=emulated)


def enter_emulated_cards() -> None:
    """Put this process and its children on emulated cards; raises as `find_toolchain`."""
    with _own_errors():
        from ascend_emulator.launcher import enter_emulated_cards as enter

        enter()


def install_emulated_card() -> None:
    """Set up the emulated card in a child of a process on an emulated card."""
    with _own_errors():
        from ascend_emulator.launcher import install_emulated_card as install

        install()


@contextmanager
def _own_errors() -> Iterator[None]:
    try:
        from ascend_emulator.errors import EmulatorError, EmulatorUnavailable
    except ImportError as error:
        raise DryRunUnavailable(
            "the dry run and emulated cards are the package ascend-emulator, which is not installed: "
            "pip install 'mindgspo[ascend-emulator]', or pip install -e tools/ascend_emulator in the repository"
        ) from error
    try:
        yield
    except EmulatorUnavailable as error:
        raise DryRunUnavailable(str(error)) from error
    except EmulatorError as error:
        raise DryRunError(str(error)) from error
