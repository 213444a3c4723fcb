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
        assert model.head_dim is not None, "the section is not checked"
        matrices = {name: shape for name, shape in parameter_shapes(model).items() if ".layers." in name and shape[1:]}
        passed = {
            name: 2 * prod(shape[-2:]) * ((model.num_experts_per_tok or 1) if len(shape) == 3 else 1)
            for name, shape in matrices.items()
        }
        adapters = sum(number for name, number in passed.items() if is_adapter(name))
        base = sum(passed.values()) - adapters
        head = 2 * model.vocab_size * model.hidden_size
        return Operations(
            trunk=base + adapters,
            head=head,
            pair=2 * model.num_hidden_layers * model.num_attention_heads * (model.head_dim + model.value_dim),
            frozen_trunk=0 if model.lora is None else base,
            frozen_head=0 if model.lora is None else head,
        )
