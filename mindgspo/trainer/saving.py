"""A run's state into a checkpoint, and out of it.

What enters: the parts of an experiment and how far the run has come. What leaves: a checkpoint, or parts that go on
where one left off. Called by `loop`, on every rank; rank 0 writes.
"""

from __future__ import annotations

import time

from mindgspo import faults
from mindgspo.checkpoint import Keep, OpenCheckpoint, RunFolder, open_checkpoint, save_checkpoint
from mindgspo.metrics import RunLog
from mindgspo.models.weights import load_tensors, weights_as_numpy
from mindgspo.parallel.launch import heartbeat
from mindgspo.parallel.swap.states import Phase
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.progress import Progress
from mindgspo.trainer.ranks import first_rank_first, newest_for_all


def save(parts: TrainingParts, folder: RunFolder, progress: Progress) -> None:
    """A checkpoint that any plan can read: rank 0 gathers the whole and writes it, the others wait."""
    heartbeat.enter_stage("save")
    faults.reach("save.before")
    with parts.swap.phase(Phase.SAVE):
        parameters = weights_as_numpy(parts.model, parts.config.model)
        optimizer = parts.updater.state()
    kept = {name: part.arrays() for name, part in parts.kept.items()}
    state = {
        "progress": progress.state(time.perf_counter()),
        "weight_version": parts.weight_version,
        "kept": {name: part.state() for name, part in parts.kept.items()},
    }
    first_rank_first(
        lambda: save_checkpoint(
            folder.checkpoints,
            step=progress.step,
            parameters=parameters,
            optimizer=optimizer,
            state=state,
            kept=kept,
            keep=Keep(last=parts.config.trainer.keep_checkpoints),
        )
    )
    faults.reach("save.after")


def resumed(parts: TrainingParts, folder: RunFolder, log: RunLog, *, started: float) -> Progress | None:
    """Put the newest complete checkpoint into the parts; None where the run stopped before its first one."""
    path = newest_for_all(folder.checkpoints)
    if path is None:
        log.note(f"{folder.root}: no checkpoint yet; starting from the beginning")
        return None
    with open_checkpoint(path) as saved:
        _load(parts, saved, log)
        progress = Progress.from_state(saved.state["progress"], started=started)
    if parts.reference is not None:
        with parts.swap.phase(Phase.SCORE):
            parts.reference.restore(folder.reference)
    parts.bring_weights()
    log.truncate_after(progress.step)
    log.note(f"resumed at step {progress.step} from {path}")
    faults.reach("resume.after")
    return progress


def _load(parts: TrainingParts, saved: OpenCheckpoint, log: RunLog) -> None:
    """Everything that `save` took out of the parts; each rank reads its own rows."""
    with parts.swap.phase(Phase.SAVE):
        load_tensors(parts.model, parts.config.model, saved.parameters)
        parts.updater.load_tensors(saved.optimizer)
    for name, part in parts.kept.items():
        if name in saved.kept:
            part.load(saved.kept[name], saved.arrays_of(name))
        else:
            log.note(f"note: {saved.path} holds no state of `{name}`, which starts anew")
    parts.weight_version = int(saved.state["weight_version"])
