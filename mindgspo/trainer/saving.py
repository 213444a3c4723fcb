"""Saves a run's state in checkpoints that any plan can read, while the run waits or in a thread while it goes on.

All ranks call `Saver.save`; rank 0 writes. `resume` is the way back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from mindgspo import faults
from mindgspo.checkpoint.store import Retention, save_checkpoint
from mindgspo.metrics import RunLog
from mindgspo.parallel.platform.cluster import first_rank_first, is_first
from mindgspo.rollout.weight_transfer import weights_as_numpy
from mindgspo.swap.states import Phase
from mindgspo.tensor_files.tensors import TensorSource
from mindgspo.trainer.progress import Progress
from mindgspo.trainer.step import Trainer

_THREAD_BYTES = 16 << 20  # its stack of 8 MB, and what it needs before it does anything


class Stateful(Protocol):
    """Something whose state goes into checkpoints. All ranks call each method, in the same order and in no phase of the
    swap; rank 0's is written."""

    def state(self) -> dict[str, Any]:
        """JSON, equal on all ranks (no tuples, no integer keys, no NaN); {} where there is none."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Written as they are, into `<name>.safetensors` of the checkpoint; no such file where there are none. Copies,
        or arrays that nobody changes any more: they may be written while the run goes on. Where ranks hold parts, rank
        0 gives the whole, the others may give nothing."""

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        """Continue from what was saved. arrays: open for this call only, empty where none were saved; a rank reads what
        it holds (`read_slice`). Raises CheckpointError, DataError."""


@dataclass(frozen=True, slots=True)
class JSONState:
    """`Stateful` made of a function that returns the state and one that takes it back."""

    get: Callable[[], dict[str, Any]]
    set: Callable[[Mapping[str, Any]], None]

    def state(self) -> dict[str, Any]:
        """See `Stateful`."""
        return dict(self.get())

    def arrays(self) -> dict[str, np.ndarray]:
        """None."""
        return {}

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        """See `Stateful`."""
        self.set(state)


class Saver:
    """Saves one run; a context manager, behind whose end nothing is being written any more.

    In the background an error of the disk comes up at the next `save`, or at the latest in `wait`.
    """

    def __init__(
        self,
        trainer: Trainer,
        stateful: Mapping[str, Stateful],
        inputs: Mapping[str, Any],
        checkpoints: Path,
        log: RunLog,
    ) -> None:
        """stateful: what changes while the run goes on beside weights and optimizer, by name. inputs: fingerprints of
        what the run learns from. checkpoints: the folder. log: what it holds at a save is on disk with the
        checkpoint."""
        self._trainer, self._stateful, self._inputs = trainer, stateful, inputs
        self._folder, self._log = checkpoints, log
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, progress: Progress) -> None:
        """A checkpoint of the present. All ranks call it: rank 0 gathers the whole."""
        faults.reach("save.before")
        with self._trainer.timers("save_checkpoint"):
            self.wait()
            write = self._prepared(progress)
            if self._trainer.settings.save_in_background:
                self._start(write)
            else:
                first_rank_first(write)
                faults.reach("save.after")

    def wait(self) -> None:
        """Until the last checkpoint has its name. Raises what has gone wrong with it."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.wait()
        elif self._writer is not None:  # what was saved stays, also when the run ends with an error
            self._writer.join()

    def _prepared(self, progress: Progress) -> Callable[[], object]:
        """The writing, with copies of everything that the run will change."""
        trainer, settings = self._trainer, self._trainer.settings
        with trainer.swap.phase(Phase.SAVE):
            parameters = weights_as_numpy(trainer.model, trainer.model.config)
            optimizer = trainer.updater.state()
        state = {
            "progress": progress.state(time.perf_counter()),
            "weight_version": trainer.weights.version,
            "inputs": self._inputs,
            "kept": {name: part.state() for name, part in self._stateful.items()},
        }
        return partial(
            save_checkpoint,
            self._folder,
            step=progress.step,
            parameters=parameters,
            optimizer=optimizer,
            state=state,
            stateful={name: part.arrays() for name, part in self._stateful.items()},
            logs=self._log.records(),
            keep=Retention(last=settings.keep_checkpoints, best=settings.keep_best),
        )

    def _start(self, write: Callable[[], object]) -> None:
        """Rank 0 writes in a thread; the others have nothing to wait for."""

        def work() -> None:
            try:
                write()
                faults.reach("save.after")
            except BaseException as error:
                self._failure = error

        if not is_first():
            faults.reach("save.after")
            return
        bytearray(_THREAD_BYTES)  # raises MemoryError; `start` waits for ever for a thread that dies at birth
        self._writer = threading.Thread(target=work, name="writes a checkpoint")
        self._writer.start()
