"""The fused branches, with the documented ops in numpy in the place of the fused ones: under every plan they compute
what the composed branches do.

A stand-in for an op is cut by the op's strategy, as MindSpore's compiler cuts it: each rank computes its part from its
parts of the inputs, and the parts are put together.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from fused_ops import flash_attention, rms_norm, rotate_half, swiglu
from mindspore import Tensor

from mindgspo.config import ParallelPlan
from mindgspo.parallel import device_ops
from mindgspo.parallel.device_ops import CausalAttentionOp, RMSNormOp, RotaryOp, SegmentMask, SwiGLUOp, segment_ends
from mindgspo.parallel.placement import ALONE, auto_parallel_placement
from mindgspo.parallel.ranks import DATA, KEY_VALUE, MODEL, SEQUENCE, WHOLE, Axes, Axis

pytestmark = pytest.mark.usefixtures("cpu_runtime")


class Cut:
    """Stands in for an op under its strategy, one word per axis of each input."""

    def __init__(self, op, inputs: tuple[Axes, ...], place: OnRanks) -> None:
        self.op, self.inputs, self.place = op, inputs, place

    def __call__(self, *arguments):
        arrays, others = told_apart(arguments)
        assert [array.ndim for array in arrays] == [len(axes) for axes in self.inputs], self.op.name
        whole = None
        for at in self.place.ranks():
            own = [
                array[self.place.part(array.shape, axes, at)] for array, axes in zip(arrays, self.inputs, strict=True)
            ]
            found = DOCUMENTED[self.op.name](self.op, own, others)
            axes = self.inputs[0] if found.ndim == len(self.inputs[0]) else (DATA, WHOLE, MODEL)  # Stack adds an axis
            shape = tuple(size * self.place.parts(axis) for size, axis in zip(found.shape, axes, strict=True))
            whole = np.full(shape, np.nan) if whole is None else whole
            part = self.place.part(shape, axes, at)
            assert np.isnan(whole[part]).all() or (whole[part] == found).all(), "ranks with one part must agree"
            whole[part] = found
        if self.op.name != "FlashAttentionScore":  # its ends are counted from each replica's first token
            np.testing.assert_array_equal(whole, DOCUMENTED[self.op.name](self.op, arrays, others), self.op.name)
        return (whole,) if self.op.name == "RmsNorm" else whole


class CutFlash(Cut):
    """The four outputs of attention."""

    def __call__(self, *arguments):
        return None, None, None, super().__call__(*arguments)


def told_apart(arguments) -> tuple[list[np.ndarray], list]:
    """Arrays, also those inside a tuple, and the rest without None."""
    arrays, others = [], []
    for argument in arguments:
        if isinstance(argument, tuple) and isinstance(argument[0], np.ndarray):
            arrays += argument
        elif isinstance(argument, np.ndarray) or hasattr(argument, "asnumpy"):
            arrays.append(np.array(argument if isinstance(argument, np.ndarray) else argument.asnumpy()))
        elif argument is not None:
            others.append(argument)
    return arrays, others


def documented_attention(op, arrays, others) -> np.ndarray:
    query, key, value, discarded, ends, kv_ends = arrays
    assert op.sparse_mode == 3 and discarded.shape == (2048, 2048), "the mask has this size whatever the lengths"
    assert (discarded == ~np.tri(2048, dtype=bool)).all(), "1 is discarded: a later key"
    assert (ends == kv_ends).all() and others == []
    return flash_attention(query, key, value, ends, scale=op.scale_value)


def documented_rotary(op, arrays, others) -> np.ndarray:
    assert others == [0]
    return rotate_half(*arrays)


DOCUMENTED = {
    "RmsNorm": lambda op, arrays, others: rms_norm(*arrays, epsilon=op.epsilon),
    "RotaryPositionEmbedding": documented_rotary,
    "Stack": lambda op, arrays, others: np.stack(arrays, axis=1),
    "Swiglu": lambda op, arrays, others: swiglu(*arrays, *others),
    "Tile": lambda op, arrays, others: np.tile(*arrays, *others),
    "Cast": lambda op, arrays, others: arrays[0],
    "FlashAttentionScore": documented_attention,
}


class OnRanks:
    """A placement under which ops are replaced by stand-ins on the ranks of a plan."""

    def __init__(self, plan: ParallelPlan, num_kv_heads: int) -> None:
        self.plan, self.parts = plan, auto_parallel_placement(plan, num_kv_heads).parts

    def split(self, op, *inputs: Axes, output: Axes | None = None) -> Cut:
        return (CutFlash if op.name == "FlashAttentionScore" else Cut)(op, inputs, self)

    def ranks(self):
        """(replica, slice) of every rank."""
        return product(range(self.plan.data_parallel), range(self.plan.model_parallel))

    def part(self, shape: tuple[int, ...], axes: Axes, at: tuple[int, int]) -> tuple[slice, ...]:
        """Of an array of this shape, what rank `at` has."""
        parts = [self.parts(axis) for axis in axes]
        assert all(size % count == 0 for size, count in zip(shape, parts, strict=True)), f"{shape} over {parts}"
        own = [self._index(axis, *at) for axis in axes]
        sizes = [size // count for size, count in zip(shape, parts, strict=True)]
        return tuple(slice(index * size, (index + 1) * size) for index, size in zip(own, sizes, strict=True))

    def _index(self, axis: Axis, data: int, model: int) -> int:
        if axis is SEQUENCE and self.plan.use_seq_parallel:
            return data * self.plan.model_parallel + model
        by_model = model * self.parts(KEY_VALUE) // self.plan.model_parallel
        return {WHOLE: 0, DATA: data, SEQUENCE: data, MODEL: model, KEY_VALUE: by_model}[axis]


PLANS = [
    pytest.param(ParallelPlan(), id="one rank"),
    pytest.param(ParallelPlan(data_parallel=2, model_parallel=2), id="2x2"),
    pytest.param(ParallelPlan(data_parallel=2, model_parallel=4, use_seq_parallel=True), id="2x4, sequence split"),
    pytest.param(ParallelPlan(model_parallel=8), id="1x8"),
]
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 8, 2, 6
# Eight tokens per row; each half of the rows is a replica's.
SEGMENTS_RT = np.array(
    [[1, 1, 1, 2, 2, 0, 0, 0], [1] * 8, [1, 2, 2, 3, 3, 3, 4, 4], [1, 1, 0, 0, 0, 0, 0, 0]], np.int32
)
NUM_TOKENS = SEGMENTS_RT.size


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch):
    """fused(plan, cell of a placement, arrays): what a cell that was built for Ascend makes of the arrays."""

    def run_fused(plan, build, *arrays: np.ndarray) -> np.ndarray:
        with monkeypatch.context() as patch:
            patch.setattr(device_ops, "is_fused", lambda: True)
            cell = build(OnRanks(plan, NUM_KV_HEADS))
        return cell.construct(*arrays)

    return run_fused


def composed(build, *arrays: np.ndarray) -> np.ndarray:
    with device_ops.composed_ops():
        cell = build(ALONE)
    return cell(*map(Tensor, arrays)).asnumpy()


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("shape", "axes"), [
    pytest.param((16, 10), (SEQUENCE,), id="hidden states"),
    pytest.param((16, NUM_HEADS, HEAD_DIM), (DATA, MODEL), id="queries"),
    pytest.param((16, NUM_KV_HEADS, HEAD_DIM), (DATA, KEY_VALUE), id="keys"),
])  # fmt: skip
def test_rms_norm(fused, plan: ParallelPlan, shape: tuple[int, ...], axes: Axes) -> None:
    def build(place):
        return RMSNormOp(1e-2, place, axes)

    arrays = normal(*shape), normal(shape[-1]), np.array([16], np.int32)
    np.testing.assert_allclose(composed(build, *arrays), fused(plan, build, *arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("num_heads", "heads"), [(NUM_HEADS, MODEL), (NUM_KV_HEADS, KEY_VALUE)])
def test_rotary(fused, plan: ParallelPlan, num_heads: int, heads: Axis) -> None:
    def build(place):
        return RotaryOp(HEAD_DIM, place, (heads,))

    arrays = normal(16, num_heads, HEAD_DIM), normal(16, 1, HEAD_DIM), normal(16, 1, HEAD_DIM) * 2
    np.testing.assert_allclose(composed(build, *arrays), fused(plan, build, *arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("plan", PLANS)
def test_swiglu(fused, plan: ParallelPlan) -> None:
    arrays = normal(16, 24), normal(16, 24) * 3 + 1, np.array([16], np.int32)
    np.testing.assert_allclose(composed(SwiGLUOp, *arrays), fused(plan, SwiGLUOp, *arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("plan", PLANS)
def test_attention(fused, plan: ParallelPlan) -> None:
    def build(place):
        return CausalAttentionOp(NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, place)

    query, key = normal(NUM_TOKENS, NUM_HEADS, HEAD_DIM), normal(NUM_TOKENS, NUM_KV_HEADS, HEAD_DIM)
    value = key[::-1].copy()
    mask = composed(lambda _: SegmentMask(), SEGMENTS_RT)
    ends = fused(plan, lambda _: SegmentMask(), segment_ends(SEGMENTS_RT, num_replicas=plan.data_parallel))
    expected, found = composed(build, query, key, value, mask), fused(plan, build, query, key, value, ends)
    assert found.shape == expected.shape == (NUM_TOKENS, NUM_HEADS * HEAD_DIM)
    is_real = SEGMENTS_RT.reshape(-1) > 0
    np.testing.assert_allclose(expected[is_real], found[is_real], rtol=1e-5, atol=1e-5)
