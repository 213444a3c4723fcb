"""The sampler's pass over one sequence, module by module: what decoding computes for each of its tokens.

The counterpart of `models.trace`, with the trained weights and a cache of its own: the beginning is prefilled, the rest
is decoded token by token, as a response is drawn. Its operators are those of `models.trace`, with attention over the
cache, or the sampler's own for each half of a layer (`graphs.PackedLayers`), which make the same numbers where nothing
is wrong. All are called one by one. For models that one process holds whole.

Legend: L tokens of the sequence, D decoded tokens, S rows of the decode batch, of which the first is in use, V
vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mindgspo.config.cache import BLOCK
from mindgspo.models.trace import EXPERT_OPERATORS, HEAD_OPERATORS, LayerTrace, float32_values
from mindgspo.models.transformer import DecoderLayer, Transformer
from mindgspo.parallel.ops.device import attention_segments, has_kernels
from mindgspo.parallel.ops.kernels import SampleKernel
from mindgspo.parallel.platform.runtime import CompiledCell, paged_kernels
from mindgspo.rollout.cache import ComposedDecodeAttention, PagedCache, PagedDecodeAttention, decode_attention
from mindgspo.rollout.graphs import PackedLayers, PackedWeights, Prefill
from mindgspo.rollout.sequences import SCRATCH, num_blocks_for
from mindgspo.types import Float32Array, Int32Array

_ATTENTION, _FEED_FORWARD = "DecodeAttention", "DecodeFeedForward"


class TracedModule(NamedTuple):
    """operator: the sampler's. outputs: float32 [D, ...], of the tokens that are fed."""

    operator: str
    outputs: Float32Array


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
        self._packed = PackedWeights(model, merges=form.merges_adapters)
        if self._packed.has_kernels:
            CompiledCell(self._packed)()
            self._packed.merge()
        attend = decode_attention(self._cache)
        self._attend = [CompiledCell(_Attend(attend, number)) for number in range(len(model.layers))]

    @property
    def forms(self) -> tuple[bool, ...]:
        """Values of `by_halves` that the device has."""
        return (False, True) if self._packed.packs_layers else (False,)

    def run(self, ids_L: Int32Array, *, num_prefilled: int, by_halves: bool) -> dict[str, TracedModule]:
        """Return the modules of decoding in order of execution, under the names of `models.trace`.

        num_prefilled: tokens that are run at once; the last of them is fed again, and so is each one after it but the
        last of the sequence, which is only drawn. by_halves: by operators of half a layer. `log_probs` are those of the
        next token, NaN where it could not be drawn again.
        """
        with paged_kernels():
            self._fill(ids_L[:num_prefilled])
            steps = [
                _Step(self._model, self._cache, self._packed, self._attend, self._form).run(
                    ids_L, position, by_halves=by_halves
                )
                for position in range(num_prefilled - 1, ids_L.size - 1)
            ]
        outputs: dict[str, list[Float32Array]] = defaultdict(list)
        for step in steps:
            for name, module in step.items():
                outputs[name].append(module.outputs)
        return {name: TracedModule(module.operator, np.stack(outputs[name])) for name, module in steps[0].items()}

    def _fill(self, ids_L: Int32Array) -> None:
        positions_L = np.arange(ids_L.size, dtype=np.int32)
        segments = attention_segments(np.ones((1, ids_L.size), np.int32), is_packed=self._model.is_packed)
        inputs = (ids_L[None], positions_L[None], segments, positions_L + np.int32(BLOCK))
        self._prefill(*map(Tensor, inputs))


class _Attend(nn.Cell):
    """Attention of one layer over the cache. A graph, because on Ascend its operators exist nowhere else."""

    def __init__(self, attend: PagedDecodeAttention | ComposedDecodeAttention, number: int) -> None:
        super().__init__(auto_prefix=False)
        self.attend, self.number = attend, number

    def construct(
        self,
        query_SAD: Tensor,
        key_SBD: Tensor,
        value_SBD: Tensor,
        cache_rows_S: Tensor,
        table_SP: Tensor,
        batch_valid_length: Tensor,
        num_rows_1: Tensor,
    ) -> Tensor:
        """Inputs: see `graphs.DecodeStep`."""
        places = self.attend.places(cache_rows_S, table_SP, batch_valid_length, num_rows_1)
        tokens = (num_rows_1, num_rows_1, num_rows_1)
        out, _ = self.attend(self.number, query_SAD, key_SBD, value_SBD, tokens, places)
        return out


