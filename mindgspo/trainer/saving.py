"""A run's state into a checkpoint, and out of it.

What enters: the parts of an experiment and how far the run has come. What leaves: a checkpoint, or parts that go on
where one left off. Called by `loop`, on every rank; rank 0 writes.
"""

from __future__ import annotations

import time
from dataclasses import asdict

from mindgspo import faults
from mindgspo.checkpoint import RunFolder, load_checkpoint, save_checkpoint
from mindgspo.data import StreamState
from mindgspo.metrics import RunLog
from mindgspo.models.weights import load_weights, weights_as_numpy
from mindgspo.parallel.swap.states import Phase
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.progress import Progress
from mindgspo.trainer.ranks import first_rank_first, newest_for_all


def save(parts: TrainingParts, folder: RunFolder, progress: Progress) -> None:
    """A checkpoint that any plan can read: rank 0 gathers the whole and writes it, the others wait."""
    faults.reach("save.before")
    with parts.swap.phase(Phase.SAVE):
        parameters = weights_as_numpy(parts.model, parts.config.model)
        optimizer = parts.updater.state()
    first_rank_first(
        lambda: save_checkpoint(
            folder.checkpoints,
            step=progress.step,
            parameters=parameters,
            optimizer=optimizer,
            state={
                "progress": progress.state(time.perf_counter()),
                "stream": {**asdict(parts.stream.state()), "deferred": list(parts.stream.state().deferred)},
                "weight_version": parts.weight_version,
                "kl": parts.kl.state(),
            },
            keep=parts.config.trainer.keep_checkpoints,
        )
    )
    faults.reach("save.after")


def resumed(parts: TrainingParts, folder: RunFolder, log: RunLog, *, started: float) -> Progress | None:
    """Put the newest complete checkpoint into the parts; None where the run stopped before its first one."""
    path = newest_for_all(folder.checkpoints)
    if path is None:
        log.note(f"{folder.root}: no checkpoint yet; starting from the beginning")
        return None
    saved = load_checkpoint(path)
    with parts.swap.phase(Phase.SAVE):
        load_weights(parts.model, parts.config.model, saved.parameters, where=path)
        parts.updater.load_state(saved.optimizer)
    parts.kl.load_state(saved.state.get("kl", {}))
    if parts.reference is not None:
        with parts.swap.phase(Phase.SCORE):
            parts.reference.restore(folder.reference)
    progress = Progress.from_state(saved.state["progress"], started=started)
    stream = dict(saved.state["stream"])
    parts.stream.restore(StreamState(**{**stream, "deferred": tuple(stream["deferred"])}))
    parts.weight_version = int(saved.state["weight_version"])
    parts.bring_weights()
    log.truncate_after(progress.step)
    log.note(f"resumed at step {progress.step} from {path}")
    faults.reach("resume.after")
    return progress
