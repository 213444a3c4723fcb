"""Mixtures of experts as feed-forward blocks: each token goes to a few of many experts, and none is ever dropped.

Qwen3-MoE's, and those of DeepSeek-V3 (arXiv 2412.19437) and GLM-4.5: with sigmoids as scores, a frozen bias for
choosing alone, perhaps groups of experts, and a dense block for all tokens, the shared experts.

Under model_parallel the ranks see the same tokens, route them alike, and have a share of the inner features of every
expert, or some experts whole, so that their outputs are summed like those of a dense block; `ExpertRanks` says which
tokens a rank receives.

Experts may be given (router replay: VERL's R2 and R3, arXiv 2510.11370): then the router weights those, and its
gradient flows through their weights.

Legend: M flattened tokens, E experts, K experts per token, S slots, H hidden, I inner features of one expert.
"""

from __future__ import annotations

from typing import NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

from mindgspo.config import ModelSection
from mindgspo.config.model import FAMILIES
from mindgspo.models.feed_forward import FeedForward
from mindgspo.models.names import CORRECTION
from mindgspo.parallel.layers.adapters import adapter
from mindgspo.parallel.layers.expert_adapters import (
    ExpertAdapter,
    ExpertLinearGroup,
    ExpertProduct,
    expert_adapter,
)
from mindgspo.parallel.layers.experts import ExpertRanks, ExpertSlots, OwnSlots
from mindgspo.parallel.layers.model_parallel import InTurn
from mindgspo.parallel.ops.device import SwiGLUOp, aclnn_on_cards, fork_op, has_kernels
from mindgspo.parallel.ops.kernels import ExpertsKernel
from mindgspo.parallel.plans.placement import Placement
from mindgspo.parallel.platform.parameter_memory import zero_parameter


class RoutingRule(NamedTuple):
    """How a router scores experts and weighs those that it chooses."""

    is_sigmoid: bool = False
    """Scores are sigmoids instead of a softmax."""
    is_normed: bool = False
    """The weights of a token's experts are their shares of the sum of these experts' scores."""
    groups: int = 1
    best_groups: int = 1
    """Experts are chosen from so many of the equal groups: those with the largest sums of their two largest scores."""
    scale: float = 1.0
    """Factor of the weights."""

    @classmethod
    def of(cls, config: ModelSection) -> RoutingRule:
        """The rule of a model's routers."""
        return cls(
            is_sigmoid=FAMILIES[config.architecture].has_shared_experts,
            is_normed=config.norm_topk_prob,
            groups=config.n_group,
            best_groups=config.topk_group,
            scale=config.routed_scaling_factor,
        )


class Router(nn.Cell):
    """Scores of the experts, of x W^T, in float32, and the K with the largest score + bias; Hugging Face's
    Qwen3MoeTopKRouter and Glm4MoeTopkRouter.

    construct(x_MH, weight_EH, bias_E) -> (experts_MK int32, the chosen ones; weights_MK float32, by their scores).
    weigh: the weights of given ones."""

    def __init__(self, num_chosen: int, rule: RoutingRule) -> None:
        super().__init__(auto_prefix=False)
        self.num_chosen, self.scale = num_chosen, rule.scale
        self.is_sigmoid, self.is_normed = rule.is_sigmoid, rule.is_normed
        self.groups, self.best_groups = rule.groups, rule.best_groups
        self.logits = ops.MatMul(transpose_b=True)
        self.activation = ops.Sigmoid() if rule.is_sigmoid else ops.Softmax(axis=-1)
        self.top_k = aclnn_on_cards(ops.TopK(sorted=True), mint.topk)
        self.fill = ops.MaskedFill()

    def construct(self, x_MH: Tensor, weight_EH: Tensor, bias_E: Tensor) -> tuple[Tensor, Tensor]:
        scores_ME = self.scores(x_MH, weight_EH)
        merits_ME = ops.stop_gradient(scores_ME)
        if self.is_sigmoid:
            merits_ME = merits_ME + bias_E
        if self.best_groups < self.groups:
            merits_ME = self._in_best_groups(merits_ME)
        _, experts_MK = self.top_k(merits_ME, self.num_chosen)
        experts_MK = ops.cast(experts_MK, ms.int32)
        return experts_MK, self.weigh(scores_ME, experts_MK)

    def scores(self, x_MH: Tensor, weight_EH: Tensor) -> Tensor:
        return self.activation(self.logits(ops.cast(x_MH, ms.float32), weight_EH))

    def weigh(self, scores_ME: Tensor, experts_MK: Tensor) -> Tensor:
        weights_MK = ops.gather_elements(scores_ME, 1, experts_MK)
        if self.is_normed:
            total_M1 = weights_MK.sum(-1, keepdims=True)
            weights_MK = weights_MK / (total_M1 + 1e-20 if self.is_sigmoid else total_M1)
        return weights_MK if self.scale == 1.0 else weights_MK * self.scale

    def _in_best_groups(self, merits_ME: Tensor) -> Tensor:
        """Minus infinity outside of the best groups."""
        by_group = merits_ME.reshape(merits_ME.shape[0], self.groups, -1)
        largest, _ = self.top_k(by_group, 2)
        _, best_MB = self.top_k(largest.sum(-1), self.best_groups)
        numbers = ops.cast(ops.arange(self.groups), ms.int32).reshape(1, 1, -1)
        is_best = ops.cast(ops.equal(ops.cast(best_MB, ms.int32).expand_dims(2), numbers), ms.float32)
        is_out = ops.equal(is_best.sum(1), 0.0).expand_dims(2)
        return self.fill(by_group, is_out, float("-inf")).reshape(merits_ME.shape)


