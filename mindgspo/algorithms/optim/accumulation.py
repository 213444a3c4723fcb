"""Gradients of the micro-batches of an update, added up by one process or by a stage of a pipeline.

A stage that is not the last keeps nothing of its forward pass but what came in, and computes it again for gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn

from mindgspo.algorithms.optim.gradients import (
    NUM_INPUTS,
    NUM_POLICY_INPUTS,
    GradientAccumulator,
    Objective,
    StageAccumulator,
    discard,
    gradients_of,
    tensors_of,
)
from mindgspo.parallel.collectives.host import GraphOfRanks
from mindgspo.parallel.collectives.replicas import Arrays
from mindgspo.parallel.ops.device import takes_packed
from mindgspo.parallel.pipeline.stage import Stage, entering
from mindgspo.parallel.plans.placement import Placement
from mindgspo.types import Batch

NUM_RESULTS = 6
"""Of `backend.MicroBatchResult` without the drift."""


class Accumulation:
    """The gradients of this rank's weights, summed over the micro-batches of its replica."""

    def __init__(self, policy: nn.Cell, loss: nn.Cell, weights: ParameterTuple, place: Placement) -> None:
        self.gradients = gradients_of(weights)
        self.squares = np.zeros(1, np.float32)
        """By the kernels: the sum of the squares of all gradients of the last update, in one process."""
        self._stage = Stage(place, getattr(policy, "model", None))
        replays = getattr(policy, "replays_experts", False)
        self._form = {"is_packed": takes_packed(policy), "replays": replays, "place": place}
        self._num_layers = getattr(policy, "num_layers", 0)
        is_first = self._stage.is_first
        if self._stage.is_last:
            objective = Objective(policy, loss)
            self.cell = GradientAccumulator(objective, weights, self.gradients, is_first=is_first)
        else:
            self.cell = StageAccumulator(policy, weights, self.gradients, is_first=is_first)
            self._forward = GraphOfRanks(policy, place.graph_ranks)
        self._backward = GraphOfRanks(self.cell, place.graph_ranks)

    def __call__(self, batches: Sequence[Batch], kl_coef: float) -> list[Arrays]:
        """batches: the replica's. Of each, on the stage where log-probs come out, the fields of `MicroBatchResult`;
        elsewhere nothing."""
        inputs, routed = [], []
        for batch in batches:
            tensors, of_batch = tensors_of(batch, kl_coef, **self._form)
            inputs.append(tensors)
            routed.append(of_batch)
        self._stage.prepare(call for number in range(len(inputs)) for call in self._calls(number, inputs[number]))
        if not inputs:
            discard(self.gradients)
        results: list[tuple[Tensor, ...]] = []

        def forward(number: int, came: Tensor | None) -> Tensor | None:
            if self._stage.is_last:
                return None
            goes, *choices = self._forward(*_for_forward(inputs[number], came))
            results.append(tuple(choices))
            return goes

        def backward(number: int, came: Tensor | None, gradient: Tensor | None) -> Tensor | None:
            found = self._backward(*_for_backward(number, inputs[number], came, gradient))
            if not self._stage.is_last:
                return found
            if came is None:
                results.append(found)
                return None
            results.append(found[:-1])
            return found[-1]

        # All graphs are launched before the first result is read: the device does not wait for the host.
        self._stage.run([tensors[1].size for tensors in inputs], forward=forward, backward=backward)
        found = [tuple(tensor.asnumpy() for tensor in result) for result in results]
        if not self._stage.is_last:
            self._stage.choices_of_all([choices[0] for choices in found if choices])
            return []
        if found:
            self.squares = found[-1][NUM_RESULTS]
        measured = [result[:NUM_RESULTS] for result in found]
        chosen = self._stage.choices_of_all([result[-1] for result in found if len(result) > NUM_RESULTS + 1])
        if not chosen:
            return measured
        each = zip(measured, routed, batches, chosen, strict=True)
        return [(*result, of.differing(batch, chose, self._num_layers).array) for result, of, batch, chose in each]

    def graphs_for(self, batch: Batch) -> list[tuple[nn.Cell, tuple[Tensor, ...]]]:
        """The graphs of one micro-batch, each with its inputs: that of the forward pass, where the stage is not the
        last, and that of the gradients."""
        tensors, _ = tensors_of(batch, 0.0, **self._form)
        return [(graph.cell, inputs) for graph, inputs in self._calls(0, tensors)]

    def _calls(self, number: int, inputs: tuple[Tensor, ...]) -> Iterator[tuple[GraphOfRanks, tuple[Tensor, ...]]]:
        """Of the graphs of a micro-batch, with inputs of the right shapes."""
        came, gradient = self._stage.like_what_comes(inputs[1]), self._stage.like_what_goes(inputs[1])
        if not self._stage.is_last:
            yield self._forward, _for_forward(inputs, came)
        yield self._backward, _for_backward(number, inputs, came, gradient)


def _for_forward(inputs: tuple[Tensor, ...], came: Tensor | None) -> tuple[Tensor, ...]:
    """Of the inputs of `Objective` those of the policy; came: hidden states in place of ids."""
    return entering(inputs[1 : 1 + NUM_POLICY_INPUTS] + inputs[1 + NUM_INPUTS :], came)


def _for_backward(
    number: int, inputs: tuple[Tensor, ...], came: Tensor | None, gradient: Tensor | None
) -> tuple[Tensor, ...]:
    """The inputs of the accumulator of a stage; gradient: of what it returned, None on the last one."""
    is_added = Tensor([int(number > 0)], ms.int32)
    if gradient is None:
        return (is_added, inputs[0], *entering(inputs[1:], came))
    first, *others = _for_forward(inputs, came)
    return (is_added, first, gradient, *others)
