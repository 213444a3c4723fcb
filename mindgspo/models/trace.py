"""The forward pass of the policy, module by module: their outputs, in order of execution.

Either one graph returns all of them, because a device may have other operators inside of graphs than outside
(`trace_graph`); or modules are called one by one, each with what is handed back for the one before it. So each can be
given the recording of another device and is judged alone: an error does not spread (`trace_forward`; the trainer's dump
records, `replay` compares). For models that one process holds whole; `rollout.trace` is the sampler's.

Legend: R rows, T token slots, P predicted tokens, M flattened tokens of the device's graph, C tokens of the comparison,
H hidden units, N samples, K slots of response tokens, X recorded experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeGuard

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.batches.rows import packed_tokens
from mindgspo.models.feed_forward import FeedForward, Tokens
from mindgspo.models.latent_attention import LatentAttention
from mindgspo.models.policy import PolicyLogProbs
from mindgspo.models.transformer import DecoderLayer, Transformer
from mindgspo.parallel.ops.device import policy_inputs
from mindgspo.parallel.platform.runtime import call_compiled, compile_once
from mindgspo.types import Batch, Float32Array

Use = Callable[[str, str, Float32Array], "Float32Array | None"]
"""(module, operator, what it returned) -> what the next modules are given instead; None: that. float32, [C, ...]; the
log-probs [N, K], 0 where masked."""
EXPERT_OPERATORS, HEAD_OPERATORS = "router, GroupedMatmul, Swiglu", "MatMul, LogSoftmax"


class TracedModule(NamedTuple):
    """operator: its name on Ascend. outputs: float32 [tokens, ...]."""

    operator: str
    outputs: Float32Array


def is_traceable(policy: nn.Cell) -> TypeGuard[PolicyLogProbs]:
    """Whether the policy is a model of ours, and this process holds all of it."""
    return (
        isinstance(policy, PolicyLogProbs)
        and isinstance(policy.model, Transformer)
        and policy.model.place.plan.pipeline_stage == len(policy.model.place.graph_ranks) == 1
    )


def trace_graph(policy: PolicyLogProbs, batch: Batch) -> dict[str, TracedModule]:
    """Return the modules of the policy's graph for a batch, in order of execution.

    Outputs are those of all slots of the graph: of the batch's rows, flattened, or of a graph of kernels the tokens of
    `rows.PackedTokens`. `log_probs` are [N, K]; anything may stand in masked slots.
    """
    traced = _TracedPolicy(policy)
    outputs = call_compiled(traced, *_inputs(policy, batch))
    modules = [*modules_of(traced.model), ("log_probs", HEAD_OPERATORS)]
    return {
        name: TracedModule(operator, float32_values(found))
        for (name, operator), found in zip(modules, outputs, strict=True)
    }


def trace_forward(policy: PolicyLogProbs, batch: Batch, use: Use) -> None:
    """Call every module of the policy for a batch, and `use` with the output of each.

    Operators are called one by one, because a batch is traced once, and compiling a graph per module would take longer
    than running all of them; the log-probs are those of the policy's graph.
    """
    logp_NK = _TracedPolicy(policy, _Exchange(policy, batch, use))(*_inputs(policy, batch))[-1].asnumpy()
    use("log_probs", HEAD_OPERATORS, np.where(batch.mask_NK, logp_NK, np.float32(0)))


def _inputs(policy: PolicyLogProbs, batch: Batch) -> list[Tensor]:
    inputs = policy_inputs(batch, is_packed=policy.is_packed)
    recorded = (inputs.given(batch),) if policy.replays_experts else ()
    return [Tensor(array) for array in (*inputs.arrays, *recorded)]


def modules_of(model: Transformer, attention: str = "FlashAttentionScore") -> list[tuple[str, str]]:
    """Return names and operators of a model's modules, up to the last norm, in order of execution. attention: the
    operator that attends."""
    modules = []
    for i, layer in enumerate(model.layers):
        projections = ("q_proj", "k_proj", "v_proj")
        norms = ("q_norm", "k_norm") if layer.self_attn.has_head_norms else ()
        rotated = ("rotate (queries)", "rotate (keys)")
        if isinstance(layer.self_attn, LatentAttention):
            projections, norms, rotated = (), (), ("project (queries)", "project (latents)")
        block = [("mlp", EXPERT_OPERATORS)]
        if not layer.has_experts:
            parts = {"gate_proj": "MatMul", "up_proj": "MatMul", "swiglu": "Swiglu", "down_proj": "MatMul"}
            block = [(f"mlp.{name}", operator) for name, operator in parts.items()]
        of_layer = [
            ("input_layernorm (sum)", "Add"),
            ("input_layernorm", "RmsNorm"),
            *((f"self_attn.{name}", "MatMul") for name in projections),
            *((f"self_attn.{name}", "RmsNorm") for name in norms),
            *((f"self_attn.{name}", "RotaryPositionEmbedding") for name in rotated),
            ("self_attn.attention", attention),
            ("self_attn.o_proj", "MatMul"),
            *([("post_self_attn_layernorm", "RmsNorm")] if layer.has_sandwich_norms else []),
            ("post_attention_layernorm (sum)", "Add"),
            ("post_attention_layernorm", "RmsNorm"),
            *block,
            *([("post_mlp_layernorm", "RmsNorm")] if layer.has_sandwich_norms else []),
        ]
        modules += [(f"layers.{i}.{name}", operator) for name, operator in of_layer]
    # Nothing is added before the first norm.
    return [("embed_tokens", "Gather"), *modules[1:], ("norm (sum)", "Add"), ("norm", "RmsNorm")]


def float32_values(tensor: Tensor) -> Float32Array:
    """The values of a tensor of one of the types that models compute in."""
    return (tensor if tensor.dtype == ms.float32 else ops.cast(tensor, ms.float32)).asnumpy()


def _as_type(values: Float32Array, dtype: ms.Type) -> Tensor:
    tensor = Tensor(values)
    return tensor if dtype == ms.float32 else ops.cast(tensor, dtype)


class _Untouched(nn.Cell):
    """construct(output of a module) -> the same."""

    def construct(self, out: Tensor) -> Tensor:
        return out


class _Exchange(nn.Cell):
    """Hands the output of a module to `use`; outside of graphs, in order of execution.

    Holds the positions of the compared tokens in this device's graph. Those are the tokens that a graph of kernels
    computes (`rows.PackedTokens`): samples share their prompt, and the last token of a response, which predicts
    nothing, is left out. Elsewhere they are picked from the batch's rows.
    """

    def __init__(self, policy: PolicyLogProbs, batch: Batch, use: Use) -> None:
        super().__init__(auto_prefix=False)
        assert isinstance(policy.model, Transformer)
        self.modules, self.use = iter(modules_of(policy.model)), use
        place_M = packed_tokens(batch).place_M
        used = np.flatnonzero(place_M >= 0)
        if policy.is_packed:
            self.take = self.put = self.taken = np.arange(place_M.max() + 1)
        else:
            _, first = np.unique(place_M[used], return_index=True)
            self.take, self.put, self.taken = used[first], used, place_M[used]

    def construct(self, out: Tensor) -> Tensor:
        values = float32_values(out)
        given = self.use(*next(self.modules), np.ascontiguousarray(values[self.take]))
        if given is None:
            return out
        values = values.copy()
        values[self.put] = given[self.taken]
        return _as_type(values, out.dtype)


class TracedLayers(nn.Cell):
    """`LayerLoop` that also returns the outputs of all modules.

    attend: attention over a cache, see `LayerLoop`; None: over whole rows, with layers as cells where `Transformer` has
    them. tap: takes the output of each module and returns what the next ones are given; no outputs are returned then.
    """

    def __init__(self, model: Transformer, attend: nn.Cell | None = None, tap: nn.Cell | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.count, self.loop, self.adds, self.keeps = len(model.layers), model.loop, not model.is_packed, tap is None
        cells = []
        for i, layer in enumerate(model.layers):
            over = (layer.attend, 0) if attend is None else (attend, i)
            cells.append(_TracedLayer(layer, *over, _Untouched() if tap is None else tap, adds=self.adds))
        self.layers = nn.CellList(cells, auto_prefix=False)
        if attend is None and model.calls_layers:
            compile_once(self.layers, [layer.has_experts for layer in model.layers])

    def construct(
        self,
        x_MH: Tensor,
        rotation: tuple[Tensor, Tensor, Tensor],
        tokens: Tokens,
        context: tuple[Tensor, ...],
        *replayed_MX: Tensor,
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        """Hidden states as a sum of x and delta (None: x alone), and the outputs. Inputs: see `LayerLoop`."""
        delta_MH, taps = None, ()
        for i in range(self.count):
            replayed = self.loop.replayed_of(i, replayed_MX)
            found = self.layers[i](x_MH, delta_MH, rotation, tokens, context, *replayed)
            x_MH = found[0]
            if self.keeps:
                taps += found[-1]
            if not self.adds:
                delta_MH = found[1]
        return x_MH, delta_MH, taps


class _TracedLayer(nn.Cell):
    """A `DecoderLayer`. attend: attention, which calls the layer `number`. adds: whether x + delta is returned."""

    def __init__(self, layer: DecoderLayer, attend: nn.Cell, number: int, tap: nn.Cell, *, adds: bool) -> None:
        super().__init__(auto_prefix=False)
        self.layer, self.attend, self.number, self.tap, self.adds = layer, attend, number, tap, adds
        self.dense = layer.mlp if isinstance(layer.mlp, FeedForward) else None
        self.add = ops.Add()

    def construct(
        self,
        x_MH: Tensor,
        delta_MH: Tensor | None,
        rotation: tuple[Tensor, Tensor, Tensor],
        tokens: Tokens,
        context: tuple[Tensor, ...],
        *replayed_MK: Tensor,
    ) -> tuple:
        """Return x, delta (or their sum), and the outputs of the layer's modules, see `modules_of`."""
        layer, tap, rows = self.layer, self.tap, tokens[1]
        attention = layer.self_attn
        normed_MH, x_MH = layer.first_norm(x_MH, delta_MH, tokens)
        x_MH, normed_MH = tap(x_MH), tap(normed_MH)
        taps = (x_MH, normed_MH)
        if isinstance(attention, LatentAttention):
            query, key, value = attention.project(normed_MH, rotation, tokens)
        else:
            query, key, value = attention.projections(normed_MH, rows)
            query, key, value = tap(query), tap(key), tap(value)
            taps += (query, key, value)
            if attention.has_head_norms:
                query, key = tap(attention.q_norm(query, rows)), tap(attention.k_norm(key, rows))
                taps += (query, key)
            query, key = attention.rotate(query, key, rotation, rows)
        query, key = tap(query), tap(key)
        attended, _ = self.attend(self.number, query, key, value, tokens, context)
        attended = tap(attended)
        out_MH = tap(attention.o_proj(attended, tokens))
        taps += (query, key, attended, out_MH)
        if layer.has_sandwich_norms:
            out_MH = tap(layer.of_attention(out_MH, tokens))
            taps += (out_MH,)
        normed_MH, x_MH = layer.post_attention_layernorm.of_sum(x_MH, out_MH, rows)
        x_MH, normed_MH = tap(x_MH), tap(normed_MH)
        taps += (x_MH, normed_MH)
        if self.dense is None:
            out_MH, _ = layer.mlp(normed_MH, tokens, *replayed_MK)
        else:
            gate, up = self.dense.projections(normed_MH, rows)
            gate, up = tap(gate), tap(up)
            inner = tap(self.dense.swiglu(gate, up, rows))
            out_MH = self.dense.down_proj(inner, tokens)
            taps += (gate, up, inner)
        out_MH = tap(out_MH)
        taps += (out_MH,)
        if layer.has_sandwich_norms:
            out_MH = tap(layer.of_block(out_MH, tokens))
            taps += (out_MH,)
        return (self.add(x_MH, out_MH), taps) if self.adds else (x_MH, out_MH, taps)


