"""One optimizer update from the micro-batches of a mini-batch: gradients, their sum over the ranks, one norm, AdamW.

Used by the training step with a policy loss and by the warm-up with the supervised one, by one process and by many.
Each rank holds its slices of the weights, one gradient per weight, and the moments of these slices or, with
`optimizer_shard`, of its rows of them. A pipeline stage that is not the last keeps only the input of its forward pass,
which its backward graph computes again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from mindgspo.algorithms.loss_metrics import UpdateTelemetry, collect_telemetry, summarize
from mindgspo.algorithms.optim.gradients import (
    NUM_INPUTS,
    NUM_POLICY_INPUTS,
    Accumulate,
    GradientAccumulator,
    Loss,
    Objective,
    StageAccumulator,
    discard,
    gradients_of,
    tensors_of,
)
from mindgspo.algorithms.optim.over_ranks import BUCKET_BYTES, StepOverRanks
from mindgspo.algorithms.optim.router_bias import RouterBiases
from mindgspo.batches.routing import RoutedTokens, RoutingDifference, expert_loads, no_routing
from mindgspo.batches.rows import in_rounds
from mindgspo.config.schema import OptimizerSection
from mindgspo.errors import CheckpointError, NonFiniteError
from mindgspo.models.model import Model
from mindgspo.models.weights import hold_masters
from mindgspo.parallel.collectives.host import GraphOfRanks
from mindgspo.parallel.collectives.replicas import Arrays, Replicas
from mindgspo.parallel.ops.device import has_kernels, takes_packed
from mindgspo.parallel.pipeline import Stage, entering
from mindgspo.parallel.plans.layout import Layout, Shape
from mindgspo.parallel.plans.placement import ALONE, Placement
from mindgspo.parallel.platform.parameter_memory import set_values, values_of
from mindgspo.reshard.resharder import gather_to_first_rank
from mindgspo.tensor_files.tensors import ArraySource, TensorSource
from mindgspo.types import Batch, Float32Array

UPDATES_KEY = "adamw.updates"
_NUM_RESULTS = 6
"""Fields of `MicroBatchResult` before the drift."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """Report of one update; means use the global denominators of the mini-batch."""

    loss: float
    grad_norm: float
    """Global L2 norm before clipping."""
    entropy: float | None
    """Mean per response token, in nats; None if the policy does not compute it."""
    metrics: Mapping[str, float]
    """The loss cell's own metrics, by name."""
    telemetry: tuple[UpdateTelemetry, ...]
    """Ratios and gradients, by micro-batch."""
    logp_NK: tuple[Float32Array, ...]
    """Log-probs of the response tokens before the update, by micro-batch; masked slots hold anything."""
    drift: RoutingDifference | None = None
    """Difference between the routers' choices now and the routing of the batches; None if the policy does not return
    routing."""


class MicroBatchResult(NamedTuple):
    """Output of the graph of one micro-batch; drift is `RoutingDifference.array`, empty without recorded routing, and
    loads are the experts' [L * E], empty unless biases are moved by them."""

    loss: np.ndarray
    metrics: np.ndarray
    log_ratio: np.ndarray
    entropy: np.ndarray
    logp_NK: np.ndarray
    grad_logp_NK: np.ndarray
    drift: np.ndarray | None = None
    loads: np.ndarray | None = None


