"""Slots and grouped products of a mixture of experts: every assignment has a slot of its own expert, on any share of
the experts, and the shares add up to the whole."""

from __future__ import annotations

import re

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Tensor, nn, ops

from mindgspo.models.mixture_of_experts import ExpertShare
from mindgspo.parallel.layers.experts import (
    ExpertSlots,
    OwnSlots,
    expert_block_slots,
    grouped_matmul,
    num_expert_blocks,
)
from mindgspo.parallel.platform.runtime import compiled_text

pytestmark = pytest.mark.usefixtures("composed_runtime")  # tools/kernels/tests has those of kernels


def choices(num_tokens: int, num_experts: int, num_chosen: int, *, seed: int, favourite: float = 0.0) -> np.ndarray:
    """int32 [M, K], distinct experts of each token; with `favourite` most tokens go to the first ones."""
    random = np.random.default_rng(seed)
    appeal = random.random((num_tokens, num_experts)) - favourite * np.arange(num_experts)
    return np.argsort(-appeal, axis=1)[:, :num_chosen].astype(np.int32)


@settings(max_examples=12)
@given(
    num_tokens=st.sampled_from([1, 7, 40]), num_experts=st.sampled_from([2, 5, 8, 40]), num_chosen=st.integers(1, 2),
    favourite=st.sampled_from([0.0, 10.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_every_assignment_has_its_own_slot_in_a_block_of_its_expert(
    num_tokens: int, num_experts: int, num_chosen: int, favourite: float, seed: int
) -> None:
    experts_MK = choices(num_tokens, num_experts, num_chosen, seed=seed, favourite=favourite)
    found = ExpertSlots(num_experts=num_experts, num_chosen=num_chosen, own=range(num_experts))(Tensor(experts_MK))
    slot_MK, token_S, own_S1, expert_N = (array.asnumpy() for array in found)
    assert len(set(slot_MK.reshape(-1))) == slot_MK.size
    block = token_S.size // expert_N.size
    np.testing.assert_array_equal(expert_N[slot_MK // block], experts_MK)
    np.testing.assert_array_equal(token_S[slot_MK], np.tile(np.arange(num_tokens)[:, None], (1, num_chosen)))
    assert own_S1[slot_MK.reshape(-1)].all()


@pytest.mark.parametrize(("first", "own"), [(0, 2), (2, 3), (5, 1)])
def test_a_share_of_the_experts_keeps_to_its_own_slots(first: int, own: int) -> None:
    experts_MK = choices(30, 6, 2, seed=1)
    share = ExpertSlots(num_experts=6, num_chosen=2, own=range(first, first + own))
    slot_MK, _, own_S1, expert_N = (array.asnumpy() for array in share(Tensor(experts_MK)))
    is_own_MK = (experts_MK >= first) & (experts_MK < first + own)
    np.testing.assert_array_equal(own_S1[slot_MK.reshape(-1), 0].reshape(slot_MK.shape), is_own_MK)
    block = own_S1.size // expert_N.size
    np.testing.assert_array_equal(expert_N[slot_MK // block][is_own_MK], experts_MK[is_own_MK] - first)


def test_there_are_no_more_blocks_than_assignments() -> None:
    assert [num_expert_blocks(assignments, 128) for assignments in (8, 64, 128)] == [8, 64, 128]
    assert (expert_block_slots(4096, 8), num_expert_blocks(4096, 8)) == (128, (4096 + 8 * 127) // 128)


def test_the_grouped_product_by_hand() -> None:
    # Two blocks of two slots: the first is expert 1's, the second expert 0's.
    x_SI = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
    weight_EOI = np.array([[[1, 0]], [[0, 10]]], np.float32)
    found = grouped_matmul()(Tensor(x_SI), Tensor(weight_EOI), Tensor(np.array([1, 0], np.int32)))
    assert found.asnumpy().tolist() == [[20], [40], [5], [7]]


def test_slots_of_other_ranks_become_zeros_whatever_they_hold() -> None:
    x_SH = np.array([[1, 2], [np.nan, np.inf], [3, 4]], np.float32)
    own_S1 = np.array([[True], [False], [True]])
    cell = OwnSlots()

    def weighed(x):
        out = cell(x, Tensor(own_S1))
        return (out * Tensor(np.array([[5, 6], [9, 7], [8, 9]], np.float32))).sum(), out

    (_, out), gradient = ms.value_and_grad(weighed, has_aux=True)(Tensor(x_SH))
    assert out.asnumpy().tolist() == [[1, 2], [0, 0], [3, 4]]
    assert gradient.asnumpy().tolist() == [[5, 6], [0, 0], [8, 9]]


NUM_TOKENS, NUM_EXPERTS, NUM_CHOSEN, HIDDEN, INNER = 23, 6, 2, 8, 4


def weights(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    column = (NUM_EXPERTS, INNER, HIDDEN)
    row = (NUM_EXPERTS, HIDDEN, INNER)
    return tuple(0.3 * random.normal(size=shape).astype(np.float32) for shape in (column, column, row))


def inputs_of_all() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """x [M, H], router weights [M, K], the gradient of the output [M, H], experts [M, K]."""
    random = np.random.default_rng(3)
    x_MH = random.normal(size=(NUM_TOKENS, HIDDEN)).astype(np.float32)
    weights_MK = random.random((NUM_TOKENS, NUM_CHOSEN)).astype(np.float32)
    wanted_MH = random.normal(size=(NUM_TOKENS, HIDDEN)).astype(np.float32)
    return x_MH, weights_MK, wanted_MH, choices(NUM_TOKENS, NUM_EXPERTS, NUM_CHOSEN, seed=4)


def share_of(experts: slice, inner: slice):
    """(output, gradients of x, router weights and the three parts) of some experts' slices of features."""
    x_MH, weights_MK, wanted_MH, experts_MK = inputs_of_all()
    gate, up, down = weights(5)
    parts = (gate[experts, inner], up[experts, inner], down[experts, :, inner])
    slots = ExpertSlots(num_experts=NUM_EXPERTS, num_chosen=NUM_CHOSEN, own=range(experts.start, experts.stop))
    cell = ExpertShare(slots, ms.float32)

    def weighed(x, router_weights, gate_EIH, up_EIH, down_EHI):
        out = cell(x, Tensor(experts_MK), router_weights, gate_EIH, up_EIH, down_EHI)
        return (out * Tensor(wanted_MH)).sum(), out

    inputs = tuple(Tensor(np.ascontiguousarray(array)) for array in (x_MH, weights_MK, *parts))
    (_, out), gradients = ms.value_and_grad(weighed, (0, 1, 2, 3, 4), has_aux=True)(*inputs)
    return out.asnumpy(), [gradient.asnumpy() for gradient in gradients]


def whole_in_float64() -> tuple[np.ndarray, np.ndarray]:
    """Output and the gradient of the down matrices, token by token."""
    *reals, experts_MK = inputs_of_all()
    x_MH, weights_MK, wanted_MH, gate, up, down = (array.astype(np.float64) for array in (*reals, *weights(5)))
    out, of_down = np.zeros_like(x_MH), np.zeros_like(down)
    for token, x in enumerate(x_MH):
        for expert, weight in zip(experts_MK[token], weights_MK[token], strict=True):
            z = gate[expert] @ x
            inner = z / (1 + np.exp(-z)) * (up[expert] @ x)
            out[token] += weight * down[expert] @ inner
            of_down[expert] += weight * np.outer(wanted_MH[token], inner)
    return out, of_down


def test_the_whole_against_float64() -> None:
    out, gradients = share_of(slice(0, NUM_EXPERTS), slice(0, INNER))
    expected, of_down = whole_in_float64()
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(gradients[4], of_down, rtol=0, atol=1e-5)


@pytest.mark.parametrize("cuts", [(2, 1), (3, 2), (1, 2)], ids=["experts", "experts and features", "features"])
def test_shares_add_up_to_the_whole(cuts: tuple[int, int]) -> None:
    """What ranks with parts of the experts, or of their features, find: outputs, gradients of what they share, and each
    its own matrices' gradients."""
    whole, gradients = share_of(slice(0, NUM_EXPERTS), slice(0, INNER))
    each, width = NUM_EXPERTS // cuts[0], INNER // cuts[1]
    total, of_x, of_weights = np.zeros_like(whole), np.zeros_like(gradients[0]), np.zeros_like(gradients[1])
    for first in range(0, NUM_EXPERTS, each):
        for start in range(0, INNER, width):
            experts, inner = slice(first, first + each), slice(start, start + width)
            out, found = share_of(experts, inner)
            total, of_x, of_weights = total + out, of_x + found[0], of_weights + found[1]
            for number, index in ((2, (experts, inner)), (3, (experts, inner)), (4, (experts, slice(None), inner))):
                np.testing.assert_allclose(found[number], gradients[number][index], rtol=0, atol=1e-5)
    for found, expected in ((total, whole), (of_x, gradients[0]), (of_weights, gradients[1])):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert min(np.abs(gradient).max() for gradient in gradients) > 0.1


def test_no_constant_of_a_graph_is_as_large_as_the_hidden_states_in_the_slots() -> None:
    """Compiling folds zeros of a known shape into constants: with long rows of a large model 1 GB for each of them."""

    class Gradients(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            slots = ExpertSlots(num_experts=NUM_EXPERTS, num_chosen=NUM_CHOSEN, own=range(NUM_EXPERTS // 2))
            self.share = ExpertShare(slots, ms.float32)
            self.gradients = ops.GradOperation(get_all=True, sens_param=True)

        def construct(self, *inputs):
            return self.gradients(self.share)(*inputs)

    x_MH = Tensor(np.ones((NUM_TOKENS, HIDDEN), np.float32))
    experts_MK = Tensor(choices(NUM_TOKENS, NUM_EXPERTS, NUM_CHOSEN, seed=4))
    weights_MK = Tensor(np.ones((NUM_TOKENS, NUM_CHOSEN), np.float32))
    parts = (Tensor(part[: NUM_EXPERTS // 2]) for part in weights(5))
    cell = Gradients()
    cell.compile(x_MH, experts_MK, weights_MK, *parts, x_MH)
    shapes = re.findall(r"Tensor\(shape=\[([\d, ]+)\]", compiled_text(cell))
    sizes = [int(np.prod([int(length) for length in shape.split(",")])) for shape in shapes]
    assert sizes and max(sizes) < NUM_TOKENS * NUM_CHOSEN * HIDDEN
