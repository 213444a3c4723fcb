"""The compiled graphs of generation: prefill, admission of prompts into slots, one decode step.

A slot is one sequence being decoded; its keys and values lie in cache columns 0 .. C-1, a column per position. A
prompt is run once; each of its G siblings is admitted by copying the prompt's columns into a free slot. Decoding
starts by feeding the prompt's last token (again), so the first response token is sampled by the same code as all
others, and prefill needs no head.

Legend: S slots, Q prompts of one prefill, L prompt columns, C cache columns, V vocabulary, B kv heads, D head size.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

from mindgspo.parallel.device_ops import MASKED_SCORE
from mindgspo.parallel.model_parallel_ops import from_first_rank, gather_columns
from mindgspo.parallel.parameter_memory import zero_parameter
from mindgspo.rollout.sampling import TokenSampler


class SlotCache:
    """Keys and values of all layers and slots, one matrix [S * B * C, D] per layer and kind.

    Rows, not a four-axis tensor: one new token is then S * B whole rows, which `ScatterUpdate` writes in place.
    """

    def __init__(self, model: nn.Cell, *, num_slots: int, num_columns: int) -> None:
        config = model.config
        self.num_slots, self.num_columns = num_slots, num_columns
        # Of this rank: key/value heads are split, or shared, as the model's layers are.
        self.num_kv_heads = model.place.share(config.num_key_value_heads, units=config.num_key_value_heads)
        self.head_dim = config.hidden_size // config.num_attention_heads
        shape = (num_slots * self.num_kv_heads * num_columns, self.head_dim)
        names = [f"cache.{i}.{kind}" for i in range(config.num_hidden_layers) for kind in ("keys", "values")]
        self.matrices = ParameterTuple([zero_parameter(shape, n, model.dtype, requires_grad=False) for n in names])

    def first_rows(self) -> np.ndarray:
        """int32 [S, B]: row of column 0 of each slot and kv head."""
        rows = np.arange(self.num_slots * self.num_kv_heads, dtype=np.int32) * np.int32(self.num_columns)
        return rows.reshape(self.num_slots, self.num_kv_heads)


class Prefill(nn.Cell):
    """Runs prompts once and returns what their siblings' caches need."""

    def __init__(self, model: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        self.head_dim = model.config.hidden_size // model.config.num_attention_heads

    def construct(self, ids_QL: Tensor, positions_QL: Tensor, segments_QL: Tensor) -> tuple[Tensor, ...]:
        """(k0, v0, k1, v1, ...), each [Q * B * L, D]; columns beyond a prompt's length hold values nobody reads."""
        rows = ()
        prompts = (*ids_QL.shape, -1, self.head_dim)
        for cached in self.model.prefill(ids_QL, positions_QL, segments_QL):
            rows += (cached.reshape(prompts).transpose(0, 2, 1, 3).reshape(-1, self.head_dim),)
        return rows


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


class DecodeStep(nn.Cell):
    """Feeds one token per slot and samples the next one. The ranks of a model-parallel group share the slots: each
    holds its heads' part of the cache, the first one draws, and all go on with its tokens."""

    def __init__(self, model: nn.Cell, cache: SlotCache, sampler: TokenSampler) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        self.cache = cache.matrices
        self.sampler = sampler
        self.head_dim, self.num_columns = cache.head_dim, cache.num_columns
        self.first_rows_SB = Tensor(cache.first_rows())
        self.columns_11C = Tensor(np.arange(cache.num_columns, dtype=np.int32).reshape(1, 1, -1))
        self.scatter = ops.ScatterUpdate()
        self.logits = ops.MatMul(transpose_b=True)
        self.gather_columns = gather_columns(model.place)
        self.from_first_rank = from_first_rank(model.place)

    def construct(
        self,
        ids_S: Tensor,
        positions_S: Tensor,
        uniforms_S: Tensor,
        inverse_temperature_S: Tensor,
        greedy_S: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Next ids int32 [S] and their log-probs float32 [S].

        ids_S, positions_S: int32, the token fed to each slot and its position; idle slots feed anything to column 0.
        """
        model = self.model
        cos, sin = model.rotation(positions_S)
        new_rows = (self.first_rows_SB + positions_S.reshape(-1, 1)).reshape(-1)
        bias_S1C = ops.cast(self.columns_11C > positions_S.reshape(-1, 1, 1), ms.float32) * MASKED_SCORE
        x_SH = model.embed_tokens(ids_S)
        for i in range(len(model.layers)):
            layer = model.layers[i]
            query, key, value = layer.self_attn.project(layer.input_layernorm(x_SH), cos, sin)
            keys = self.scatter(self.cache[2 * i], new_rows, key.reshape(-1, self.head_dim))
            values = self.scatter(self.cache[2 * i + 1], new_rows, value.reshape(-1, self.head_dim))
            keys = keys.reshape(-1, self.num_columns, self.head_dim)
            values = values.reshape(-1, self.num_columns, self.head_dim)
            x_SH = layer.feed_forward(x_SH + layer.self_attn.attend_cache(query, keys, values, bias_S1C))
        logits_SV = self.logits(model.norm(x_SH), ops.cast(model.output_weight(), model.dtype))
        logits_SV = self.gather_columns(ops.cast(logits_SV, ms.float32))
        drawn_S, logprobs_S = self.sampler(logits_SV, uniforms_S, inverse_temperature_S, greedy_S)
        return self.from_first_rank(drawn_S, logprobs_S)