class Updater:
    """Trains every parameter of `policy` that requires a gradient, in place; owns gradients and moments.

    If ranks share weights out, the policy's model gets master weights, and perhaps parameters of a smaller type.

    policy, loss: see `gradients.Objective`.
    place: placement of the policy's model.
    bucket_bytes: bytes of one collective; it changes no number.
    """

    def __init__(
        self,
        policy: nn.Cell,
        loss: Loss,
        section: OptimizerSection,
        place: Placement = ALONE,
        *,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.policy = policy
        self.rank, self._is_alone = place.rank, place.plan.world_size == 1
        model: Model | None = getattr(policy, "model", None)
        shared = None if self._is_alone else model
        assert self._is_alone or shared is not None, "a policy without a model"
        masters = {} if shared is None else hold_masters(shared)
        self.weights = ParameterTuple(policy.trainable_params())
        self._plan, self._replicas = place.plan, Replicas(place)
        # Kernels on a CPU run one after the other, so there is nothing to overlap with.
        self._overlaps = place.plan.overlap_grad_reduce and not has_kernels()
        self._stage = Stage(place, model)
        self.gradients = gradients_of(self.weights)
        """The accumulated gradients of this rank; between two updates zero, or what the next one replaces."""
        replays = getattr(policy, "replays_experts", False)
        further = (*getattr(loss, "further_inputs", ()), *getattr(policy, "further_inputs", ()))
        further = further if self._stage.is_last else ()
        self._form = {"is_packed": takes_packed(policy), "replays": replays, "further": further, "place": place}
        self._num_routers = getattr(policy, "num_routers", 0)
        self._replays, self._biases = replays, None
        if section.router_bias_update_rate and (replays or getattr(policy, "returns_routing", False)):
            assert model is not None, "a policy without a model"
            self._biases = RouterBiases(model, section.router_bias_update_rate)
        divided, self._no_routing = None if shared is None else shared.config, None
        if divided and replays:
            self._no_routing = no_routing(len(divided.expert_layers), divided.num_experts_per_tok, divided.num_experts)
        self.over_ranks = StepOverRanks(
            self.weights, self.gradients, section, place, divided, masters, bucket_bytes=bucket_bytes
        )
        self.optimizer = self.over_ranks.optimizer
        self._forward = None if self._stage.is_last else GraphOfRanks(policy, place.graph_ranks)
        accumulator = partial(StageAccumulator, policy, self.weights, is_first=self._stage.is_first)
        if self._stage.is_last:
            objective = Objective(policy, loss)
            accumulator = partial(GradientAccumulator, objective, self.weights, is_first=self._stage.is_first)

        def backward(add: nn.Cell) -> GraphOfRanks:
            return GraphOfRanks(accumulator(add), place.graph_ranks)

        self._accumulate = Accumulate(self.gradients)
        self._backward = backward(self._accumulate)
        self._last_backward = backward(self.over_ranks.accumulate_and_sum()) if self._overlaps else self._backward
        """Of the last micro-batch of an update."""
        self._metric_table = loss.metrics
        self._has_entropy = getattr(policy, "with_entropy", True)
        self._squares = np.zeros(1, np.float32)
        self._updates = 0
        self._gradients_are_zero = True

    @property
    def updates(self) -> int:
        """Updates applied so far; the next one is number `updates` + 1 in the bias corrections."""
        return self._updates

    @property
    def gradient_cell(self) -> nn.Cell:
        """The cell of one micro-batch's gradients."""
        return self._backward.cell

    @property
    def compiled_graphs(self) -> int:
        """Gradient graphs compiled so far: one per shape of a micro-batch."""
        return sum(len(graph.cell.compile_cache) for graph in {self._backward, self._last_backward})

    @property
    def gradients_are_zero(self) -> bool:
        """Whether the gradients may be lost: they are zero, or the next update replaces them. False after an update
        that was interrupted."""
        return self._gradients_are_zero

    @property
    def scratch(self) -> tuple[Parameter, ...]:
        """Gradients, and whatever else means nothing between two updates."""
        return (*self.gradients, *self.over_ranks.own)

    def step(self, batches: Sequence[Batch], lr: float, *, kl_coef: float = 0.0) -> UpdateResult:
        """Apply one update. The result depends neither on how the mini-batch was cut into `batches` nor on the plan.

        batches: the whole mini-batch, equal on all ranks; each replica computes its share. kl_coef: weight of the
        loss's KL term, if it has one. Raises NonFiniteError, on all ranks alike, if the loss or the gradient norm is
        not finite; then no weight, moment or counter has changed, and the accumulated gradients are zero.
        """
        denominators = {(batch.num_sequences, batch.num_tokens) for batch in batches}
        assert len(denominators) == 1, f"micro-batches of one update disagree on denominators: {denominators}"
        with self._open_gradients():
            rounds = self._rounds(batches)
            own = self._replicas.own(rounds)
            laid_out = [tensors_of(batch, kl_coef, **self._form) for batch in own]
            inputs = [tensors for tensors, _ in laid_out]
            last = len(inputs) - 1
            self._prepare(call for i in range(len(inputs)) for call in self._calls(i, inputs[i], is_last=i == last))
            if not inputs:
                discard(self.gradients)
            results: list[tuple[Tensor, ...]] = []

            def forward(i: int, came: Tensor | None) -> Tensor | None:
                if self._forward is None:
                    return None  # the last stage: its backward graph computes the forward pass, too
                hidden_MH, *routing = self._forward(*_for_forward(inputs[i], came))
                results.append(tuple(routing))
                return hidden_MH

            def backward(i: int, came: Tensor | None, gradient: Tensor | None) -> Tensor | None:
                graph = self._last_backward if i == last else self._backward  # those of `Objective`
                found = graph(*_for_backward(i, inputs[i], came, gradient))
                if not self._stage.is_last:
                    return found
                results.append(found if came is None else found[:-1])
                return None if came is None else found[-1]

            # All graphs are launched before the first result is read: the device does not wait for the host.
            self._stage.run([tensors[1].size for tensors in inputs], forward=forward, backward=backward)
            measured = self._measured(results, [routed for _, routed in laid_out], own)
            micros = self._collected(measured, batches, num_rounds=len(rounds))
            grad_norm = self._grad_norm(has_summed=self._overlaps and bool(inputs))
            self._require_finite([float(micro.loss) for micro in micros], grad_norm)
            self.over_ranks.step(self._updates + 1, lr, grad_norm)
            if self._biases is not None:
                loads = np.sum([micro.loads for micro in micros if micro.loads is not None], axis=0)
                self._biases.step(loads.reshape(self._biases.shape))
            self._updates += 1
        return self._result(batches, micros, grad_norm)

    def graphs_for(self, batch: Batch) -> list[tuple[nn.Cell, tuple[Tensor, ...]]]:
        """Return the graphs of an update's last micro-batch, each with its inputs: that of the forward pass, on a stage
        that is not the last, and that of the gradients."""
        tensors, _ = tensors_of(batch, 0.0, **self._form)
        return [(graph.cell, inputs) for graph, inputs in self._calls(0, tensors, is_last=True)]

    def _calls(
        self, i: int, inputs: tuple[Tensor, ...], *, is_last: bool
    ) -> Iterator[tuple[GraphOfRanks, tuple[Tensor, ...]]]:
        """The graphs of micro-batch i, with inputs of the right shapes. is_last: of the update."""
        came, gradient = self._stage.like_what_comes(inputs[1]), self._stage.like_what_goes(inputs[1])
        if self._forward is not None:
            yield self._forward, _for_forward(inputs, came)
        yield self._last_backward if is_last else self._backward, _for_backward(i, inputs, came, gradient)

    def _prepare(self, calls: Iterator[tuple[GraphOfRanks, tuple[Tensor, ...]]]) -> None:
        """Compile where a rank would hold others inside a collective by compiling later."""
        if not self._overlaps:
            self._stage.prepare(calls)
            return
        for graph, inputs in calls:
            graph.compile(*inputs)
        self.over_ranks.meet()

    @contextmanager
    def _open_gradients(self) -> Iterator[None]:
        """Accumulated gradients mean something within; after an update that was refused they are zero again."""
        if not self._gradients_are_zero:
            discard(self.gradients)
        self._gradients_are_zero = False
        try:
            yield
        except NonFiniteError:
            discard(self.gradients)
            self._gradients_are_zero = True
            raise
        self._gradients_are_zero = True

    def _rounds(self, batches: Sequence[Batch]) -> Sequence[Batch]:
        """The micro-batches; of replicas that compute them together, in rounds of one per replica."""
        if not self._plan.couples_replicas:
            return batches
        return in_rounds(batches, self._plan.data_parallel, self._no_routing)

    def _measured(
        self, results: Sequence[tuple[Tensor, ...]], routed: Sequence[RoutedTokens], batches: Sequence[Batch]
    ) -> list[Arrays]:
        """The fields of `MicroBatchResult` of this replica's micro-batches, on the stage where log-probs come out."""
        found = [tuple(tensor.asnumpy() for tensor in result) for result in results]
        if not self._stage.is_last:
            self._stage.choices_of_all([choices[0] for choices in found if choices])
            return []
        if found:
            self._squares = found[-1][_NUM_RESULTS]
        measured = [result[:_NUM_RESULTS] for result in found]
        chosen = self._stage.choices_of_all([result[-1] for result in found if len(result) > _NUM_RESULTS + 1])
        if not chosen and self._biases is None:
            return measured
        each = zip(measured, routed, batches, chosen or [None] * len(measured), strict=True)
        return [(*result, *self._routing(of, batch, chose)) for result, of, batch, chose in each]

    def _routing(self, routed: RoutedTokens, batch: Batch, chosen_MX: np.ndarray | None) -> Arrays:
        """Drift and loads of a micro-batch. chosen_MX: None if the policy does not return it."""
        drift = loads = np.zeros(0, np.int64)
        if chosen_MX is not None and batch.experts_RTX is not None:
            drift = routed.differing(batch, chosen_MX, self._num_routers).array
        if self._biases is not None:
            used_MX = chosen_MX
            if self._replays:
                used_MX = (given := routed.given(batch)).reshape(-1, given.shape[2])
            assert used_MX is not None, "a policy that returns its routing"
            loads = expert_loads(used_MX[np.unique(routed.place_J)], *self._biases.shape).reshape(-1)
        return drift, loads

    def _collected(
        self, measured: Sequence[Arrays], batches: Sequence[Batch], *, num_rounds: int
    ) -> list[MicroBatchResult]:
        """The results of all replicas, in the order of `batches`."""
        results = self._replicas.collect(measured, num_items=num_rounds)
        if self._plan.couples_replicas:
            results = [_without_padding(result, batch) for result, batch in zip(results, batches, strict=False)]
        return [MicroBatchResult(*arrays) for arrays in results]

    def _grad_norm(self, *, has_summed: bool) -> float:
        if self._is_alone and self._accumulate.kernel is not None:
            return math.sqrt(float(self._squares[0]))  # the kernel added the squares up
        return self.over_ranks.norm(has_summed=has_summed)

    def _require_finite(self, losses: Sequence[float], grad_norm: float) -> None:
        where = f"update {self._updates + 1}"
        bad = [i for i, loss in enumerate(losses) if not math.isfinite(loss)]
        if bad:
            where += f": the loss of micro-batch {bad[0] + 1} of {len(losses)} is {losses[bad[0]]}"
        elif not math.isfinite(grad_norm):
            where += f": the gradient norm is {grad_norm}, although the loss is {sum(losses):.6g}"
        else:
            return
        raise NonFiniteError(f"{where}; weights and optimizer are unchanged")

    def _result(self, batches: Sequence[Batch], micros: Sequence[MicroBatchResult], grad_norm: float) -> UpdateResult:
        num_sequences, num_tokens = batches[0].num_sequences, batches[0].num_tokens
        drifts = [RoutingDifference.of(micro.drift) for micro in micros if micro.drift is not None and micro.drift.size]
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
            drift=RoutingDifference.sum(drifts) if drifts else None,
        )

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
        """{moment's name: layout}; None if this rank holds all moments whole."""
        return None if self._is_alone else moment_layouts_of(self.over_ranks.moments)


