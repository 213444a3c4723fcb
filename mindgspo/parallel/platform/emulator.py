"""The package ascend-emulator, which is an extra of this one: stand-ins for CANN, and emulated cards."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mindgspo.errors import DryRunError, DryRunUnavailable

if TYPE_CHECKING:
    from ascend_emulator.toolchain import Toolchain


def find_toolchain(environment: Mapping[str, str] = os.environ, *, emulated: bool = False) -> Toolchain:
    """What MindSpore's Ascend front end needs in order to load. emulated: stand-ins even where CANN is installed.

    Raises DryRunUnavailable where something that this takes is not installed, DryRunError where stand-ins cannot be
    built.
    """
    with _own_errors():
        from ascend_emulator.toolchain import find_toolchain as find

        return find(environment, emulated=emulated)


def enter_emulated_cards() -> None:
    """Put this process, and those that it starts, on emulated cards: see `ascend_emulator.launcher`. Errors as
    `find_toolchain`."""
    with _own_errors():
        from ascend_emulator.launcher import enter_emulated_cards as enter

        enter()


def install_emulated_card() -> None:
    """The same in a process that one on an emulated card has started."""
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
