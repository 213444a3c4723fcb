"""The interface of a model for the code around it: scoring, updates, weights, checkpoints and the transfer of weights.

Ours is `transformer.Transformer`, the only one that `rollout` generates with; MindFormers' is in `integrations`.

Legend: M tokens of this rank's part of a batch, H hidden units, V vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import mindspore as ms
from mindspore import Parameter, Tensor, nn

from mindgspo.config import ModelSection
from mindgspo.parallel.layers.model_parallel import TokensInUse
from mindgspo.parallel.plans.placement import Placement


class Model(Protocol):
    """The members that a custom model must have. It is a cell, the transformer without its head, with parameters under
    Hugging Face's names and shapes (`names.parameter_shapes`).

    A model that consists of our kernels and computes only real tokens also has `is_packed`, True; see `takes_packed`.
    """

    config: ModelSection
    place: Placement
    """Placement of this rank's part of the model; `ALONE` for a model that is not divided."""
    dtype: ms.Type
    """Its compute type, also that of its hidden states."""
    masters: dict[str, Parameter] | None
    """None at first; see `weights.hold_masters`."""
    num_tokens: int
    """Number of tokens in the vocabulary, the leading rows of the output table."""
    is_padded: bool
    """Whether the output table has more rows than that."""
    tokens_in_use: TokensInUse
    """For its place; has_kernels as `is_packed`."""

    def __call__(self, ids_RT: Tensor, positions_RT: Tensor, segments: Tensor, *replayed_MX: Tensor) -> Tensor:
        """Hidden states after the final norm, [M, H]; see `Transformer.construct`."""
        ...

    def with_choices(
        self, ids_RT: Tensor, positions_RT: Tensor, segments: Tensor, *replayed_MX: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The hidden states, and what the routers choose, layer by layer; () without experts."""
        ...

    def output_weight(self) -> Tensor:
        """This rank's rows of the table that turns hidden states into logits, [V / model_parallel, H]."""
        ...

    def passed_shape(self, num_tokens: int) -> tuple[int, int]:
        """Shape [M, H] of the states that one pipeline stage passes to the next for this many tokens of a
        micro-batch."""
        ...

    def get_parameters(self) -> Iterator[Parameter]:
        """Every parameter once, like `nn.Cell.get_parameters`."""
        ...

    def cells_and_names(self) -> Iterator[tuple[str, nn.Cell]]:
        """Every cell inside, like `nn.Cell.cells_and_names`."""
        ...
