"""Where a run takes its state from if not from its own newest checkpoint: `resume: PATH`. Nothing is written here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mindgspo.checkpoint.manifest import verify
from mindgspo.checkpoint.store import CHECKPOINT_FILES, newest_checkpoint, step_of, steps_newest_first
from mindgspo.errors import CheckpointError, RunFolderError
from mindgspo.metrics.files import CONFIG_FILE

Restore = Literal["all", "weights"]
CHECKPOINTS = "checkpoints"
# From a checkpoint to its run: checkpoints/, or what was set aside in there.
_LEVELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """path: a checkpoint, or the folder whose newest complete one is meant. is_same_run: the run rolls back to a
    checkpoint of its own. restore: what is taken of it."""

    path: Path
    is_same_run: bool
    restore: Restore

    @property
    def config(self) -> Path | None:
        """The configuration of the run that wrote it; None where it lies outside of a run."""
        run = self.run
        return None if run is None else run / CONFIG_FILE

    @property
    def run(self) -> Path | None:
        """That run's folder."""
        near = (self.path, *self.path.parents)[: _LEVELS + 1]
        return next((folder for folder in near if (folder / CONFIG_FILE).is_file()), None)

    def checkpoint(self) -> Path:
        """The checkpoint itself, its content verified. Raises CheckpointError: it is damaged, or there is none."""
        if step_of(self.path) is not None:
            verify(self.path, required=CHECKPOINT_FILES)
            return self.path
        newest = newest_checkpoint(self.path, clears=False)
        if newest is None:
            raise CheckpointError(f"{self.path}: holds no checkpoint any more; name another with resume=PATH")
        return newest


def find_origin(path: Path, root: Path, *, restore: Restore) -> Origin | None:
    """What `resume: PATH` means for the run in `root`; None where it is the run's own newest checkpoint, as with auto.

    path: a checkpoint, a folder of checkpoints, or a run. Raises RunFolderError for anything else.
    """
    named = Path(os.path.abspath(path.expanduser()))
    if not named.is_dir():
        near = next(parent for parent in named.parents if parent.exists())
        raise RunFolderError(
            f"resume: {path} is neither never nor auto, and there is no such folder (nearest existing: {near}); name a "
            "checkpoint (.../checkpoints/step_00000010), a folder of checkpoints, or a run"
        )
    found = _checkpoints_of(named)
    holder = found.parent if step_of(found) is not None else found
    is_same_run = holder.resolve() == (root / CHECKPOINTS).resolve()
    if is_same_run and restore == "weights":
        raise RunFolderError(
            f"restore=weights starts another run from {found}, which belongs to the run in {root} itself; choose a new "
            "folder with `--set run_dir=...`"
        )
    return None if is_same_run and found == holder else Origin(path=found, is_same_run=is_same_run, restore=restore)


def _checkpoints_of(named: Path) -> Path:
    """A checkpoint, or a folder that has some."""
    if step_of(named) is not None:
        return named
    for folder in (named / CHECKPOINTS, named):
        if folder.is_dir() and steps_newest_first(folder):
            return folder
    there = ", ".join(sorted(entry.name for entry in named.iterdir())[:5]) or "nothing"
    raise RunFolderError(
        f"resume: {named} holds no checkpoint (there is {there}); name one (.../checkpoints/step_00000010), a folder "
        "of checkpoints, or a run. Weights alone, in Hugging Face's layout, are given as model.path"
    )
