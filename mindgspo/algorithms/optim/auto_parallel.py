"""The update backend whose graph MindSpore's compiler divides over all ranks of a plan: one graph per round of
micro-batches (`auto_parallel_graph`).

Legend: U micro-batches of a replica, D replicas; N and K as in `types.Batch`, of one replica's micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from mindgspo.algorithms.optim.adamw import AdamW
from mindgspo.algorithms.optim.auto_parallel_graph import Division, MicroBatchObjective, SharedObjective, UpdateGraph
from mindgspo.algorithms.optim.backend import UpdateBackend, moment_layouts_of
from mindgspo.algorithms.optim.gradients import Objective, discard, inputs_of
from mindgspo.config.schema import OptimizerSection
from mindgspo.data.routing import no_routing, stacked_experts
from mindgspo.data.rows import evened, filler_like, in_chunks
from mindgspo.errors import NonFiniteError
from mindgspo.parallel.auto_parallel import divided, set_mode
from mindgspo.parallel.device_ops import attention_segments
from mindgspo.parallel.layout import Layout
from mindgspo.parallel.parameter_memory import forget_neighbours, set_values
from mindgspo.parallel.placement import AutoParallelPlacement
from mindgspo.parallel.replicas import Arrays, Replicas
from mindgspo.parallel.runtime import current_device, give_values, without_values
from mindgspo.types import Batch, Float32Array


class AutoParallelUpdate(UpdateBackend):
    """Builds the graph for a number of micro-batches and runs it.

    num_micro_batches: U. layouts: by weight, where the compiler puts its gradient and its moments; None where nothing
    is divided. strategy_path: see `divided`.
    """

    def __init__(
        self,
        policy: nn.Cell,
        loss: nn.Cell,
        section: OptimizerSection,
        *,
        num_micro_batches: int,
        layouts: Mapping[str, Layout] | None = None,
        strategy_path: Path | None = None,
    ) -> None:
        super().__init__(policy, loss)
        self._place: AutoParallelPlacement = policy.model.place
        plan = self._place.divided
        with without_values() if layouts is not None else nullcontext():
            self.optimizer = AdamW(self.weights, section)
            self.rank, self._layouts = self._place.held.rank, layouts
            self._replicas = Replicas(self._place.held)
            objective = SharedObjective if current_device() == "Ascend" else MicroBatchObjective
            self.cell = UpdateGraph(
                objective(policy, loss, last_stage=plan.pipeline_stage - 1),
                self.weights,
                self.optimizer,
                num_micro_batches=num_micro_batches,
                is_pipeline=plan.pipeline_stage > 1,
                division=None if layouts is None else Division.of(layouts, plan),
            )
        self._model, self._replays_experts = policy.model, getattr(policy, "replays_experts", False)
        self.graph = self.accumulator = divided(self.cell, self._place, strategy_path=strategy_path)
        self.gradients = self._held(self.cell.gradients)
        self._is_laid_out = layouts is None
        self._num_micro_batches = num_micro_batches
        self._round = num_micro_batches * plan.data_parallel
        self._probe = LossProbe(loss)

    def _moment_layouts(self) -> dict[str, Layout] | None:
        return None if self._layouts is None else moment_layouts_of(self._layouts)

    def _apply(self, batches: Sequence[Batch], *, kl_coef: float, lr: float) -> tuple[list[Arrays], float]:
        """Whether the step counts is decided in the graph: with a norm that is not finite it changes nothing."""
        scalars = self.optimizer.scalars(self._updates + 1, lr, 0.0)
        for name in ("step_size", "root_eps", "decay"):
            set_values(getattr(self.cell, name), getattr(scalars, name).asnumpy())
        set_mode(self.cell, self._model, training=True)
        filled = [*batches, *[filler_like(batches[-1])] * (-len(batches) % self._round)]
        if not self._is_laid_out:
            self.compile(evened(filled)[0])
        pending = []
        for start in range(0, len(filled), self._round):
            is_last = np.float32(start + self._round == len(filled))
            set_values(self.cell.is_last, np.asarray(is_last))
            pending.append(self.graph(*self.inputs(filled[start : start + self._round], kl_coef)))
        grad_norm = float(pending[-1][1].asnumpy())
        found = self._results([measured.asnumpy() for measured, _ in pending], batches, kl_coef)
        results = self._replicas.collect(found, num_items=len(batches))
        try:
            self._refuse_non_finite([float(result[0]) for result in results], grad_norm)
        except NonFiniteError:
            # They are cleared by a product, which leaves what is not finite.
            discard(self._held(self.cell.accu_grads))
            raise
        return results, grad_norm

    def compile(self, batch: Batch) -> None:
        """Compile for micro-batches of this shape; each parameter then has the shape of this rank's slice."""
        set_mode(self.cell, self._model, training=True)
        self.graph.compile(*self.inputs([batch] * self._round, 0.0))
        if not self._is_laid_out:
            give_values([*self.moments, *self.gradients, *self._held(self.cell.accu_grads)])
            forget_neighbours(self.weights)
            self._is_laid_out = True

    def _held(self, gradients: Sequence[Parameter]) -> list[Parameter]:
        """Those of weights on this rank's stage. gradients: of all weights, or none."""
        if self._layouts is None or not gradients:
            return list(gradients)
        return [
            gradient
            for weight, gradient in zip(self.weights, gradients, strict=True)
            if self.rank in self._layouts[weight.name].rank_list
        ]

    def inputs(self, batches: Sequence[Batch], kl_coef: float) -> tuple[Tensor, ...]:
        """The inputs of a round: U x D micro-batches, the replicas' first ones first; shorter ones are padded."""
        assert len(batches) == self._round, f"{len(batches)} micro-batches in a round of {self._round}"
        replicas = self._round // self._num_micro_batches
        # Without the probe and the three scalars of each.
        even = [in_chunks(batch, self._place.divided.context_parallel) for batch in evened(batches)]
        stacked = zip(*(inputs_of(batch)[1:12] for batch in even), strict=True)
        ids, positions, segments, *rest = (np.concatenate(arrays) for arrays in stacked)
        scalars_U3 = [(batch.num_sequences, batch.num_tokens, kl_coef) for batch in batches[::replicas]]
        ends = attention_segments(
            segments, is_packed=False, num_replicas=len(batches), num_segments=even[0].samples_N.size
        )
        own_UU = np.eye(self._num_micro_batches, dtype=np.float32)
        given = (stacked_experts(even, no_routing(self._model.config)),) if self._replays_experts else ()
        arrays = (ids, positions, ends, *rest, np.array(scalars_U3, np.float32), own_UU, *given)
        return tuple(Tensor(array) for array in arrays)

    def _results(self, rounds: Sequence[np.ndarray], batches: Sequence[Batch], kl_coef: float) -> list[Arrays]:
        """The `MicroBatchResult`s of this replica's micro-batches, from their log-probs; [] on a rank that does not
        speak for its replica."""
        if not self._replicas.speaks:
            return []
        num_replicas = self._round // self._num_micro_batches
        found = []
        for number in self._replicas.own(range(len(batches))):
            of_round, index = divmod(number, self._round)
            micro, replica = divmod(index, num_replicas)
            start = of_round * self._round
            # The batches of a round were evened to the largest.
            samples = max(batch.samples_N.size for batch in batches[start : start + self._round])
            measured = rounds[of_round][1:].reshape(self._num_micro_batches, 2, num_replicas, samples, -1)
            logp, entropy = measured[micro, :, replica]
            found.append(self._probe(batches[number], logp, entropy, kl_coef))
        return found