class ExpertShare(nn.Cell):
    """The contribution of one rank's experts, or its slices of them, to the block's output: for each token the sum over
    its own experts of weight * down(silu(gate(x)) * up(x)), [M, H].

    adapters: of gate, up and down, None for those without."""

    def __init__(
        self,
        slots: ExpertSlots,
        dtype: ms.Type,
        adapters: tuple[ExpertAdapter | None, ExpertAdapter | None, ExpertAdapter | None] = (None, None, None),
    ) -> None:
        super().__init__(auto_prefix=False)
        self.slots = slots
        self.own_slots = OwnSlots()
        self.dtype = dtype
        self.gate, self.up, self.down = (ExpertProduct(dtype, one) for one in adapters)
        self.swiglu = SwiGLUOp()
        self.gather = ops.Gather()
        self.weigh = ops.BatchMatMul()

    def construct(
        self,
        x_MH: Tensor,
        experts_MK: Tensor,
        weights_MK: Tensor,
        gate_EIH: Tensor,
        up_EIH: Tensor,
        down_EHI: Tensor,
    ) -> Tensor:
        slot_MK, token_S, own_S1, groups = self.slots(experts_MK)
        x_SH = self._own(self.gather(x_MH, token_S, 0), own_S1)
        gate_SI, up_SI = self.gate(x_SH, gate_EIH, groups), self.up(x_SH, up_EIH, groups)
        out_SH = self.down(self.swiglu(gate_SI, up_SI, groups), down_EHI, groups)
        out_MKH = self.gather(self._own(out_SH, own_S1), slot_MK.reshape(-1), 0).reshape(*experts_MK.shape, -1)
        # As Hugging Face: outputs are weighted in the model's type, and the sum is formed in it. On CPU a matrix
        # product costs a tenth of multiplying and summing.
        weights_M1K = ops.cast(weights_MK, self.dtype).expand_dims(1)
        return self.weigh(weights_M1K, out_MKH).reshape(x_MH.shape)

    def _own(self, x_SH: Tensor, own_S1: Tensor) -> Tensor:
        """Zeros in the slots of other ranks' experts, also in the gradient, because their contents are undefined."""
        if self.slots.is_all:
            return x_SH
        return self.own_slots(x_SH, own_S1)


