"""The key/value cache of the slots, how prompts get into it, and attention over it: one form per kind of device.

`SlotCache` is made of ops that every device has. On Ascend `PagedCache` uses the fused ReshapeAndCache and
PagedAttention; a slot is then a fixed run of blocks, and the block table a constant. The cache may have another type
than the model (`rollout.cache_dtype`): keys and values are cast when they are written, queries when they are compared,
and attention's output is of the query's type again.

Legend: S slots, Q prompts of one prefill, L prompt columns, C cache columns, P blocks of a slot; A query heads, B kv
heads, D head size, M tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

from mindgspo.models.transformer import DTYPES
from mindgspo.parallel.device_ops import MASKED_SCORE, is_fused
from mindgspo.parallel.parameter_memory import zero_parameter
from mindgspo.rollout.sizes import BLOCK


class SlotCache:
    """Keys and values of all layers and slots, one matrix [S * B * C, D] per layer and kind.

    Rows, not a four-axis tensor: one new token is then S * B whole rows, which `ScatterUpdate` writes in place.
    dtype: a name of `DTYPES`; None: the model's.
    """

    def __init__(self, model: nn.Cell, *, num_slots: int, num_columns: int, dtype: str | None) -> None:
        config = model.config
        self.num_slots, self.num_columns = num_slots, num_columns
        # Of this rank: heads are split, or shared, as the model's layers are.
        self.num_heads = model.place.share(config.num_attention_heads)
        self.num_kv_heads = model.place.share(config.num_key_value_heads, units=config.num_key_value_heads)
        self.head_dim = model.head_dim
        self.dtype = model.dtype if dtype is None else DTYPES[dtype]
        names = [f"cache.{i}.{kind}" for i in range(config.num_hidden_layers) for kind in ("keys", "values")]
        self.matrices = ParameterTuple(
            [zero_parameter(self._shape(), name, self.dtype, requires_grad=False) for name in names]
        )

    def _shape(self) -> tuple[int, ...]:
        return (self.num_slots * self.num_kv_heads * self.num_columns, self.head_dim)

    def first_rows(self) -> np.ndarray:
        """int32 [S, B]: row of column 0 of each slot and kv head."""
        rows = np.arange(self.num_slots * self.num_kv_heads, dtype=np.int32) * np.int32(self.num_columns)
        return rows.reshape(self.num_slots, self.num_kv_heads)

    def admission_rows(
        self, prompts: Sequence[int], slots: Sequence[int], prompt_columns: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows of a prefill's output and of the cache, int32 of equal length: every column of each prompt goes into its
        slot. prompts: numbers within the prefill."""
        columns = np.arange(prompt_columns, dtype=np.int32)
        own_heads = np.arange(self.num_kv_heads, dtype=np.int32)
        heads = np.asarray(prompts, np.int32)[:, None] * self.num_kv_heads + own_heads
        source = heads[:, :, None] * prompt_columns + columns
        target = self.first_rows()[list(slots)][:, :, None] + columns
        return source.reshape(-1).astype(np.int32), target.reshape(-1).astype(np.int32)

    def attention(self) -> nn.Cell:
        """See `SlotAttention`."""
        return SlotAttention(self)

    def rows_of_prefill(self, cached_MBD: Tensor, num_prompts: int) -> Tensor:
        """What a prefill keeps of a layer's keys or values [Q * L, B, D]: a row per prompt, kv head and column."""
        by_prompt = ops.cast(cached_MBD, self.dtype).reshape(num_prompts, -1, self.num_kv_heads, self.head_dim)
        return by_prompt.transpose(0, 2, 1, 3).reshape(-1, self.head_dim)


