"""Gradients of a replica's micro-batches over pipeline stages, driven from the host.

What enters: the micro-batches of one replica, on every rank of it. What leaves: gradients added up on each stage, and
on the last stage what the micro-batches' graphs return. Called by `update`. A stage keeps the inputs of the
micro-batches in flight and nothing else: its backward graph computes its forward pass again.

    first stage     ids  -> FORWARD -> hidden ==>             <== gradient -> BACKWARD
    last stage                         ==> hidden -> BACKWARD (loss and gradients) ==> gradient

Legend: M flattened tokens, H hidden units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mindspore import ParameterTuple, Tensor, nn, ops

from mindgspo.algorithms.accumulator import LastStageAccumulator, Objective
from mindgspo.algorithms.adamw import short_runs
from mindgspo.parallel.collectives import GraphOfRanks
from mindgspo.parallel.device_ops import attention_segments
from mindgspo.parallel.pipeline_schedule import Act, one_forward_one_backward
from mindgspo.parallel.stage_links import StageLinks
from mindgspo.types import Batch, Float32Array


class StageObjective(nn.Cell):
    """A number whose gradient is what the next stage's gradient makes of this stage: sum(hidden * its gradient)."""

    def __init__(self, model: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.model = model

    def construct(self, inputs: Tensor, positions_RT: Tensor, segments_RT: Tensor, dhidden_MH: Tensor) -> Tensor:
        return (self.model(inputs, positions_RT, segments_RT) * dhidden_MH).sum()


class StageBackward(nn.Cell):
    """Backward pass of one micro-batch through a stage that is not the last."""

    def __init__(self, model: nn.Cell, weights: ParameterTuple, gradients: ParameterTuple) -> None:
        super().__init__(auto_prefix=False)
        self.weights, self.gradients = weights, gradients
        self.runs = short_runs(len(weights))
        self.is_first = model.is_first
        # Token ids have no gradient.
        self.grad = ops.grad(StageObjective(model), None if self.is_first else 0, weights)

    def construct(self, inputs: Tensor, positions_RT: Tensor, segments_RT: Tensor, dhidden_MH: Tensor) -> Tensor:
        """Adds to the gradients; returns the gradient of the inputs [M, H], on the first stage just any number."""
        found = self.grad(inputs, positions_RT, segments_RT, dhidden_MH)
        gradients = found if self.is_first else found[1]
        for first, last in self.runs:
            self.add_run(first, last, gradients)
        return dhidden_MH[0, 0] if self.is_first else found[0]

    def add_run(self, first: int, last: int, gradients: tuple[Tensor, ...]) -> None:
        """Gradients number `first` to `last` - 1."""
        for i in range(first, last):
            ops.assign_add(self.gradients[i], gradients[i])


class PipelineStage:
    """One rank's part in the updates of its replica."""

    def __init__(self, policy: nn.Cell, loss: nn.Cell, weights: ParameterTuple, gradients: ParameterTuple) -> None:
        self._model, place = policy.model, policy.model.place
        self._stage, self._num_stages = place.at.stage, place.plan.pipeline_stage
        self._round = place.plan.micro_batch_num
        self._links = StageLinks(place)
        if place.is_last_stage:
            self.accumulator = LastStageAccumulator(Objective(policy, loss), weights, gradients)
        else:
            self.accumulator = StageBackward(policy.model, weights, gradients)
        self._forward = GraphOfRanks(policy.model, place.model_ranks)
        self._backward = GraphOfRanks(self.accumulator, place.model_ranks)

    def run(self, batches: Sequence[Batch], inputs_of: Callable[[Batch], tuple[Tensor, ...]]) -> list[tuple]:
        """The results of `Objective` and d loss / d logp per micro-batch on the last stage, [] on the others.

        inputs_of: a batch's tensors in the order of `Objective.construct`.
        """
        results: list[tuple] = []
        for start in range(0, len(batches), self._round):
            results += self._run_round(batches[start : start + self._round], inputs_of)
        return results

    def _run_round(self, batches: Sequence[Batch], inputs_of: Callable[[Batch], tuple[Tensor, ...]]) -> list[tuple]:
        entered: dict[int, Float32Array] = {}
        returned: dict[int, Float32Array] = {}
        left: dict[int, Tensor] = {}
        results: list[tuple] = []
        for act, number in one_forward_one_backward(self._stage, self._num_stages, len(batches)):
            batch = batches[number]
            if act is Act.RECEIVE_INPUT:
                entered[number] = self._links.receive_input(self._hidden_shape(batch))
            elif act is Act.FORWARD:
                left[number] = self._forward(*self._stage_inputs(batch, entered.get(number)))
            elif act is Act.SEND_OUTPUT:
                self._links.send_output(left.pop(number).asnumpy())
            elif act is Act.RECEIVE_GRADIENT:
                returned[number] = self._links.receive_gradient(self._hidden_shape(batch))
            elif act is Act.BACKWARD and self._stage == self._num_stages - 1:
                probe, _, *rest = inputs_of(batch)
                found = self._backward(probe, Tensor(entered.pop(number)), *rest)
                *measured, (grad_logp_NK, left[number]) = found
                results.append((*measured, grad_logp_NK))
            elif act is Act.BACKWARD:
                inputs = self._stage_inputs(batch, entered.pop(number, None))
                left[number] = self._backward(*inputs, Tensor(returned.pop(number)))
            else:
                self._links.send_gradient(left.pop(number).asnumpy())
        for unsent in left.values():
            unsent.asnumpy()  # the first stage sends no gradient: wait for its graphs before anything else is sent
        return results

    def _stage_inputs(self, batch: Batch, entered: Float32Array | None) -> tuple[Tensor, Tensor, Tensor]:
        first = Tensor(batch.ids_RT if entered is None else entered)
        segments = attention_segments(batch.segments_RT, num_segments=batch.samples_N.size)
        return first, Tensor(batch.positions_RT), Tensor(segments)

    def _hidden_shape(self, batch: Batch) -> tuple[int, int]:
        return batch.ids_RT.size, self._model.hidden_size