class MixtureOfExperts(nn.Cell):
    """Router, experts and shared experts; the parameters of the experts are stacked, [E, I, H] and [E, H, I]."""

    def __init__(self, config: ModelSection, dtype: ms.Type, name: str, place: Placement) -> None:
        super().__init__(auto_prefix=False)
        num_experts, num_chosen = config.num_experts, config.num_experts_per_tok
        assert num_experts is not None and num_chosen is not None and config.moe_intermediate_size is not None
        hidden, inner = config.hidden_size, config.moe_intermediate_size // place.plan.expert_slices
        own = place.own_experts(num_experts)
        held = len(own)
        rule = RoutingRule.of(config)
        self.gate = zero_parameter((num_experts, hidden), f"{name}.gate.weight")
        if rule.is_sigmoid:
            self.bias = zero_parameter((num_experts,), f"{name}.gate{CORRECTION}", requires_grad=False)
        else:
            self.bias = Tensor(np.zeros(num_experts, np.float32))
        self.gate_proj = zero_parameter((held, inner, hidden), f"{name}.experts.gate_proj.weight")
        self.up_proj = zero_parameter((held, inner, hidden), f"{name}.experts.up_proj.weight")
        self.down_proj = zero_parameter((held, hidden, inner), f"{name}.experts.down_proj.weight")
        lora, shapes = config.lora, {"gate": (held, inner, hidden), "up": (held, inner, hidden)}
        shapes["down"] = (held, hidden, inner)
        gate, up, down = (expert_adapter(lora, shape, f"{name}.experts.{of}_proj") for of, shape in shapes.items())
        self.router_adapter = adapter(lora, hidden, num_experts, dtype=ms.float32, name=f"{name}.gate")
        self.outer, self.add = ops.MatMul(), ops.Add()
        self.shared = None
        if config.n_shared_experts:
            width = config.n_shared_experts * config.moe_intermediate_size
            self.shared = FeedForward(config, width, dtype, f"{name}.shared_experts", place)
            self.fork, self.in_turn = fork_op(), InTurn()
        self.ranks, self.kernel = ExpertRanks(place), None
        if has_kernels():
            self.kernel = ExpertsKernel(
                num_experts,
                num_chosen,
                rule=rule,
                own=own,
                gate_up=ExpertLinearGroup([gate, up], is_frozen=lora is not None),
                down=ExpertLinearGroup([down], is_frozen=lora is not None),
            )
        else:
            slots = ExpertSlots(num_experts=num_experts, num_chosen=num_chosen, own=own)
            self.share = ExpertShare(slots, dtype, (gate, up, down))
            self.router = Router(num_chosen, rule)

    def construct(
        self,
        x_MH: Tensor,
        tokens: tuple[Tensor, Tensor, Tensor],
        replayed_MK: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the block's output, to be added to x, and the experts that the router chooses, int32 [M, K].

        replayed_MK: recorded experts to use instead, int32.
        """
        own, region, _ = tokens
        if replayed_MK is not None:
            replayed_MK = self.ranks.given_of(replayed_MK, own)
            x_MH = ops.depend(x_MH, replayed_MK)  # one collective after the other
        shared_MH = x_MH
        if self.shared is not None:
            x_MH, shared_MH = self.fork(x_MH)
        x_MH, used = self.ranks.tokens_of(x_MH, own, region)
        gate_EH = self.gate
        if self.router_adapter is not None:  # it has few rows, so the sum costs less than two more products
            gate_EH = self.add(gate_EH, self.outer(self.router_adapter.lora_B, self.router_adapter.scaled()))
        if self.kernel is not None:
            weights = (gate_EH, self.bias, self.gate_proj, self.up_proj, self.down_proj)
            out_MH, chosen_MK = self.kernel(x_MH, *weights, used, replayed_MK)
        else:
            chosen_MK, weights_MK = self.router(x_MH, gate_EH, self.bias)
            if replayed_MK is not None:
                weights_MK = self.router.weigh(self.router.scores(x_MH, gate_EH), replayed_MK)
            experts_MK = chosen_MK if replayed_MK is None else replayed_MK
            out_MH = self.share(x_MH, experts_MK, weights_MK, self.gate_proj, self.up_proj, self.down_proj)
        out_MH = self.ranks.results_of(out_MH, own, region)
        chosen_MK = self.ranks.choice_of(ops.depend(chosen_MK, out_MH))
        if self.shared is not None:
            shared_MH, out_MH = self.in_turn(ops.depend(shared_MH, chosen_MK), out_MH)
            out_MH = self.add(out_MH, self.shared(shared_MH, tokens))
        return out_MH, chosen_MK

    def cheap_cells(self) -> tuple[nn.Cell, ...]:
        """Return the cells that `recompute: selective` computes again."""
        shared = () if self.shared is None else self.shared.cheap_cells()
        return (self.share.swiglu if self.kernel is None else self.kernel.swiglu, *shared)
