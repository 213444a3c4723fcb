"""The update backend: applies one optimizer update from the micro-batches of a mini-batch.

`UpdateBackend` has the check for non-finite numbers, the result and the optimizer state; `update.RankUpdate` makes the
update itself. Used by the training step (policy losses) and the warm-up (supervised loss).
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
from mindgspo.algorithms.optim.adamw import AdamW
from mindgspo.algorithms.optim.gradients import discard
from mindgspo.data.routing import RoutingDifference
from mindgspo.errors import CheckpointError, NonFiniteError
from mindgspo.parallel.layout import Layout, Shape
from mindgspo.parallel.parameter_memory import set_values, values_of
from mindgspo.parallel.replicas import Arrays
from mindgspo.parallel.reshard.resharder import gather_to_first_rank
from mindgspo.tensor_files import ArraySource, TensorSource
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
    """Trains every parameter of `policy` that requires a gradient, in place; owns gradients and moments.

    policy, loss: see `gradients.Objective`. A subclass sets `optimizer`, `gradients` and `accumulator` (the cell whose
    compiled graphs are counted) and implements `_apply`.
    """

    optimizer: AdamW
    gradients: Sequence[Parameter]
    """The accumulated gradients of this rank; between two updates zero, or what the next one replaces."""
    accumulator: nn.Cell
    rank = 0

    def __init__(self, policy: nn.Cell, loss: nn.Cell) -> None:
        self.policy = policy
        self.weights = ParameterTuple(policy.trainable_params())
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
        return tuple(self.gradients)

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
        """Gradients, norm and optimizer step of one update; calls `_refuse_non_finite` before anything changes.

        Returns the fields of `MicroBatchResult` of every micro-batch of all replicas, and the gradient norm.
        """
        raise NotImplementedError

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
        return None


def _total_drift(micros: Sequence[MicroBatchResult]) -> RoutingDifference | None:
    parts = [RoutingDifference.of(micro.drift) for micro in micros if micro.drift is not None]
    return RoutingDifference.sum(parts) if parts else None


def moment_layouts_of(layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """By moment, from those by weight."""
    return {f"adamw.{kind}.{name}": layout for kind in ("m", "v") for name, layout in layouts.items()}
