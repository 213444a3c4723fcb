"""A pipeline stage at work: its passes and messages in the order of `pipeline.stage_order`, driven from the host.

The ranks of equal place in neighbouring stages pass hidden states [M, H] on, and their gradients back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from mindgspo.parallel.collectives.host import GraphOfRanks, broadcast, receive, send, wait_for_ranks
from mindgspo.parallel.pipeline.schedule import Act, stage_order
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.plans.ranks import layers_of_stage


class Stage:
    """The stage of one rank. model: its part of the model; not read where there is one stage."""

    def __init__(self, place: Placement, model: nn.Cell) -> None:
        self._number, self._count = place.at.stage, place.plan.pipeline_stage
        self._ranks = place.grid.pipeline_group(place.rank)
        # Everybody whom the stages of this replica wait for.
        self._replica = tuple(sorted(rank for one in place.graph_ranks for rank in place.grid.pipeline_group(one)))
        self._model = model

    @property
    def is_first(self) -> bool:
        """Whether it takes ids, not hidden states."""
        return self._number == 0

    @property
    def is_last(self) -> bool:
        """Whether log-probs come out here."""
        return self._number == self._count - 1

    def like_what_comes(self, ids: Tensor) -> Tensor | None:
        """Zeros of the shape of the hidden states that the stage before returns; None on the first stage."""
        return None if self.is_first else self._zeros(ids.size)

    def like_what_goes(self, ids: Tensor) -> Tensor | None:
        """Zeros of the shape of the hidden states that this stage returns; None on the last stage."""
        return None if self.is_last else self._zeros(ids.size)

    def prepare(self, calls: Iterable[tuple[GraphOfRanks, Sequence[Tensor]]]) -> None:
        """Compile graphs for such inputs before the first message: nobody shall be held inside a collective while
        another one compiles. All ranks of a replica call it, with the same micro-batches."""
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
        """The passes of all micro-batches, and the messages between them.

        num_tokens: of each micro-batch. forward(number, what has come from the stage before) -> what goes to the next
        one. backward(number, what came, gradient of what went) -> gradient of what came; None: there are no backward
        passes. What does not come is None, and what goes nowhere is dropped.
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
                        goes[number] = found
                    if backward is None:
                        came.pop(number, None)
                case Act.SEND_ACTIVATIONS:
                    send(goes.pop(number), self._ranks[self._number + 1])
                case Act.RECEIVE_GRADIENT:
                    gradients[number] = self._received(num_tokens[number], 1)
                case Act.BACKWARD:
                    found = backward(number, came.pop(number, None), gradients.pop(number, None))
                    if not self.is_first:
                        returned[number] = found
                case Act.SEND_GRADIENT:
                    send(returned.pop(number), self._ranks[self._number - 1])

    def choices_of_all(self, own: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What the routers of all stages chose, int32 [M, X] of each micro-batch, on every stage. own: the columns of
        this stage's layers."""
        if self._count == 1:
            return list(own)
        num_layers = self._model.config.num_hidden_layers
        layers = [
            len(layers_of_stage(stage, stages=self._count, num_layers=num_layers)) for stage in range(self._count)
        ]
        whole = []
        for part in own:
            columns = []
            for stage, sender in enumerate(self._ranks):
                width = part.shape[1] // layers[self._number] * layers[stage]
                is_own = stage == self._number
                columns.append(np.ascontiguousarray(part) if is_own else np.empty((len(part), width), part.dtype))
                broadcast(columns[stage], sender=sender, ranks=self._ranks)
            whole.append(np.concatenate(columns, axis=1))
        return whole

    def _zeros(self, num_tokens: int) -> Tensor:
        # Memory that nobody touches: graphs are compiled for it, not called with it.
        return Tensor.from_numpy(np.zeros(self._model.passed_shape(num_tokens), ms.dtype_to_nptype(self._model.dtype)))

    def _received(self, num_tokens: int, step: int) -> Tensor:
        return receive(self._model.passed_shape(num_tokens), self._model.dtype, self._ranks[self._number + step])


def entering(inputs: tuple[Tensor, ...], came: Tensor | None) -> tuple[Tensor, ...]:
    """The inputs of a policy, the first of them being ids, with hidden states in their place where they have come."""
    return inputs if came is None else (came, *inputs[1:])
