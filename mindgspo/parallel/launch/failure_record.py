"""Why a worker failed, as a file: written by the worker before it ends, read by the launcher and by users."""

from __future__ import annotations

import dataclasses
import json
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from mindgspo.errors import MindGSPOError
from mindgspo.io import write_file


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """time: seconds since the epoch. error: name of the exception's class. is_user_error: a `MindGSPOError`, shown
    without its traceback. log_bytes: length of the worker's log then, without the traceback that follows."""

    time: float
    error: str
    message: str
    traceback: str
    is_user_error: bool
    log_bytes: int

    @classmethod
    def of(cls, error: BaseException, *, log_bytes: int) -> FailureRecord:
        """The record of an exception that is being handled now."""
        return cls(
            time=time.time(),
            error=type(error).__name__,
            message=str(error),
            traceback="".join(traceback.format_exception(type(error), error, error.__traceback__)),
            is_user_error=isinstance(error, MindGSPOError),
            log_bytes=log_bytes,
        )

    def write(self, path: Path) -> None:
        """Write the record atomically."""
        write_file(path, json.dumps(dataclasses.asdict(self), indent=2).encode() + b"\n", sync=False)


def read_failure(path: Path) -> FailureRecord | None:
    """None where no failure was recorded."""
    try:
        return FailureRecord(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
