"""Parts that go on where a checkpoint left off.

What enters: the parts as `build` made them, and the run folder, which says where the state comes from. What leaves: the
same parts with that state, and how far the run has come. Called by `loop`, on every rank, before the first step. Each
rank reads its own rows of weights and moments; rank 0 alone compares hashes, once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mindgspo import faults
from mindgspo.checkpoint import (
    OpenCheckpoint,
    Origin,
    RunFolder,
    RunStatus,
    newest_checkpoint,
    open_checkpoint,
    roll_back,
)
from mindgspo.errors import TrainingError
from mindgspo.io import fsync_tree, publish_folder, temporary_path, write_file
from mindgspo.metrics import RunLog
from mindgspo.metrics.files import METRICS_FILE, SAMPLES_FILE, VALIDATION_FILE, split_records
from mindgspo.models.weights import load_tensors
from mindgspo.parallel.swap.states import Phase
from mindgspo.trainer.fingerprints import check_fingerprints
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.progress import Progress
from mindgspo.trainer.ranks import first_rank_first, path_for_all
from mindgspo.trainer.saving import Saver


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """progress: None where the run begins at step 0. has_weights: those of a checkpoint, so that no warm-up is due.
    settle: what is left to do in the run folder, once it is sure that the run begins; all ranks call it."""

    progress: Progress | None = None
    has_weights: bool = False
    settle: Callable[[], None] = lambda: None


def restored(parts: TrainingParts, folder: RunFolder, log: RunLog, saver: Saver, *, started: float) -> Start:
    """Put the state into the parts that the run goes on from, if any. started: this process's clock.

    Raises CheckpointError, WeightsError, DataError: damaged, of another model, tokenizer or data; TrainingError: it is
    beyond the steps that are asked for. Nothing in the folder has changed then.
    """
    origin = folder.origin
    if origin is not None and origin.is_same_run:
        return _gone_back(parts, folder, log, origin, started=started)
    own = path_for_all(lambda: newest_checkpoint(folder.checkpoints))
    if own is not None:
        return _gone_on(parts, folder, log, own, started=started)
    if origin is not None and origin.restore == "weights":
        return _begun_with_weights(parts, log, origin)
    if origin is not None:
        return _begun_elsewhere(parts, folder, log, saver, origin, started=started)
    if folder.status is not RunStatus.NEW:
        log.note(f"{folder.root}: no checkpoint yet; starting from the beginning")
    return Start()


def _gone_on(parts: TrainingParts, folder: RunFolder, log: RunLog, own: Path, *, started: float) -> Start:
    """From the newest checkpoint of this run."""
    progress = _loaded(parts, own, log, started=started)
    _restore_reference(parts, folder.reference)

    def settle() -> None:
        log.truncate_after(progress.step)
        log.note(f"resumed at step {progress.step} from {own}")
        faults.reach("resume.after")

    return Start(progress=progress, settle=settle)


def _gone_back(parts: TrainingParts, folder: RunFolder, log: RunLog, origin: Origin, *, started: float) -> Start:
    """To an earlier checkpoint of this run. Only when it is loaded is the later part of the run given up."""
    path = path_for_all(origin.checkpoint)
    assert path is not None
    progress = _loaded(parts, path, log, started=started)
    _restore_reference(parts, folder.reference)

    def settle() -> None:
        log.note(f"going back to step {progress.step}, to {path}")
        first_rank_first(lambda: log.note(f"what came later is in {roll_back(folder.root, progress.step)}"))
        log.truncate_after(progress.step)
        log.note("from here on resume=auto continues")
        faults.reach("resume.after")

    return Start(progress=progress, settle=settle)


def _begun_with_weights(parts: TrainingParts, log: RunLog, origin: Origin) -> Start:
    """With those of another run's checkpoint."""
    path = path_for_all(origin.checkpoint)
    assert path is not None
    with open_checkpoint(path) as saved:
        _check_inputs(parts, saved, log, weights_only=True)
        with parts.swap.phase(Phase.SAVE):
            load_tensors(parts.model, parts.config.model, saved.parameters)
    log.note(
        f"restore=weights: weights of step {saved.step} from {path}; optimizer, counters and place in the data begin "
        "anew at step 0, without a warm-up"
    )
    return Start(has_weights=True)


def _begun_elsewhere(
    parts: TrainingParts, folder: RunFolder, log: RunLog, saver: Saver, origin: Origin, *, started: float
) -> Start:
    """With all of another run's checkpoint."""
    path = path_for_all(origin.checkpoint)
    assert path is not None
    progress = _loaded(parts, path, log, started=started)

    def settle() -> None:
        first_rank_first(lambda: _bring_history(origin.run, folder, progress.step))
        _restore_reference(parts, folder.reference)
        log.truncate_after(progress.step)
        log.note(f"began at step {progress.step} with {path}; what that run logged until then was copied")
        saver.save(progress)  # from now on the folder needs no other
        faults.reach("resume.after")

    return Start(progress=progress, settle=settle)


def _loaded(parts: TrainingParts, path: Path, log: RunLog, *, started: float) -> Progress:
    """Everything that `Saver` took out of the parts."""
    with open_checkpoint(path) as saved:
        if saved.step > parts.total_steps:
            raise TrainingError(
                f"{path}: has {saved.step} steps behind it, the run asks for {parts.total_steps}, so there is nothing "
                "to train; raise trainer.max_steps, or name an earlier checkpoint with resume=PATH"
            )
        _check_inputs(parts, saved, log, weights_only=False)
        with parts.swap.phase(Phase.SAVE):
            load_tensors(parts.model, parts.config.model, saved.parameters)
            parts.updater.load_tensors(saved.optimizer)
        for name, part in parts.kept.items():
            if name in saved.stateful:
                part.load(saved.stateful[name], saved.arrays_of(name))
            else:
                log.note(f"note: {path} holds no state of `{name}`, which starts anew")
        parts.weight_version = int(saved.state["weight_version"])
        progress = Progress.from_state(saved.state["progress"], started=started)
    parts.bring_weights()
    return progress


def _check_inputs(parts: TrainingParts, saved: OpenCheckpoint, log: RunLog, *, weights_only: bool) -> None:
    there = saved.state.get("inputs")
    for line in check_fingerprints(there, parts.fingerprints, where=saved.path, weights_only=weights_only):
        log.note(f"warning: {line}")


def _restore_reference(parts: TrainingParts, folder: Path) -> None:
    if parts.reference is not None:
        with parts.swap.phase(Phase.SCORE):
            parts.reference.restore(folder)


def _bring_history(run: Path | None, folder: RunFolder, step: int) -> None:
    """What the other run has that is no part of a checkpoint: its logs until then, and its reference policy."""
    if run is None:
        return
    for name in (METRICS_FILE, SAMPLES_FILE, VALIDATION_FILE):
        until, _ = split_records(run / name, step)
        if until:
            write_file(folder.root / name, b"".join(until))
    reference = run / folder.reference.name
    if reference.is_dir() and not folder.reference.exists():
        filled = temporary_path(folder.reference)
        shutil.copytree(reference, filled)
        fsync_tree(filled)
        publish_folder(filled, folder.reference)
