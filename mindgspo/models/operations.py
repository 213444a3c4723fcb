"""Operations of a forward pass from the model's sizes, as verl's flops_counter counts them: two for every weight that a
token passes through. Norms, softmax and rotary embedding are left out. Pure Python."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from mindgspo.config import ModelSection
from mindgspo.models.names import is_adapter, parameter_shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """trunk: of one token in all layers, without attention's products. head: of one token's logits. pair: of one token
    that attends to another, in all layers. A backward pass takes twice as many, and as many for those of frozen_trunk
    and frozen_head, whose weights get no gradient."""

    trunk: int
    head: int
    pair: int
    frozen_trunk: int = 0
    frozen_head: int = 0

    @property
    def trained_token(self) -> int:
        """Operations per token, forward and backward, without attention's products; both vocabulary tables count."""
        return 3 * (self.trunk + 2 * self.head) - self.frozen_trunk - self.frozen_head

    @property
    def trained_pair(self) -> int:
        """Attention's operations per pair of tokens of a sample, forward and backward; a sample has length^2 pairs."""
        return 3 * self.pair

    @staticmethod
    @lru_cache(maxsize=64)
    def of(model: ModelSection) -> Operations:
        """Count the operations of a model; of its experts, those that one token goes to, shared ones and the router."""
        hidden, heads, head_dim = model.hidden_size, model.num_attention_heads, model.head_dim
        assert head_dim is not None, "the section is not checked"
        attention = 2 * hidden * head_dim * (heads + model.num_key_value_heads)
        layers = model.num_hidden_layers
        blocks = 3 * hidden * model.intermediate_size * (layers - len(model.expert_layers))
        if model.num_experts is not None:
            assert model.num_experts_per_tok is not None and model.moe_intermediate_size is not None
            seen = model.num_experts_per_tok + model.n_shared_experts
            blocks += len(model.expert_layers) * hidden * (3 * seen * model.moe_intermediate_size + model.num_experts)
        base = 2 * (layers * attention + blocks)
        chosen = model.num_experts_per_tok or 1
        adapters = 2 * sum(
            prod(shape[-2:]) * (chosen if len(shape) == 3 else 1)
            for name, shape in parameter_shapes(model).items()
            if is_adapter(name)
        )
        return Operations(
            trunk=base + adapters,
            head=2 * model.vocab_size * hidden,
            pair=4 * layers * heads * head_dim,
            frozen_trunk=0 if model.lora is None else base,
            frozen_head=0 if model.lora is None else 2 * model.vocab_size * hidden,
        )
