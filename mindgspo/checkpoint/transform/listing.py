"""The checkpoints of a run, or what a folder of tensors holds, as a table.

What enters: a path. What leaves: lines. Called by `mindgspo checkpoint list`. Steps are judged by manifest and sizes;
`verify` reads their contents.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from mindgspo.checkpoint.manifest import verify
from mindgspo.checkpoint.retention import best_first, evaluation_of
from mindgspo.checkpoint.steps import CHECKPOINT_FILES, complete_steps, steps_newest_first
from mindgspo.checkpoint.transform.stored_checkpoint import StoredCheckpoint, find_checkpoint, steps_folder
from mindgspo.errors import CheckpointError
from mindgspo.tensor_files.reader import open_tensors

_HEADER = ("folder", "step", "size", "saved", "evaluated", "state")


def list_lines(path: Path) -> Iterator[str]:
    """The table. Raises CheckpointError where there is no checkpoint, WeightsError for a damaged file of tensors."""
    steps = steps_folder(path)
    if steps is not None:
        yield from _aligned([_HEADER, *_step_rows(steps)])
        return
    stored = find_checkpoint(path)
    yield from stored.notes
    yield from _aligned([("rank", "file", "tensors", "size", "dtypes"), *_file_rows(stored)])


def _step_rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """Oldest first; of the complete ones the newest and the best are marked."""
    complete = list(complete_steps(folder))
    best = best_first(complete)
    marks: dict[Path, str] = dict.fromkeys(complete[:1], ", newest")
    marks |= {step: marks.get(step, "") + ", best" for step in best[:1]}
    rows = []
    for step in steps_newest_first(folder):
        size = sum(file.stat().st_size for file in step.iterdir() if file.is_file())
        saved = time.strftime("%Y-%m-%d %H:%M", time.localtime(step.stat().st_mtime))
        number = str(int(step.name.rpartition("_")[2]))
        try:
            verify(step, required=CHECKPOINT_FILES, hashes=False)
            state = "complete" + marks.get(step, "")
        except CheckpointError as error:
            state = f"damaged: {str(error).partition(';')[0].replace(f'{step}/', '')}"
        value = evaluation_of(step)
        evaluated = "-" if value is None else f"{value:.4f}"
        rows.append((step.name, number, f"{size / 2**20:,.1f} MiB", saved, evaluated, state))
    return reversed(rows)


def _file_rows(stored: StoredCheckpoint) -> Iterator[tuple[str, ...]]:
    for rank, paths in stored.files.items():
        for path in paths:
            with open_tensors(path) as opened:
                infos = opened.tensors.values()
                size = sum(info.num_bytes for info in infos)
                dtypes = ", ".join(sorted({info.dtype for info in infos}))
            name = path.name if path == stored.path else str(path.relative_to(stored.path))
            yield str(rank), name, str(len(infos)), f"{size / 2**20:,.1f} MiB", dtypes


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
