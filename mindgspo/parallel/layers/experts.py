"""Dispatch of tokens to experts and one matrix product per expert, in graphs of fixed shapes; no token is dropped.

On Ascend the slots are the assignments sorted by expert, and one GroupedMatmul computes all products. On CPU each
expert's slots are padded to whole blocks, so that every block has one expert and all products are one batched matmul;
empty slots hold token 0 and their results are not read.

Legend: M tokens, K experts per token, A = M * K assignments, S slots, B slots of a block, N blocks, E experts, G groups
of slots (one for each own expert, and one for those of others), I and O in- and output features.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from mindspore.ops import constexpr

from mindgspo.parallel.collectives.graph import all_gather, all_gather_used
from mindgspo.parallel.layers.model_parallel import (
    EnterOwnRun,
    GatherTokens,
    JoinParts,
    OwnRun,
    ScatterTokens,
    Unchanged,
    enter_model_parallel,
    leave_model_parallel,
    used_of_run,
)
from mindgspo.parallel.ops.device import aclnn_on_cards, is_fused
from mindgspo.parallel.plans.placement import Placement

_SMALLEST_BLOCK, _LARGEST_BLOCK = 8, 256


def expert_block_slots(num_assignments: int, num_experts: int) -> int:
    """Return the slots of a block: a quarter of an expert's mean load, rounded down to a power of two from 8 to 256.

    Larger blocks are half empty, smaller ones copy the experts' matrices more often (measured on CPU).
    """
    wanted = num_assignments // (4 * num_experts)
    return min(max(1 << max(wanted.bit_length() - 1, 0), _SMALLEST_BLOCK), _LARGEST_BLOCK)


def num_expert_blocks(num_assignments: int, num_experts: int) -> int:
    """Return the number of blocks that suffices for any routing; at most the assignments, since none is empty."""
    block = expert_block_slots(num_assignments, num_experts)
    return min(num_assignments, (num_assignments + num_experts * (block - 1)) // block)


# Evaluated while the graph is compiled.
block_slots, block_count = constexpr(expert_block_slots), constexpr(num_expert_blocks)


class ExpertSlots(nn.Cell):
    """Assignment of tokens to slots: construct(experts_MK) -> (slot_MK, token_S, own_S1, groups).

    own: this rank's experts, all of them or a run.
    slot_MK: int32, slot of each assignment.
    token_S: int32, token in each slot.
    own_S1: bool, whether a slot belongs to an own expert; these come first.
    groups: input of `grouped_matmul`: the expert of each block, int32 [N], or on Ascend the end of each own expert's
        slots, int64 [own].
    """

    def __init__(self, *, num_experts: int, num_chosen: int, own: range) -> None:
        super().__init__(auto_prefix=False)
        self.first, self.own = own.start, len(own)
        self.num_chosen = num_chosen
        self.is_all = self.own == num_experts
        self.num_groups = self.own if self.is_all else self.own + 1
        self.fused = is_fused()
        self.sort = ops.Sort()
        self.cumsum = aclnn_on_cards(ops.cumsum, mint.cumsum)
        self.count = ops.UnsortedSegmentSum()
        self.gather = ops.Gather()

    def construct(self, experts_MK: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        num_assignments = experts_MK.shape[0] * self.num_chosen
        group_A = self._groups(experts_MK.reshape(-1))
        block, num_blocks = 1, num_assignments
        if not self.fused:
            block = block_slots(num_assignments, self.num_groups)
            num_blocks = block_count(num_assignments, self.num_groups)
        # CPU sorts only floats, which represent the group numbers exactly.
        sorted_A, order_A = self.sort(ops.cast(group_A, ms.float32))
        ones_A = ops.ones((num_assignments,), ms.float32)
        load_G = ops.cast(self.count(ones_A, group_A, self.num_groups), ms.int32)
        room_G = (load_G + (block - 1)) // block * block
        end_G = ops.cast(self.cumsum(room_G, 0), ms.int32)
        shift_G = (end_G - room_G) - (ops.cast(self.cumsum(load_G, 0), ms.int32) - load_G)
        in_order_A = ops.cast(ops.arange(num_assignments), ms.int32)
        slot_A = in_order_A + self.gather(shift_G, ops.cast(sorted_A, ms.int32), 0)  # of sorted assignments
        order_A = ops.cast(order_A, ms.int32)
        slot_MK = ops.tensor_scatter_elements(ops.zeros_like(in_order_A), order_A, slot_A).reshape(experts_MK.shape)
        empty_S = ops.zeros((num_blocks * block,), ms.int32)
        token_S = ops.tensor_scatter_elements(empty_S, slot_A, order_A // self.num_chosen)
        own_S1 = (ops.arange(num_blocks * block) < end_G[self.own - 1]).reshape(-1, 1)
        if self.fused:
            return slot_MK, token_S, own_S1, ops.cast(end_G[: self.own], ms.int64)
        first_N1 = (ops.arange(num_blocks) * block).reshape(-1, 1)
        # Blocks after the last own expert's are empty or belong to other ranks.
        expert_N = ops.cast(ops.cast(first_N1 >= end_G.reshape(1, -1), ms.float32).sum(-1), ms.int32)
        return slot_MK, token_S, own_S1, ops.minimum(expert_N, self.own - 1)

    def _groups(self, expert_A: Tensor) -> Tensor:
        if self.is_all:
            return expert_A
        number_A = expert_A - self.first
        is_own_A = ops.logical_and(number_A >= 0, number_A < self.own)
        return ops.where(is_own_A, number_A, ops.full_like(number_A, self.own))


class OwnSlots(nn.Cell):
    """construct(x_SH, own_S1) -> x_SH with zeros in all but the own slots; its gradient likewise.

    It fills with a number: a tensor of zeros, also in MindSpore's own derivative, would be compiled into a constant as
    large as the slots at each use.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.fill = ops.MaskedFill()

    def construct(self, x_SH: Tensor, own_S1: Tensor) -> Tensor:
        return self.fill(x_SH, ops.logical_not(own_S1), 0.0)

    def bprop(self, x_SH, own_S1, out, dout):
        return self.fill(dout, ops.logical_not(own_S1), 0.0), ops.zeros_like(own_S1)


