"""Reruns a dumped step in this one process, whatever plan it was made with, and compares it number by number.

First the forward pass of its first micro-batch, module by module, each given the recorded inputs. Then
all updates, from the recorded weights and moments on: log-probs, loss, norm, gradients of the first one, and the
weights at the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from mindgspo.algorithms.optim.updater import Updater
from mindgspo.errors import CheckpointError
from mindgspo.models.policy import build_model
from mindgspo.models.trace import is_traceable, trace_forward
from mindgspo.models.weights import load_weights
from mindgspo.parallel.ops.device import takes_packed
from mindgspo.parallel.platform import runtime
from mindgspo.replay.dump import Dump, UpdateFacts
from mindgspo.rollout.weight_transfer import weights_as_numpy
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.text import aligned, counted
from mindgspo.trainer.build import build_updater
from mindgspo.trainer.dump import MOMENT, gradients_between
from mindgspo.types import Batch

_MOST_SHOWN = 10


class ReplayVerdict(str, Enum):
    """Outcome of a replay."""

    EQUAL = "bit-equal"
    WITHIN = "within tolerance"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDifference:
    """Difference of a tensor from the recorded one."""

    stage: str
    """Stage of the step, e.g. "update 1, forward"."""
    name: str
    operator: str
    """Ascend operator that computes it; "" if it is not a single operator."""
    max_abs: float
    """Largest absolute difference; inf if one side alone is not finite or shapes differ."""
    largest: float
    """Largest recorded number."""
    tolerance: float
    """Allowed max_abs / largest."""
    is_equal: bool
    """Bit for bit."""

    @property
    def relative(self) -> float:
        """max_abs / largest."""
        return 0.0 if self.max_abs == 0 else self.max_abs / max(self.largest, float(np.finfo(np.float32).tiny))

    @property
    def is_within(self) -> bool:
        """Whether it is allowed."""
        return self.relative <= self.tolerance

    def __str__(self) -> str:
        by = f" ({self.operator})" if self.operator else ""
        return (
            f"{self.stage}: {self.name}{by} is off by {self.max_abs:.3g} where numbers reach {self.largest:.3g}, "
            f"{self.relative:.2g} of them; {self.tolerance:g} is allowed"
        )


def compare_tensors(
    stage: str, name: str, found: np.ndarray, recorded: np.ndarray, *, tolerance: float, operator: str = ""
) -> TensorDifference:
    """Compare what was computed now with what was recorded."""
    found, recorded = np.asarray(found), np.asarray(recorded)
    if found.shape != recorded.shape:
        apart, is_equal = np.inf, False
    else:
        is_equal = bool(np.array_equal(found, recorded, equal_nan=True))
        both = np.isfinite(found) & np.isfinite(recorded)
        same = (found == recorded) | (np.isnan(found) & np.isnan(recorded))
        apart = np.inf if (~both & ~same).any() else _largest(found[both].astype(np.float64) - recorded[both])
    return TensorDifference(
        stage=stage,
        name=name,
        operator=operator,
        max_abs=float(apart),
        largest=_largest(recorded[np.isfinite(recorded)]),
        tolerance=tolerance,
        is_equal=is_equal,
    )


def _largest(values: np.ndarray) -> float:
    return float(np.abs(values).max(initial=0.0))


@dataclass(slots=True)
class ReplayReport:
    """Differences of all tensors, in the order of execution."""

    title: str
    where: str
    """Device of the replay."""
    differences: list[TensorDifference] = field(default_factory=list)

    @property
    def verdict(self) -> ReplayVerdict:
        """The verdict over all tensors."""
        if all(one.is_equal for one in self.differences):
            return ReplayVerdict.EQUAL
        return ReplayVerdict.WITHIN if all(one.is_within for one in self.differences) else ReplayVerdict.DIFFERENT

    def first_beyond(self) -> TensorDifference | None:
        """The first tensor beyond its tolerance; each module was given its recorded inputs."""
        return next((one for one in self.differences if not one.is_within), None)

    def lines(self) -> list[str]:
        """Per stage, the number of tensors and the largest difference; then the tensors beyond their tolerance."""
        stages = list(dict.fromkeys(one.stage for one in self.differences))
        rows = [("stage", "tensors", "bit-equal", "largest difference, relative", "allowed")]
        rows += [self._row(stage, [one for one in self.differences if one.stage == stage]) for stage in stages]
        lines = [self.title, f"run again on {self.where}", "", *aligned(rows, left=1), ""]
        first = self.first_beyond()
        if first is None:
            return [*lines, f"{self.verdict.value}: {counted(len(self.differences), 'tensor')}"]
        beyond = [one for one in self.differences if not one.is_within]
        lines += [f"first difference: {first}"]
        before = self.differences[self.differences.index(first) - 1]
        if first is not self.differences[0] and before.stage == first.stage:
            lines.append(f"right before it comes {before.name}, which agrees")
        lines += [f"then {one}" for one in beyond[1:_MOST_SHOWN]]
        if beyond[_MOST_SHOWN:]:
            lines.append(f"and {len(beyond) - _MOST_SHOWN} more")
        return [*lines, "", f"{self.verdict.value}: {len(beyond)} of {counted(len(self.differences), 'tensor')}"]

    def _row(self, stage: str, own: Sequence[TensorDifference]) -> tuple[str, ...]:
        worst = max(own, key=lambda one: one.relative)
        equal = sum(one.is_equal for one in own)
        return stage, str(len(own)), str(equal), f"{worst.relative:.2g}", f"{worst.tolerance:g}"


# Of the largest number of a tensor, by the type that the model computes in: what a module makes of equal inputs; what a
# whole pass, forward and backward, makes of equal weights; what is left of a gradient in weights.
_MODULE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}
_PASS = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 2e-2}
# Backwards through a layer: a wrong gradient shows first in the last weights of the layer.
_BACKWARD = (
    "post_mlp_layernorm", "mlp.down_proj", "mlp.experts.down_proj", "mlp.up_proj", "mlp.gate_proj", "mlp.experts",
    "mlp.shared_experts", "mlp.gate", "post_attention_layernorm", "post_self_attn_layernorm", "self_attn.o_proj",
    "self_attn.q_norm", "self_attn.k_norm", "self_attn.v_proj", "self_attn.k_proj", "self_attn.q_proj",
    "input_layernorm",
)  # fmt: skip


def replay_step(dump: Dump, *, tolerance: float | None = None) -> ReplayReport:
    """Rerun a step; `set_up_runtime` has chosen the device. tolerance: replaces those of the model's type."""
    return _Replay(dump, tolerance).run()


