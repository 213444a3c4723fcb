"""What `swap` asks of the place where evicted memory waits: a disk on CPU, the host on Ascend.

Implemented by `mapped_memory`, `offloaded_memory` and the fakes of tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mindspore import Parameter


class MemoryTier(Protocol):
    """Moves single parameters. A call that raises has left its parameter where it was."""

    loads_in_background: bool
    """Whether `load` may run in another thread while graphs that read other parameters compute."""

    def take_over(self, parameters: Sequence[Parameter], *, keeps_content: bool) -> None:
        """Make room for all of `parameters` and manage them from now on; they are resident afterwards.

        keeps_content: False where `evict` may lose the values, which are zero after `load` or as they were. Raises
        ConfigError, before any parameter was touched, where there is no room.
        """
        ...

    def evict(self, parameter: Parameter) -> None:
        """Free its memory on the device. Raises TrainingError; the parameter is then still resident."""
        ...

    def load(self, parameter: Parameter) -> None:
        """Bring it back. Raises TrainingError; the parameter is then still evicted, its values safe."""
        ...

    def tidy(self) -> None:
        """Give memory that the process has freed back to the machine; called behind every eviction."""
        ...

    def free_bytes(self) -> int | None:
        """Bytes that can be loaded now; None where the device itself keeps watch."""
        ...

    def close(self) -> None:
        """Move nothing any more. The parameters stay usable."""
        ...