class GroupedMatMul(nn.Cell):
    """Product of each slot's row with its expert's matrix on Ascend: construct(x_SI, weight_EOI, groups) -> [S, O].

    Results of slots outside `own_S1` are undefined.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        # Input and output are one tensor each, grouped along the rows.
        self.grouped = ops.auto_generate.GroupedMatmul(split_item=3, group_type=0)
        self.transpose = ops.Transpose()

    def construct(self, x_SI: Tensor, weight_EOI: Tensor, groups: Tensor) -> Tensor:
        weight_EIO = self.transpose(weight_EOI, (0, 2, 1))
        return self.grouped((x_SI,), (weight_EIO,), None, None, None, None, None, groups)[0]


class BlockMatMul(nn.Cell):
    """`GroupedMatMul` for blocks of slots with one expert each: a batched product with copies of the matrices.

    The backward pass copies the matrices again instead of keeping the copies.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.product = ops.BatchMatMul()
        self.transposed_product = ops.BatchMatMul(transpose_b=True)
        self.of_weights = ops.BatchMatMul(transpose_a=True)
        self.gather = ops.Gather()
        self.sum_by_expert = ops.UnsortedSegmentSum()

    def construct(self, x_SI: Tensor, weight_EOI: Tensor, expert_N: Tensor) -> Tensor:
        x_NBI = x_SI.reshape(expert_N.shape[0], -1, x_SI.shape[-1])
        expert_N = ops.depend(expert_N, x_SI)  # delays the copies until they are needed
        out_NBO = self.transposed_product(x_NBI, self.gather(weight_EOI, expert_N, 0))
        return out_NBO.reshape(x_SI.shape[0], -1)

    def bprop(self, x_SI, weight_EOI, expert_N, out, dout):
        num_blocks, num_experts = expert_N.shape[0], weight_EOI.shape[0]
        x_NBI = x_SI.reshape(num_blocks, -1, x_SI.shape[-1])
        dout_NBO = dout.reshape(num_blocks, -1, dout.shape[-1])
        expert_N = ops.depend(expert_N, dout)
        dx_NBI = self.product(dout_NBO, self.gather(weight_EOI, expert_N, 0))
        dweight_EOI = self.sum_by_expert(self.of_weights(dout_NBO, x_NBI), expert_N, num_experts)
        return dx_NBI.reshape(x_SI.shape), dweight_EOI, ops.zeros_like(expert_N)


