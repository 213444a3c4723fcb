"""Operators that models are written with; only here does the device decide the implementation.

On Ascend they are MindSpore's fused ops, on CPU our C++ kernels (`ops.kernels`). If these cannot be compiled, and in
tests as their twins, they are composed of MindSpore's small ops. Each operator is a cell that fixes the branch in
`__init__`, so a compiled graph holds only one of them.

Every operator on rows takes `tokens`: for kernels the number of rows in use, see `ops.kernels`; the other forms compute
all rows.

Legend: R rows, T token slots, M = R * T flattened tokens, H hidden units, I inner features, A query heads, B key/value
heads, D head size, E segment ends; of rotary embedding, R features of a head.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

from mindgspo.batches.routing import RoutedTokens
from mindgspo.batches.rows import packed_tokens, predictions_in_parts
from mindgspo.errors import ConfigError
from mindgspo.parallel.layers.model_parallel import HeadsOfAllTokens, TokensOfAllHeads
from mindgspo.parallel.ops.kernels import AttentionKernel, ForkKernel, RMSNormKernel, RotaryKernel, SwiGLUKernel
from mindgspo.parallel.plans.placement import ALONE, Placement
from mindgspo.parallel.platform.runtime import current_device
from mindgspo.types import Batch, ExpertArray
from mindgspo_kernels.build import KernelsUnavailable, library

# Added to masked scores. Finite, so that a fully masked row contains no NaN.
MASKED_SCORE = -1.0e9


def is_fused() -> bool:
    """Whether the device has MindSpore's fused ops."""
    return current_device() == "Ascend"


