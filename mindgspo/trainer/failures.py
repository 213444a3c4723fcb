"""Keeps the batch that broke an update, so that the failure can be looked at later.

What enters: the micro-batches of an update. What leaves: `<name>_micro_batch_<i>.npz` below `failures` in the run
folder, one array per field of `Batch`. Called by `guarded_update` and the warm-up, on every rank; rank 0 writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mindgspo.errors import NonFiniteError, TrainingError
from mindgspo.io import atomic_file
from mindgspo.trainer.ranks import is_first
from mindgspo.types import Batch

MAX_SAVED_UPDATES = 8
_FIRST = "_micro_batch_0.npz"


def save_batches(folder: Path, name: str, batches: Sequence[Batch]) -> str:
    """Save the micro-batches of an update and say where; not if there are those of `MAX_SAVED_UPDATES` others."""
    if not is_first():  # rank 0 has the same batches
        return "rank 0 saves the batch"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}_micro_batch_{index}.npz" for index in range(len(batches))]
    if not paths[0].exists() and len(list(folder.glob(f"*{_FIRST}"))) >= MAX_SAVED_UPDATES:
        return f"the batch is not saved: {folder} holds those of {MAX_SAVED_UPDATES} updates already"
    for path, batch in reversed(list(zip(paths, batches, strict=True))):
        arrays = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        with atomic_file(path) as file:
            np.savez(file, **arrays)
    siblings = f" and {len(paths) - 1} more beside it" if paths[1:] else ""
    return f"the batch is saved as {paths[0]}{siblings}"


@contextmanager
def saved_on_failure(folder: Path, name: str, batches: Sequence[Batch]) -> Iterator[None]:
    """On a NonFiniteError save the micro-batches, and raise a TrainingError that names the files."""
    try:
        yield
    except NonFiniteError as error:
        raise TrainingError(f"{name}: {error}; {save_batches(folder, name, batches)}") from error
