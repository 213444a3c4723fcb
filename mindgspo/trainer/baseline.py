"""Which held-out problems the first evaluation of a run solved: what later ones are compared with.

What enters: the outcome of every problem, evaluation by evaluation. What leaves: how the accuracy has changed, and how
certain that is. Called by `validation`; kept in checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mindgspo.metrics.estimates import Estimate, change_estimate
from mindgspo.tensor_files import TensorSource
from mindgspo.trainer.kept_state import State


class Baseline:
    """A `KeptState`."""

    def __init__(self) -> None:
        self._solved: np.ndarray | None = None

    def change(self, solved: Sequence[bool]) -> Estimate | None:
        """Change of the accuracy since the first call, which only takes note and gives None; so does one about another
        number of problems (a run that began with another's checkpoint, on other rows)."""
        outcome = np.asarray(solved, bool)
        if self._solved is None or self._solved.size != outcome.size:
            self._solved = outcome
            return None
        return change_estimate(self._solved, outcome)

    def state(self) -> State:
        if self._solved is None:
            return {}
        return {"problems": int(self._solved.size), "solved": np.packbits(self._solved).tobytes().hex()}

    def arrays(self) -> dict[str, np.ndarray]:
        return {}

    def load(self, state: Mapping[str, object], arrays: TensorSource) -> None:
        self._solved = None
        if state:
            bits = np.frombuffer(bytes.fromhex(str(state["solved"])), np.uint8)
            self._solved = np.unpackbits(bits, count=int(str(state["problems"]))).astype(bool)