def aclnn_on_cards(own: Callable[..., Any], aclnn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `aclnn`, one of `mint`'s operators, on Ascend, else `own`, one of `ops`.

    On a card `own` goes through the graph engine, which launches it later, joins no more than 32 tensors, or has it
    only on the card's host processor (TopK). On CPU both are the same numbers, and `own` has fewer dtypes to cast.
    """
    return aclnn if is_fused() else own


def likeliest_op() -> Callable[[Tensor], Tensor]:
    """Return the operator for the first largest entry of the last axis, int32."""
    return aclnn_on_cards(ops.Argmax(-1, ms.int32), _likeliest)


def _likeliest(x: Tensor) -> Tensor:
    return ops.cast(mint.argmax(x, -1), ms.int32)


_is_composed = False


@contextmanager
def composed_ops() -> Iterator[None]:
    """Compose cells built inside of MindSpore's small ops even if there are kernels."""
    global _is_composed
    before, _is_composed = _is_composed, True
    try:
        yield
    finally:
        _is_composed = before


def has_kernels() -> bool:
    """Whether cells built now use our kernels; prints the reason once if they cannot be compiled."""
    return not is_fused() and not _is_composed and _kernels_compile()


@functools.cache
def _kernels_compile() -> bool:
    try:
        library()
    except KernelsUnavailable as error:
        print(f"[kernels] {error}; MindSpore's small operators take their place, several times slower", file=sys.stderr)
        return False
    return True


def require_bfloat16(key: str) -> None:
    """Raise ConfigError for the setting `key` if cells built now cannot compute in bfloat16.

    On CPU only our kernels can; MindSpore's operators cannot.
    """
    if not is_fused() and not has_kernels():
        raise ConfigError(
            f"{key}: bfloat16 on CPU needs our kernels, which could not be compiled here; install g++ (apt-get install "
            f"g++), or set {key}=float32"
        )


class SameTwice(nn.Cell):
    """construct(x) -> (x, x), for two readers."""

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def fork_op() -> nn.Cell:
    """Return the cell for a value with two readers: `ForkKernel` if there are kernels."""
    return ForkKernel() if has_kernels() else SameTwice()


class RMSNormOp(nn.Cell):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, in float32 (arXiv 1910.07467).

    x: [M, H], or heads [M, A, D].
    """

    def __init__(self, eps: float) -> None:
        super().__init__(auto_prefix=False)
        self.eps = eps
        self.fused = is_fused()
        self.kernel = RMSNormKernel(eps) if has_kernels() else None
        self.fork = fork_op()
        self.add = ops.Add()
        if self.fused:
            self.rms_norm = ops.auto_generate.RmsNorm(eps)
        self.sum = ops.ReduceSum(keep_dims=True)
        self.outer = ops.MatMul()

    def of_sum(self, x: Tensor, delta: Tensor | None, weight: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return norm(x + delta) and x + delta; norm(x) and x if delta is None."""
        if delta is None:
            x, again = self.fork(x)
            return self.construct(x, weight, tokens), again
        if self.kernel is not None:
            return self.kernel.of_sum(x, delta, weight, tokens)
        total = self.add(x, delta)
        return self.construct(total, weight, tokens), total

    def construct(self, x: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
        if self.kernel is not None:
            return self.kernel(x, weight, tokens)
        if self.fused:
            return self.rms_norm(x, weight)[0]
        # On CPU a product of equal shapes takes half the time of a broadcast, and an outer product by matmul even less;
        # its gradients are matmuls too, while those of a broadcast are slow reductions.
        x_MH = ops.cast(x, ms.float32).reshape(-1, x.shape[-1])
        scale_M1 = ops.rsqrt(self.sum(x_MH * x_MH, -1) * (1.0 / x.shape[-1]) + self.eps)
        scale_MH = self.outer(scale_M1, ops.cast(weight, ms.float32).reshape(1, -1))
        return ops.cast((x_MH * scale_MH).reshape(x.shape), x.dtype)


class RotaryOp(nn.Cell):
    """Rotary position embedding x * cos + rotated(x) * sin of the first `rotary_dim` features of each head, R
    (arXiv 2104.09864); the others pass. A pair that turns is (i, i + R / 2), or, if `is_interleaved`, (2 i, 2 i + 1).

    Composed or fused. x: [M, heads, D]; cos, sin: from `RotationOp`.
    """

    def __init__(self, head_dim: int, *, rotary_dim: int | None = None, is_interleaved: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.fused = is_fused()
        self.head_dim, self.rotary_dim = head_dim, rotary_dim or head_dim
        self.mode = int(is_interleaved)
        if self.fused:
            self.rotate, self.cast = ops.auto_generate.RotaryPositionEmbedding(), ops.Cast()
            self.split, self.join = mint.split, ops.Concat(axis=-1)
        else:
            self.rotated = Tensor(rotation_matrix(head_dim, self.rotary_dim, is_interleaved=is_interleaved))
            self.matmul = ops.MatMul()

    def construct(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.fused:
            if cos.shape[-1] == self.head_dim:
                return self._fused(x, cos, sin)
            turning, passing = self.split(x, [self.rotary_dim, self.head_dim - self.rotary_dim], -1)
            return self.join((self._fused(turning, cos, sin), passing))
        # On CPU a small matmul is faster than slicing and joining, and equal shapes are faster than broadcasting; the
        # tiled tables are equal in all layers, so the compiler keeps one copy.
        spread = (1, x.shape[1], 1)
        rotated = self.matmul(x.reshape(-1, self.head_dim), ops.cast(self.rotated, x.dtype)).reshape(x.shape)
        return ops.cast(x * ops.tile(cos, spread) + rotated * ops.tile(sin, spread), x.dtype)

    def _fused(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # All tokens as one sequence, because the op takes four axes; cos and sin hold each token's position.
        one = (1, x.shape[0], 1, x.shape[-1])
        cos, sin = self.cast(cos.reshape(one), x.dtype), self.cast(sin.reshape(one), x.dtype)
        return self.rotate(x.reshape((1, *x.shape)), cos, sin, self.mode).reshape(x.shape)


class RotaryPairOp(nn.Cell):
    """Rotary embedding of queries [M, A, D] and keys [M, B, D]; rotation: from `RotationOp`, once per graph. For the
    rest see `RotaryOp`."""

    def __init__(self, head_dim: int, *, rotary_dim: int | None = None, is_interleaved: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.is_interleaved = is_interleaved
        self.kernel = RotaryKernel(is_interleaved=is_interleaved) if has_kernels() else None
        if self.kernel is None:
            self.query, self.key = (
                RotaryOp(head_dim, rotary_dim=rotary_dim, is_interleaved=is_interleaved) for _ in range(2)
            )

    def construct(
        self, query: Tensor, key: Tensor, rotation: tuple[Tensor, Tensor, Tensor], tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        positions_M, cos, sin = rotation
        if self.kernel is not None:
            return self.kernel(query, key, positions_M, cos, sin, tokens)
        return self.query(query, cos, sin), self.key(key, cos, sin)

    def cells(self) -> tuple[nn.Cell, ...]:
        """Cells that the backward pass can recompute."""
        return (self.kernel,) if self.kernel is not None else (self.query, self.key)


class RotationOp(nn.Cell):
    """construct(positions_M) -> positions, cos and sin as `RotaryPairOp` takes them.

    cos, sin: float32 tables [positions, R], in which both features of a pair have the same number. head_dim: D; the
    composed form has tables of all its features, and so has the fused one of neighbours, which saves it the division
    of heads; features that do not turn have cos 1 and sin 0.
    """

    def __init__(self, cos: np.ndarray, sin: np.ndarray, head_dim: int, *, is_interleaved: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.has_kernel = has_kernels()
        if not self.has_kernel and (is_interleaved or not is_fused()):
            passing = ((0, 0), (0, head_dim - cos.shape[1]))
            cos, sin = np.pad(cos, passing, constant_values=1), np.pad(sin, passing)
        self.cos, self.sin = Tensor(cos), Tensor(sin)
        self.gather = ops.Gather()

    def construct(self, positions_M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.has_kernel:
            return positions_M, self.cos, self.sin
        cos_MD, sin_MD = self.gather(self.cos, positions_M, 0), self.gather(self.sin, positions_M, 0)
        table = (-1, 1, cos_MD.shape[-1])
        return positions_M, cos_MD.reshape(table), sin_MD.reshape(table)


def rotation_matrix(head_dim: int, rotary_dim: int, *, is_interleaved: bool) -> np.ndarray:
    """Return float32 [D, D], the matrix with which x becomes -b and a in the place of each pair a and b that turns, and
    0 elsewhere."""
    half = np.arange(rotary_dim // 2)
    first, second = (2 * half, 2 * half + 1) if is_interleaved else (half, half + rotary_dim // 2)
    matrix = np.zeros((head_dim, head_dim), dtype=np.float32)
    matrix[second, first] = -1.0
    matrix[first, second] = 1.0
    return matrix


class SwiGLUOp(nn.Cell):
    """silu(gate) * up (arXiv 2002.05202); gate, up: [M, I].

    The fused op takes both as one tensor, and only that is kept for the backward pass.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.fused = is_fused()
        self.kernel = SwiGLUKernel() if has_kernels() else None
        if self.fused:
            self.join, self.swiglu = ops.Concat(axis=1), ops.auto_generate.Swiglu()

    def construct(self, gate: Tensor, up: Tensor, tokens: Tensor) -> Tensor:
        if self.kernel is not None:
            return self.kernel(gate, up, tokens)
        if self.fused:
            return self.swiglu(self.join((gate, up)), 1)
        return ops.silu(gate) * up


class CausalAttentionOp(nn.Cell):
    """softmax(scale q k^T + mask) v with grouped key/value heads, causal and within segments.

    query: [M, A, D]; key: [M, B, D]; value: [M, B, E]; mask: from `SegmentMask`. Returns [M, A * E]. Scores and softmax
    are float32. If context_parallel splits sequences, ranks exchange tokens for heads around attention; if there are
    fewer key/value heads than ranks, each head is repeated for the ranks that share it.

    num_heads, num_kv_heads: heads of this rank's model_parallel slice. value_dim: E, at most D; None: D. scale: None:
    1 / sqrt(D).
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        place: Placement = ALONE,
        *,
        value_dim: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.value_dim = value_dim or head_dim
        self.group = num_heads // num_kv_heads
        self.scale = scale or head_dim**-0.5
        self.fused = is_fused()
        self.kernel = AttentionKernel(self.scale) if has_kernels() else None
        self.keeps_weights = not self.fused and self.kernel is None  # for the backward pass
        self.copies, self.context = 1, place.plan.context_parallel
        if self.context > 1:
            # Few key/value heads are repeated until every rank gets one.
            self.copies = max(1, self.context // num_kv_heads)
            self.to_heads, self.to_tokens = HeadsOfAllTokens(place.context_ranks), TokensOfAllHeads(place.context_ranks)
            self.num_heads, self.num_kv_heads = num_heads // self.context, num_kv_heads * self.copies // self.context
            self.tile = ops.Tile()
        if self.fused:
            self.flash = flash_attention(self.num_heads, self.scale)
            self.join, self.zeros_like = ops.Concat(-1), ops.ZerosLike()
            self.causal = Tensor(np.triu(np.ones((2048, 2048), np.uint8), k=1))
        self.scores = ops.BatchMatMul(transpose_b=True)
        self.weigh = ops.BatchMatMul()

    def construct(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        if self.copies > 1:
            key, value = self._repeated(key), self._repeated(value)
        if self.context == 1:
            return self.attend(query, key, value, mask)
        num_tokens = query.shape[0]
        query, key, value = self.to_heads(query, key, value)
        out = self.attend(query, key, value, mask)
        return self.to_tokens(out.reshape(-1, self.num_heads, self.value_dim)).reshape(num_tokens, -1)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        if self.kernel is not None:
            return self.kernel(query, key, value, mask)
        if self.fused:
            if self.value_dim < self.head_dim:  # the operator takes heads of one width
                value = self.join((value, self.zeros_like(key[:, :, self.value_dim :])))
            out = self.flash(query, key, value, self.causal, mask)[:, :, : self.value_dim]
            return out.reshape(-1, self.num_heads * self.value_dim)
        num_rows, num_slots = mask.shape[0], mask.shape[1]
        heads = (num_rows, num_slots, self.num_kv_heads, self.group, self.head_dim)
        queries = (query * self.scale).reshape(heads).transpose(0, 2, 3, 1, 4)
        queries = queries.reshape(num_rows, self.num_kv_heads, self.group * num_slots, self.head_dim)
        kv_heads = (num_rows, num_slots, self.num_kv_heads, self.head_dim)
        scores = self.scores(queries, key.reshape(kv_heads).transpose(0, 2, 1, 3))
        scores = scores.reshape(num_rows, self.num_kv_heads, self.group, num_slots, num_slots)
        # Tiled to the scores' shape, once for all layers: adding equal shapes is twice as fast on CPU.
        bias = (ops.cast(mask, ms.float32) * MASKED_SCORE).reshape(num_rows, 1, 1, num_slots, num_slots)
        scores = ops.cast(scores, ms.float32) + ops.tile(bias, (1, self.num_kv_heads, self.group, 1, 1))
        weights = ops.cast(ops.softmax(scores, -1), value.dtype)
        weights = weights.reshape(num_rows, self.num_kv_heads, self.group * num_slots, num_slots)
        out = self.weigh(weights, value.reshape(*kv_heads[:3], self.value_dim).transpose(0, 2, 1, 3))
        out = out.reshape(num_rows, self.num_kv_heads, self.group, num_slots, self.value_dim)
        return out.transpose(0, 3, 1, 2, 4).reshape(-1, self.num_heads * self.value_dim)

    def _repeated(self, x_MBD: Tensor) -> Tensor:
        """Return [M, B * copies, D], each head followed by its copies."""
        _, num_kv_heads, size = x_MBD.shape
        one = x_MBD.reshape(-1, num_kv_heads, 1, size)
        return self.tile(one, (1, 1, self.copies, 1)).reshape(-1, num_kv_heads * self.copies, size)


# FlashAttentionScore's sparse mode in which each segment's last query sees all its keys: causal if there are as many.
CAUSAL_FROM_THE_END = 3


def flash_attention(num_heads: int, scale: float) -> Callable[..., Tensor]:
    """Return Ascend's fused attention: (query_MAD, key_MBD, value_MBD, causal, ends_E) -> [M, A, D].

    causal: uint8 [2048, 2048], 1 where a key is later than a query. ends_E: from `segment_ends`.
    """
    flash = ops.operations.nn_ops.FlashAttentionScore(
        head_num=num_heads, scale_value=scale, input_layout="TND", sparse_mode=CAUSAL_FROM_THE_END
    )

    def attention(query, key, value, causal, ends_E):
        return flash(query, key, value, None, None, None, causal, None, ends_E, ends_E)[3]

    return attention


class SegmentMask(nn.Cell):
    """Mask for `CausalAttentionOp`, made once per graph for all layers.

    construct(segments) takes the result of `attention_segments`. On Ascend and for kernels it returns the ends [E]
    unchanged. For composed attention it returns uint8 [R, T, T], 1 where query slot i must not see key slot j: j is
    later than i or in another segment. Padded slots (segment 0) see earlier padded slots, so that no softmax row is
    empty.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.takes_ends = is_fused() or has_kernels()

    def construct(self, segments: Tensor) -> Tensor:
        if self.takes_ends:
            return segments
        num_slots = segments.shape[1]
        slots = ops.arange(num_slots)
        later = slots.reshape(1, 1, num_slots) > slots.reshape(1, num_slots, 1)
        other = ops.not_equal(segments.expand_dims(1), segments.expand_dims(2))
        return ops.cast(ops.logical_or(later, other), ms.uint8)


def takes_packed(cell: object) -> bool:
    """Whether a model or policy consists of kernels, which compute only real tokens."""
    return getattr(cell, "is_packed", False)


def attention_segments(segments_RT: np.ndarray, *, is_packed: bool, num_segments: int | None = None) -> np.ndarray:
    """Return the graph input that separates segments: their ends (`segment_ends`) for fused ops and kernels, else
    segments_RT.

    is_packed: see `takes_packed`.
    """
    if not is_packed and not is_fused():
        return segments_RT
    return segment_ends(segments_RT, num_segments=num_segments)


class PolicyInputs(NamedTuple):
    """Inputs of one rank's graph for a batch."""

    arrays: tuple[np.ndarray, ...]
    """ids, positions, segments, predict_P, targets_P, place_NK; if context_parallel splits the tokens, this rank's part
    of ids, positions, predictions and targets."""
    routed: RoutedTokens
    """The tokens of the graph whose routing is recorded."""
    run: slice
    """This rank's tokens among all of the graph's, flattened."""

    def by_prediction(self, batch: Batch, values_NKA: np.ndarray) -> np.ndarray:
        """Values [N, K, A] of the batch's response tokens by prediction, [P, A], of this rank; 0 elsewhere."""
        (targets_P, place_NK), size = self.arrays[4:], self.run.stop - self.run.start
        values_PA = np.zeros((batch.ids_RT.size // size * targets_P.size, values_NKA.shape[2]), values_NKA.dtype)
        values_PA[place_NK[batch.mask_NK]] = values_NKA[batch.mask_NK]
        first = self.run.start // size * targets_P.size
        return values_PA[first : first + targets_P.size]

    def given(self, batch: Batch) -> ExpertArray:
        """Return the recorded experts of this rank's tokens, [.., X]; see `RoutedTokens.given`."""
        given = self.routed.given(batch)
        return given.reshape(-1, given.shape[-1])[self.run][None]


def policy_inputs(batch: Batch, *, is_packed: bool, place: Placement = ALONE) -> PolicyInputs:
    """Return the inputs of this rank's graph. is_packed: see `takes_packed`."""
    predict_P = batch.predict_P
    if is_packed:
        packed = packed_tokens(batch)
        ids, positions, segments, predict_P, place_M = packed
        routed = RoutedTokens.packed(place_M)
    else:
        ids, positions, routed = batch.ids_RT, batch.positions_RT, RoutedTokens.unpacked(batch)
        segments = attention_segments(batch.segments_RT, is_packed=False, num_segments=batch.samples_N.size)
    if (count := place.plan.context_parallel) == 1:
        arrays = (ids, positions, segments, predict_P, batch.targets_P, batch.place_NK)
        return PolicyInputs(arrays, routed, slice(0, ids.size))
    parts = predictions_in_parts(batch, predict_P, count, unread=-1 if is_packed else 0)
    own = place.at.context
    run = slice(own * (ids.size // count), (own + 1) * (ids.size // count))
    tokens = (ids.reshape(1, -1)[:, run], positions.reshape(1, -1)[:, run])
    arrays = (*tokens, segments, parts.predict[own], parts.targets[own], parts.place_NK)
    return PolicyInputs(tuple(np.ascontiguousarray(array) for array in arrays), routed, run)


def segment_ends(segments_RT: np.ndarray, *, num_segments: int | None = None) -> np.ndarray:
    """Return int64 [E], the end of each segment among the flattened tokens.

    Padding after the last sample of a row belongs to that sample's segment: it comes later, so no token sees it. A row
    without a sample is one segment. num_segments: E; a batch with N sample slots has E = N whatever the number of its
    samples, so that one graph fits. Since the fused op takes no empty segments, padding tokens become segments of their
    own if there are fewer; the layout of rows leaves enough of them.
    """
    ends = _ends_of(segments_RT)
    return (ends if num_segments is None else _with_more(ends, segments_RT, num_segments)).astype(np.int64)


def _ends_of(segments_RT: np.ndarray) -> np.ndarray:
    is_last = np.ones(segments_RT.shape, bool)
    is_last[:, :-1] = segments_RT[:, :-1] != segments_RT[:, 1:]
    # The change from the last sample to padding is not an end.
    is_last[:, :-1] &= segments_RT[:, 1:] != 0
    return np.flatnonzero(is_last.reshape(-1)) + 1


def _with_more(ends: np.ndarray, segments_RT: np.ndarray, width: int) -> np.ndarray:
    """Return these ends and further ones after padding tokens, `width` in all."""
    padding = np.flatnonzero(segments_RT.reshape(-1) == 0)  # an end before a padding token cuts only padding
    free = np.setdiff1d(padding, [0, *ends])[::-1][: width - len(ends)]
    assert len(ends) + len(free) == width, f"{len(ends)} segments and {len(free)} tokens of padding, {width} are needed"
    return np.sort(np.concatenate([ends, free]))
