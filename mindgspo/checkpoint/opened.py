"""A checkpoint that is read by need: every rank opens it and takes its own slices.

What enters: the folder of a checkpoint. What leaves: its state, and its tensors unread. Called by the trainer when a
run goes on. Hashes are not looked at here: rank 0 has verified the folder before (`newest_checkpoint`, `verify`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindgspo.checkpoint.manifest import verify
from mindgspo.checkpoint.steps import CHECKPOINT_FILES, OPTIMIZER_FILE, PARAMETERS_FILE, kept_file, read_state
from mindgspo.tensor_files import ArraySource, TensorSource, open_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCheckpoint:
    """step: training steps done. parameters: under Hugging Face names. state: JSON as saved. kept: {name: state} of
    what the run keeps by name; `arrays_of` gives their arrays."""

    path: Path
    step: int
    state: Mapping[str, Any]
    parameters: TensorSource
    optimizer: TensorSource
    kept: Mapping[str, Mapping[str, Any]]
    _arrays: Mapping[str, TensorSource]

    def arrays_of(self, name: str) -> TensorSource:
        """Empty where none were saved."""
        return self._arrays.get(name) or ArraySource({}, path=self.path / kept_file(name))


@contextmanager
def open_checkpoint(path: Path) -> Iterator[OpenCheckpoint]:
    """Open all files of a checkpoint for the block. Raises CheckpointError, WeightsError where sizes or headers say
    that one is damaged."""
    manifest = verify(path, required=CHECKPOINT_FILES, hashes=False)
    state = read_state(path)
    kept = _kept(state)
    with ExitStack() as files:
        yield OpenCheckpoint(
            path=path,
            step=manifest.step,
            state=state,
            parameters=files.enter_context(open_tensors(path / PARAMETERS_FILE)),
            optimizer=files.enter_context(open_tensors(path / OPTIMIZER_FILE)),
            kept=kept,
            _arrays={
                name: files.enter_context(open_tensors(path / kept_file(name)))
                for name in kept
                if kept_file(name) in manifest.files
            },
        )


def _kept(state: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """{name: state}; checkpoints of format 1 have two of them among the rest."""
    return dict(state["kept"]) if "kept" in state else {name: state[name] for name in ("stream", "kl") if name in state}
