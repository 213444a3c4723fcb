"""The forward pass of the policy, module by module: their outputs, in order of execution.

Every module is called separately, with the values handed back for the module before it as inputs. So each can be given
the recording of another device and is judged alone: an error does not spread. For models that one process holds whole;
the trainer's dump records, `replay` compares. `rollout.trace` is the sampler's.

Operators are called one by one, because a batch is traced once, and compiling a graph per module would take longer than
running all of them; the log-probs are those of the policy's graph.

Legend: M flattened tokens of the device's graph, C tokens of the comparison, H hidden units, N samples, K slots of
response tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeGuard

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.batches.rows import packed_tokens
from mindgspo.models.mixture_of_experts import MixtureOfExperts
from mindgspo.models.policy import PolicyLogProbs
from mindgspo.models.transformer import DecoderLayer, RMSNorm, Tokens, Transformer
from mindgspo.parallel.ops.device import policy_inputs
from mindgspo.parallel.platform.runtime import call_compiled, compile_once
from mindgspo.types import Batch, Float32Array

Use = Callable[[str, str, Float32Array], "Float32Array | None"]
"""(module, operator, what it returned) -> what the next modules are given instead; None: that. float32, [C, ...]; the
log-probs [N, K], 0 where masked."""
EXPERT_OPERATORS, HEAD_OPERATORS = "router, GroupedMatmul, Swiglu", "MatMul, LogSoftmax"


def is_traceable(policy: nn.Cell) -> TypeGuard[PolicyLogProbs]:
    """Whether the policy is a model of ours, and this process holds all of it."""
    return (
        isinstance(policy, PolicyLogProbs)
        and isinstance(policy.model, Transformer)
        and policy.model.place.plan.pipeline_stage == len(policy.model.place.graph_ranks) == 1
    )


def trace_forward(policy: PolicyLogProbs, batch: Batch, use: Use) -> None:
    """Call every module of the policy for a batch, and `use` with the output of each."""
    _Trace(policy, batch, use).run()


class _NormOfSum(nn.Cell):
    def __init__(self, norm: RMSNorm) -> None:
        super().__init__(auto_prefix=False)
        self.norm = norm

    def construct(self, x_MH: Tensor, delta_MH: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm.of_sum(x_MH, delta_MH, tokens)


class _Head(nn.Cell):
    def __init__(self, policy: PolicyLogProbs) -> None:
        super().__init__(auto_prefix=False)
        self.policy = policy

    def construct(
        self, hidden_MH: Tensor, segments: Tensor, predict_P: Tensor, targets_P: Tensor, place_NK: Tensor
    ) -> tuple[Tensor, ...]:
        return self.policy._log_probs(hidden_MH, (segments, segments), predict_P, targets_P, place_NK)


class _Trace:
    """One pass; holds the positions of the compared tokens in this device's graph.

    Those are the tokens that a graph of kernels computes (`rows.PackedTokens`): samples share their prompt, and the
    last token of a response, which predicts nothing, is left out. Elsewhere they are picked from the batch's rows.
    """

    def __init__(self, policy: PolicyLogProbs, batch: Batch, use: Use) -> None:
        assert isinstance(policy.model, Transformer)
        self._policy, self._model, self._batch, self._use = policy, policy.model, batch, use
        inputs = policy_inputs(batch, is_packed=policy.is_packed)
        self._ids, self._positions, self._segments, *self._head_inputs = map(Tensor, inputs.arrays)
        self._replayed = (Tensor(inputs.given(batch)),) if policy.replays_experts else ()
        place_M = packed_tokens(batch).place_M
        used = np.flatnonzero(place_M >= 0)
        if policy.is_packed:
            self._take = self._put = self._from = np.arange(place_M.max() + 1)
        else:
            _, first = np.unique(place_M[used], return_index=True)
            self._take, self._put, self._from = used[first], used, place_M[used]

    def run(self) -> None:
        model = self._model
        rotation, self._mask = model.rotation(self._positions.reshape(-1)), model.segment_mask(self._segments)
        self._tokens = (self._mask,) * 3
        x = self._tap("embed_tokens", "Gather", model.embed_tokens(self._ids.reshape(-1), self._tokens))
        delta = None
        for number, layer in enumerate(model.layers):
            x, delta = self._layer(f"layers.{number}", layer, x, delta, rotation)
        hidden, _ = self._norm("norm", model.norm, x, delta)
        logp_NK = _Head(self._policy)(hidden, self._segments, *self._head_inputs)[0].asnumpy()
        self._use("log_probs", HEAD_OPERATORS, np.where(self._batch.mask_NK, logp_NK, np.float32(0)))

    def _layer(
        self, name: str, layer: DecoderLayer, x: Tensor, delta: Tensor | None, rotation: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        """Return x and delta after the layer; the hidden states are their sum."""
        normed, x = self._norm(f"{name}.input_layernorm", layer.input_layernorm, x, delta)
        attention, own = layer.self_attn, f"{name}.self_attn"
        heads = [
            self._tap(f"{own}.{part}", "MatMul", out)
            for part, out in zip(("q_proj", "k_proj", "v_proj"), attention.projections(normed, self._mask), strict=True)
        ]
        if attention.has_head_norms:
            heads[0] = self._tap(f"{own}.q_norm", "RmsNorm", attention.q_norm(heads[0], self._mask))
            heads[1] = self._tap(f"{own}.k_norm", "RmsNorm", attention.k_norm(heads[1], self._mask))
        query, key = attention.rotate(heads[0], heads[1], rotation, self._mask)
        query = self._tap(f"{own}.rotate (queries)", "RotaryPositionEmbedding", query)
        key = self._tap(f"{own}.rotate (keys)", "RotaryPositionEmbedding", key)
        out = attention.attention(query, key, heads[2], self._mask)
        out = self._tap(f"{own}.attention", "FlashAttentionScore", out)
        out = self._tap(f"{own}.o_proj", "MatMul", attention.o_proj(out, self._tokens))
        normed, x = self._norm(f"{name}.post_attention_layernorm", layer.post_attention_layernorm, x, out)
        mlp, own = layer.mlp, f"{name}.mlp"
        if isinstance(mlp, MixtureOfExperts):
            out, _ = mlp(normed, self._tokens, *self._replayed)
            return x, self._tap(own, EXPERT_OPERATORS, out)
        gate, up = mlp.projections(normed, self._mask)
        gate, up = self._tap(f"{own}.gate_proj", "MatMul", gate), self._tap(f"{own}.up_proj", "MatMul", up)
        inner = self._tap(f"{own}.swiglu", "Swiglu", mlp.swiglu(gate, up, self._mask))
        return x, self._tap(f"{own}.down_proj", "MatMul", mlp.down_proj(inner, self._tokens))

    def _norm(self, name: str, norm: RMSNorm, x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return norm(x + delta) and x + delta."""
        if delta is None:
            return self._tap(name, "RmsNorm", norm(x, self._mask)), x
        normed, total = _NormOfSum(norm)(x, delta, self._mask)
        total = self._tap(f"{name} (sum)", "Add", total)
        return self._tap(name, "RmsNorm", normed), total

    def _tap(self, name: str, operator: str, out: Tensor) -> Tensor:
        values = float32_values(out)
        found = np.ascontiguousarray(values[self._take])
        given = self._use(name, operator, found)
        if given is None:
            return out
        values = values.copy()
        values[self._put] = given[self._from]
        return _as_type(values, out.dtype)


