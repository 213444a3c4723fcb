"""The paged key/value cache: storing keys and values, attention over them, and copies of blocks.

The scheduler decides which blocks a sequence holds. Storing and attending have three forms, chosen in `__init__`:
Ascend's fused ReshapeAndCache and PagedAttention; our own kernels on CPU, which have their own order within a block
(`graphs.PackedLayers` attends by them); and ops that every device has. The cache may have another type than the model
(`rollout.cache_dtype`): keys and values are cast when they are written, queries when they are compared, and the output
has the type of the query again.

Legend: S rows of the decode batch, P blocks of the longest sequence, C its columns; A query heads, B kv heads, D head
size, E value features, M tokens; of latent attention L latent features and X with the rotated key.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

from mindgspo.config.cache import BLOCK, cached_dims, cached_heads
from mindgspo.models.latent_attention import LatentAttention
from mindgspo.models.rope import softmax_scale
from mindgspo.models.transformer import DTYPES, Tokens, Transformer
from mindgspo.parallel.ops.device import MASKED_SCORE, has_kernels, is_fused, require_bfloat16
from mindgspo.parallel.ops.kernels import CopyBlocksKernel, PagedAttentionKernel, StoreKernel
from mindgspo.parallel.platform.parameter_memory import zero_parameter
from mindgspo.rollout.sequences import num_blocks_for


class PagedCache:
    """Keys and values of all layers, [num_blocks, block, B, D] and [num_blocks, block, B, E] per layer, or only keys,
    whose first E features are the values; see `config.cache.cached_dims`.

    num_columns: length of the longest sequence.
    num_blocks: number of blocks, including the scratch block.
    dtype: a name in `DTYPES`; None: the model's.
    block: tokens per block.
    """

    def __init__(
        self, model: Transformer, *, num_blocks: int, num_columns: int, dtype: str | None = None, block: int = BLOCK
    ) -> None:
        config = model.config
        self.num_blocks, self.num_columns, self.block = num_blocks, num_columns, block
        self.most_blocks = num_blocks_for(num_columns, block)
        # This rank's heads, split or shared as in the model's layers.
        self.num_heads = model.place.share(config.num_attention_heads)
        heads = cached_heads(config)
        self.num_kv_heads = model.place.share(heads, units=heads)
        dims = cached_dims(config, is_fused=is_fused())
        self.per_layer, self.head_dim, self.value_dim = len(dims), dims[0], config.kv_lora_rank or dims[-1]
        self.scale, self.is_latent = softmax_scale(config), config.kv_lora_rank is not None
        self.dtype = model.dtype if dtype is None else DTYPES[dtype]
        if self.dtype == ms.bfloat16:
            require_bfloat16("rollout.cache_dtype")
        kinds, tokens = dict(zip(("keys", "values"), dims, strict=False)), (num_blocks, block, self.num_kv_heads)
        self.matrices = ParameterTuple(
            [
                zero_parameter((*tokens, size), f"cache.{i}.{kind}", self.dtype, requires_grad=False)
                for i in range(config.num_hidden_layers)
                for kind, size in kinds.items()
            ]
        )


class StoreOp(nn.Cell):
    """Writes M keys and values of a layer into its cache.

    construct(i, key_MBD, value_MBD, places, tokens): number of the layer; what to write; `places` of cache_rows_M,
    int32: block * tokens per block + place within the block; tokens: see `ops.kernels`. Returns tensors to depend on.
    """

    def __init__(self, cache: PagedCache) -> None:
        super().__init__(auto_prefix=False)
        self.cache, self.per_layer, self.block = cache.matrices, cache.per_layer, cache.block
        self.fused = is_fused()
        self.kernel = StoreKernel() if has_kernels() else None
        if self.fused:
            self.store = ops.auto_generate.ReshapeAndCache()
        else:
            self.scatter = ops.ScatterNdUpdate()

    def places(self, cache_rows_M: Tensor) -> Tensor:
        """Return what `construct` takes: block and place within it [M, 2], or the rows themselves. Once per graph."""
        if self.fused or self.kernel is not None:
            return cache_rows_M
        return ops.stack((cache_rows_M // self.block, cache_rows_M % self.block), -1)

    def construct(
        self, i: int, key_MBD: Tensor, value_MBD: Tensor, places: Tensor, tokens: Tensor
    ) -> tuple[Tensor, ...]:
        keys, values = self.cache[self.per_layer * i], self.cache[self.per_layer * (i + 1) - 1]
        if self.kernel is not None:
            return (self.kernel(key_MBD, value_MBD, keys, values, places, tokens),)
        rows = (key_MBD.shape[0], -1)  # the op takes three axes for batch, sequence and features
        key_MBD = ops.cast(key_MBD, keys.dtype)
        if self.per_layer == 1:
            return (self.store(key_MBD.reshape(rows), None, keys, None, places),)
        value_MBD = ops.cast(value_MBD, values.dtype)
        if self.fused:
            return (self.store(key_MBD.reshape(rows), value_MBD.reshape(rows), keys, values, places),)
        return (self.scatter(keys, places, key_MBD), self.scatter(values, places, value_MBD))


class PagedDecodeAttention(nn.Cell):
    """Attention of one token per row over the cache, by Ascend's op or our kernel: for a `LayerLoop`. The token's key
    and value are written first. places(...) is computed once per step."""

    def __init__(self, cache: PagedCache) -> None:
        super().__init__(auto_prefix=False)
        self.cache, self.per_layer = cache.matrices, cache.per_layer
        self.size = cache.num_heads * cache.value_dim
        heads = (cache.num_heads, cache.head_dim)
        self.query = (-1, heads[0] * heads[1]) if cache.is_latent else (-1, *heads)
        self.store = StoreOp(cache)
        self.kernel = PagedAttentionKernel(cache.scale) if has_kernels() else None
        if self.kernel is None:
            latent = {"mla_v_dim": cache.value_dim} if cache.is_latent else {}  # the first features of keys are values
            self.attend = ops.auto_generate.PagedAttention(cache.num_heads, cache.scale, cache.num_kv_heads, **latent)

    def places(
        self, cache_rows_S: Tensor, table_SP: Tensor, lengths_S: Tensor, num_rows_1: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the places for `StoreOp`, the block table, the length of each sequence with its new token [S], and the
        number of rows in use [1]."""
        return self.store.places(cache_rows_S), table_SP, lengths_S, num_rows_1

    def construct(
        self, i: int, query_SAD: Tensor, key_SBD: Tensor, value_SBD: Tensor, tokens: Tokens, context: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Attended values [S, A * E] of layer i, and nothing to keep. context: from `places`."""
        keys, values = self.cache[self.per_layer * i], self.cache[self.per_layer * (i + 1) - 1]
        places, table_SP, lengths_S, num_rows_1 = context
        stored = self.store(i, key_SBD, value_SBD, places, num_rows_1)
        if self.kernel is not None:
            return self.kernel(ops.depend(query_SAD, stored), keys, values, table_SP, lengths_S, num_rows_1), ()
        queries = ops.depend(ops.cast(query_SAD.reshape(self.query), keys.dtype), stored)
        out = self.attend(queries, keys, values, table_SP, lengths_S)
        return ops.cast(out.reshape(-1, self.size), query_SAD.dtype), ()


class ComposedDecodeAttention(nn.Cell):
    """`PagedDecodeAttention` in ops that every device has: gathers all columns of the longest sequence and masks those
    after a row's last. It computes idle rows as well."""

    def __init__(self, cache: PagedCache) -> None:
        super().__init__(auto_prefix=False)
        self.num_heads, self.num_kv_heads = cache.num_heads, cache.num_kv_heads
        self.head_dim, self.value_dim, self.scale = cache.head_dim, cache.value_dim, cache.scale
        self.group = cache.num_heads // cache.num_kv_heads
        columns = np.arange(cache.num_columns, dtype=np.int32)
        self.columns_11C = Tensor(columns.reshape(1, 1, -1))
        self.block_of_C = Tensor(columns // np.int32(cache.block))
        self.place_of_11C = Tensor((columns % np.int32(cache.block)).reshape(1, 1, -1))
        self.heads_1B1 = Tensor(np.arange(cache.num_kv_heads, dtype=np.int32).reshape(1, -1, 1))
        self.store = StoreOp(cache)
        self.gather = ops.GatherNd()
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.weigh = ops.BatchMatMul()

    def places(
        self, cache_rows_S: Tensor, table_SP: Tensor, lengths_S: Tensor, num_rows_1: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the places for `StoreOp`; block, place and head of each column [S, B, C, 3]; the mask that is added to
        the scores [S, 1, C]; and the number of rows in use [1]."""
        blocks_S1C = ops.gather(table_SP, self.block_of_C, 1).expand_dims(1)
        shape = (table_SP.shape[0], self.num_kv_heads, self.columns_11C.shape[-1])
        blocks, places = ops.broadcast_to(blocks_S1C, shape), ops.broadcast_to(self.place_of_11C, shape)
        columns_SBC3 = ops.stack((blocks, places, ops.broadcast_to(self.heads_1B1, shape)), -1)
        bias_S1C = ops.cast(self.columns_11C >= lengths_S.reshape(-1, 1, 1), ms.float32) * MASKED_SCORE
        return self.store.places(cache_rows_S), columns_SBC3, bias_S1C, num_rows_1

    def construct(
        self, i: int, query_SAD: Tensor, key_SBD: Tensor, value_SBD: Tensor, tokens: Tokens, context: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Attended values [S, A * E] of layer i, and nothing to keep. context: from `places`."""
        places, columns_SBC3, bias_S1C, num_rows_1 = context
        num_rows, num_columns = columns_SBC3.shape[0], columns_SBC3.shape[2]
        keys, values = self.store(i, key_SBD, value_SBD, places, num_rows_1)
        heads = num_rows * self.num_kv_heads
        keys = self.gather(keys, columns_SBC3).reshape(heads, num_columns, self.head_dim)
        values = self.gather(values, columns_SBC3).reshape(heads, num_columns, self.value_dim)
        queries = ops.cast(query_SAD * self.scale, keys.dtype).reshape(heads, self.group, self.head_dim)
        scores = ops.cast(self.scores(queries, keys), ms.float32).reshape(num_rows, self.num_heads, -1)
        scores = scores + ops.tile(bias_S1C, (1, self.num_heads, 1))
        weights = ops.cast(ops.softmax(scores, -1), values.dtype).reshape(heads, self.group, -1)
        out = self.weigh(weights, values).reshape(num_rows, self.num_heads * self.value_dim)
        return ops.cast(out, query_SAD.dtype), ()


class LatentDecodeAttention(nn.Cell):
    """Latent attention of one token per row over the cache of latents. attend: over keys and values as they are
    cached."""

    def __init__(self, attend: PagedDecodeAttention | ComposedDecodeAttention, model: Transformer) -> None:
        super().__init__(auto_prefix=False)
        self.attend = attend
        latent = [one for one in (layer.self_attn for layer in model.layers) if isinstance(one, LatentAttention)]
        self.attentions = nn.CellList(latent, auto_prefix=False)

    def places(
        self, cache_rows_S: Tensor, table_SP: Tensor, lengths_S: Tensor, num_rows_1: Tensor
    ) -> tuple[Tensor, ...]:
        return self.attend.places(cache_rows_S, table_SP, lengths_S, num_rows_1)

    def construct(
        self,
        i: int,
        query_SAD: Tensor,
        key_S1X: Tensor,
        latent_S1L: Tensor,
        tokens: Tokens,
        context: tuple[Tensor, ...],
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """As `PagedDecodeAttention`; the rest as `LatentAttention.project` returns it."""
        query_SAX = self.attentions[i].absorb(query_SAD)
        attended, kept = self.attend(i, query_SAX, key_S1X, latent_S1L, tokens, context)
        return self.attentions[i].release(attended), kept


def decode_attention(
    model: Transformer, cache: PagedCache
) -> PagedDecodeAttention | ComposedDecodeAttention | LatentDecodeAttention:
    """Return the form of attention for this device and model."""
    attend = PagedDecodeAttention(cache) if has_kernels() or is_fused() else ComposedDecodeAttention(cache)
    return LatentDecodeAttention(attend, model) if cache.is_latent else attend


class CopyBlocks(nn.Cell):
    """Copies the first `num_tokens` tokens of blocks, or whole blocks: the last, partial block of a prompt."""

    def __init__(self, cache: PagedCache, num_tokens: int) -> None:
        super().__init__(auto_prefix=False)
        self.cache, self.per_layer = cache.matrices, cache.per_layer
        self.num_tokens = num_tokens
        self.within = Tensor(np.arange(num_tokens, dtype=np.int32).reshape(1, -1))
        self.block = cache.block
        self.kernel = CopyBlocksKernel(cache.matrices) if has_kernels() else None
        self.gather = ops.Gather()
        self.store = StoreOp(cache)

    def construct(self, sources_W: Tensor, targets_W: Tensor) -> Tensor:
        """sources_W, targets_W: int32, numbers of blocks. Returns a tensor without meaning."""
        if self.kernel is not None:
            return self.kernel(sources_W, targets_W)
        places = self.store.places((targets_W.reshape(-1, 1) * self.block + self.within).reshape(-1))
        done = ()
        for i in range(len(self.cache) // self.per_layer):
            key_MBD = self._tokens(self.cache[self.per_layer * i], sources_W)
            value_MBD = key_MBD
            if self.per_layer == 2:
                value_MBD = self._tokens(self.cache[2 * i + 1], sources_W)
            done += self.store(i, key_MBD, value_MBD, places, sources_W)
        return ops.depend(sources_W, done)

    def _tokens(self, cached: Tensor, blocks_W: Tensor) -> Tensor:
        """The first tokens of blocks of a matrix of the cache, [M, B, D or E]."""
        tokens = self.gather(cached, blocks_W, 0)[:, : self.num_tokens]
        return tokens.reshape((-1, *tokens.shape[2:]))