class PagedCache(SlotCache):
    """Keys and values [S * P, BLOCK, B, D] per layer and kind; slot s has the blocks s P .. s P + P - 1."""

    def __init__(self, model: nn.Cell, *, num_slots: int, num_columns: int, dtype: str | None) -> None:
        self.blocks_per_slot = -(-num_columns // BLOCK)
        super().__init__(model, num_slots=num_slots, num_columns=self.blocks_per_slot * BLOCK, dtype=dtype)

    def _shape(self) -> tuple[int, ...]:
        return (self.num_slots * self.blocks_per_slot, BLOCK, self.num_kv_heads, self.head_dim)

    def first_rows(self) -> np.ndarray:
        """int32 [S]: row (token) of column 0 of each slot."""
        return np.arange(self.num_slots, dtype=np.int32) * np.int32(self.num_columns)

    def block_table(self) -> np.ndarray:
        """int32 [S, P]."""
        return np.arange(self.num_slots * self.blocks_per_slot, dtype=np.int32).reshape(self.num_slots, -1)

    def admission_rows(
        self, prompts: Sequence[int], slots: Sequence[int], prompt_columns: int
    ) -> tuple[np.ndarray, np.ndarray]:
        columns = np.arange(prompt_columns, dtype=np.int32)
        source = np.asarray(prompts, np.int32)[:, None] * prompt_columns + columns
        target = self.first_rows()[list(slots)][:, None] + columns
        return source.reshape(-1).astype(np.int32), target.reshape(-1).astype(np.int32)

    def attention(self) -> nn.Cell:
        return PagedSlotAttention(self)

    def rows_of_prefill(self, cached_MBD: Tensor, num_prompts: int) -> Tensor:
        return ops.cast(cached_MBD, self.dtype)


def slot_cache(model: nn.Cell, *, num_slots: int, num_columns: int, dtype: str | None = None) -> SlotCache:
    """The cache that this device's ops want."""
    kind = PagedCache if is_fused() else SlotCache
    return kind(model, num_slots=num_slots, num_columns=num_columns, dtype=dtype)


class SlotAttention(nn.Cell):
    """One token per slot: its key and value go into the cache, its query meets all columns up to its own.

    places(positions_S) is made once per step; construct(keys, values, query, key, value, *places), once per layer with
    the layer's cache, returns [S, A * D].
    """

    def __init__(self, cache: SlotCache) -> None:
        super().__init__(auto_prefix=False)
        self.num_slots, self.num_columns = cache.num_slots, cache.num_columns
        self.num_heads, self.num_kv_heads, self.head_dim = cache.num_heads, cache.num_kv_heads, cache.head_dim
        self.group = cache.num_heads // cache.num_kv_heads
        self.first_rows_SB = Tensor(cache.first_rows())
        self.columns_11C = Tensor(np.arange(cache.num_columns, dtype=np.int32).reshape(1, 1, -1))
        self.scatter = ops.ScatterUpdate()
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.weigh = ops.BatchMatMul()

    def places(self, positions_S: Tensor, lengths_S: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of the new token [S * B], and what is added to the scores of each column [S, 1, C]."""
        new_rows = (self.first_rows_SB + positions_S.reshape(-1, 1)).reshape(-1)
        bias_S1C = ops.cast(self.columns_11C > positions_S.reshape(-1, 1, 1), ms.float32) * MASKED_SCORE
        return new_rows, bias_S1C

    def construct(
        self,
        keys: Tensor,
        values: Tensor,
        query_SAD: Tensor,
        key_SBD: Tensor,
        value_SBD: Tensor,
        new_rows: Tensor,
        bias_S1C: Tensor,
    ) -> Tensor:
        keys = self.scatter(keys, new_rows, ops.cast(key_SBD, keys.dtype).reshape(-1, self.head_dim))
        values = self.scatter(values, new_rows, ops.cast(value_SBD, values.dtype).reshape(-1, self.head_dim))
        keys = keys.reshape(-1, self.num_columns, self.head_dim)
        values = values.reshape(-1, self.num_columns, self.head_dim)
        heads = (self.num_slots * self.num_kv_heads, self.group, self.head_dim)
        scores = self.scores(ops.cast(query_SAD * self.head_dim**-0.5, keys.dtype).reshape(heads), keys)
        scores = ops.cast(scores, ms.float32).reshape(self.num_slots, self.num_heads, -1)
        scores = scores + ops.tile(bias_S1C, (1, self.num_heads, 1))
        weights = ops.cast(ops.softmax(scores, -1), values.dtype).reshape(heads[0], self.group, -1)
        out = self.weigh(weights, values).reshape(self.num_slots, self.num_heads * self.head_dim)
        return ops.cast(out, query_SAD.dtype)


class PagedSlotAttention(nn.Cell):
    """As `SlotAttention`, with the fused ops over the blocks of the slots."""

    def __init__(self, cache: PagedCache) -> None:
        super().__init__(auto_prefix=False)
        self.size = cache.num_heads * cache.head_dim
        self.first_rows_S = Tensor(cache.first_rows())
        self.block_table_SP = Tensor(cache.block_table())
        self.store = ops.auto_generate.ReshapeAndCache()
        self.attend = ops.auto_generate.PagedAttention(cache.num_heads, cache.head_dim**-0.5, cache.num_kv_heads)

    def places(self, positions_S: Tensor, lengths_S: Tensor) -> tuple[Tensor, Tensor]:
        """Row of the new token [S], and how many tokens each slot has with it [S]."""
        return self.first_rows_S + positions_S, lengths_S

    def construct(
        self,
        keys: Tensor,
        values: Tensor,
        query_SAD: Tensor,
        key_SBD: Tensor,
        value_SBD: Tensor,
        new_rows_S: Tensor,
        lengths_S: Tensor,
    ) -> Tensor:
        rows = (key_SBD.shape[0], -1)  # the op takes three axes for batch, sequence and features
        new_keys = ops.cast(key_SBD, keys.dtype).reshape(rows)
        new_values = ops.cast(value_SBD, values.dtype).reshape(rows)
        stored = self.store(new_keys, new_values, keys, values, new_rows_S)
        queries = ops.depend(ops.cast(query_SAD, keys.dtype), stored)
        out = self.attend(queries, keys, values, self.block_table_SP, lengths_S)
        return ops.cast(out.reshape(-1, self.size), query_SAD.dtype)


class Admit(nn.Cell):
    """Copies prompts' columns from a prefill into slots."""

    def __init__(self, cache: SlotCache) -> None:
        super().__init__(auto_prefix=False)
        self.cache = cache.matrices
        self.gather = ops.Gather()
        self.scatter = ops.ScatterUpdate()

    def construct(self, source_rows: Tensor, target_rows: Tensor, *prefilled: Tensor) -> Tensor:
        """source_rows, target_rows: int32 of equal length; rows of `prefilled` and of the cache.

        prefilled: what `Prefill` returned, spread: a tuple would be a constant, compiled anew at every call.
        """
        for i in range(len(prefilled)):
            self.scatter(self.cache[i], target_rows, self.gather(prefilled[i], source_rows, 0))
        return source_rows


class PagedAdmit(Admit):
    """The same into blocks."""

    def __init__(self, cache: PagedCache) -> None:
        super().__init__(cache)
        self.store = ops.auto_generate.ReshapeAndCache()

    def construct(self, source_rows: Tensor, target_rows: Tensor, *prefilled: Tensor) -> Tensor:
        done = ()
        for i in range(len(prefilled) // 2):
            key = self.gather(prefilled[2 * i], source_rows, 0).reshape(source_rows.shape[0], -1)
            value = self.gather(prefilled[2 * i + 1], source_rows, 0).reshape(source_rows.shape[0], -1)
            done += (self.store(key, value, self.cache[2 * i], self.cache[2 * i + 1], target_rows),)
        return ops.depend(source_rows, done)


def admission(cache: SlotCache) -> Admit:
    """The cell that copies prompts into this cache."""
    return PagedAdmit(cache) if isinstance(cache, PagedCache) else Admit(cache)
