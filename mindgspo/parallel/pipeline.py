"""Pipeline stages: the order of their passes, and the passes and messages of one stage, driven from the host.

The order is one forward, one backward (1F1B, arXiv 2006.09503), not interleaved. Time is cut into slots of one forward
or backward pass of one micro-batch. Stage s of S does the forward pass of micro-batch m in slot s + m while m < S - s
and in slot 2m + s from then on, its backward pass in slot 2m + 2S - 1 - s. So it holds at most S - s micro-batches
between the two. A message is sent right before the slot in which its receiver needs it: both sides reach it in the same
order, so the ranks never wait for each other in a ring.

Ranks with the same coordinates in neighbouring stages pass on hidden states [M, H], and their gradients back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

import mindspore as ms
import numpy as np
from mindspore import Tensor

from mindgspo.config import ModelSection
from mindgspo.parallel.collectives.host import GraphOfRanks, broadcast, receive, send, wait_for_ranks
from mindgspo.parallel.plans.placement import Placement, layers_of_stage


class Act(Enum):
    """Kinds of actions of a stage on one micro-batch."""

    RECEIVE_GRADIENT = auto()
    SEND_GRADIENT = auto()
    RECEIVE_ACTIVATIONS = auto()
    SEND_ACTIVATIONS = auto()
    FORWARD = auto()
    BACKWARD = auto()


class Action(NamedTuple):
    """An action of a stage on one micro-batch."""

    act: Act
    number: int
    """Number of the micro-batch, from 0."""
    slot: int
    """Slot of a pass, or the slot right after a message."""


def forward_slot(stage: int, stages: int, number: int) -> int:
    """Return the slot of a forward pass where backward passes alternate with them."""
    return stage + number if number < stages - stage else 2 * number + stage


def backward_slot(stage: int, stages: int, number: int) -> int:
    """Return the slot of a backward pass."""
    return 2 * number + 2 * stages - 1 - stage


def stage_order(stage: int, stages: int, num_micro_batches: int, *, has_backward: bool = True) -> list[Action]:
    """Return the actions of stage number `stage` of `stages` in order. has_backward: False for scoring."""

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
    """Sort key within a slot: messages of gradients, then of activations, each by their edge (the number of its upper
    stage), then the pass."""
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


class StageModel(Protocol):
    """The members of a model that a stage uses; see `models.model.Model`."""

    config: ModelSection
    dtype: ms.Type

    def passed_shape(self, num_tokens: int) -> tuple[int, int]:
        """Shape [M, H] of the states that one stage passes to the next for this many tokens of a micro-batch."""
        ...


class Stage:
    """The pipeline stage of one rank. model: its part of the model; not read if there is only one stage."""

    def __init__(self, place: Placement, model: StageModel | None) -> None:
        self._number, self._count = place.at.stage, place.plan.pipeline_stage
        self._ranks = place.grid.pipeline_group(place.rank)
        # All ranks that the stages of this replica wait for.
        self._replica = tuple(sorted(rank for one in place.graph_ranks for rank in place.grid.pipeline_group(one)))
        self._model = model

    @property
    def _part(self) -> StageModel:
        assert self._model is not None, "a stage without its part of the model"
        return self._model

    @property
    def is_first(self) -> bool:
        """Whether the stage takes ids instead of hidden states."""
        return self._number == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage returns log-probs."""
        return self._number == self._count - 1

    def like_what_comes(self, ids: Tensor) -> Tensor | None:
        """Return zeros like the hidden states that come from the previous stage; None on the first stage."""
        return None if self.is_first else self._zeros(ids.size)

    def like_what_goes(self, ids: Tensor) -> Tensor | None:
        """Return zeros like the hidden states that this stage returns; None on the last stage."""
        return None if self.is_last else self._zeros(ids.size)

    def prepare(self, calls: Iterable[tuple[GraphOfRanks, Sequence[Tensor]]]) -> None:
        """Compile graphs for these inputs before the first message, so that no rank waits in a collective while another
        compiles. All ranks of a replica call it with the same micro-batches."""
        if len(self._replica) == 1:
            return
        is_new = False
        for graph, inputs in calls:
            is_new |= graph.compile(*inputs)
        if is_new:
            wait_for_ranks(self._replica)

    def run(
        self,
        num_tokens: Sequence[int],
        *,
        forward: Callable[[int, Tensor | None], Tensor | None],
        backward: Callable[[int, Tensor | None, Tensor | None], Tensor | None] | None = None,
    ) -> None:
        """Run the passes of all micro-batches and the messages between stages.

        num_tokens: tokens of each micro-batch. forward(number, input from the previous stage) -> output for the next
        one. backward(number, that input, gradient of the output) -> gradient of the input; None if there are no
        backward passes. The first stage's input and the last stage's gradient are None; outputs without a receiver are
        dropped.
        """
        came: dict[int, Tensor] = {}
        goes: dict[int, Tensor] = {}
        gradients: dict[int, Tensor] = {}
        returned: dict[int, Tensor] = {}
        order = stage_order(self._number, self._count, len(num_tokens), has_backward=backward is not None)
        for act, number, _ in order:
            match act:
                case Act.RECEIVE_ACTIVATIONS:
                    came[number] = self._received(num_tokens[number], -1)
                case Act.FORWARD:
                    found = forward(number, came.get(number))
                    if not self.is_last:
                        assert found is not None
                        goes[number] = found
                    if backward is None:
                        came.pop(number, None)
                case Act.SEND_ACTIVATIONS:
                    send(goes.pop(number), self._ranks[self._number + 1])
                case Act.RECEIVE_GRADIENT:
                    gradients[number] = self._received(num_tokens[number], 1)
                case Act.BACKWARD:
                    assert backward is not None
                    found = backward(number, came.pop(number, None), gradients.pop(number, None))
                    if not self.is_first:
                        assert found is not None
                        returned[number] = found
                case Act.SEND_GRADIENT:
                    send(returned.pop(number), self._ranks[self._number - 1])

    def choices_of_all(self, own: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the routers' choices of all stages, int32 [M, X] of each micro-batch, on every stage.

        own: the columns of this stage's layers; one that means nothing where none of them has a router.
        """
        if self._count == 1:
            return list(own)
        section = self._part.config
        stages = [
            layers_of_stage(stage, stages=self._count, num_layers=section.num_hidden_layers)
            for stage in range(self._count)
        ]
        routers = [sum(layer in section.expert_layers for layer in layers) for layers in stages]
        chosen = section.num_experts_per_tok or 0
        whole = []
        for part in own:
            columns = []
            for stage, sender in enumerate(self._ranks):
                if not routers[stage]:
                    continue
                is_own, shape = stage == self._number, (len(part), routers[stage] * chosen)
                columns.append(np.ascontiguousarray(part) if is_own else np.empty(shape, part.dtype))
                broadcast(columns[-1], sender=sender, ranks=self._ranks)
            whole.append(np.concatenate(columns, axis=1))
        return whole

    def _zeros(self, num_tokens: int) -> Tensor:
        # Graphs are only compiled for these zeros, so their pages are never touched.
        return Tensor.from_numpy(np.zeros(self._part.passed_shape(num_tokens), ms.dtype_to_nptype(self._part.dtype)))

    def _received(self, num_tokens: int, step: int) -> Tensor:
        return receive(self._part.passed_shape(num_tokens), self._part.dtype, self._ranks[self._number + step])


def entering(inputs: tuple[Tensor, ...], came: Tensor | None) -> tuple[Tensor, ...]:
    """Return the inputs of a policy with the ids, its first input, replaced by received hidden states, if any."""
    return inputs if came is None else (came, *inputs[1:])
