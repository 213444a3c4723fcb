"""The Ascend tier of the swap: parameters wait in host memory.

Evicting copies a parameter to the host and frees its device memory for the allocator of the same process; loading
copies it back. MindSpore has no call that frees a parameter's memory without saving it, so content that nobody keeps
(KV cache, gradients) takes host memory, too. Only the order of calls is tested where no Ascend is present.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mindspore import Parameter

from mindgspo.errors import TrainingError
from mindgspo.parallel.platform.runtime import load_parameter, offload_parameter, synchronize_device


class OffloadedMemory:
    """Implements `MemoryTier`. offload, load, synchronize: MindSpore's own, by default."""

    # Copies are issued on the stream of the thread that computes; another one would have none.
    loads_in_background = False

    def __init__(
        self,
        *,
        offload: Callable[[Parameter], None] = offload_parameter,
        load: Callable[[Parameter], None] = load_parameter,
        synchronize: Callable[[], None] = synchronize_device,
    ) -> None:
        self._offload, self._load, self._synchronize = offload, load, synchronize

    def take_over(self, parameters: Sequence[Parameter], *, keeps_content: bool) -> None:
        """See `MemoryTier`: nothing to prepare."""

    def evict(self, parameter: Parameter) -> None:
        """See `MemoryTier`. Waits for graphs that may still read or write the parameter."""
        try:
            self._synchronize()
            self._offload(parameter)
        except (RuntimeError, MemoryError) as error:
            raise TrainingError(
                f"swap: {parameter.name} could not be moved to the host ({_first_line(error)}); it is still on the "
                "device"
            ) from error

    def load(self, parameter: Parameter) -> None:
        """See `MemoryTier`."""
        try:
            self._load(parameter)
        except (RuntimeError, MemoryError) as error:
            raise TrainingError(
                f"swap: {parameter.name} could not be moved to the device ({_first_line(error)}); it is still on the "
                "host. Lower rollout.slots or trainer.samples_per_micro_batch, or use more cards"
            ) from error

    def tidy(self) -> None:
        """See `MemoryTier`: the device's allocator serves this process only."""

    def free_bytes(self) -> None:
        """See `MemoryTier`: the device refuses what does not fit."""

    def close(self) -> None:
        """See `MemoryTier`: nothing to close."""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
