"""What must survive a stop beside weights, optimizer and progress: one entry by name in `TrainingParts.kept`.

What enters: a part of the experiment that changes while it runs. What leaves: its state as JSON, and arrays where JSON
has no room for them. Called by `saving`, on every rank. To keep another part: give it these three methods, or an
adapter here, and a name in `build`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np

from mindgspo.algorithms.kl_control import KLController
from mindgspo.data import PromptStream, StreamState
from mindgspo.tensor_files import TensorSource

State = dict[str, Any]
"""JSON: what `json` reads back equal (no tuples, no integer keys, no NaN)."""


class KeptState(Protocol):
    """A part whose state goes into checkpoints. All ranks call each method, in the same order and in no phase of the
    swap (a part whose arrays may be swapped out enters one); rank 0's is written."""

    def state(self) -> State:
        """Equal on all ranks, {} where there is none."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Written as they are, into `<name>.safetensors` of the checkpoint; no such file where there are none. Copies,
        or arrays that nobody changes any more: they may be written while the run goes on. Where ranks hold parts, rank
        0 gives the whole, the others may give nothing."""

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        """Go on from what was saved. arrays: open for this call only, empty where none were saved; a rank reads what it
        holds (`read_slice`). Raises CheckpointError, DataError."""


class KeptStream:
    """The cursor in the training data, what is deferred included."""

    def __init__(self, stream: PromptStream) -> None:
        self._stream = stream

    def state(self) -> State:
        state = self._stream.state()
        return {**asdict(state), "deferred": list(state.deferred)}

    def arrays(self) -> dict[str, np.ndarray]:
        return {}

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        self._stream.restore(StreamState(**{**state, "deferred": tuple(state["deferred"])}))


class KeptCoefficient:
    """The coefficient of the KL penalty, where it is adaptive."""

    def __init__(self, kl: KLController) -> None:
        self._kl = kl

    def state(self) -> State:
        return dict(self._kl.state())

    def arrays(self) -> dict[str, np.ndarray]:
        return {}

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        self._kl.load_state(state)
