"""Convert a checkpoint of one plan to another: a new file or folder with the same tensors, cut anew.

find files -> open headers, compare with the strategy -> check the destination and the space -> write every file to a
temporary name -> read it back -> compare with the source (deep) -> rename
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mindgspo.checkpoint.new_checkpoint import (
    NewCheckpoint,
    NewFile,
    is_one_file,
    rank_files_to_write,
    require_absent,
    whole_files_to_write,
)
from mindgspo.checkpoint.placement import without_entry
from mindgspo.checkpoint.store import STATE_FILE
from mindgspo.checkpoint.stored_files import StoredCheckpoint, find_checkpoint
from mindgspo.checkpoint.verify import verify_checkpoint
from mindgspo.checkpoint.whole_checkpoint import WholeCheckpoint, open_whole
from mindgspo.errors import CheckpointError
from mindgspo.io import check_free_space
from mindgspo.strategy.record import Strategy
from mindgspo.text import counted, listed

_LISTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformRequest:
    """source, destination: paths. The strategies: None for whole. suffix: of ranks' files; None: as the source's.
    prefix: of the names of ranks' files that are written; source_prefix: of those that are read. weights_only: leave
    optimizer state out. jobs: files that are written at a time; None: one per processor. deep: compare the source with
    the hashes that are known of it, and prove in the end that source and destination hold the same. sync: end when
    everything is on the disk; otherwise, as `cp` does, when the kernel has it."""

    source: Path
    destination: Path
    source_strategy: Strategy | None = None
    destination_strategy: Strategy | None = None
    suffix: str | None = None
    prefix: str = "checkpoint_"
    source_prefix: str = ""
    weights_only: bool = False
    jobs: int | None = None
    deep: bool = False
    sync: bool = True


def transform(request: TransformRequest, *, note: Callable[[str], None], shows_bar: bool = True) -> None:
    """Do it, and tell by `note` what was picked and done.

    Raises CheckpointError or WeightsError: the source is not whole or not of its strategy, the destination's strategy
    is of another model, something stands at the destination, there is no room, writing fails. Nothing is then left at
    the destination.
    """
    started = time.perf_counter()
    stored = find_checkpoint(request.source, prefix=request.source_prefix)
    for line in stored.notes:
        note(line)
    if request.deep:
        _require_sound(stored)
    if request.weights_only:  # a run does not go on from that
        stored = replace(stored, step=None, state=None, stateful=())
    with open_whole(stored, request.source_strategy, weights_only=request.weights_only) as source:
        files = _files_to_write(source, request)
        for line in _plan_notes(source, files, request):
            note(line)
        NewCheckpoint(
            source,
            files,
            request.destination,
            strategy=request.destination_strategy,
            jobs=request.jobs or os.cpu_count() or 1,
            sync=request.sync,
            shows_bar=shows_bar,
        ).write(deep=request.deep)
    seconds = time.perf_counter() - started
    num_bytes = sum(new.num_bytes for new in files)
    proof = "; every tensor compared with the source" if request.deep else ""
    note(
        f"done     {num_bytes / 2**20:,.1f} MiB in {seconds:.1f} s ({num_bytes / 2**20 / seconds:,.0f} MiB/s), read "
        f"back and compared by XXH3{proof}"
    )


def _require_sound(stored: StoredCheckpoint) -> None:
    """Compare the source with the hashes that are known of it, or its headers. Raises CheckpointError."""
    for finding in verify_checkpoint(stored.path):
        if not finding.is_sound:
            raise CheckpointError(finding.line.removeprefix("damaged  "))


def _files_to_write(source: WholeCheckpoint, request: TransformRequest) -> tuple[NewFile, ...]:
    """The files, once it is known that they fit and that nothing stands in their place."""
    strategy = request.destination_strategy
    if strategy is None:
        files = whole_files_to_write(source, request.destination)
    else:
        suffix = request.suffix or source.stored.suffix
        files = rank_files_to_write(source, strategy, suffix=suffix, prefix=request.prefix)
    require_absent(request.destination)
    needed = sum(new.num_bytes for new in files)
    check_free_space(request.destination, needed, CheckpointError, "make room, or give a place on a larger disk")
    return files


def _plan_notes(source: WholeCheckpoint, files: Sequence[NewFile], request: TransformRequest) -> Iterator[str]:
    """What will be done, for people."""
    strategy = request.destination_strategy
    names = "" if len(files) == 1 else f": {files[0].name} to {files[-1].name}"
    by = "" if strategy is None else f" by {strategy.source}"
    yield f"writes   {request.destination}{names}, {counted(len(source.tensors), 'tensor')}{by}"
    for side, one in (("source", request.source_strategy), ("destination", strategy)):
        whole = without_entry(source.tensors, one)
        if whole:
            names = listed(whole, _LISTED)
            yield f"whole    {counted(len(whole), 'tensor')} without an entry in the {side}'s strategy: {names}"
    if source.stored.state is not None and is_one_file(request.destination, strategy):
        names = [STATE_FILE, *(path.name for path in source.stored.stateful)]
        yield f"left out {', '.join(names)}, for which a single file has no room"
