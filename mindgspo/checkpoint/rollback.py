"""A run returns to an earlier step of its own; everything after it is set aside.

From the moment the marker file `going_back.json` exists, later checkpoints do not count (`steps_newest_first`); moving
them aside only follows, and is finished by the next process where one was killed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from mindgspo import faults
from mindgspo.checkpoint.origin import CHECKPOINTS
from mindgspo.checkpoint.store import ROLLBACK_FILE, step_of
from mindgspo.errors import RunFolderError
from mindgspo.io import fsync, read_json, remove_folder, unused_name, write_file, write_json
from mindgspo.metrics.files import (
    LOGS,
    PLOT_FILE,
    REPORT_FILE,
    SAMPLES_PAGE,
    SUMMARY_FILE,
    drop_records_after,
    split_records,
)

# They tell of the run's end.
_OF_THE_END = (SUMMARY_FILE, REPORT_FILE, SAMPLES_PAGE, PLOT_FILE, "export")


def roll_back(root: Path, step: int) -> Path:
    """Make `step` the newest one of the run; returns the folder in which everything later now lies."""
    checkpoints = root / CHECKPOINTS
    write_json(checkpoints / ROLLBACK_FILE, {"to": step, "aside": unused_name(checkpoints / "abandoned").name})
    aside = finish_rollback(root)
    assert aside is not None
    return aside


def finish_rollback(root: Path) -> Path | None:
    """End what `roll_back` began, from whatever point; None where nothing was begun. Raises RunFolderError."""
    marker = root / CHECKPOINTS / ROLLBACK_FILE
    if not marker.is_file():
        return None
    step, aside = _read(marker)
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


def _read(marker: Path) -> tuple[int, Path]:
    try:
        content = read_json(marker)
        step, name = int(content["to"]), str(content["aside"])
        if Path(name).name != name:
            raise ValueError(f"strange name {name!r}")
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{marker}: damaged ({error}); remove this file and try again") from error
    return step, marker.parent / name


def _move(source: Path, target: Path) -> None:
    """Also to another file system, and again where a copy was left unfinished."""
    if not source.exists():
        return
    if target.is_dir():
        remove_folder(target)
    shutil.move(source, target)


def _cut(source: Path, target: Path, step: int) -> None:
    """Lines beyond the step go; the first time, not when this is done once more."""
    if not source.exists():
        return
    _, later = split_records(source, step)
    if later:
        write_file(target, b"".join(later))
        drop_records_after(source, step)
