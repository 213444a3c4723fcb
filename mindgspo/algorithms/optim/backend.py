"""The update backend: applies one optimizer update from the micro-batches of a mini-batch.

Used by the training step (policy losses) and the warm-up (supervised loss), by one process and by many. Each rank holds
its slices of the weights, one gradient per weight, and the moments of these slices or, with `optimizer_shard`, of its
rows of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mindspore import Parameter, ParameterTuple, nn

from mindgspo.algorithms.loss_metrics import UpdateTelemetry, collect_telemetry, summarize
from mindgspo.algorithms.optim.accumulation import Accumulation
from mindgspo.algorithms.optim.gradients import discard
from mindgspo.algorithms.optim.over_ranks import BUCKET_BYTES, StepOverRanks
from mindgspo.batches.routing import RoutingDifference, no_routing
from mindgspo.batches.rows import in_rounds
from mindgspo.config.schema import OptimizerSection
from mindgspo.errors import CheckpointError, NonFiniteError
from mindgspo.models.weights import hold_masters
from mindgspo.parallel.collectives.replicas import Arrays, Replicas
from mindgspo.parallel.plans.layout import Layout, Shape
from mindgspo.parallel.plans.placement import ALONE, Placement
from mindgspo.parallel.platform.parameter_memory import set_values, values_of
from mindgspo.reshard.resharder import gather_to_first_rank
from mindgspo.tensor_files.tensors import ArraySource, TensorSource
from mindgspo.types import Batch, Float32Array

UPDATES_KEY = "adamw.updates"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What one update reports.

    loss: over the whole mini-batch. grad_norm: global L2 norm before clipping. entropy: mean per response
    token, in nats; None if the policy does not compute it. drift: how far what routers choose now differs from the
    routing of the batches; None if the policy does not tell. metrics: the loss cell's table by name, averaged with the
    global denominators. telemetry: ratios and gradients, by micro-batch. logp_NK: log-probs of the response tokens
    before the update, by micro-batch; masked slots hold anything.
    """

    loss: float
    grad_norm: float
    entropy: float | None
    metrics: Mapping[str, float]
    telemetry: tuple[UpdateTelemetry, ...]
    logp_NK: tuple[Float32Array, ...]
    drift: RoutingDifference | None = None


class MicroBatchResult(NamedTuple):
    """What the graph of one micro-batch returned. drift: `RoutingDifference.array`."""

    loss: np.ndarray
    metrics: np.ndarray
    log_ratio: np.ndarray
    entropy: np.ndarray
    logp_NK: np.ndarray
    grad_logp_NK: np.ndarray
    drift: np.ndarray | None = None


