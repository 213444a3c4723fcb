"""In which order a pipeline stage receives, computes and sends: one forward, one backward (1F1B, arXiv 2104.04473).

What enters: the stage, the number of stages and of micro-batches. What leaves: its actions in order. Pure Python.

On every link the two neighbours come to their messages in one and the same order, which is also free of circles if a
send waits for its receive: a stage takes the next input before it hands the last gradient back.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple


class Act(Enum):
    """What a stage does with one micro-batch. The last stage has no FORWARD of its own: its BACKWARD graph computes the
    loss too."""

    RECEIVE_INPUT = auto()
    FORWARD = auto()
    SEND_OUTPUT = auto()
    RECEIVE_GRADIENT = auto()
    BACKWARD = auto()
    SEND_GRADIENT = auto()


class Action(NamedTuple):
    """One act on micro-batch number `micro_batch`."""

    act: Act
    micro_batch: int


def one_forward_one_backward(stage: int, num_stages: int, num_micro_batches: int) -> Iterator[Action]:
    """The actions of `stage`. At most num_stages - stage micro-batches are in flight in it, whose inputs it keeps."""
    is_first, is_last = stage == 0, stage == num_stages - 1
    ahead = min(num_stages - 1 - stage, num_micro_batches)

    def received(number: int) -> Iterator[Action]:
        if not is_first and number < num_micro_batches:
            yield Action(Act.RECEIVE_INPUT, number)

    def forward(number: int) -> Iterator[Action]:
        if not is_last and number < num_micro_batches:
            yield Action(Act.FORWARD, number)
            yield Action(Act.SEND_OUTPUT, number)

    for number in range(ahead):
        yield from received(number)
        yield from forward(number)
    yield from received(ahead)
    for number in range(num_micro_batches):
        yield from forward(number + ahead)
        if not is_last:
            yield Action(Act.RECEIVE_GRADIENT, number)
        yield Action(Act.BACKWARD, number)
        yield from received(number + ahead + 1)
        if not is_first:
            yield Action(Act.SEND_GRADIENT, number)