class _Step(LayerTrace):
    """One decode step. The sequence holds the blocks after the scratch block, in order."""

    attention = "PagedAttention"

    def __init__(
        self,
        model: Transformer,
        cache: PagedCache,
        packed: PackedWeights,
        attend: Sequence[CompiledCell],
        form: SamplerForm,
    ) -> None:
        super().__init__(Tensor(np.array([1], np.int32)))
        self._model, self._cache, self._packed, self._attend, self._form = model, cache, packed, attend, form
        self._found: dict[str, TracedModule] = {}

    def run(self, ids_L: Int32Array, position: int, *, by_halves: bool) -> dict[str, TracedModule]:
        """Feed the token at `position`."""
        model, rows = self._model, self._mask
        ids_S, positions_S, cache_rows_S = np.zeros((3, self._form.num_slots), np.int32)
        ids_S[0], positions_S[0], cache_rows_S[0] = ids_L[position], position, position + BLOCK
        table_SP = np.full((ids_S.size, self._cache.most_blocks), SCRATCH, np.int32)
        table_SP[0] = 1 + np.arange(self._cache.most_blocks)
        self._places = (*map(Tensor, (cache_rows_S, table_SP, positions_S + np.int32(1))), rows)
        rotation = model.rotation(Tensor(positions_S))
        x = self.tap("embed_tokens", "Gather", model.embed_tokens(Tensor(ids_S), self._tokens))
        x, delta = self._halves(x, rotation) if by_halves else self._layers(x, rotation)
        hidden, _ = self.norm("norm", model.norm, x, delta)
        logits_SV = self._packed.logits(hidden, ops.cast(model.output_weight(), model.dtype), rows)
        logits_SV = ops.cast(logits_SV, ms.float32)[:, : model.num_tokens]
        self._keep("log_probs", HEAD_OPERATORS, self._log_prob(logits_SV, int(ids_L[position + 1])))
        return self._found

    def _halves(self, x: Tensor, rotation: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        layers, delta = PackedLayers(self._model, self._cache, self._packed), None
        for i, layer in enumerate(layers.layers):
            cached, name = (layers.cache[2 * i], layers.cache[2 * i + 1]), f"layers.{i}"
            x, delta = layers.attend[i](x, delta, rotation, cached, self._places)
            if i > 0:
                self.tap(f"{name}.input_layernorm (sum)", _ATTENTION, x)
            self.tap(f"{name}.self_attn.o_proj", _ATTENTION, delta)
            if layer.has_experts:
                x, delta, _ = layer.feed_forward(x, delta, self._tokens)
                of_sum, block, operator = "Add", "mlp", EXPERT_OPERATORS
            else:
                x, delta = layers.feed[i](x, delta, self._mask)
                of_sum, block, operator = _FEED_FORWARD, "mlp.down_proj", _FEED_FORWARD
            self.tap(f"{name}.post_attention_layernorm (sum)", of_sum, x)
            self.tap(f"{name}.{block}", operator, delta)
        return x, delta

    def _layers(self, x: Tensor, rotation: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        delta = None
        for number, layer in enumerate(self._model.layers):
            x, delta = self.layer(number, layer, x, delta, rotation)
        return x, delta

    def attend(self, number: int, layer: DecoderLayer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self._attend[number](query, key, value, *self._places)

    def tap(self, name: str, operator: str, out: Tensor) -> Tensor:
        self._keep(name, operator, float32_values(out)[0])
        return out

    def _keep(self, name: str, operator: str, output: np.ndarray) -> None:
        self._found[name] = TracedModule(operator, np.asarray(output, np.float32))

    def _log_prob(self, logits_SV: Tensor, target: int) -> np.ndarray:
        """The sampler's log-prob of a token, float32 []."""
        inverse = np.full(self._form.num_slots, 1.0 / self._form.temperature, np.float32)
        if not has_kernels():
            logp_SV = ops.LogSoftmax(-1)(logits_SV * Tensor(inverse).reshape(-1, 1))
            return logp_SV.asnumpy()[0, target]
        scaled_V = logits_SV.asnumpy()[0].astype(np.float64) / self._form.temperature
        probs_V = np.exp(scaled_V - scaled_V.max())
        probs_V /= probs_V.sum()
        middle = np.full(inverse.size, probs_V[:target].sum() + probs_V[target] / 2, np.float32)
        greedy = np.zeros(inverse.size, np.bool_)
        drawn_S, logp_S = SampleKernel(top_k=0, top_p=1.0)(
            logits_SV, Tensor(middle), Tensor(inverse), Tensor(greedy), self._mask
        )
        return logp_S.asnumpy()[0] if drawn_S.asnumpy()[0] == target else np.array(np.nan)
