"""Keeps the batch that broke an update, so that the failure can be looked at after the run has stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mindgspo import faults
from mindgspo.errors import TrainingError
from mindgspo.trainer.ranks import is_first
from mindgspo.types import Batch


def with_faults(batches: Sequence[Batch]) -> Sequence[Batch]:
    """The micro-batches of an update; where `update.batch` is armed with nan, a NaN is the first advantage."""
    if not faults.reach("update.batch"):
        return batches
    advantages = batches[0].advantages_NK.copy()
    advantages[tuple(np.argwhere(batches[0].mask_NK)[0])] = np.nan
    return [dataclasses.replace(batches[0], advantages_NK=advantages), *batches[1:]]


@contextmanager
def saved_on_failure(folder: Path, name: str, batches: Sequence[Batch]) -> Iterator[None]:
    """On a TrainingError write the micro-batches as `<name>_micro_batch_<i>.npz` (one array per field of
    `Batch`) and raise it again, naming the files."""
    try:
        yield
    except TrainingError as error:
        if not is_first():  # rank 0 has the same batches
            raise
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}_micro_batch_{index}.npz" for index in range(len(batches))]
        for path, batch in zip(paths, batches, strict=True):
            arrays = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
            np.savez(path, **arrays)
        siblings = f" and {len(paths) - 1} more beside it" if paths[1:] else ""
        raise TrainingError(f"{name}: {error}\nThe batch is saved as {paths[0]}{siblings}") from error
