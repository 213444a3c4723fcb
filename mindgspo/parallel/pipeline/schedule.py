"""The order in which a pipeline stage works: one forward, one backward (1F1B, arXiv 2006.09503), not interleaved. Pure
Python.

Time is cut into slots of one forward or backward pass of one micro-batch. Stage s of S does the forward pass of
micro-batch m in slot s + m while m < S - s and in slot 2m + s from then on, its backward pass in slot 2m + 2S - 1 - s.
So it holds at most S - s micro-batches between the two. A message goes when its receiver is about to need it, in front
of that slot: both sides come to it in the same order, and wherever each waits for the other, nobody waits in a ring.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple


class Act(Enum):
    """What a stage does with one micro-batch."""

    RECEIVE_GRADIENT = auto()
    SEND_GRADIENT = auto()
    RECEIVE_ACTIVATIONS = auto()
    SEND_ACTIVATIONS = auto()
    FORWARD = auto()
    BACKWARD = auto()


class Action(NamedTuple):
    """act: what is done. number: of the micro-batch, from 0. slot: the one that is computed in, or that a message goes
    in front of."""

    act: Act
    number: int
    slot: int


def forward_slot(stage: int, stages: int, number: int) -> int:
    """The slot of a forward pass while backward passes go on between them."""
    return stage + number if number < stages - stage else 2 * number + stage


def backward_slot(stage: int, stages: int, number: int) -> int:
    """The slot of a backward pass."""
    return 2 * number + 2 * stages - 1 - stage


def stage_order(stage: int, stages: int, num_micro_batches: int, *, has_backward: bool = True) -> list[Action]:
    """What stage number `stage` of `stages` does, in order. has_backward: whether there are backward passes; scoring
    has none."""

    def forward(of_stage: int, number: int) -> int:
        return forward_slot(of_stage, stages, number) if has_backward else of_stage + number

    actions = []
    for number in range(num_micro_batches):
        actions.append(Action(Act.FORWARD, number, forward(stage, number)))
        if stage > 0:
            actions.append(Action(Act.RECEIVE_ACTIVATIONS, number, forward(stage, number)))
        if stage < stages - 1:
            actions.append(Action(Act.SEND_ACTIVATIONS, number, forward(stage + 1, number)))
        if has_backward:
            actions.append(Action(Act.BACKWARD, number, backward_slot(stage, stages, number)))
            if stage < stages - 1:
                actions.append(Action(Act.RECEIVE_GRADIENT, number, backward_slot(stage, stages, number)))
            if stage > 0:
                actions.append(Action(Act.SEND_GRADIENT, number, backward_slot(stage - 1, stages, number)))
    return sorted(actions, key=lambda action: (action.slot, _turn(action.act, stage)))


def _turn(act: Act, stage: int) -> tuple[int, int]:
    """Within a slot: gradients, then activations, each by their edges, then the pass itself. An edge has the number of
    its upper stage."""
    match act:
        case Act.RECEIVE_GRADIENT:
            return 0, stage
        case Act.SEND_GRADIENT:
            return 0, stage - 1
        case Act.RECEIVE_ACTIVATIONS:
            return 1, stage - 1
        case Act.SEND_ACTIVATIONS:
            return 1, stage
        case _:
            return 2, 0
