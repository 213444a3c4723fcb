"""TensorBoard event files through tensorboardX, imported only when asked for. Called by `sinks`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindgspo.errors import ConfigError


class TensorBoardSink:
    """Writes every metric as a scalar; the event file is made on the first write."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "logging.tensorboard: true needs the package tensorboardX, which cannot be imported "
                f"({error}). Install it with `pip install tensorboardX`, or set logging.tensorboard=false"
            ) from error
        self._make_writer = SummaryWriter
        self._folder = folder
        self._purge_step: int | None = None
        self._writer: Any = None

    def purge_after(self, step: int) -> None:
        """Tell TensorBoard to hide events beyond `step` that an earlier process wrote."""
        assert self._writer is None, "purge_after must come before the first write"
        self._purge_step = step + 1

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = self._make_writer(logdir=str(self._folder), purge_step=self._purge_step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
