"""Resumes a run: restores everything that a `Saver` took, from this run's checkpoint or another's.

Each rank reads its own rows of weights and moments; rank 0 alone compares hashes, once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindgspo import faults
from mindgspo.checkpoint.origin import Origin, roll_back
from mindgspo.checkpoint.run_folder import RunFolder, RunStatus
from mindgspo.checkpoint.store import OpenCheckpoint, newest_checkpoint, open_checkpoint, step_of
from mindgspo.errors import CheckpointError, MindGSPOError, TrainingError
from mindgspo.io import fsync_tree, publish_folder, temporary_path, write_file
from mindgspo.metrics import RunLog
from mindgspo.metrics.files import LOGS, split_records
from mindgspo.models.weights import load_tensors
from mindgspo.parallel.platform.cluster import first_rank_first, is_first, path_for_all
from mindgspo.swap.states import Phase
from mindgspo.trainer.progress import Progress
from mindgspo.trainer.resume_checks import check_fingerprints, intact_logs, log_warnings
from mindgspo.trainer.saving import Saver, Stateful
from mindgspo.trainer.step import Trainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """progress: None where the run begins at step 0. has_weights: those of a checkpoint, so that no warm-up is due.
    settle: what is left to do in the run folder, once it is sure that the run begins; all ranks call it."""

    progress: Progress | None = None
    has_weights: bool = False
    settle: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Restores `trainer` and `stateful`. inputs: fingerprints of what the run learns from. started: this process's
    clock. learning_rates: tells, for the steps that a checkpoint has behind it, what new ones learn with. All ranks
    call `restore`, before the first step."""

    trainer: Trainer
    stateful: Mapping[str, Stateful]
    inputs: Mapping[str, Any]
    folder: RunFolder
    log: RunLog
    saver: Saver
    started: float
    learning_rates: Callable[[int], str | None]

    def restore(self) -> Start:
        """Restore the state that the run continues from, if any.

        Raises CheckpointError, WeightsError, DataError: damaged, of another model, tokenizer or data; TrainingError: it
        is beyond the steps that are asked for; ConfigError: nothing says what new steps learn with. Nothing in the
        folder has changed then.
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
        """From the newest checkpoint of this run."""
        progress, sizes = self._load(newest, self.folder.root)
        self._restore_reference()

        def settle() -> None:
            self.log.truncate_after(progress.step, sizes)
            self.log.note(f"resumed at step {progress.step} from {newest}")
            faults.reach("resume.after")

        return Start(progress=progress, settle=settle)

    def _roll_back(self, origin: Origin) -> Start:
        """To an earlier checkpoint of this run. Only when it is loaded is the later part of the run given up."""
        path = path_for_all(origin.checkpoint)
        assert path is not None
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
        """With those of another run's checkpoint."""
        path = path_for_all(origin.checkpoint)
        assert path is not None
        with open_checkpoint(path) as saved, _state_of(path):
            self._check_inputs(saved, weights_only=True)
            self._load_weights(saved)
        self.log.note(
            f"restore=weights: weights of step {saved.step} from {path}; optimizer, counters and place in the data "
            "begin anew at step 0, without a warm-up"
        )
        return Start(has_weights=True)

    def _start_from_other_run(self, origin: Origin) -> Start:
        """With all of another run's checkpoint."""
        path = path_for_all(origin.checkpoint)
        assert path is not None
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
        """Everything that `Saver` took; and how many bytes of each log of that run are from before it, as far as the
        log is whole. run: None where the checkpoint lies in no run folder."""
        trainer = self.trainer
        with open_checkpoint(path) as saved, _state_of(path):
            if saved.step > trainer.total_steps:
                raise TrainingError(
                    f"{path}: has {saved.step} steps behind it, the run asks for {trainer.total_steps}, so there is "
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
        """Responses that wait: graphs look their tokens up in tables. Raises ValueError."""
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
            load_tensors(trainer.model, trainer.model.config, saved.parameters)
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


@contextmanager
def _state_of(path: Path) -> Iterator[None]:
    """What a checkpoint's digests vouch for may have been written by anybody: whatever its state lacks, or has of
    another kind, becomes a CheckpointError."""
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
    """What the other run has that is no part of a checkpoint: its logs until then, and its reference policy."""
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