def float32_values(tensor: Tensor) -> Float32Array:
    """The values of a tensor of one of the types that models compute in."""
    return (tensor if tensor.dtype == ms.float32 else ops.cast(tensor, ms.float32)).asnumpy()


def _as_type(values: Float32Array, dtype: ms.Type) -> Tensor:
    tensor = Tensor(values)
    return tensor if dtype == ms.float32 else ops.cast(tensor, dtype)


# ----- The same by one graph, in which a device may have other operators than outside of graphs


class TracedModule(NamedTuple):
    """operator: its name on Ascend. outputs: float32 [tokens, ...]."""

    operator: str
    outputs: Float32Array


class TracedLayers(nn.Cell):
    """`LayerLoop` that returns the outputs of all modules.

    attend: attention over a cache, see `LayerLoop`; None: over whole rows, with layers as cells like `Transformer`.
    """

    def __init__(self, model: Transformer, attend: nn.Cell | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.count, self.loop, self.adds = len(model.layers), model.loop, not model.is_packed
        attention = "FlashAttentionScore" if attend is None else "PagedAttention"
        self.modules: list[tuple[str, str]] = [("embed_tokens", "Gather")]
        """Names and operators: of the input, of what is returned, and of the norm that follows with its sum."""
        cells = []
        for i, layer in enumerate(model.layers):
            assert isinstance(layer, DecoderLayer)
            cells.append(_TracedLayer(layer, *((layer.attend, 0) if attend is None else (attend, i)), adds=self.adds))
            self.modules += _modules_of(i, layer, attention)
        self.modules += [("norm (sum)", "Add"), ("norm", "RmsNorm")]
        self.layers = nn.CellList(cells, auto_prefix=False)
        if attend is None and model.calls_layers:
            compile_once(self.layers)

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
            x_MH, taps = found[0], taps + found[-1]
            if not self.adds:
                delta_MH = found[1]
        return x_MH, delta_MH, taps


class _TracedLayer(nn.Cell):
    """A `DecoderLayer`. attend: attention, which calls the layer `number`. adds: whether x + delta is returned."""

    def __init__(self, layer: DecoderLayer, attend: nn.Cell, number: int, *, adds: bool) -> None:
        super().__init__(auto_prefix=False)
        self.layer, self.attend, self.number, self.adds = layer, attend, number, adds
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
        """Return x, delta (or their sum), and the outputs of `_modules_of` the layer."""
        layer, rows = self.layer, tokens[1]
        attention = layer.self_attn
        normed_MH, x_MH = layer.first_norm(x_MH, delta_MH, tokens)
        query, key, value = attention.projections(normed_MH, rows)
        taps = (x_MH, normed_MH, query, key, value)
        if attention.has_head_norms:
            query, key = attention.q_norm(query, rows), attention.k_norm(key, rows)
            taps += (query, key)
        query, key = attention.rotate(query, key, rotation, rows)
        attended, _ = self.attend(self.number, query, key, value, tokens, context)
        delta_MH = attention.o_proj(attended, tokens)
        taps += (query, key, attended, delta_MH)
        normed_MH, x_MH = layer.post_attention_layernorm.of_sum(x_MH, delta_MH, rows)
        taps += (x_MH, normed_MH)
        if layer.has_experts:
            delta_MH, _ = layer.mlp(normed_MH, tokens, *replayed_MK)
            taps += (delta_MH,)
        else:
            gate, up = layer.mlp.projections(normed_MH, rows)
            inner = layer.mlp.swiglu(gate, up, rows)
            delta_MH = layer.mlp.down_proj(inner, tokens)
            taps += (gate, up, inner, delta_MH)
        return (self.add(x_MH, delta_MH), taps) if self.adds else (x_MH, delta_MH, taps)


def _modules_of(i: int, layer: DecoderLayer, attention: str) -> list[tuple[str, str]]:
    """Names and operators of the outputs of a `_TracedLayer`."""
    norms = [("q_norm", "RmsNorm"), ("k_norm", "RmsNorm")] if layer.self_attn.has_head_norms else []
    of_attention = [
        *((name, "MatMul") for name in ("q_proj", "k_proj", "v_proj")),
        *norms,
        *((f"rotate ({name})", "RotaryPositionEmbedding") for name in ("queries", "keys")),
        ("attention", attention),
        ("o_proj", "MatMul"),
    ]
    block = [("mlp", EXPERT_OPERATORS)]
    if not layer.has_experts:
        parts = (("gate_proj", "MatMul"), ("up_proj", "MatMul"), ("swiglu", "Swiglu"), ("down_proj", "MatMul"))
        block = [(f"mlp.{name}", operator) for name, operator in parts]
    modules = [
        ("input_layernorm (sum)", "Add"),
        ("input_layernorm", "RmsNorm"),
        *((f"self_attn.{name}", operator) for name, operator in of_attention),
        ("post_attention_layernorm (sum)", "Add"),
        ("post_attention_layernorm", "RmsNorm"),
        *block,
    ]
    return [(f"layers.{i}.{name}", operator) for name, operator in modules]


class _TracedPolicy(nn.Cell):
    """The policy's graph; returns the outputs of all modules, then the log-probs."""

    def __init__(self, policy: PolicyLogProbs) -> None:
        super().__init__(auto_prefix=False)
        self.policy, self.model = policy, policy.model
        self.traced = TracedLayers(policy.model)

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
        embedded_MH = x_MH
        x_MH, delta_MH, taps = self.traced(x_MH, rotation, tokens, (), *replayed_MX)
        normed_MH, total_MH = self.model.norm.of_sum(x_MH, delta_MH, tokens[0])
        head = (tokens[0], tokens[1])
        logp_NK = self.policy._log_probs(normed_MH, head, predict_P, targets_P, place_NK)[0]
        return (embedded_MH, *taps, total_MH, normed_MH, logp_NK)


def trace_graph(policy: PolicyLogProbs, batch: Batch) -> dict[str, TracedModule]:
    """Return the modules of the policy's graph for a batch, in order of execution, under the names of `trace_forward`.

    Outputs are those of all slots of the graph: of the batch's rows, flattened, or of a graph of kernels the tokens of
    `rows.PackedTokens`. `log_probs` are [N, K]; anything may stand in masked slots.
    """
    inputs = policy_inputs(batch, is_packed=policy.is_packed)
    arrays = (*inputs.arrays, *((inputs.given(batch),) if policy.replays_experts else ()))
    cell = _TracedPolicy(policy)
    outputs = [float32_values(tap) for tap in call_compiled(cell, *map(Tensor, arrays))]
    modules = [*cell.traced.modules, ("log_probs", HEAD_OPERATORS)]
    return {name: TracedModule(operator, found) for (name, operator), found in zip(modules, outputs, strict=True)}