class _KnownLogProbs(nn.Cell):
    """A policy that returns what it is given."""

    def construct(self, logp_NK: Tensor, entropy_NK: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        return logp_NK, entropy_NK


class LossProbe:
    """The loss cell, differentiated by the log-probs alone, in one process."""

    def __init__(self, loss: nn.Cell) -> None:
        self._cell = _DifferentiatedLoss(Objective(_KnownLogProbs(), loss))

    def __call__(self, batch: Batch, logp_NK: Float32Array, entropy_NK: Float32Array, kl_coef: float) -> Arrays:
        """(loss, metrics, log-ratios, entropy, log-probs, d loss / d logp [N, K]). logp_NK, entropy_NK: at least as
        large as the batch's arrays."""
        samples, slots = batch.mask_NK.shape
        probe, _, _, segments, *rest = inputs_of(batch, kl_coef)
        arrays = (probe, logp_NK[:samples, :slots], entropy_NK[:samples, :slots], segments, *rest)
        return tuple(tensor.asnumpy() for tensor in self._cell(*(Tensor(np.array(a)) for a in arrays)))


class _DifferentiatedLoss(nn.Cell):
    def __init__(self, objective: Objective) -> None:
        super().__init__(auto_prefix=False)
        self.value_and_grad = ops.value_and_grad(objective, 0, None, has_aux=True)

    def construct(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        (loss, metrics, log_ratio, entropy, logp_NK), gradient_NK = self.value_and_grad(*inputs)
        return loss, metrics, log_ratio, entropy, logp_NK, gradient_NK
