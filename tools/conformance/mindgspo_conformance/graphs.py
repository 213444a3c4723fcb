"""One compiled MindSpore graph per job: value and gradient of the cells that training uses, without their averages.

What is added here is the gradient by the log-probs, and a coefficient for a KL term that stands alone.

    N  responses    K  response-token slots
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from numpy.typing import NDArray

from mindgspo.algorithms.losses.definition import Aggregation, KLTerm, LossDefinition
from mindgspo.algorithms.losses.policy_loss import Aggregate, KLPenalty
from mindgspo.algorithms.losses.registry import policy_loss_cell
from mindgspo.parallel.platform.runtime import CompiledCell, set_up_runtime

if TYPE_CHECKING:
    from mindgspo_conformance.cells import CellInputs, CellJob

Quantities = Mapping[str, NDArray]


class _KLLoss(nn.Cell):
    """kl_coef times the aggregated KL term, and the term of every token."""

    def __init__(self, term: KLTerm) -> None:
        super().__init__()
        self.penalty = KLPenalty(term)
        self.aggregate = Aggregate(term.aggregation)

    def construct(
        self,
        logp_NK: Tensor,
        ref_logp_NK: Tensor,
        old_logp_NK: Tensor,
        mask_NK: Tensor,
        num_sequences: Tensor,
        num_tokens: Tensor,
        kl_coef: Tensor,
    ) -> tuple[Tensor, Tensor]:
        kl_NK = self.penalty(logp_NK, ref_logp_NK, old_logp_NK, mask_NK)
        return kl_coef * self.aggregate(kl_NK, mask_NK, num_sequences, num_tokens), kl_NK


class _AggregateLoss(nn.Cell):
    """`Aggregate` with a second result, as `value_and_grad` wants of all graphs here."""

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__()
        self.aggregate = Aggregate(aggregation)

    def construct(
        self, loss_NK: Tensor, mask_NK: Tensor, num_sequences: Tensor, num_tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.aggregate(loss_NK, mask_NK, num_sequences, num_tokens), num_tokens


class _ValueAndGradient(nn.Cell):
    """(results of the cell, gradient of the first by the first input), in one graph."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__()
        self.value_and_grad = ops.value_and_grad(cell, 0, has_aux=True)

    def construct(self, *inputs: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        return self.value_and_grad(*inputs)


def _no_averages(quantities: tuple[Tensor, ...], log_ratio: Tensor, mask_NK: Tensor) -> Tensor:
    """In the place of `PolicyLoss.measure`."""
    return log_ratio.reshape(-1)[:1]


def compute(job: CellJob) -> list[Quantities]:
    """Compile the job's cell and run it on every case: its expected quantities by name, at the padded shape."""
    set_up_runtime("CPU")
    build = _GRAPHS[type(job.definition)]
    run = build(job.definition)
    return [run(inputs) for inputs in job.inputs]


def _policy_loss(definition: LossDefinition) -> Callable[[CellInputs], Quantities]:
    cell = policy_loss_cell(definition)
    # The averages are not compared, have no gradient, and would take longer to compile than all the rest.
    cell.measure = _no_averages
    graph = CompiledCell(_ValueAndGradient(cell))
    # Counted from the end of the vector, where the parts of the loss stand behind the averages.
    place = {metric.name: index - len(cell.metrics) for index, metric in enumerate(cell.metrics)}

    def run(inputs: CellInputs) -> Quantities:
        zeros_NK = np.zeros(inputs.mask_NK.shape, dtype=np.float32)
        arrays = inputs.arrays
        (loss, metrics, _), gradient = graph(
            *_tensors(
                arrays["logp"],
                zeros_NK,
                arrays["old_logp"],
                arrays.get("ref_logp", zeros_NK),
                arrays["advantages"],
                arrays.get("rollout_is_weights", np.ones_like(zeros_NK)),
                inputs.mask_NK,
            ),
            *_scalars(inputs.num_sequences, inputs.num_tokens, inputs.kl_coef),
            *_tensors(*(_further_input(name, arrays) for name in cell.further_inputs)),
        )
        parts = metrics.asnumpy()
        return {
            "loss": loss.asnumpy(),
            "pg_loss": parts[place["pg_loss"]],
            "kl_loss": parts[place["kl_loss"]] * inputs.kl_share,
            "grad_logp": gradient.asnumpy(),
        }

    return run


def _further_input(name: str, arrays: Mapping[str, NDArray[np.float32]]) -> NDArray:
    """An input of `PolicyLoss.further_inputs`, by the names of the file."""
    if name == "selected_NK":
        return arrays["selected"] != 0
    assert name == "rollout_logp_NK", name
    return arrays.get("sampling_logp", arrays["old_logp"])


def _kl(term: KLTerm) -> Callable[[CellInputs], Quantities]:
    graph = CompiledCell(_ValueAndGradient(_KLLoss(term)))

    def run(inputs: CellInputs) -> Quantities:
        zeros_NK = np.zeros(inputs.mask_NK.shape, dtype=np.float32)
        arrays = inputs.arrays
        (loss, kl_NK), gradient = graph(
            *_tensors(arrays["logp"], arrays["ref_logp"], arrays.get("old_logp", zeros_NK), inputs.mask_NK),
            *_scalars(inputs.num_sequences, inputs.num_tokens, inputs.kl_coef),
        )
        return {"loss": loss.asnumpy(), "kl_token": kl_NK.asnumpy(), "grad_logp": gradient.asnumpy()}

    return run


def _agg(aggregation: Aggregation) -> Callable[[CellInputs], Quantities]:
    graph = CompiledCell(_ValueAndGradient(_AggregateLoss(aggregation)))

    def run(inputs: CellInputs) -> Quantities:
        (loss, _), gradient = graph(
            *_tensors(inputs.arrays["loss_mat"], inputs.mask_NK), *_scalars(inputs.num_sequences, inputs.num_tokens)
        )
        return {"loss": loss.asnumpy(), "grad_loss_mat": gradient.asnumpy()}

    return run


_GRAPHS = {LossDefinition: _policy_loss, KLTerm: _kl, Aggregation: _agg}


def _tensors(*arrays: NDArray) -> Sequence[Tensor]:
    return [Tensor(array) for array in arrays]


def _scalars(*numbers: float) -> Sequence[Tensor]:
    """Tensors, not Python numbers, which would be compiled into the graph."""
    return [Tensor(number, ms.float32) for number in numbers]
