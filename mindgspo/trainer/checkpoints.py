"""Saves a run's state in checkpoints that any plan can read, and restores it, from this run's checkpoint or another's.

Saving: all ranks call `Saver.save`; rank 0 writes, while the run waits or in a thread while it goes on. Resuming: each
rank reads its own rows of weights and moments; rank 0 alone compares hashes, once.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from mindgspo import faults
from mindgspo.checkpoint.adapted import PARTS
from mindgspo.checkpoint.origin import Origin, roll_back
from mindgspo.checkpoint.run_folder import RunFolder, RunStatus
from mindgspo.checkpoint.store import (
    OpenCheckpoint,
    Retention,
    newest_checkpoint,
    open_checkpoint,
    save_checkpoint,
    step_of,
)
from mindgspo.errors import CheckpointError, MindGSPOError, TrainingError
from mindgspo.io import fsync_tree, publish_folder, temporary_path, write_file
from mindgspo.metrics import RunLog
from mindgspo.metrics.files import LOGS, split_records
from mindgspo.models.names import stored_shapes
from mindgspo.models.weights import load_trained
from mindgspo.parallel.platform.cluster import first_rank_first, is_first, path_for_all
from mindgspo.rollout.weight_transfer import weights_as_numpy
from mindgspo.swap.states import Phase
from mindgspo.tensor_files.tensors import TensorSource
from mindgspo.trainer.resume_checks import check_fingerprints, intact_logs, log_warnings
from mindgspo.trainer.step import Trainer
from mindgspo.trainer.validation import Progress

_THREAD_BYTES = 16 << 20  # its stack of 8 MB, and what it needs before it does anything


class Stateful(Protocol):
    """Something whose state goes into checkpoints. All ranks call each method, in the same order and in no phase of the
    swap; rank 0's is written."""

    def state(self) -> dict[str, Any]:
        """JSON, equal on all ranks (no tuples, no integer keys, no NaN); {} if there is none."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """Written as they are, into `<name>.safetensors` of the checkpoint; without arrays there is no such file.
        Copies, or arrays that no longer change: they may be written while the run goes on. If ranks hold parts, rank 0
        returns the whole; the others may return nothing."""
        ...

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        """Continue from what was saved. arrays: open for this call only, empty if none were saved; a rank reads what
        it holds (`read_slice`). Raises CheckpointError, DataError."""
        ...


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
    """Saves one run. A context manager, which ends when everything is written.

    In the background, a disk error is raised by the next `save`, or at the latest by `wait`.
    """

    def __init__(
        self,
        trainer: Trainer,
        stateful: Mapping[str, Stateful],
        inputs: Mapping[str, Any],
        checkpoints: Path,
        log: RunLog,
    ) -> None:
        """Prepare to save checkpoints of a run.

        stateful: the parts that change during the run besides weights and optimizer, by name.
        inputs: fingerprints of what the run learns from.
        checkpoints: the folder to write to.
        log: what it holds at a save is on disk with the checkpoint.
        """
        self._trainer, self._stateful, self._inputs = trainer, stateful, inputs
        self._folder, self._log = checkpoints, log
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, progress: Progress) -> None:
        """Save a checkpoint of the present state. All ranks call it: rank 0 gathers the whole."""
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
        """Wait until the last checkpoint is published. Raises the error that occurred while writing it."""
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
        """Return the function that writes the checkpoint, with copies of everything that the run will change."""
        trainer, settings = self._trainer, self._trainer.settings
        with trainer.swap.phase(Phase.SAVE):
            section = trainer.model.config
            parameters = weights_as_numpy(trainer.model, section, among=stored_shapes(section))
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
            keep=Retention(last=settings.keep_checkpoints, best=settings.num_best_kept),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """State that a run begins with."""

    progress: Progress | None = None
    """None if the run begins at step 0."""
    has_weights: bool = False
    """Whether its weights come from a checkpoint, so that no warm-up is needed."""
    settle: Callable[[], None] = lambda: None
    """Finishes the work in the run folder once the run is certain to start; all ranks call it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Restores `trainer` and `stateful`. All ranks call `restore`, before the first step."""

    trainer: Trainer
    stateful: Mapping[str, Stateful]
    inputs: Mapping[str, Any]
    """Fingerprints of what the run learns from."""
    folder: RunFolder
    log: RunLog
    saver: Saver
    started: float
    """`time.perf_counter()` when this process took the run over."""
    learning_rates: Callable[[int], str | None]
    """Describes the learning rates of added steps, given the step of a checkpoint."""

    def restore(self) -> Start:
        """Restore the state that the run continues from, if any.

        Raises CheckpointError, WeightsError, DataError: damaged, of another model, tokenizer or data; TrainingError: it
        is beyond the steps that are asked for; ConfigError: nothing says what new steps learn with. The folder is
        unchanged then.
        """
        folder, origin = self.folder, self.folder.origin
        if origin is not None and origin.is_same_run:
            return self._roll_back(origin)
        newest = path_for_all(lambda: newest_checkpoint(folder.checkpoints))
        if newest is not None:
            return self._continue(newest)
        if origin is not None and origin.restore == "weights":
            return self._start_with_weights(origin)
        if origin is not None:
            return self._start_from_other_run(origin)
        if folder.status is not RunStatus.NEW:
            self.log.note(f"{folder.root}: no checkpoint yet; starting from the beginning")
        return Start()

    def _continue(self, newest: Path) -> Start:
        """Continue from the newest checkpoint of this run."""
        progress, sizes = self._load(newest, self.folder.root)
        self._restore_reference()

        def settle() -> None:
            self.log.truncate_after(progress.step, sizes)
            self.log.note(f"resumed at step {progress.step} from {newest}")
            faults.reach("resume.after")

        return Start(progress=progress, settle=settle)

    def _roll_back(self, origin: Origin) -> Start:
        """Go back to an earlier checkpoint of this run. The later part is moved away only once it is loaded."""
        path = _path_in(origin)
        progress, sizes = self._load(path, self.folder.root)
        self._restore_reference()

        def settle() -> None:
            self.log.note(f"going back to step {progress.step}, to {path}")
            first_rank_first(
                lambda: self.log.note(f"what came later is in {roll_back(self.folder.root, progress.step)}")
            )
            self.log.truncate_after(progress.step, sizes)
            self.log.note("from here on resume=auto continues")
            faults.reach("resume.after")

        return Start(progress=progress, settle=settle)

    def _start_with_weights(self, origin: Origin) -> Start:
        """Start with the weights of another run's checkpoint."""
        path = _path_in(origin)
        with open_checkpoint(path) as saved, _state_of(path):
            self._check_inputs(saved, weights_only=True)
            self._load_weights(saved)
            if PARTS in self.stateful:
                self.stateful[PARTS].load({}, saved.arrays_of(PARTS))
        self.log.note(
            f"restore=weights: weights of step {saved.step} from {path}; optimizer, counters and place in the data "
            "begin anew at step 0, without a warm-up"
        )
        return Start(has_weights=True)

    def _start_from_other_run(self, origin: Origin) -> Start:
        """Start with the whole state of another run's checkpoint."""
        path = _path_in(origin)
        progress, _ = self._load(path, origin.run)

        def settle() -> None:
            first_rank_first(lambda: _copy_history(origin.run, self.folder, progress.step))
            self._restore_reference()
            self.log.truncate_after(progress.step)
            self.log.note(f"began at step {progress.step} with {path}; what that run logged until then was copied")
            self.saver.save(progress)  # from now on the folder needs no other
            faults.reach("resume.after")

        return Start(progress=progress, settle=settle)

    def _load(self, path: Path, run: Path | None) -> tuple[Progress, dict[str, int]]:
        """Load everything that `Saver` saved. Also returns how many bytes of each log of that run precede the
        checkpoint, for logs that are whole. run: None if the checkpoint is in no run folder."""
        trainer = self.trainer
        with open_checkpoint(path) as saved, _state_of(path):
            if saved.step > trainer.total_steps:
                raise TrainingError(
                    f"{path}: was saved after step {saved.step}, the run asks for {trainer.total_steps}, so there is "
                    "nothing to train; raise trainer.max_steps, or name an earlier checkpoint with resume=PATH"
                )
            self._check_inputs(saved, weights_only=False)
            if (told := self.learning_rates(saved.step)) is not None:
                self.log.note(told)
            sizes = {} if run is None or not is_first() else self._check_logs(saved, run)
            self._check_tokens(saved)
            self._load_weights(saved, with_optimizer=True)
            for name, part in self.stateful.items():
                if name in saved.stateful:
                    part.load(saved.stateful[name], saved.arrays_of(name))
                else:
                    self.log.note(f"note: {path} holds no state of `{name}`, which starts anew")
            trainer.weights.version = int(saved.state["weight_version"])
            progress = Progress.from_state(saved.state["progress"], started=self.started)
            if progress.step != saved.step or step_of(path) not in (None, saved.step) or trainer.weights.version < 0:
                raise ValueError(
                    f"step {progress.step}, {saved.step} in its manifest, weight version {trainer.weights.version}"
                )
        trainer.weights.push()
        return progress, sizes

    def _check_tokens(self, saved: OpenCheckpoint) -> None:
        """Check the tokens of waiting responses, because graphs use them as indices into tables. Raises ValueError."""
        vocabulary = self.trainer.model.config.vocab_size
        for name in saved.stateful:
            arrays = saved.arrays_of(name)
            if "ids" in arrays.tensors:
                ids = arrays.read("ids")
                if ids.dtype != "int32" or (ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary):
                    raise ValueError(f"tokens of {name} that the model does not have")

    def _load_weights(self, saved: OpenCheckpoint, *, with_optimizer: bool = False) -> None:
        trainer = self.trainer
        with trainer.swap.phase(Phase.SAVE):
            load_trained(trainer.model, trainer.model.config, saved.parameters)
            if with_optimizer:
                trainer.updater.load_tensors(saved.optimizer)

    def _check_inputs(self, saved: OpenCheckpoint, *, weights_only: bool) -> None:
        there = saved.state.get("inputs")
        for line in check_fingerprints(there, self.inputs, where=saved.path, weights_only=weights_only):
            self.log.note(f"warning: {line}")

    def _check_logs(self, saved: OpenCheckpoint, run: Path) -> dict[str, int]:
        intact = intact_logs(run, saved.logs)
        for line in log_warnings(run, saved.path, saved.logs, intact=intact):
            self.log.note(f"warning: {line}")
        return intact

    def _restore_reference(self) -> None:
        if self.trainer.scorer.reference is not None:
            with self.trainer.swap.phase(Phase.SCORE):
                self.trainer.scorer.reference.restore(self.folder.reference)


def _path_in(origin: Origin) -> Path:
    """Path of the checkpoint that a run begins with, the same on all ranks."""
    path = path_for_all(origin.checkpoint)
    assert path is not None
    return path


@contextmanager
def _state_of(path: Path) -> Iterator[None]:
    """Turn errors about a checkpoint's state into CheckpointError: its digests match, but anyone may have written it,
    so keys may be missing or have another type."""
    try:
        yield
    except MindGSPOError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, AssertionError) as error:
        raise CheckpointError(
            f"{path}: its state does not fit this run ({type(error).__name__}: {error}); restore it from a copy, or "
            "move it away to continue from an older one"
        ) from error


def _copy_history(run: Path | None, folder: RunFolder, step: int) -> None:
    """Copy the other run's logs until that step and its reference policy, which are no part of a checkpoint."""
    if run is None:
        return
    for name in LOGS:
        until, _ = split_records(run / name, step)
        if until:
            write_file(folder.root / name, b"".join(until))
    reference = run / folder.reference.name
    if reference.is_dir() and not folder.reference.exists():
        filled = temporary_path(folder.reference)
        shutil.copytree(reference, filled)
        fsync_tree(filled)
        publish_folder(filled, folder.reference)