class _TracedPolicy(nn.Cell):
    """The policy; returns the outputs of its modules, then the log-probs. tap: see `TracedLayers`."""

    def __init__(self, policy: PolicyLogProbs, tap: nn.Cell | None = None) -> None:
        super().__init__(auto_prefix=False)
        assert isinstance(policy.model, Transformer)
        self.policy, self.model, self.tap = policy, policy.model, _Untouched() if tap is None else tap
        self.layers = TracedLayers(policy.model, tap=tap)

    def construct(
        self,
        ids_RT: Tensor,
        positions_RT: Tensor,
        segments: Tensor,
        predict_P: Tensor,
        targets_P: Tensor,
        place_NK: Tensor,
        *replayed_RTX: Tensor,
    ) -> tuple[Tensor, ...]:
        """Inputs: see `PolicyLogProbs`."""
        replayed_MX = ()
        if len(replayed_RTX) > 0:
            replayed_MX = (replayed_RTX[0].reshape(-1, replayed_RTX[0].shape[-1]),)
        x_MH, rotation, tokens = self.model.enter(ids_RT, positions_RT, segments)
        x_MH, delta_MH, taps = self.layers(x_MH, rotation, tokens, (), *replayed_MX)
        normed_MH, total_MH = self.model.norm.of_sum(x_MH, delta_MH, tokens[0])
        total_MH, normed_MH = self.tap(total_MH), self.tap(normed_MH)
        found = self.policy._log_probs(normed_MH, (tokens[0], tokens[1]), predict_P, targets_P, place_NK)
        return (*taps, total_MH, normed_MH, found[0])
