"""A run's state into checkpoints.

What enters: the parts of an experiment and how far the run has come. What leaves: a checkpoint that any plan can read,
written while the run waits, or in a thread while it goes on. Called by `loop`, on every rank; rank 0 writes.
`restoring` is the way back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType

from mindgspo import faults
from mindgspo.checkpoint import Keep, RunFolder, save_checkpoint
from mindgspo.models.weights import weights_as_numpy
from mindgspo.parallel.swap.states import Phase
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.progress import Progress
from mindgspo.trainer.ranks import first_rank_first, is_first


class Saver:
    """Saves one run; a context manager, behind whose end nothing is being written any more.

    In the background an error of the disk comes up at the next `save`, or at the latest in `wait`.
    """

    def __init__(self, parts: TrainingParts, folder: RunFolder) -> None:
        self._parts, self._folder = parts, folder
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, progress: Progress) -> None:
        """A checkpoint of the present. All ranks call it: rank 0 gathers the whole."""
        faults.reach("save.before")
        with self._parts.timers("save_checkpoint"):
            self.wait()
            write = self._prepared(progress)
            if self._parts.config.trainer.save_in_background:
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
        parts = self._parts
        with parts.swap.phase(Phase.SAVE):
            parameters = weights_as_numpy(parts.model, parts.config.model)
            optimizer = parts.updater.state()
        state = {
            "progress": progress.state(time.perf_counter()),
            "weight_version": parts.weight_version,
            "inputs": parts.fingerprints,
            "kept": {name: part.state() for name, part in parts.kept.items()},
        }
        trainer = parts.config.trainer
        return partial(
            save_checkpoint,
            self._folder.checkpoints,
            step=progress.step,
            parameters=parameters,
            optimizer=optimizer,
            state=state,
            stateful={name: part.arrays() for name, part in parts.kept.items()},
            keep=Keep(last=trainer.keep_checkpoints, best=trainer.keep_best),
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
        self._writer = threading.Thread(target=work, name="writes a checkpoint")
        self._writer.start()
