"""One optimizer update from the micro-batches of a mini-batch.

What enters: `types.Batch`es that share their global denominators, and a learning rate. What leaves: changed
weights and an `UpdateResult`. Called by the trainer's step (policy losses) and warm-up (supervised loss), and
when the optimizer's state is saved or loaded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mindspore import Parameter, nn

from mindgspo.algorithms.accumulator import discard
from mindgspo.algorithms.logical_part import LogicalPart
from mindgspo.algorithms.loss_metrics import summarize
from mindgspo.algorithms.rank_part import OwnPart, RankPart
from mindgspo.algorithms.telemetry import UpdateTelemetry, collect
from mindgspo.config.optimizer_section import OptimizerSection
from mindgspo.errors import CheckpointError, NonFiniteError
from mindgspo.parallel.training_layout import TrainingLayout
from mindgspo.tensor_files import ArraySource, TensorSource
from mindgspo.types import Batch, Float32Array

UPDATES_KEY = "adamw.updates"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What one update reports.

    loss: over the whole mini-batch. grad_norm: global L2 norm before clipping. entropy: mean per response
    token, in nats; 0 if the policy does not compute it. metrics: the loss cell's table by name, averaged with the
    global denominators. telemetry: ratios and gradients, by micro-batch. logp_NK: log-probs of the response tokens
    before the update, by micro-batch; anything may stand in masked slots.
    """

    loss: float
    grad_norm: float
    entropy: float
    metrics: Mapping[str, float]
    telemetry: tuple[UpdateTelemetry, ...]
    logp_NK: tuple[Float32Array, ...]


class PolicyUpdater:
    """Drives the compiled graphs: gradient per micro-batch, norm of their sum, one clipped AdamW step.

    policy, loss: see `accumulator.Objective`. The updater trains every parameter of `policy` that requires a
    gradient, in place, and owns gradients and moments. layout: where this rank stands in the training plan; None for a
    rank that is alone. part: another way to take part, e.g. `LogicalPart`, built from the same policy and loss.
    """

    def __init__(
        self,
        policy: nn.Cell,
        loss: nn.Cell,
        section: OptimizerSection,
        layout: TrainingLayout | None = None,
        *,
        part: OwnPart | LogicalPart | None = None,
    ) -> None:
        self._table = loss.metrics
        if part is not None:
            self._part = part
        elif layout is not None:
            self._part = RankPart(policy, loss, section, layout)
        else:
            self._part = OwnPart(policy, loss, section)
        self._updates = 0
        self._gradients_are_zero = True

    @property
    def updates(self) -> int:
        """Updates applied so far; the next one is number `updates` + 1 in the bias corrections."""
        return self._updates

    @property
    def compiled_graphs(self) -> int:
        """Gradient graphs compiled so far: one per shape of a micro-batch."""
        return len(self._part.accumulator.compile_cache)

    @property
    def moments(self) -> tuple[Parameter, ...]:
        """What the optimizer holds on this rank: first and second moments, and copies of rows if they are sharded."""
        return (*self._part.held_moments(), *self._part.optimizer.row_copies)

    @property
    def gradients(self) -> tuple[Parameter, ...]:
        """The accumulated gradients, zero between two updates."""
        return tuple(self._part.gradients)

    @property
    def gradients_are_zero(self) -> bool:
        """Whether all accumulated gradients are; not so after an update that was not finished."""
        return self._gradients_are_zero

    def compile(self, batch: Batch) -> None:
        """Compile ahead for micro-batches of this shape, where the compiler lays parameters out on the ranks."""
        self._part.compile(batch)

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
            discard(self._part.gradients)
        self._gradients_are_zero = False
        try:
            results, grad_norm = self._part.update(
                batches, kl_coef=kl_coef, number=self._updates + 1, lr=lr, judge=self._refuse_non_finite
            )
        except NonFiniteError:
            discard(self._part.gradients)
            self._gradients_are_zero = True
            raise
        micros = [_Micro(*arrays) for arrays in results]
        self._updates += 1
        self._gradients_are_zero = True
        return UpdateResult(
            loss=sum(float(micro.loss) for micro in micros),
            grad_norm=grad_norm,
            entropy=sum(float(micro.entropy) for micro in micros) / num_tokens,
            metrics=summarize(
                self._table,
                [micro.metrics for micro in micros],
                num_sequences=num_sequences,
                num_tokens=num_tokens,
            ),
            telemetry=tuple(
                collect(log_ratio=micro.log_ratio, grad_logp_NK=micro.grad_logp_NK, mask_NK=batch.mask_NK)
                for micro, batch in zip(micros, batches, strict=True)
            ),
            logp_NK=tuple(micro.logp_NK for micro in micros),
        )

    def state(self) -> dict[str, np.ndarray]:
        """Copies of the whole moments by name, and the number of updates as an int64 scalar. Where ranks hold parts of
        the moments, all of them call this, and rank 0 gets the whole; the others get the number alone."""
        return self._part.whole_moments() | {UPDATES_KEY: np.array(self._updates, dtype=np.int64)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned; see `load_tensors`."""
        arrays = {name: np.asarray(array) for name, array in state.items()}
        self.load_tensors(ArraySource(arrays, path=Path("optimizer state")))

    def load_tensors(self, state: TensorSource) -> None:
        """Continue from what `state` returned, on the same or on another plan; each rank reads what it holds. Raises
        CheckpointError on any other names or shapes."""
        expected = self._part.moment_shapes() | {UPDATES_KEY: ()}
        given = {name: info.shape for name, info in state.tensors.items()}
        if expected != given:
            differing = sorted(name for name in expected | given if expected.get(name) != given.get(name))
            name = differing[0]
            raise CheckpointError(
                f"{state.path}: optimizer state does not fit this model: {len(differing)} entries differ, e.g. "
                f"{name} has shape {given.get(name, 'none (missing)')}, expected "
                f"{expected.get(name, 'none (unknown name)')}"
            )
        self._part.load_moments(state)
        self._updates = int(state.read(UPDATES_KEY))

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


class _Micro(NamedTuple):
    """What the graph of one micro-batch returned."""

    loss: np.ndarray
    metrics: np.ndarray
    log_ratio: np.ndarray
    entropy: np.ndarray
    logp_NK: np.ndarray
    grad_logp_NK: np.ndarray
