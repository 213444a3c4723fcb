"""MindFormers' transformer as a cell with our model's interface; its parameters bear Hugging Face's names.

So weights, scoring, updates, checkpoints and exports work on it as on our own. It does not generate: its cells keep
keys and values on Ascend only.

Legend: R rows, T token slots, M = R * T flattened tokens, H hidden units, V vocabulary entries.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from mindgspo.config import ModelSection
from mindgspo.integrations.mindformers import llama_settings, require_mindformers
from mindgspo.models.names import hugging_face_name, parameter_shapes
from mindgspo.parallel.layers.model_parallel import TokensInUse
from mindgspo.parallel.plans.placement import ALONE


class MindFormersModel(nn.Cell):
    """The transformer of a `LlamaForCausalLM`, all of it in one process, without its head.

    Rows hold one sample each, from their first slot on: attention is causal over the whole row, and positions are the
    slots' numbers. Where a row holds anything else (packed samples, padding on the left) every hidden state is NaN,
    which an update refuses.
    """

    def __init__(self, config: ModelSection, net: Any) -> None:
        super().__init__(auto_prefix=False)
        self.config = config
        self.place, self.dtype = ALONE, ms.float32
        self.masters: dict[str, Parameter] | None = None
        self.tokens_in_use = TokensInUse(ALONE, has_kernels=False)
        self.hidden_size, self.head_dim = config.hidden_size, config.head_dim
        self.tied = config.tie_word_embeddings
        self.num_tokens, self.is_padded = config.vocab_size, False
        self.net = net

    def output_weight(self) -> Tensor:
        """The table that turns hidden states into logits, [V, H]."""
        return self.net.model.tok_embeddings.embedding_weight if self.tied else self.net.lm_head.weight

    def passed_shape(self, num_tokens: int) -> tuple[int, int]:
        """[M, H]; it is never divided into stages."""
        return num_tokens, self.hidden_size

    def with_choices(
        self, ids_RT: Tensor, positions_RT: Tensor, segments: Tensor, *replayed_MX: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """As `construct`, and the choices of no router."""
        return self.construct(ids_RT, positions_RT, segments), ()

    def construct(self, inputs: Tensor, positions_RT: Tensor, segments_RT: Tensor, *replayed_MX: Tensor) -> Tensor:
        """Hidden states after the last norm, [M, H]. inputs: ids_RT. positions_RT: not read, see above. replayed_MX:
        nothing; there are no experts."""
        hidden_RTH = self.net.model(inputs)
        one_sample = (segments_RT <= 1).all()
        from_the_left = (segments_RT[:, 1:] <= segments_RT[:, :-1]).all()
        refusal = ops.where(ops.logical_and(one_sample, from_the_left), 0.0, float("nan"))
        return hidden_RTH.reshape(-1, self.hidden_size) + refusal


def build_mindformers_model(section: ModelSection, *, longest_row: int) -> MindFormersModel:
    """The model with MindFormers' own initial weights; fill it by `models.weights`.

    longest_row: tokens of the longest row that it will see. Raises ConfigError: MindFormers is not there, or the
    architecture is none of its legacy cells'.
    """
    settings = llama_settings(section, longest_row=longest_row)
    require_mindformers()
    from mindformers.models.llama.llama import LlamaForCausalLM  # pyright: ignore[reportMissingImports] - an extra
    from mindformers.models.llama.llama_config import LlamaConfig  # pyright: ignore[reportMissingImports]

    net = LlamaForCausalLM(LlamaConfig(**settings))
    for parameter in net.get_parameters():
        parameter.name = hugging_face_name(parameter.name)
    found = {parameter.name: tuple(parameter.shape) for parameter in net.get_parameters()}
    expected = parameter_shapes(section)
    assert found == expected, f"MindFormers built other weights: {sorted(set(found.items()) ^ set(expected.items()))}"
    net.set_train(False)  # its construct then returns logits; there is no dropout in it
    return MindFormersModel(section, net)
