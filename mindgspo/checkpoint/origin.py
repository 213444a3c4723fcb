"""The checkpoint that a run starts from if not from its own newest one (`resume: PATH`), and the return to an earlier
step, which sets everything after it aside.

From the moment the marker file `going_back.json` exists, later checkpoints do not count (`steps_newest_first`). They
are moved aside afterwards; if the process is killed, the next one finishes that.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mindgspo import faults
from mindgspo.checkpoint.manifest import verify
from mindgspo.checkpoint.store import CHECKPOINT_FILES, ROLLBACK_FILE, newest_checkpoint, step_of, steps_newest_first
from mindgspo.errors import CheckpointError, RunFolderError
from mindgspo.io import fsync, read_json, remove_folder, unused_name, write_file, write_json
from mindgspo.metrics.files import (
    CONFIG_FILE,
    LOGS,
    PLOT_FILE,
    REPORT_FILE,
    SAMPLES_PAGE,
    SUMMARY_FILE,
    drop_records_after,
    split_records,
)

Restore = Literal["all", "weights"]
CHECKPOINTS = "checkpoints"
# Path from a checkpoint to its run: checkpoints/, or a folder of checkpoints set aside in it.
_LEVELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A checkpoint from which a run takes its state."""

    path: Path
    """A checkpoint, or the folder whose newest complete one is meant."""
    is_same_run: bool
    """Whether the run rolls back to a checkpoint of its own."""
    restore: Restore
    """How much of it is taken."""

    @property
    def config(self) -> Path | None:
        """The configuration of the run that wrote it; None if it lies outside of a run."""
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
    """Find the checkpoint that `resume: PATH` names for the run in `root`; None for the run's own newest one, as with
    auto.

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


# Files that are written when a run ends.
_OF_THE_END = (SUMMARY_FILE, REPORT_FILE, SAMPLES_PAGE, PLOT_FILE, "export")


def roll_back(root: Path, step: int) -> Path:
    """Make `step` the newest one of the run; returns the folder to which everything later was moved."""
    checkpoints = root / CHECKPOINTS
    write_json(checkpoints / ROLLBACK_FILE, {"to": step, "aside": unused_name(checkpoints / "abandoned").name})
    aside = finish_rollback(root)
    assert aside is not None
    return aside


def finish_rollback(root: Path) -> Path | None:
    """Finish a rollback that was interrupted at any point; None if none was started. Raises RunFolderError."""
    marker = root / CHECKPOINTS / ROLLBACK_FILE
    if not marker.is_file():
        return None
    step, aside = _read_marker(marker)
    aside.mkdir(exist_ok=True)
    for path in sorted(marker.parent.iterdir()):
        if (number := step_of(path)) is not None and number > step:
            faults.reach("going_back.inside")
            os.rename(path, aside / path.name)
    for name in _OF_THE_END:
        _move(root / name, aside / name)
    for name in LOGS:
        _cut(root / name, aside / name, step)
    fsync(aside)
    marker.unlink()
    fsync(marker.parent)
    return aside


def _read_marker(marker: Path) -> tuple[int, Path]:
    try:
        content = read_json(marker)
        step, name = int(content["to"]), str(content["aside"])
        if Path(name).name != name:
            raise ValueError(f"strange name {name!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{marker}: damaged ({error}); remove this file and try again") from error
    return step, marker.parent / name


def _move(source: Path, target: Path) -> None:
    """Move a file or folder, if need be to another file system or over an unfinished copy."""
    if not source.exists():
        return
    if target.is_dir():
        remove_folder(target)
    shutil.move(source, target)


def _cut(source: Path, target: Path, step: int) -> None:
    """Remove lines beyond the step; only the first time, not if this is repeated."""
    if not source.exists():
        return
    _, later = split_records(source, step)
    if later:
        write_file(target, b"".join(later))
        drop_records_after(source, step)