def moment_layouts_of(layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """{moment's name: layout}, from the layouts by weight."""
    return {f"adamw.{kind}.{name}": layout for kind in ("m", "v") for name, layout in layouts.items()}


def _for_forward(inputs: tuple[Tensor, ...], came: Tensor | None) -> tuple[Tensor, ...]:
    """The policy's inputs among those of `Objective`; came: hidden states in place of ids."""
    return entering(inputs[1 : 1 + NUM_POLICY_INPUTS] + inputs[1 + NUM_INPUTS :], came)


def _for_backward(
    i: int, inputs: tuple[Tensor, ...], came: Tensor | None, gradient: Tensor | None
) -> tuple[Tensor, ...]:
    """The inputs of a stage's accumulator; gradient: of what the stage returned, None on the last one."""
    is_added = Tensor([int(i > 0)], ms.int32)
    if gradient is None:
        return (is_added, inputs[0], *entering(inputs[1:], came))
    first, *others = _for_forward(inputs, came)
    return (is_added, first, gradient, *others)


def _without_padding(arrays: Arrays, batch: Batch) -> Arrays:
    """Results by sample and slot, without the samples and slots that fill a batch up to the shape of its round."""
    samples, slots = batch.mask_NK.shape
    return tuple(array[:samples, :slots] if array.ndim == 2 else array for array in arrays)