class UpdateBackend:
    """Trains every parameter of `policy` that requires a gradient, in place; owns gradients and moments. Where ranks
    share weights out, it gives the policy's model masters of them and maybe parameters of another type.

    policy, loss: see `gradients.Objective`. place: where the policy's model stands. bucket_bytes: what ranks tell each
    other at once; it changes no number.
    """

    def __init__(
        self,
        policy: nn.Cell,
        loss: nn.Cell,
        section: OptimizerSection,
        place: Placement = ALONE,
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.policy = policy
        masters = {} if place.plan.world_size == 1 else hold_masters(policy.model)
        self.weights = ParameterTuple(policy.trainable_params())
        self.rank, self._is_alone = place.rank, place.plan.world_size == 1
        self._plan, self._replicas = place.plan, Replicas(place)
        self.accumulation = Accumulation(policy, loss, self.weights, place)
        self.accumulator = self.accumulation.cell
        """The cell whose compiled graphs are counted."""
        self.gradients = self.accumulation.gradients
        """The accumulated gradients of this rank; between two updates zero, or what the next one replaces."""
        model = None if self._is_alone else policy.model.config
        self._no_routing = None
        if model and getattr(policy, "replays_experts", False):
            self._no_routing = no_routing(model.num_hidden_layers, model.num_experts_per_tok, model.num_experts)
        self.over_ranks = StepOverRanks(
            self.weights, self.gradients, section, place, model, masters, bucket_bytes=bucket_bytes
        )
        self.optimizer = self.over_ranks.optimizer
        self._metric_table = loss.metrics
        self._has_entropy = getattr(policy, "with_entropy", True)
        self._updates = 0
        self._gradients_are_zero = True

    @property
    def updates(self) -> int:
        """Updates applied so far; the next one is number `updates` + 1 in the bias corrections."""
        return self._updates

    @property
    def compiled_graphs(self) -> int:
        """Gradient graphs compiled so far: one per shape of a micro-batch."""
        return len(self.accumulator.compile_cache)

    @property
    def gradients_are_zero(self) -> bool:
        """Whether they may be lost: they are zero, or what the next update replaces. False after an update that was
        interrupted."""
        return self._gradients_are_zero

    @property
    def scratch(self) -> tuple[Parameter, ...]:
        """Gradients, and whatever else means nothing between two updates."""
        return (*self.gradients, *self.over_ranks.own)

    def update(self, batches: Sequence[Batch], lr: float, *, kl_coef: float = 0.0) -> UpdateResult:
        """Apply one update. The result does not depend on how the mini-batch was cut into `batches`, nor on the plan.

        batches: of the whole mini-batch, equal on all ranks; each replica computes its share. kl_coef: weight of the
        loss's KL term, if it has one. Raises NonFiniteError, on all ranks alike, if the loss or the gradient norm is
        not finite; no weight, moment or counter has changed then, and the accumulated gradients are zero.
        """
        denominators = {(batch.num_sequences, batch.num_tokens) for batch in batches}
        assert len(denominators) == 1, f"micro-batches of one update disagree on denominators: {denominators}"
        (num_sequences, num_tokens) = denominators.pop()

        if not self._gradients_are_zero:
            discard(self.gradients)
        self._gradients_are_zero = False
        try:
            results, grad_norm = self._apply(batches, kl_coef=kl_coef, lr=lr)
        except NonFiniteError:
            discard(self.gradients)
            self._gradients_are_zero = True
            raise
        self._updates += 1
        self._gradients_are_zero = True
        micros = [MicroBatchResult(*arrays) for arrays in results]
        return UpdateResult(
            loss=sum(float(micro.loss) for micro in micros),
            grad_norm=grad_norm,
            entropy=sum(float(micro.entropy) for micro in micros) / num_tokens if self._has_entropy else None,
            metrics=summarize(
                self._metric_table,
                [micro.metrics for micro in micros],
                num_sequences=num_sequences,
                num_tokens=num_tokens,
            ),
            telemetry=tuple(
                collect_telemetry(log_ratio=micro.log_ratio, grad_logp_NK=micro.grad_logp_NK, mask_NK=batch.mask_NK)
                for micro, batch in zip(micros, batches, strict=True)
            ),
            logp_NK=tuple(micro.logp_NK for micro in micros),
            drift=_total_drift(micros),
        )

    def _apply(self, batches: Sequence[Batch], *, kl_coef: float, lr: float) -> tuple[list[Arrays], float]:
        """Gradients, norm and optimizer step of one update; nothing changes where `_refuse_non_finite` refuses.

        Returns the fields of `MicroBatchResult` of every micro-batch of all replicas, and the gradient norm.
        """
        given = batches
        if self._plan.couples_replicas:
            given = in_rounds(batches, self._plan.data_parallel, self._no_routing)
        measured = self.accumulation(self._replicas.own(given), kl_coef)
        results = self._replicas.collect(measured, num_items=len(given))
        if self._plan.couples_replicas:
            results = [_cut(result, batch) for result, batch in zip(results, batches, strict=False)]
        grad_norm = self._grad_norm()
        self._refuse_non_finite([float(result[0]) for result in results], grad_norm)
        self.over_ranks.step(self._updates + 1, lr, grad_norm)
        return results, grad_norm

    def _grad_norm(self) -> float:
        if self._is_alone and self.accumulator.kernel is not None:
            return math.sqrt(float(self.accumulation.squares[0]))
        return self.over_ranks.norm()

    def _refuse_non_finite(self, losses: Sequence[float], grad_norm: float) -> None:
        where = f"update {self._updates + 1}"
        bad = [index for index, loss in enumerate(losses) if not math.isfinite(loss)]
        if bad:
            where += f": the loss of micro-batch {bad[0] + 1} of {len(losses)} is {losses[bad[0]]}"
        elif not math.isfinite(grad_norm):
            where += f": the gradient norm is {grad_norm}, although the loss is {sum(losses):.6g}"
        else:
            return
        raise NonFiniteError(f"{where}; weights and optimizer are unchanged")

    # ---- optimizer state

    @property
    def moments(self) -> tuple[Parameter, ...]:
        """First and second moments that this rank has values of."""
        moments = (*self.optimizer.first_moments, *self.optimizer.second_moments)
        layouts = self._moment_layouts()
        if layouts is None:
            return moments
        return tuple(parameter for parameter in moments if self.rank in layouts[parameter.name].rank_list)

    def state(self) -> dict[str, np.ndarray]:
        """Copies of the whole moments by name, and the number of updates as an int64 scalar. Where ranks hold parts of
        the moments, all of them call this, and rank 0 gets the whole; the others get the number alone."""
        layouts = self._moment_layouts()
        held = {parameter.name: values_of(parameter) for parameter in self.moments}
        if layouts is None:
            whole = {name: array.copy() for name, array in held.items()}
        else:
            whole = gather_to_first_rank(layouts, held)
        return whole | {UPDATES_KEY: np.array(self._updates, dtype=np.int64)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned; see `load_tensors`."""
        arrays = {name: np.asarray(array) for name, array in state.items()}
        self.load_tensors(ArraySource(arrays, path=Path("optimizer state")))

    def load_tensors(self, state: TensorSource) -> None:
        """Continue from what `state` returned, on the same or on another plan; each rank reads what it holds. Raises
        CheckpointError on any other names or shapes."""
        expected = self._moment_shapes() | {UPDATES_KEY: ()}
        given = {name: info.shape for name, info in state.tensors.items()}
        if expected != given:
            differing = sorted(name for name in expected | given if expected.get(name) != given.get(name))
            name = differing[0]
            raise CheckpointError(
                f"{state.path}: optimizer state does not fit this model: {len(differing)} entries differ, e.g. "
                f"{name} has shape {given.get(name, 'none (missing)')}, expected "
                f"{expected.get(name, 'none (unknown name)')}"
            )
        number = state.read(UPDATES_KEY)
        if number.dtype.kind != "i" or not 0 <= int(number) < 1 << 53:
            raise CheckpointError(f"{state.path}: {UPDATES_KEY} is {number}, and it counts updates")
        layouts = self._moment_layouts()
        for parameter in self.moments:
            index: tuple[slice, ...] = ()
            if layouts is not None:
                held = layouts[parameter.name].slice_of(self.rank)
                assert held is not None, parameter.name
                index = held.index
            array = state.read_slice(parameter.name, index)
            set_values(parameter, np.ascontiguousarray(array, np.float32))
        self._updates = int(number)

    def _moment_shapes(self) -> dict[str, Shape]:
        """{name: shape} of the whole moments."""
        layouts = self._moment_layouts()
        if layouts is not None:
            return {name: layout.shape for name, layout in layouts.items()}
        return {parameter.name: tuple(parameter.shape) for parameter in self.moments}

    def _moment_layouts(self) -> dict[str, Layout] | None:
        """{moment's name: layout}; None where this rank holds all moments whole."""
        return None if self._is_alone else moment_layouts_of(self.over_ranks.moments)


def _total_drift(micros: Sequence[MicroBatchResult]) -> RoutingDifference | None:
    parts = [RoutingDifference.of(micro.drift) for micro in micros if micro.drift is not None]
    return RoutingDifference.sum(parts) if parts else None


def moment_layouts_of(layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """By moment, from those by weight."""
    return {f"adamw.{kind}.{name}": layout for kind in ("m", "v") for name, layout in layouts.items()}


def _cut(arrays: Arrays, batch: Batch) -> Arrays:
    """The results of a batch that was padded, by sample and slot, to those of its round."""
    samples, slots = batch.mask_NK.shape
    return tuple(array[:samples, :slots] if array.ndim == 2 else array for array in arrays)
