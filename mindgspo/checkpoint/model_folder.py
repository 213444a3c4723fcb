"""A folder with a model that appears whole or not at all.

What enters: the folder's path and who writes it. What leaves: an empty folder beside it to fill, put in its place at
the end. Called by the export of a run and by the conversion of weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mindgspo.errors import CheckpointError
from mindgspo.io import fsync_tree, publish_folder, remove_leftovers, temporary_path, write_json

# Marks a folder as ours; transformers ignores it.
_MARKER = "mindgspo_export.json"
# Room for headers, configurations and a tokenizer.
_SPARE_BYTES = 64 << 20


@contextmanager
def filled_folder(folder: Path, *, run_id: str | None, num_bytes: int) -> Iterator[Path]:
    """A hidden folder that becomes `folder` where the block ends well, and vanishes where it does not.

    run_id: the run that writes. What it wrote before is replaced; with None nothing is ever replaced. num_bytes: of the
    weights, for which there must be space. Raises CheckpointError: the folder holds something else, too little space,
    or the write failed.
    """
    if not folder.name or folder.is_symlink():
        raise CheckpointError(f"{folder}: is a link or has no name of its own; name a new folder")
    filled = temporary_path(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder.parent, folder.name)
        _refuse_foreign(folder, run_id)
        _require_space(folder.parent, num_bytes)
        filled.mkdir()
        yield filled
        write_json(filled / _MARKER, {"run_id": run_id})
        fsync_tree(filled)
        publish_folder(filled, folder)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: the model could not be exported ({error}); nothing of it is left behind"
        ) from error
    finally:
        shutil.rmtree(filled, ignore_errors=True)


def _refuse_foreign(folder: Path, run_id: str | None) -> None:
    """Only an absent or empty folder, or this run's own export, may be replaced."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    marker = folder / _MARKER
    owner: object = None
    if marker.is_file():
        try:
            owner = json.loads(marker.read_text(encoding="utf-8"))["run_id"]
        except (ValueError, KeyError, TypeError):
            owner = None
    if owner is None or owner != run_id:
        what = "already there" if run_id is None else "already there and no export of this run"
        raise CheckpointError(f"{folder}: {what}, so it is not replaced; move it away or choose another folder")


def _require_space(parent: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(parent).free
    if free < num_bytes + _SPARE_BYTES:
        raise CheckpointError(
            f"{parent}: the weights need {num_bytes / 2**20:,.0f} MiB and {free / 2**20:,.0f} MiB are free; "
            "make room, or choose a folder on a larger disk"
        )
