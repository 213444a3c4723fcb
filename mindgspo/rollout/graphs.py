"""The compiled graphs of generation: prefill and one decode step with its sampling; `cache.CopyBlocks` gives siblings
their part of a prompt.

Prefill runs prompts and writes their keys and values into the blocks that the scheduler names. Decoding starts by
feeding the prompt's last token (again), so the first response token is sampled by the same code as all others, and
prefill needs no head.

Legend: S rows of the decode batch, P blocks of the longest sequence, Q prompts of one prefill, L prompt columns,
V vocabulary, B kv heads, D head size.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, mint, nn, ops

from mindgspo.batches.routing import expert_dtype
from mindgspo.models.feed_forward import FeedForward
from mindgspo.models.lora import merged_weight
from mindgspo.models.transformer import Attention, DecoderLayer, KeptRows, LayerLoop, Transformer
from mindgspo.parallel.layers.linear import ColumnParallelLinear, RowParallelLinear
from mindgspo.parallel.layers.model_parallel import from_first_rank, gather_columns, leave_model_parallel
from mindgspo.parallel.ops.device import aclnn_on_cards, has_kernels, likeliest_op, takes_packed
from mindgspo.parallel.ops.kernels import (
    DecodeAttentionKernel,
    DecodeFeedForwardKernel,
    LinearKernel,
    PackedLinearKernel,
    PackKernel,
    SampleKernel,
)
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform.parameter_memory import values_of
from mindgspo.rollout.cache import PagedCache, StoreOp, decode_attention
from mindgspo.rollout.protocol import SamplingFilter


class RecordedChoices(nn.Cell):
    """Collects the routers' choices in the form of `types.Routing`; returns nothing if they are not recorded."""

    def __init__(self, model: Transformer, *, records_experts: bool) -> None:
        super().__init__(auto_prefix=False)
        self.records_experts = records_experts
        self.dtype = ms.uint8 if expert_dtype(model.config.num_experts or 0) == np.uint8 else ms.int16

    def construct(self, choices: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """choices: int32 [M, K] of each layer. Returns (), or one tensor [M, X]."""
        if not self.records_experts:
            return ()
        return (ops.cast(ops.concat(choices, 1), self.dtype),)


class Prefill(nn.Cell):
    """Runs prompts once and writes their keys and values into the cache."""

    def __init__(self, model: Transformer, cache: PagedCache, *, records_experts: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        self.loop = LayerLoop(model, KeptRows([layer.self_attn for layer in model.layers]))
        self.recorded = RecordedChoices(model, records_experts=records_experts)
        self.store = StoreOp(cache)

    def construct(
        self, ids_QL: Tensor, positions_QL: Tensor, segments: Tensor, cache_rows_M: Tensor
    ) -> tuple[Tensor, ...]:
        """segments: see `attention_segments`. cache_rows_M: int32 [Q * L], where each token's key and value go; those
        of padding go into the scratch block. What is returned first means nothing; see `RecordedChoices` for the rest.
        """
        x_MH, rotation, tokens = self.model.enter(ids_QL, positions_QL, segments)
        _, _, cached, choices = self.loop(x_MH, rotation, tokens, ())
        places = self.store.places(cache_rows_M)
        done = ()
        for i in range(len(cached) // 2):
            done += self.store(i, cached[2 * i], cached[2 * i + 1], places, segments)
        return ops.depend(cache_rows_M, done), *self.recorded(choices)


class PackedWeights(nn.Cell):
    """Weight matrices of decoding, packed once for many products with few tokens; none on devices without kernels.

    construct() packs the present weights, and `merge` those with adapters. merges: whether adapters are merged into
    their weights; otherwise layers compute as in training, because kernels of a whole layer know nothing of adapters.
    """

    def __init__(self, model: Transformer, *, merges: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.has_kernels = self.packs_layers = takes_packed(model)
        self.product = ops.MatMul(transpose_b=True)
        self.lora, self.merged = model.config.lora if merges else None, []
        assert self.has_kernels or not merges, "config.deployment_rules refuses it"
        if not self.has_kernels:
            return
        self.packs_layers = model.config.kv_lora_rank is None and (merges or model.config.lora is None)
        by_layer = [_linears(layer) for layer in model.layers] if self.packs_layers else []
        linears = [one for layer in by_layer for group in layer for one in group]
        weights = [one.weight for one in linears]
        if merges:
            self.merged = [(i, one.weight, one.adapter) for i, one in enumerate(linears) if one.adapter is not None]
        self.takes_rows = model.takes_rows
        if not self.takes_rows:
            table = model.output_weight()
            assert isinstance(table, Parameter)
            weights.append(table)
        self.weights = ParameterTuple(weights)
        self.has_panels, self.nothing = len(weights) > 0, Tensor(np.zeros(1, np.int32))
        if not weights:
            panels = iter(())
        else:
            merged = {i for i, *_ in self.merged}
            self.pack = PackKernel(self.weights, model.dtype, [i in merged for i in range(len(weights))])
            panels = iter(self.pack.panels)
        self.by_layer = [tuple(tuple(next(panels) for _ in group) for group in layer) for layer in by_layer]
        """Of each layer the panels of `_linears`."""
        if self.takes_rows:
            self.output = LinearKernel(1, has_bias=False, dtype=ms.float32)
        else:
            self.output = PackedLinearKernel(weights[-1].shape[0], dtype=ms.float32)

    def construct(self) -> Tensor:
        return self.pack() if self.has_panels else self.nothing

    def merge(self) -> None:
        """Pack cast(W + scale B A) of every layer with an adapter, from the present values of the three."""
        for number, weight, adapter in self.merged:
            assert self.lora is not None
            merged = merged_weight(self.lora, *map(values_of, (weight, adapter.lora_A, adapter.lora_B)))
            self.pack.put(number, merged)

    def logits(self, hidden_SH: Tensor, weight_VH: Tensor, tokens: Tensor) -> Tensor:
        """Return the logits [S, V / ranks] of final hidden states. weight_VH: the output table, used where it is not
        packed. Kernels return float32, like the log-prob head."""
        if not self.has_kernels:
            return self.product(hidden_SH, weight_VH)
        if self.takes_rows:
            return self.output(hidden_SH, tokens, weight_VH)
        return self.output(hidden_SH, tokens, self.pack.panels[-1])


Linears = tuple[ColumnParallelLinear | RowParallelLinear, ...]


def _linears(layer: DecoderLayer) -> tuple[Linears, Linears]:
    """Return a layer's projections of attention's output, query, key and value, and a dense block's gate, up and
    down."""
    attention, block = layer.self_attn, layer.mlp
    assert isinstance(attention, Attention), "PackedWeights leaves latent attention out"
    of_block = (block.gate_proj, block.up_proj, block.down_proj) if isinstance(block, FeedForward) else ()
    return (attention.o_proj, attention.q_proj, attention.k_proj, attention.v_proj), of_block


class PackedLayers(nn.Cell):
    """`LayerLoop` over a cache by kernels, with one operator for each half of a layer."""

    def __init__(self, model: Transformer, cache: PagedCache, packed: PackedWeights) -> None:
        super().__init__(auto_prefix=False)
        assert not model.place.plan.use_seq_parallel, "every rank decodes all sequences"
        self.layers, self.count, self.cache = model.layers, len(model.layers), cache.matrices
        self.leave = leave_model_parallel(model.place)
        attend, feed, self.dense = [], [], ()
        """dense: of each layer the number of dense ones before it."""
        for layer, (of_attention, of_block) in zip(model.layers, packed.by_layer, strict=True):
            assert isinstance(layer, DecoderLayer)
            attend.append(_decode_attention(layer, of_attention))
            self.dense += (len(feed),)
            if of_block:
                norm = layer.post_attention_layernorm
                feed.append(DecodeFeedForwardKernel(norm.weight, norm.norm.eps, of_block))
        self.attend, self.feed = nn.CellList(attend, auto_prefix=False), nn.CellList(feed, auto_prefix=False)

    def construct(
        self,
        x_SH: Tensor,
        rotation: tuple[Tensor, Tensor, Tensor],
        tokens: tuple[Tensor, Tensor, Tensor],
        context: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See `LayerLoop`; nothing is kept. context: the last inputs of `DecodeAttentionKernel`."""
        rows, delta_SH, choices = tokens[0], None, ()
        for i in range(self.count):
            layer, cached = self.layers[i], (self.cache[2 * i], self.cache[2 * i + 1])
            x_SH, delta_SH = self.attend[i](x_SH, delta_SH, rotation, cached, context)
            delta_SH = self.leave(delta_SH, rows)
            if layer.has_experts:
                x_SH, delta_SH, choice = layer.feed_forward(x_SH, delta_SH, tokens)
                choices += choice
            else:
                x_SH, delta_SH = self.feed[self.dense[i]](x_SH, layer.of_attention(delta_SH, tokens), rows)
                delta_SH = layer.of_block(self.leave(delta_SH, rows), tokens)
        return x_SH, delta_SH, (), choices


def _decode_attention(layer: DecoderLayer, packed: tuple[Parameter, ...]) -> DecodeAttentionKernel:
    """packed: weights of the output, query, key and value."""
    attention, norm = layer.self_attn, layer.input_layernorm
    assert isinstance(attention, Attention), "PackedWeights leaves latent attention out"
    biases = [one.bias for one in (attention.q_proj, attention.k_proj, attention.v_proj) if one.has_bias]
    head_norms = [attention.q_norm.weight, attention.k_norm.weight] if attention.has_head_norms else []
    return DecodeAttentionKernel(
        norm.weight, norm.norm.eps, attention.head_dim, packed, biases, head_norms,
        is_interleaved=attention.rotate.is_interleaved,
    )  # fmt: skip


class NextLogits(nn.Cell):
    """Feeds one token per row. The ranks of a model-parallel group share the rows: each holds its heads' part of the
    cache."""

    def __init__(
        self, model: Transformer, cache: PagedCache, packed: PackedWeights, *, records_experts: bool = False
    ) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        self.recorded = RecordedChoices(model, records_experts=records_experts)
        self.attend = None if packed.packs_layers else decode_attention(model, cache)
        self.loop = PackedLayers(model, cache, packed) if self.attend is None else LayerLoop(model, self.attend)
        self.packed = packed
        self.gather_columns = gather_columns(model.place)
        self.num_tokens, self.is_padded = model.num_tokens, model.is_padded

    def construct(
        self,
        ids_S: Tensor,
        positions_S: Tensor,
        cache_rows_S: Tensor,
        table_SP: Tensor,
        batch_valid_length: Tensor,
        num_rows_1: Tensor,
    ) -> tuple[Tensor, ...]:
        """Logits of the next token, float32 [S, V], and the `RecordedChoices` for the tokens that were fed. Inputs: see
        `DecodeStep`."""
        model = self.model
        # Read before the cache is written to: a table that is read again after a write is copied each time.
        output_weight_VH = ops.cast(model.output_weight(), model.dtype)
        rows, tokens, rotation = num_rows_1, (num_rows_1, num_rows_1, num_rows_1), model.rotation(positions_S)
        places = (cache_rows_S, table_SP, batch_valid_length, num_rows_1)
        if self.attend is not None:
            places = self.attend.places(*places)
        x_SH = model.embed_tokens(ids_S, tokens)
        x_SH, delta_SH, _, choices = self.loop(x_SH, rotation, tokens, places)
        normed_SH, _ = model.norm.of_sum(x_SH, delta_SH, rows)
        logits_SV = self.packed.logits(normed_SH, output_weight_VH, rows)
        logits_SV = self.gather_columns(ops.cast(logits_SV, ms.float32))
        if self.is_padded:  # by rows for which there is no token
            logits_SV = logits_SV[:, : self.num_tokens]
        return logits_SV, *self.recorded(choices)


class DecodeStep(nn.Cell):
    """Feeds one token per row and draws the next one: from softmax(logits / temperature) by its inverse CDF, within the
    sampling filter. Of the ranks of a model-parallel group the first one draws, and all go on with its tokens.

    logits: a `NextLogits`.
    place: where the model stands.
    sampling_filter: top-k is applied first, then the smallest set of tokens whose mass reaches top_p stays, as in
        Hugging Face. Tokens tied with the last one kept stay too.
    """

    def __init__(self, logits: nn.Cell, place: Placement, sampling_filter: SamplingFilter) -> None:
        super().__init__(auto_prefix=False)
        self.logits = logits
        self.top_k, self.top_p = sampling_filter
        self.log_softmax = ops.LogSoftmax(-1)
        self.likeliest = likeliest_op()
        self.cumsum = aclnn_on_cards(ops.cumsum, mint.cumsum)
        self.sort = ops.Sort(-1, True)
        self.kernel = SampleKernel(top_k=self.top_k, top_p=self.top_p) if has_kernels() else None
        self.from_first_rank = from_first_rank(place)

    def construct(
        self,
        ids_S: Tensor,
        positions_S: Tensor,
        cache_rows_S: Tensor,
        table_SP: Tensor,
        uniforms_S: Tensor,
        inverse_temperature_S: Tensor,
        greedy_S: Tensor,
        batch_valid_length: Tensor,
        num_rows_1: Tensor,
    ) -> tuple[Tensor, ...]:
        """Next ids int32 [S], their log-probs float32 [S] at the temperature and before any filter, and the
        `RecordedChoices` for the tokens that were fed.

        ids_S: int32, the token fed to each row; idle rows feed any token, to column 0.
        positions_S: int32, the position of that token.
        cache_rows_S: int32, the cache row that its key and value are written to.
        table_SP: int32, the blocks of each row's sequence.
        uniforms_S: float32 in (0, 1].
        inverse_temperature_S: float32.
        greedy_S: bool, takes the likeliest token instead.
        batch_valid_length: int32 [S], tokens of each sequence including the one that is fed: positions_S + 1. MindSpore
            reads the graph input of this name on the host, for PagedAttention.
        num_rows_1: int32 [1], number of active rows; the rows after them are idle. It is the last input, because
            MindSpore 2.10 does not find an input by its name after one that no operator reads.
        """
        found = self.logits(ids_S, positions_S, cache_rows_S, table_SP, batch_valid_length, num_rows_1)
        logits_SV = found[0]
        if self.kernel is not None:
            drawn_S, logprobs_S = self.kernel(logits_SV, uniforms_S, inverse_temperature_S, greedy_S, num_rows_1)
        else:
            logp_SV = self.log_softmax(logits_SV * inverse_temperature_S.reshape(-1, 1))
            cdf_SV = self.cumsum(self.filtered(ops.exp(logp_SV)), -1)
            # Scaled by the last entry: rounding and filters leave a total other than 1. Counting entries strictly below
            # the target (> 0) always lands on a token that raised the CDF, hence of positive probability.
            target_S1 = cdf_SV[:, -1:] * uniforms_S.reshape(-1, 1)
            drawn_S = ops.cast(ops.cast(cdf_SV < target_S1, ms.float32).sum(-1), ms.int32)
            drawn_S = ops.where(greedy_S, self.likeliest(logits_SV), drawn_S)
            logprobs_S = ops.gather_elements(logp_SV, 1, drawn_S.reshape(-1, 1)).reshape(-1)
        drawn_S, logprobs_S = self.from_first_rank(drawn_S, logprobs_S)
        return drawn_S, logprobs_S, *found[1:]

    def filtered(self, probs_SV: Tensor) -> Tensor:
        """Probabilities, 0 where the sampling filter leaves a token out."""
        if self.top_k == 0 and self.top_p == 1.0:
            return probs_SV
        sorted_SV, _ = self.sort(probs_SV)
        if 0 < self.top_k < probs_SV.shape[-1]:
            sorted_SV = sorted_SV * ops.cast(sorted_SV >= sorted_SV[:, self.top_k - 1 : self.top_k], ms.float32)
        before_SV = self.cumsum(sorted_SV, -1) - sorted_SV
        kept_SV = before_SV < self.top_p * sorted_SV.sum(-1, keepdims=True)
        kept_SV = ops.logical_and(kept_SV, sorted_SV > 0)
        last_kept_S1 = ops.where(kept_SV, sorted_SV, 2.0).min(-1, keepdims=True)
        return ops.where(probs_SV >= last_kept_S1, probs_SV, 0.0)


class Collect(nn.Cell):
    """Joins the tokens and log-probs of a run's steps in one tensor, so that the host syncs once."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.stack = aclnn_on_cards(ops.stack, mint.stack)

    def construct(self, *drawn_S: Tensor) -> Tensor:
        """Return ids (exact below 2^24) and log-probs, float32 [2, J, S]. drawn_S: ids of all steps, then log-probs."""
        num_steps = len(drawn_S) // 2
        ids_JS, logprobs_JS = self.stack(drawn_S[:num_steps]), self.stack(drawn_S[num_steps:])
        return self.stack((ops.cast(ids_JS, ms.float32), logprobs_JS))
