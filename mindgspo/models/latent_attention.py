"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values of all heads are linear in one small
latent of each token, beside which lies one rotated key that all heads share. Only these two are cached.

Training and prefill expand the latents to keys and values. Decoding multiplies the matrices of the expansion into the
queries and the attended latents instead, so that a step reads the cache as it is.

Legend: M flattened tokens, S decode slots, H hidden, A query heads of this rank, L latent features, R rotated features,
N features of a head without position, D = N + R, E features of a head's values.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

from mindgspo.config import ModelSection
from mindgspo.config.model import FAMILIES
from mindgspo.models.feed_forward import Tokens
from mindgspo.models.norm import RMSNorm
from mindgspo.models.rope import softmax_scale
from mindgspo.parallel.layers.linear import ColumnParallelLinear, LinearGroup, RowParallelLinear
from mindgspo.parallel.layers.model_parallel import enter_model_parallel
from mindgspo.parallel.ops.device import CausalAttentionOp, RotaryPairOp, has_kernels
from mindgspo.parallel.plans.placement import ALONE, Placement

NORM_EPS = 1e-6
"""Of the norms of latents, whatever `rms_norm_eps` is, as transformers has it."""


class LatentAttention(nn.Cell):
    """Self-attention whose heads are split over model_parallel; latents, and the projections that make them, are whole
    on every rank. Without `q_lora_rank` queries come from the hidden states, else from a latent of their own."""

    def __init__(self, config: ModelSection, dtype: ms.Type, name: str, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        self.has_head_norms = False
        hidden, heads, lora = config.hidden_size, config.num_attention_heads, config.lora
        assert config.head_dim and config.kv_lora_rank and config.v_head_dim
        assert config.qk_nope_head_dim and config.qk_rope_head_dim
        self.head_dim, self.latent_dim, self.rotary_dim = config.head_dim, config.kv_lora_rank, config.qk_rope_head_dim
        self.nope_dim, self.value_dim = config.qk_nope_head_dim, config.v_head_dim
        self.num_heads = place.share(heads)
        layer, is_frozen = {"bias": False, "dtype": dtype, "lora": lora}, lora is not None
        self.enter = enter_model_parallel(place)
        self.kv_a_proj_with_mqa = ColumnParallelLinear(
            hidden, self.latent_dim + self.rotary_dim, name=f"{name}.kv_a_proj_with_mqa", place=ALONE, **layer
        )
        self.has_query_latent, query = config.q_lora_rank is not None, heads * self.head_dim
        if config.q_lora_rank is not None:
            rank = config.q_lora_rank
            self.q_a_proj = first = ColumnParallelLinear(hidden, rank, name=f"{name}.q_a_proj", place=ALONE, **layer)
            self.q_a_layernorm = RMSNorm(rank, NORM_EPS, dtype, f"{name}.q_a_layernorm")
            self.q_b_proj = ColumnParallelLinear(rank, query, name=f"{name}.q_b_proj", place=place, **layer)
            self.of_query_latent = LinearGroup(self.q_b_proj, is_frozen=is_frozen)
        else:
            self.q_proj = first = ColumnParallelLinear(hidden, query, name=f"{name}.q_proj", place=place, **layer)
        self.projections = LinearGroup(first, self.kv_a_proj_with_mqa, is_frozen=is_frozen)
        self.kv_a_layernorm = RMSNorm(self.latent_dim, NORM_EPS, dtype, f"{name}.kv_a_layernorm")
        self.kv_b_proj = ColumnParallelLinear(
            self.latent_dim, heads * (self.nope_dim + self.value_dim), name=f"{name}.kv_b_proj", place=place, **layer
        )
        self.expansion = LinearGroup(self.kv_b_proj, is_frozen=is_frozen)
        self.o_proj = RowParallelLinear(
            heads * self.value_dim, hidden, dtype=dtype, name=f"{name}.o_proj", place=place, lora=lora
        )
        self.rotate = RotaryPairOp(self.rotary_dim, is_interleaved=FAMILIES[config.architecture].is_interleaved)
        self.attention = CausalAttentionOp(
            self.num_heads, self.num_heads, self.head_dim, place, value_dim=self.value_dim, scale=softmax_scale(config)
        )
        self.join, self.tile = ops.Concat(-1), ops.Tile()
        self.product, self.outer = ops.BatchMatMul(), ops.MatMul()
        self.transposed_product = ops.BatchMatMul(transpose_b=True)
        self.dtype = dtype
        # On CPU MindSpore's own operators have no bfloat16.
        self.product_dtype = ms.float32 if has_kernels() else dtype

    def project(
        self, x_MH: Tensor, rotation: tuple[Tensor, Tensor, Tensor], tokens: Tokens
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [M, A, D] whose last R features are rotated; normed latents with the rotated key [M, 1, L + R]; and
        the latents alone [M, 1, L]."""
        own, region, _ = tokens
        query, latent = self.projections(self.enter(x_MH, own), region)
        if self.has_query_latent:
            query = self.of_query_latent(self.q_a_layernorm(query, region), region)
        query = query.reshape(-1, self.num_heads, self.head_dim)
        key = latent[:, self.latent_dim :].reshape(-1, 1, self.rotary_dim)
        latent = self.kv_a_layernorm(latent[:, : self.latent_dim], region).reshape(-1, 1, self.latent_dim)
        turned, key = self.rotate(query[:, :, self.nope_dim :], key, rotation, region)
        return self.join((query[:, :, : self.nope_dim], turned)), self.join((latent, key)), latent

    def attend(self, query_MAD: Tensor, key_M1X: Tensor, latent_M1L: Tensor, tokens: Tokens) -> Tensor:
        """Attended values [M, A * E] of whole rows. key_M1X: latents with the rotated key, X = L + R."""
        expanded = self.expansion(latent_M1L.reshape(-1, self.latent_dim), tokens[1])
        expanded = expanded.reshape(-1, self.num_heads, self.nope_dim + self.value_dim)
        turned = self.tile(key_M1X[:, :, self.latent_dim :], (1, self.num_heads, 1))
        key = self.join((expanded[:, :, : self.nope_dim], turned))
        return self.attention(query_MAD, key, expanded[:, :, self.nope_dim :], tokens[2])

    def absorb(self, query_SAD: Tensor) -> Tensor:
        """Queries [S, A, L + R] that are compared with latents and rotated keys as they are cached."""
        of_keys_ANL = self._expansion_by_head()[:, : self.nope_dim]
        query_ASN = ops.cast(query_SAD[:, :, : self.nope_dim], self.product_dtype).transpose(1, 0, 2)
        query_SAL = ops.cast(self.product(query_ASN, of_keys_ANL).transpose(1, 0, 2), self.dtype)
        return self.join((query_SAL, query_SAD[:, :, self.nope_dim :]))

    def release(self, attended_SX: Tensor) -> Tensor:
        """Attended values [S, A * E] of attended latents [S, A * L]."""
        of_values_AEL = self._expansion_by_head()[:, self.nope_dim :]
        attended_SAL = attended_SX.reshape(-1, self.num_heads, self.latent_dim)
        attended_ASL = ops.cast(attended_SAL, self.product_dtype).transpose(1, 0, 2)
        values_ASE = self.transposed_product(attended_ASL, of_values_AEL)
        return ops.cast(values_ASE.transpose(1, 0, 2), self.dtype).reshape(-1, self.num_heads * self.value_dim)

    def _expansion_by_head(self) -> Tensor:
        """The matrix that expands latents [A, N + E, L], rounded to the compute type, with its adapter."""
        weight, adapter = self.kv_b_proj.weight, self.kv_b_proj.adapter
        if adapter is not None:
            weight = weight + self.outer(adapter.lora_B, adapter.scaled())
        weight = ops.cast(ops.cast(weight, self.dtype), self.product_dtype)
        return weight.reshape(self.num_heads, self.nope_dim + self.value_dim, self.latent_dim)

    def cheap_cells(self) -> tuple[nn.Cell, ...]:
        """Return the cells that `recompute: selective` recomputes, except attention."""
        norms = (self.q_a_layernorm,) if self.has_query_latent else ()
        return (*norms, self.kv_a_layernorm, *self.rotate.cells())