def grouped_matmul() -> nn.Cell:
    """Return the product for this device."""
    return GroupedMatMul() if is_fused() else BlockMatMul()


class ExpertRanks(nn.Cell):
    """Communication of a mixture of experts.

    Every token is computed by one block of ranks that together have all experts; each rank computes the contributions
    of its experts to the tokens of its block.

    - If the block is a replica, its ranks have the same tokens, and results are summed over them.
    - With use_seq_parallel each rank has its own tokens; the block gathers them and scatters the sums.
    - A block of several replicas, or of parts of their sequences, gathers the tokens of all, per slice; sums are
      scattered back to the tokens' ranks and summed over the slices.
    - With several blocks per replica, each block takes its run of the replica's tokens, and its ranks scatter the sums;
      in rank order these are the replica's tokens.
    """

    def __init__(self, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        slices, block, ranks = place.model_parallel, place.plan.expert_block, place.expert_ranks
        self.enter, self.leave = enter_model_parallel(place), leave_model_parallel(place)
        self.cut = self.gather = self.gather_given = self.scatter = self.own = self.join = Unchanged()
        self.number, self.is_share, self.is_gathered, self.has_own = 0, False, False, False
        self.model_rank, self.block = place.at.model, block
        if not place.plan.use_seq_parallel and block < slices:
            self.number, self.is_share = place.at.model // block, True
            self.cut = OwnRun(self.number, slices // block)
            self.enter = EnterOwnRun(place.model_ranks, self.number, slices // block)
            self.scatter = ScatterTokens(ranks) if block > 1 else Unchanged()
            self.leave = JoinParts(place.model_ranks, place.at.model)
            self.own, self.join = OwnRun(place.at.model % block, block), all_gather(place.model_ranks)
        elif block != slices:
            if place.plan.use_seq_parallel:
                self.enter = self.leave = Unchanged()
                self.cut, self.join = OwnRun(place.at.model, slices), all_gather(place.model_ranks)
            else:
                ranks = tuple(rank for rank in ranks if rank % slices == place.at.model)
            self.is_gathered, self.has_own = len(ranks) > 1, len(ranks) == 1
            if self.is_gathered:
                self.gather, self.scatter = GatherTokens(ranks), ScatterTokens(ranks)
                self.gather_given = all_gather_used(ranks)
                self.own = OwnRun(ranks.index(place.rank), len(ranks))

    def tokens_of(self, x_MH: Tensor, own: Tensor, region: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens of this rank's block and how many of their rows are in use.

        own, region: see `TokensInUse`.
        """
        x_MH = self.gather(self.enter(x_MH, own), own)
        rows = x_MH.shape[0]
        if self.is_gathered:  # rows that are not in use are zero
            return x_MH, ops.ones((1,), ms.int32) * rows
        if self.is_share:
            return x_MH, self._used(region, self.number, rows)
        return x_MH, own if self.has_own else region

    def given_of(self, given_MK: Tensor, own: Tensor) -> Tensor:
        """Return the recorded experts of the tokens of `tokens_of`, given those of a region's tokens."""
        return self.gather_given(self.cut(given_MK), own)

    def results_of(self, out_MH: Tensor, own: Tensor, region: Tensor) -> Tensor:
        """Return the sum of all experts' contributions to the tokens that entered."""
        if self.is_share:
            own = self._used(region, self.model_rank, out_MH.shape[0] // self.block)
        return self.leave(self.scatter(out_MH, own), own)

    def _used(self, region: Tensor, number: int, rows: int) -> Tensor:
        """Return the rows in use of run number `number` of a region's equal runs of `rows`."""
        return used_of_run(ops.cast(region.reshape(-1)[-1:], ms.int32), number, rows)

    def choice_of(self, chosen_MK: Tensor) -> Tensor:
        """Return the chosen experts of a region's tokens, given those of the tokens of `tokens_of`."""
        return self.join(self.own(chosen_MK))
