from collections.abc import Callable
from enum import Enum

class ProfilerLevel(Enum):
    Level0 = ...

class _ExperimentalConfig:
    def __init__(self, profiler_level: ProfilerLevel = ..., mstx: bool = ...) -> None: ...

class profile:  # noqa: N801
    def __init__(
        self,
        *,
        start_profile: bool = ...,
        on_trace_ready: Callable[..., None] | None = ...,
        experimental_config: _ExperimentalConfig | None = ...,
    ) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...

class mstx:  # noqa: N801
    @staticmethod
    def range_start(message: str) -> int: ...
    @staticmethod
    def range_end(range_id: int) -> None: ...

def tensorboard_trace_handler(dir_name: str, worker_name: str) -> Callable[..., None]: ...