class _Replay:
    def __init__(self, dump: Dump, tolerance: float | None) -> None:
        config = dump.config
        self._dump, self._config = dump, config
        self._of_module = tolerance or _MODULE[config.model.dtype]
        self._of_pass = tolerance or _PASS[config.model.dtype]
        model = build_model(config.model)
        self._backend: Updater = build_updater(config, model)
        self._model = model
        load_weights(model, config.model, dump.tensors("weights"), where=dump.path("weights"))
        with open_tensors(dump.path("optimizer")) as state:
            self._backend.load_tensors(state)
        where = "an emulated card" if runtime.is_emulated() else runtime.current_device()
        self._found = ReplayReport(str(dump), where)

    def run(self) -> ReplayReport:
        self._forward()
        for number, update in enumerate(self._dump.facts.updates, 1):
            if not update.is_skipped:
                self._update(number, update)
        for name, recorded in self._dump.tensors("weights_after").items():
            found = weights_as_numpy(self._model, self._config.model)[name]
            self._add("weights after the step", name, found, recorded, tolerance=self._of_pass)
        return self._found

    def _add(self, stage: str, name: str, found: Any, recorded: Any, *, tolerance: float, operator: str = "") -> None:
        one = compare_tensors(stage, name, found, recorded, tolerance=tolerance, operator=operator)
        self._found.differences.append(one)

    def _forward(self) -> None:
        tensors = self._dump.tensors("trace")
        trace = iter(tensors.items())
        if not tensors:
            return

        def compare(name: str, operator: str, found: np.ndarray) -> np.ndarray:
            key, recorded = next(trace, ("nothing", np.empty(0)))
            if key.partition(" ")[2] != f"{name} | {operator}" or not _are_alike(recorded, found):
                raise CheckpointError(
                    f"{self._dump.path('trace')}: {key} {list(recorded.shape)} is recorded where {name} "
                    f"{list(found.shape)} is computed; the dump was changed, or is of another version of mindgspo"
                )
            self._add("forward", name, found, recorded, tolerance=self._of_module, operator=operator)
            return recorded

        policy = self._backend.policy
        assert is_traceable(policy)
        trace_forward(policy, self._laid_out(self._dump.batches(1)[0]), compare)

    def _update(self, number: int, update: UpdateFacts) -> None:
        stage, batches = f"update {number}", [self._laid_out(batch) for batch in self._dump.batches(number)]
        before = self._backend.state()
        result = self._backend.step(batches, update.lr, kl_coef=update.kl_coef)
        recorded = self._dump.tensors(f"update_{number}_found")
        for index, (batch, found) in enumerate(zip(batches, result.logp_NK, strict=True)):
            if not _are_alike(recorded.get(f"logp/{index}"), found):
                path = self._dump.path(f"update_{number}_found")
                raise CheckpointError(f"{path}: has no logp/{index} of shape {list(found.shape)}; the dump was changed")
            masked = [np.where(batch.mask_NK, array, 0) for array in (found, recorded[f"logp/{index}"])]
            self._add(f"{stage}, forward", f"log-probs of micro-batch {index}", *masked, tolerance=self._of_pass)
        scalars = {"loss": (result.loss, update.loss), "grad_norm": (result.grad_norm, update.grad_norm)}
        scale = max(abs(update.loss), 1e-3)  # a loss is a sum of numbers that cancel
        self._add(f"{stage}, forward", "loss", *(np.array([one, scale]) for one in scalars["loss"]),
                  tolerance=self._of_pass)  # fmt: skip
        if number == 1:
            self._gradients(stage, before)
        self._add(f"{stage}, backward", "grad_norm", *map(np.array, scalars["grad_norm"]), tolerance=self._of_pass)

    def _gradients(self, stage: str, before: Mapping[str, np.ndarray]) -> None:
        moments = {name: array for name, array in before.items() if name.startswith(MOMENT)}
        found = gradients_between(moments, self._backend.state(), self._config.optimizer.beta1)
        recorded = self._dump.tensors("gradients")
        for name in sorted(recorded, key=_backward_order):
            self._add(f"{stage}, backward", f"gradient of {name}", found[name], recorded[name], tolerance=self._of_pass)

    def _laid_out(self, batch: Batch) -> Batch:
        """A card's attention takes as many segments as there are samples, none of them empty; a row of kernels may have
        no padding left for those that are filled up."""
        if takes_packed(self._backend.policy):
            return batch
        return _with_padding(batch, batch.samples_N.size)


