"""Answers of an environment whose answers are not determined: a run that was stopped takes them from here when it plays
the same turns again, so that it goes on as if nobody had stopped it.

`run_dir/answers/3.rank_0.jsonl`: those that rank 0 took between the second and the third checkpoint of this run's life.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mindgspo.io import make_folder
from mindgspo.metrics.files import LogFile, read_records
from mindgspo.rewards.verification import JobOutcome, Reply
from mindgspo.rollout.protocol import RandomStream
from mindgspo.tensor_files.tensors import TensorSource


class AnswerLog:
    """Keeps an environment's answers by what was asked; one object on each rank. Part of the run's checkpoints: with
    each one, answers that are older than the one before it are removed."""

    def __init__(self, folder: Path, *, rank: int, new_run: bool) -> None:
        """Read what ranks have written, all of them before any writes again. new_run: remove it instead. Raises
        RunFolderError for a damaged line."""
        if new_run and rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        files = [] if new_run else sorted(folder.glob("*.rank_*.jsonl"))
        self._known = {record["key"]: record["value"] for file in files for record in read_records(file)}
        self._folder, self._rank, self._number = folder, rank, 1 + max(map(_number, files), default=0)

    def find(self, key: str) -> Reply | None:
        """The answer that was given before the run was stopped."""
        return Reply(outcome=JobOutcome.DONE, value=self._known[key]) if key in self._known else None

    def add(self, key: str, reply: Reply) -> None:
        """Keep an answer, also one that was found: its file may go before the run comes to another checkpoint. One that
        failed is asked for again. Raises WriteError."""
        if reply.outcome is JobOutcome.DONE:
            make_folder(self._folder)
            path = self._folder / f"{self._number}.rank_{self._rank}.jsonl"
            LogFile(path).append([{"key": key, "value": reply.value}])

    def state(self) -> dict[str, Any]:
        """See `Stateful`; a checkpoint is saved. What was added since the one before stays: this one may be damaged."""
        self._number += 1
        if self._rank == 0:
            for file in self._folder.glob("*.rank_*.jsonl"):
                if _number(file) < self._number - 1:
                    file.unlink(missing_ok=True)
        return {}

    def arrays(self) -> dict[str, Any]:
        """None."""
        return {}

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        """Nothing: answers are in the run folder."""


def key_of(job: Mapping[str, Any], sample: int, stream: RandomStream) -> str:
    """Identifies a job of an environment. sample, stream: that the turn is drawn by."""
    asked = json.dumps([job, sample, asdict(stream)], sort_keys=True)
    return hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()


def _number(file: Path) -> int:
    name = file.name.partition(".")[0]
    return int(name) if name.isdecimal() else 0
