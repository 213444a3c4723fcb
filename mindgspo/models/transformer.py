"""Decoder-only transformers with grouped-query attention, RoPE, RMSNorm and SwiGLU: Qwen2 / Qwen2.5, Qwen3, Qwen3-MoE,
Llama, GLM-4 and GLM-4.5. Their differences are in `config.model`.

Returns final hidden states; heads are separate (`models.log_prob`, `rollout.graphs`). Parameter names and shapes are
Hugging Face's. Matrices compute in `dtype`, norms' statistics and softmax in float32. A placement says which heads and
features are this process's.

Legend: M = R * T flattened tokens, of this rank's part of them; S decode slots, C cache positions, H hidden, A query
heads, B kv heads, D head size. `tokens`: what `TokensInUse` returns.
"""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from mindgspo.config import ModelSection
from mindgspo.config.model import FAMILIES
from mindgspo.models.feed_forward import FeedForward, Tokens
from mindgspo.models.latent_attention import LatentAttention
from mindgspo.models.mixture_of_experts import MixtureOfExperts
from mindgspo.models.model import Model
from mindgspo.models.names import NO_HEAD_DIM, is_trained
from mindgspo.models.norm import RMSNorm
from mindgspo.models.rope import rope_tables
from mindgspo.parallel.layers.linear import (
    ColumnParallelLinear,
    LinearGroup,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from mindgspo.parallel.layers.model_parallel import TokensInUse, enter_model_parallel
from mindgspo.parallel.ops.device import (
    CausalAttentionOp,
    RotaryPairOp,
    RotationOp,
    SegmentMask,
    fork_op,
    has_kernels,
    require_bfloat16,
)
from mindgspo.parallel.plans.placement import ALONE, Placement
from mindgspo.parallel.platform.parameter_memory import zero_parameter
from mindgspo.parallel.platform.runtime import compile_once

DTYPES = {"float32": ms.float32, "bfloat16": ms.bfloat16, "float16": ms.float16}


class Attention(nn.Cell):
    """Grouped-query self-attention. Some families have biases of q, k and v; some normalise queries and keys per
    head."""

    def __init__(self, config: ModelSection, dtype: ms.Type, name: str, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        hidden, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        assert config.head_dim is not None, NO_HEAD_DIM
        self.head_dim = config.head_dim
        kv_size = kv_heads * self.head_dim
        self.num_heads = place.share(heads)
        self.num_kv_heads = place.share(kv_heads, units=kv_heads)
        family = FAMILIES[config.architecture]
        column = {"bias": bool(config.attention_bias), "dtype": dtype, "place": place, "lora": config.lora}
        self.enter = enter_model_parallel(place)
        self.q_proj = ColumnParallelLinear(hidden, heads * self.head_dim, name=f"{name}.q_proj", **column)
        self.k_proj = ColumnParallelLinear(hidden, kv_size, units=kv_heads, name=f"{name}.k_proj", **column)
        self.v_proj = ColumnParallelLinear(hidden, kv_size, units=kv_heads, name=f"{name}.v_proj", **column)
        self.projections = LinearGroup(
            self.q_proj, self.k_proj, self.v_proj, head_dim=self.head_dim, is_frozen=config.lora is not None
        )
        self.o_proj = RowParallelLinear(
            heads * self.head_dim, hidden, dtype=dtype, name=f"{name}.o_proj", place=place, lora=config.lora
        )
        norm, self.has_head_norms = (self.head_dim, config.rms_norm_eps, dtype), config.has_head_norms
        if self.has_head_norms:
            self.q_norm = RMSNorm(*norm, f"{name}.q_norm")
            self.k_norm = RMSNorm(*norm, f"{name}.k_norm")
        self.rotate = RotaryPairOp(self.head_dim, rotary_dim=config.rotary_dim, is_interleaved=family.is_interleaved)
        self.attention = CausalAttentionOp(self.num_heads, self.num_kv_heads, self.head_dim, place)

    def project(
        self,
        x_MH: Tensor,
        rotation: tuple[Tensor, Tensor, Tensor],
        tokens: Tokens,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [M, A, D], rotated keys [M, B, D] and values [M, B, D] of M flattened tokens."""
        own, region, _ = tokens
        query, key, value = self.projections(self.enter(x_MH, own), region)
        if self.has_head_norms:
            query, key = self.q_norm(query, region), self.k_norm(key, region)
        query, key = self.rotate(query, key, rotation, region)
        return query, key, value

    def attend(self, query_MAD: Tensor, key_MBD: Tensor, value_MBD: Tensor, tokens: Tokens) -> Tensor:
        """Attended values [M, A * D] of whole rows."""
        return self.attention(query_MAD, key_MBD, value_MBD, tokens[2])

    def cheap_cells(self) -> tuple[nn.Cell, ...]:
        """Return the cells that `recompute: selective` recomputes, except attention."""
        norms = (self.q_norm, self.k_norm) if self.has_head_norms else ()
        return (*norms, *self.rotate.cells())


class DecoderLayer(nn.Cell):
    """Pre-norm attention and feed-forward blocks with residual connections. Some families norm a block's output too."""

    def __init__(self, config: ModelSection, dtype: ms.Type, number: int, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        name, norm = f"model.layers.{number}", (config.hidden_size, config.rms_norm_eps, dtype)
        self.input_layernorm = RMSNorm(*norm, f"{name}.input_layernorm")
        attention = LatentAttention if FAMILIES[config.architecture].has_latent_attention else Attention
        self.self_attn = attention(config, dtype, f"{name}.self_attn", place)
        self.post_attention_layernorm = RMSNorm(*norm, f"{name}.post_attention_layernorm")
        self.has_experts = number in config.expert_layers
        self.has_sandwich_norms = FAMILIES[config.architecture].has_sandwich_norms
        if self.has_sandwich_norms:
            self.post_self_attn_layernorm = RMSNorm(*norm, f"{name}.post_self_attn_layernorm")
            self.post_mlp_layernorm = RMSNorm(*norm, f"{name}.post_mlp_layernorm")
        if self.has_experts:
            self.mlp = MixtureOfExperts(config, dtype, f"{name}.mlp", place)
        else:
            self.mlp = FeedForward(config, config.intermediate_size, dtype, f"{name}.mlp", place)
        self.attend = WholeRows((self.self_attn,))
        self.add = ops.Add()
        self.fork = fork_op()
        # MindSpore recomputes the result of a cell's own call, not of its other methods.
        self.norms_again = place.recompute == "selective"

    def set_recompute(self, extent: str) -> None:
        """Have the backward pass recompute what `ParallelPlan.recompute` says."""
        norms = (self.input_layernorm, self.post_attention_layernorm)
        if self.has_sandwich_norms and extent == "full":  # nothing keeps their results, which selective need not drop
            norms += (self.post_self_attn_layernorm, self.post_mlp_layernorm)
        for norm in norms:
            norm.is_again = extent != "none" and norm.norm.fused
        if extent == "full":
            self.recompute()
        elif extent == "selective":
            attention = self.self_attn
            for cell in (
                self.input_layernorm,
                self.post_attention_layernorm,
                *attention.cheap_cells(),
                *self.mlp.cheap_cells(),
            ):
                # A fused cell is one op, and by default a cell's own output is kept.
                cell.recompute(output_recompute=attention.attention.fused)
            if attention.attention.keeps_weights:
                attention.attention.recompute()

    def construct(
        self,
        x_MH: Tensor,
        rotation: tuple[Tensor, Tensor, Tensor],
        tokens: Tokens,
        *replayed_MK: Tensor,
    ) -> Tensor:
        """Hidden states [M, H] after the layer, over whole rows. replayed_MK: see `MixtureOfExperts`."""
        normed_MH, x_MH = self.first_norm(x_MH, None, tokens)
        query, key, value = self.self_attn.project(normed_MH, rotation, tokens)
        attended, _ = self.attend(0, query, key, value, tokens, ())
        x_MH, delta_MH, _ = self.feed_forward(x_MH, self.self_attn.o_proj(attended, tokens), tokens, *replayed_MK)
        return self.add(x_MH, delta_MH)

    def first_norm(self, x_MH: Tensor, delta_MH: Tensor | None, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Return norm(x + delta) and x + delta; of x alone without a delta."""
        if self.norms_again:
            x_MH, again_MH = self.fork(x_MH)
            return self.input_layernorm(again_MH, tokens[0]), x_MH
        return self.input_layernorm.of_sum(x_MH, delta_MH, tokens[0])

    def feed_forward(
        self,
        x_MH: Tensor,
        attended_MH: Tensor,
        tokens: Tokens,
        *replayed_MK: Tensor,
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Post-attention block: return x, the output to be added to it, and the experts [M, K] that a mixture's router
        chooses. attended_MH: the output of attention."""
        attended_MH = self.of_attention(attended_MH, tokens)
        if self.norms_again:
            x_MH, again_MH = self.fork(self.add(x_MH, attended_MH))
            normed_MH = self.post_attention_layernorm(again_MH, tokens[0])
        else:
            normed_MH, x_MH = self.post_attention_layernorm.of_sum(x_MH, attended_MH, tokens[0])
        if self.has_experts:
            delta_MH, chosen_MK = self.mlp(normed_MH, tokens, *replayed_MK)
            return x_MH, self.of_block(delta_MH, tokens), (chosen_MK,)
        return x_MH, self.of_block(self.mlp(normed_MH, tokens), tokens), ()

    def of_attention(self, attended_MH: Tensor, tokens: Tokens) -> Tensor:
        """Return what is added to the hidden states, of the output of attention."""
        return self.post_self_attn_layernorm(attended_MH, tokens[0]) if self.has_sandwich_norms else attended_MH

    def of_block(self, out_MH: Tensor, tokens: Tokens) -> Tensor:
        """Return what is added to the hidden states, of the output of the feed-forward block."""
        return self.post_mlp_layernorm(out_MH, tokens[0]) if self.has_sandwich_norms else out_MH


class WholeRows(nn.Cell):
    """Attention over the whole rows of a batch, for training and scoring."""

    def __init__(self, attentions: Sequence[Attention | LatentAttention]) -> None:
        super().__init__(auto_prefix=False)
        self.attentions = nn.CellList(list(attentions), auto_prefix=False)

    def construct(
        self, i: int, query: Tensor, key: Tensor, value: Tensor, tokens: Tokens, context: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Attended values [M, A * E] of layer i, and nothing to keep. context: not read."""
        return self.attentions[i].attend(query, key, value, tokens), ()


class KeptRows(WholeRows):
    """Attention over whole rows that keeps what is cached of every layer, for prefill: keys and values [M, B, D], or
    what `LatentAttention.project` returns in their place."""

    def construct(
        self, i: int, query: Tensor, key: Tensor, value: Tensor, tokens: Tokens, context: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return self.attentions[i].attend(query, key, value, tokens), (key, value)


class LayerLoop(nn.Cell):
    """The one pass over the layers, with attention injected: over whole rows, keeping keys and values, or over a cache.

    attend: construct(i, query, key, value, tokens, context) -> (attended [M, A, D], what is kept).
    """

    def __init__(self, model: Transformer, attend: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.layers, self.count, self.attend = model.layers, len(model.layers), attend
        self.num_chosen, self.first_replayed = model.num_chosen, model.first_replayed
        # Kernels add the residual while they norm; elsewhere it is added at the end of a layer.
        self.keeps_delta = model.is_packed
        self.add = ops.Add()

    def construct(
        self,
        x_MH: Tensor,
        rotation: tuple[Tensor, Tensor, Tensor],
        tokens: Tokens,
        context: tuple[Tensor, ...],
        *replayed_MX: Tensor,
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Hidden states as a sum of x and delta (None: x alone); the values that `attend` kept, layer by layer; and the
        experts [M, K] that each router chooses. replayed_MX: recorded experts in their place, see `types.Routing`."""
        delta_MH, kept, choices = None, (), ()
        for i in range(self.count):
            layer = self.layers[i]
            normed_MH, x_MH = layer.first_norm(x_MH, delta_MH, tokens)
            query, key, value = layer.self_attn.project(normed_MH, rotation, tokens)
            attended, kept_of_layer = self.attend(i, query, key, value, tokens, context)
            attended = layer.self_attn.o_proj(attended, tokens)
            x_MH, delta_MH, choice = layer.feed_forward(x_MH, attended, tokens, *self.replayed_of(i, replayed_MX))
            kept += kept_of_layer
            choices += choice
            if not self.keeps_delta:
                x_MH, delta_MH = self.add(x_MH, delta_MH), None
        return x_MH, delta_MH, kept, choices

    def replayed_of(self, i: int, replayed_MX: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The columns of layer i of this stage among recorded experts, int32 [M, K]; () if none are replayed."""
        if len(replayed_MX) == 0 or not self.layers[i].has_experts:
            return ()
        first = self.first_replayed[i]
        return (ops.cast(replayed_MX[0][:, first : first + self.num_chosen], ms.int32),)


class Transformer(nn.Cell):
    """Input table, layers, final norm and output table, without a head. Tied embeddings are one table.

    A pipeline stage has only its own layers; the first one also has the input table, the last one the norm and output
    table. Between stages, the ids_RT and hidden states of `construct` and `with_choices` are the states [M, H] that one
    stage returns and the next one takes.
    """

    def __init__(self, config: ModelSection, place: Placement = ALONE) -> None:
        super().__init__(auto_prefix=False)
        if config.dtype == "bfloat16":
            require_bfloat16("model.dtype")
        dtype = DTYPES[config.dtype]
        self.config = config
        self.place = place
        self.dtype = dtype
        assert config.head_dim is not None, NO_HEAD_DIM
        self.masters: dict[str, Parameter] | None = None
        """See `weights.hold_masters`."""
        self.hidden_size, self.head_dim = config.hidden_size, config.head_dim
        self.tied = config.tie_word_embeddings
        self.is_first, self.is_last = place.is_first_stage, place.is_last_stage
        if self.is_first or (self.is_last and self.tied):
            self.embed_tokens = VocabParallelEmbedding(
                config.rows, config.hidden_size, dtype=dtype, name="model.embed_tokens", place=place
            )
        numbers = place.own_layers(config.num_hidden_layers)
        self.layers = nn.CellList([DecoderLayer(config, dtype, i, place) for i in numbers], auto_prefix=False)
        self.count, self.num_chosen = len(numbers), config.num_experts_per_tok or 0
        self.first_replayed = tuple((i - config.expert_layers.start) * self.num_chosen for i in numbers)
        output_rows = place.share(config.rows)
        self.num_tokens, self.is_padded = config.vocab_size, config.rows > config.vocab_size
        if self.is_last:
            self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, "model.norm")
            if not self.tied:
                self.lm_head = zero_parameter((output_rows, config.hidden_size), "lm_head.weight")
        self.add = ops.Add()
        # As the output table, a whole table uses only this rank's rows.
        self.takes_rows = self.is_last and self.tied and self.embed_tokens.weight.shape[0] > output_rows
        self.first_output, self.last_output = place.at.model * output_rows, (place.at.model + 1) * output_rows
        is_interleaved = FAMILIES[config.architecture].is_interleaved
        turned = config.head_dim if config.kv_lora_rank is None else config.rotary_dim
        self.rotation = RotationOp(*rope_tables(config), turned, is_interleaved=is_interleaved)
        self.segment_mask = SegmentMask()
        self.is_packed = has_kernels()
        self.tokens_in_use = TokensInUse(place, has_kernels=self.is_packed)
        # Only a cell with one output can be recomputed.
        self.calls_layers = not self.is_packed or place.recompute != "none"
        for layer in self.layers:
            layer.set_recompute(place.recompute)
        for parameter in self.get_parameters():
            parameter.requires_grad = is_trained(config, parameter.name)
        compile_once(self.layers, [layer.has_experts for layer in self.layers])
        self.loop = LayerLoop(self, WholeRows([layer.self_attn for layer in self.layers]))

    def output_weight(self) -> Tensor:
        """The table that turns hidden states into this rank's logits, [V / model_parallel, H]."""
        if self.takes_rows:
            return self.embed_tokens.weight[self.first_output : self.last_output]
        return self.embed_tokens.weight if self.tied else self.lm_head

    def construct(self, ids_RT: Tensor, positions_RT: Tensor, segments: Tensor, *replayed_MX: Tensor) -> Tensor:
        """Hidden states after the final norm, [M, H]. segments: see `attention_segments`. replayed_MX: experts that a
        mixture uses instead of its routers' choices, see `types.Routing`."""
        if not self.calls_layers:
            return self.with_choices(ids_RT, positions_RT, segments, *replayed_MX)[0]
        # Layers as cells of one output: the backward pass may recompute one, and equal ones are compiled once.
        x_MH, rotation, tokens = self.enter(ids_RT, positions_RT, segments)
        for i in range(self.count):
            x_MH = self.layers[i](x_MH, rotation, tokens, *self.loop.replayed_of(i, replayed_MX))
        return self.norm(x_MH, tokens[0]) if self.is_last else x_MH

    def with_choices(
        self, ids_RT: Tensor, positions_RT: Tensor, segments: Tensor, *replayed_MX: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return what `construct` does, and the experts that the routers choose, int32 [M, K] of each layer. Nothing is
        recomputed in a backward pass."""
        x_MH, rotation, tokens = self.enter(ids_RT, positions_RT, segments)
        x_MH, delta_MH, _, choices = self.loop(x_MH, rotation, tokens, (), *replayed_MX)
        return self.leave(x_MH, delta_MH, tokens), choices

    def enter(
        self, ids_RT: Tensor, positions_RT: Tensor, segments: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], Tokens]:
        """Return the hidden states before the first layer of this stage, and the inputs that its layers share: the
        rotation of queries and keys, and the tokens in use."""
        rotation = self.rotation(positions_RT.reshape(-1))
        tokens = self.tokens_in_use(self.segment_mask(segments), positions_RT.size)
        return (self.embed_tokens(ids_RT.reshape(-1), tokens) if self.is_first else ids_RT), rotation, tokens

    def leave(self, x_MH: Tensor, delta_MH: Tensor | None, tokens: Tokens) -> Tensor:
        """Return the normed hidden states; between pipeline stages, x + delta."""
        if delta_MH is None:
            return self.norm(x_MH, tokens[0]) if self.is_last else x_MH
        if not self.is_last:
            return self.add(x_MH, delta_MH)
        return self.norm.of_sum(x_MH, delta_MH, tokens[0])[0]

    def passed_shape(self, num_tokens: int) -> tuple[int, int]:
        """Shape [M, H] of the states that one stage passes to the next for this many tokens of a micro-batch."""
        return num_tokens // self.tokens_in_use.parts, self.hidden_size


def without_padding(model: Model) -> Tensor:
    """The output table of a model that is not cut, one row per token."""
    weight_VH = model.output_weight()
    return weight_VH[: model.num_tokens] if model.is_padded else weight_VH