def _are_alike(recorded: np.ndarray | None, found: np.ndarray) -> bool:
    return recorded is not None and recorded.shape == found.shape and recorded.dtype.kind == "f"


def _with_padding(batch: Batch, slots: int) -> Batch:
    """The same rows, each with so many slots of padding more."""
    width = batch.ids_RT.shape[1]
    rows = {
        name: np.pad(getattr(batch, name), ((0, 0), (0, slots))) for name in ("ids_RT", "positions_RT", "segments_RT")
    }
    if batch.experts_RTX is not None:
        rows["experts_RTX"] = np.pad(batch.experts_RTX, ((0, 0), (0, slots), (0, 0)))
    predict_P = (batch.predict_P // width * (width + slots) + batch.predict_P % width).astype(np.int32)
    return dataclasses.replace(batch, predict_P=predict_P, **rows)


def _backward_order(name: str) -> tuple[int, int, str]:
    """Head and last norm first, then layers from the last to the first, then the embedding."""
    parts = name.removeprefix("model.").split(".")
    if parts[0] != "layers":
        return (0 if "embed_tokens" not in name else 1 << 30, 0, name)
    module = ".".join(parts[2:])
    place = next((number for number, known in enumerate(_BACKWARD) if module.startswith(known)), len(_BACKWARD))
    return 1_000_000 - int(parts[1]), place, name
