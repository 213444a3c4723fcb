"""The sampler's pass over one sequence, module by module: what decoding computes for each of its tokens.

The counterpart of `models.trace`, with the trained weights and a cache of its own: the beginning is prefilled, the rest
is decoded token by token, as a response is drawn. One graph returns the outputs of all modules of a decode step: a
device may have other operators outside of graphs, or under the settings of generation. For models that one process
holds whole.

Legend: L tokens of the sequence, D decoded tokens, S rows of the decode batch, of which the first is in use, H hidden
units, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.config.cache import BLOCK
from mindgspo.models.feed_forward import Tokens
from mindgspo.models.trace import (
    EXPERT_OPERATORS,
    HEAD_OPERATORS,
    TracedLayers,
    TracedModule,
    float32_values,
    modules_of,
)
from mindgspo.models.transformer import Transformer
from mindgspo.parallel.ops.device import attention_segments
from mindgspo.parallel.ops.kernels import SampleKernel
from mindgspo.parallel.platform.runtime import CompiledCell, paged_kernels
from mindgspo.rollout.cache import PagedCache, decode_attention
from mindgspo.rollout.graphs import PackedLayers, PackedWeights, Prefill
from mindgspo.rollout.sequences import SCRATCH, num_blocks_for
from mindgspo.types import Float32Array, Int32Array


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerForm:
    """What decides which numbers a sampler computes, beside its model."""

    num_slots: int
    """Rows S of a decode step."""
    cache_dtype: str
    temperature: float
    merges_adapters: bool


class SamplerTrace:
    """Traces sequences under the present weights of a model. num_columns: tokens of the longest one."""

    def __init__(self, model: Transformer, form: SamplerForm, *, num_columns: int) -> None:
        self._model, self._form = model, form
        self._cache = PagedCache(
            model, num_blocks=num_blocks_for(num_columns, BLOCK) + 1, num_columns=num_columns, dtype=form.cache_dtype
        )
        self._prefill = CompiledCell(Prefill(model, self._cache))
        packed = PackedWeights(model, merges=form.merges_adapters)
        if packed.has_kernels:
            CompiledCell(packed)()
            packed.merge()
        self.forms = (False, True) if packed.packs_layers else (False,)
        """Values of `by_halves` that the device has."""
        self._steps = [
            _Step(model, self._cache, packed, by_halves=one, temperature=form.temperature) for one in self.forms
        ]

    def run(self, ids_L: Int32Array, *, num_prefilled: int, by_halves: bool) -> dict[str, TracedModule]:
        """Return the modules of decoding in order of execution, under the names of `models.trace`.

        num_prefilled: tokens that are run at once; the last of them is fed again, and so is each one after it but the
        last of the sequence, which is only drawn; D in all. by_halves: by one operator for each half of a layer
        (`graphs.PackedLayers`), instead of the trainer's. `log_probs` are those of the next token, NaN where it could
        not be drawn again.
        """
        step = self._steps[by_halves]
        graph, found = CompiledCell(step), []
        with paged_kernels():
            self._fill(ids_L[:num_prefilled])
            for position in range(num_prefilled - 1, ids_L.size - 1):
                taps = [float32_values(tap)[0] for tap in graph(*self._inputs(ids_L, position))]
                found.append([*taps[:-1], step.log_prob(taps[-1], self._form.num_slots, int(ids_L[position + 1]))])
        modules = [*step.modules, ("log_probs", HEAD_OPERATORS)]
        return {
            name: TracedModule(operator, np.stack(outputs))
            for (name, operator), outputs in zip(modules, zip(*found, strict=True), strict=True)
        }

    def _fill(self, ids_L: Int32Array) -> None:
        positions_L = np.arange(ids_L.size, dtype=np.int32)
        segments = attention_segments(np.ones((1, ids_L.size), np.int32), is_packed=self._model.is_packed)
        inputs = (ids_L[None], positions_L[None], segments, positions_L + np.int32(BLOCK))
        self._prefill(*map(Tensor, inputs))

    def _inputs(self, ids_L: Int32Array, position: int) -> tuple[Tensor, ...]:
        """The sequence holds the blocks after the scratch block, in order."""
        ids_S, positions_S, cache_rows_S = np.zeros((3, self._form.num_slots), np.int32)
        ids_S[0], positions_S[0], cache_rows_S[0] = ids_L[position], position, position + BLOCK
        table_SP = np.full((ids_S.size, self._cache.most_blocks), SCRATCH, np.int32)
        table_SP[0] = 1 + np.arange(self._cache.most_blocks)
        lengths_S, num_rows_1 = positions_S + np.int32(1), np.array([1], np.int32)
        return tuple(map(Tensor, (ids_S, positions_S, cache_rows_S, table_SP, lengths_S, num_rows_1)))


class _Halves(nn.Cell):
    """`graphs.PackedLayers`, with the outputs of its operators."""

    def __init__(self, model: Transformer, cache: PagedCache, packed: PackedWeights) -> None:
        super().__init__(auto_prefix=False)
        self.halves = PackedLayers(model, cache, packed)
        self.layers, self.count = model.layers, len(model.layers)

    def construct(
        self,
        x_SH: Tensor,
        rotation: tuple[Tensor, Tensor, Tensor],
        tokens: Tokens,
        context: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        """See `TracedLayers` and, for the outputs, `_halves_of`."""
        delta_SH, taps = None, ()
        for i in range(self.count):
            cached = (self.halves.cache[2 * i], self.halves.cache[2 * i + 1])
            x_SH, delta_SH = self.halves.attend[i](x_SH, delta_SH, rotation, cached, context)
            taps += (x_SH, delta_SH)
            layer = self.layers[i]
            if layer.has_sandwich_norms:
                delta_SH = layer.of_attention(delta_SH, tokens)
                taps += (delta_SH,)
            if layer.has_experts:
                x_SH, delta_SH, _ = layer.feed_forward(x_SH, delta_SH, tokens)
            else:
                x_SH, delta_SH = self.halves.feed[self.halves.dense[i]](x_SH, delta_SH, tokens[0])
            taps += (x_SH, delta_SH)
            if layer.has_sandwich_norms:
                delta_SH = layer.of_block(delta_SH, tokens)
                taps += (delta_SH,)
        return x_SH, delta_SH, taps


def _halves_of(model: Transformer) -> list[tuple[str, str]]:
    """`modules_of` a model whose layers are `_Halves`."""
    modules = []
    for i, layer in enumerate(model.layers):
        block, operator = ("mlp", EXPERT_OPERATORS) if layer.has_experts else ("mlp.down_proj", "DecodeFeedForward")
        of_layer = {
            "input_layernorm (sum)": "DecodeAttention",
            "self_attn.o_proj": "DecodeAttention",
            **({"post_self_attn_layernorm": "RmsNorm"} if layer.has_sandwich_norms else {}),
            "post_attention_layernorm (sum)": "Add" if layer.has_experts else operator,
            block: operator,
            **({"post_mlp_layernorm": "RmsNorm"} if layer.has_sandwich_norms else {}),
        }
        modules += [(f"layers.{i}.{name}", by) for name, by in of_layer.items()]
    return [("embed_tokens", "Gather"), *modules[1:], ("norm (sum)", "Add"), ("norm", "RmsNorm")]


class _Step(nn.Cell):
    """`graphs.NextLogits` that returns the outputs of `modules`, then log-probs [S, V], or logits where a kernel makes
    log-probs of them."""

    def __init__(
        self, model: Transformer, cache: PagedCache, packed: PackedWeights, *, by_halves: bool, temperature: float
    ) -> None:
        super().__init__(auto_prefix=False)
        self.model, self.packed = model, packed
        self.attend = None if by_halves else decode_attention(model, cache)
        self.loop = _Halves(model, cache, packed) if by_halves else TracedLayers(model, self.attend)
        self.modules = _halves_of(model) if by_halves else modules_of(model, "PagedAttention")
        self.inverse_temperature = 1.0 / temperature
        self.log_softmax = ops.LogSoftmax(-1)
        self.kernel = SampleKernel(top_k=0, top_p=1.0) if packed.has_kernels else None

    def construct(
        self,
        ids_S: Tensor,
        positions_S: Tensor,
        cache_rows_S: Tensor,
        table_SP: Tensor,
        batch_valid_length: Tensor,
        num_rows_1: Tensor,
    ) -> tuple[Tensor, ...]:
        """Inputs: see `graphs.DecodeStep`."""
        model, rows, tokens = self.model, num_rows_1, (num_rows_1, num_rows_1, num_rows_1)
        output_weight_VH = ops.cast(model.output_weight(), model.dtype)
        places = (cache_rows_S, table_SP, batch_valid_length, num_rows_1)
        if self.attend is not None:
            places = self.attend.places(*places)
        x_SH = model.embed_tokens(ids_S, tokens)
        x_SH, delta_SH, taps = self.loop(x_SH, model.rotation(positions_S), tokens, places)
        normed_SH, total_SH = model.norm.of_sum(x_SH, delta_SH, rows)
        logits_SV = ops.cast(self.packed.logits(normed_SH, output_weight_VH, rows), ms.float32)
        if model.is_padded:
            logits_SV = logits_SV[:, : model.num_tokens]
        if self.kernel is None:
            logits_SV = self.log_softmax(logits_SV * self.inverse_temperature)
        return (*taps, total_SH, normed_SH, logits_SV)

    def log_prob(self, last_V: Float32Array, num_slots: int, target: int) -> np.ndarray:
        """The log-prob of a token, float32 []. last_V: the first row of what `construct` returned last. The kernel
        draws a token: it is given the middle of this one's stretch of the cumulative distribution."""
        if self.kernel is None:
            return np.asarray(last_V[target])
        scaled_V = last_V.astype(np.float64) * self.inverse_temperature
        probs_V = np.exp(scaled_V - scaled_V.max())
        probs_V /= probs_V.sum()
        middle = probs_V[:target].sum() + probs_V[target] / 2
        logits_SV = np.zeros((num_slots, last_V.size), np.float32)
        logits_SV[0] = last_V
        uniforms_S, inverse_S = (np.full(num_slots, one, np.float32) for one in (middle, self.inverse_temperature))
        inputs = (logits_SV, uniforms_S, inverse_S, np.zeros(num_slots, np.bool_), np.array([1], np.int32))
        drawn_S, logp_S = (found.asnumpy() for found in self.kernel(*map(Tensor, inputs)))
        return np.asarray(logp_S[0] if drawn_S[0] == target else np.float32(np.nan))
