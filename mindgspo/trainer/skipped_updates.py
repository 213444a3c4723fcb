"""How many updates a run has skipped because they were not finite; survives a stop, as `KeptState`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgspo.tensor_files import TensorSource


@dataclass(slots=True)
class SkippedUpdates:
    """total: of the run. in_a_row: since the last update that was applied."""

    total: int = 0
    in_a_row: int = 0

    def count(self) -> None:
        """One more."""
        self.total += 1
        self.in_a_row += 1

    def state(self) -> dict[str, int]:
        """JSON-able; `load` reads it back."""
        return {"total": self.total, "in_a_row": self.in_a_row}

    def arrays(self) -> dict[str, np.ndarray]:
        """None."""
        return {}

    def load(self, state: Mapping[str, Any], arrays: TensorSource) -> None:
        """Go on from what `state` returned; from 0 where it is empty."""
        self.total, self.in_a_row = int(state.get("total", 0)), int(state.get("in_a_row", 0))
