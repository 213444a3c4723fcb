"""The links of a rank to the pipeline stages before and behind it, at the same replica and slice.

What enters: hidden states or their gradients as numpy arrays. What leaves: the same on the neighbour. Called by the
pipeline and by log-probs without gradients; both sides come to their messages in one order.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from mindgspo.parallel.collectives import receive, send
from mindgspo.parallel.placement import Placement
from mindgspo.parallel.process_groups import group_name
from mindgspo.types import Float32Array


class StageLinks:
    """Activations go to the next stage, gradients to the previous one."""

    def __init__(self, place: Placement) -> None:
        ranks, stage = place.grid.pipeline_group(place.rank), place.at.stage
        self._previous = None if stage == 0 else ranks[stage - 1]
        self._next = None if stage == len(ranks) - 1 else ranks[stage + 1]
        # Made now, from the first stage on: later both sides would have to come to it at the same time.
        for first, second in pairwise(ranks):
            if place.rank in (first, second):
                group_name((first, second))

    def send_output(self, hidden: Float32Array) -> None:
        """To the next stage, which calls `receive_input`."""
        assert self._next is not None, "the last stage has no next one"
        send(np.ascontiguousarray(hidden), to=self._next)

    def receive_input(self, shape: tuple[int, int]) -> Float32Array:
        """From the previous stage."""
        assert self._previous is not None, "the first stage has none before it"
        return _received(shape, self._previous)

    def send_gradient(self, gradient: Float32Array) -> None:
        """To the previous stage, which calls `receive_gradient`."""
        assert self._previous is not None, "the first stage has none before it"
        send(np.ascontiguousarray(gradient), to=self._previous)

    def receive_gradient(self, shape: tuple[int, int]) -> Float32Array:
        """From the next stage."""
        assert self._next is not None, "the last stage has no next one"
        return _received(shape, self._next)


def _received(shape: tuple[int, int], sender: int) -> Float32Array:
    array = np.empty(shape, np.float32)
    receive(array, sender=sender)
    return array
