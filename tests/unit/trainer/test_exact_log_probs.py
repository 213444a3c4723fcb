"""Bit-equal log-probs of sampler and trainer: by type, model, rows and cache; what parts them is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mindspore
import numpy as np
import pytest
from exact_cases import PACKED, make_case
from small_plans import GLM4, MIXTURE

from mindgspo.errors import TrainingError

pytestmark = pytest.mark.usefixtures("cpu_runtime")

CROWDED = {"num_blocks": 9, "block": 8}
"""A cache that some sequences have to leave."""
LORA = {"rank": 4, "alpha": 8.0}
EQUAL: dict[str, dict[str, Any]] = {
    "float32": {},
    "float16, packed rows, pre-empted": {"dtype": "float16", "layout": PACKED, "sampler": CROWDED},
    "bfloat16": {"dtype": "bfloat16"},
    "mixture, float32, pre-empted": {**MIXTURE, "sampler": CROWDED},
    "mixture, bfloat16, packed rows": {**MIXTURE, "dtype": "bfloat16", "layout": PACKED},
    "mixture, float16": {**MIXTURE, "dtype": "float16"},
    "norms of heads": {"architecture": "qwen3", "head_dim": 12, "dtype": "bfloat16"},
    "without biases, untied": {"architecture": "llama", "tie_word_embeddings": False},
    "norms of outputs, half of each head": {**GLM4, "dtype": "bfloat16"},
    "temperature and filter": {"temperature": 0.7, "sampler": {"top_k": 9, "top_p": 0.8}},
    "continued": {"prefixes": 7},
    "continued, mixture, bfloat16": {**MIXTURE, "dtype": "bfloat16", "prefixes": 7},
    "float32 cache": {"dtype": "bfloat16", "cache_dtype": "float32"},
    "adapters": {"lora": LORA, "dtype": "bfloat16"},
}
DEFAULT_TIER = ("float32", "float16, packed rows, pre-empted")


@pytest.mark.parametrize("name", [
    name if name in DEFAULT_TIER else pytest.param(name, marks=pytest.mark.slow) for name in EQUAL
])  # fmt: skip
def test_they_are_equal(name: str) -> None:
    case = EQUAL[name]
    made = make_case(**case)
    assert (made.preemptions > 0) == (case.get("sampler") == CROWDED)
    assert made.require() == sum(one.length for one in made.responses) > 300


@pytest.fixture
def pynative(cpu_runtime) -> Iterator[None]:
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    yield
    mindspore.set_context(mode=mindspore.GRAPH_MODE)


def scaled(name: str) -> Any:
    """Change a weight between sampling and scoring."""

    def change(model: Any) -> None:
        from mindgspo.parallel.platform.parameter_memory import set_values, values_of

        (weight,) = [one for one in model.get_parameters() if one.name == name]
        set_values(weight, values_of(weight) * np.float32(1.01))

    return change


@pytest.mark.parametrize(("case", "said"), [
    ({"cache_dtype": "float16"},
     "They part at layers.0.self_attn.attention: PagedAttention of the sampler, FlashAttentionScore of the trainer; "
     "layers.0.self_attn.rotate (keys) before it is equal, bit for bit"),
    pytest.param({"dtype": "float16", "cache_dtype": "bfloat16", "layout": PACKED, **MIXTURE},
                 "They part at layers.0.self_attn.attention: ", marks=pytest.mark.slow),
    pytest.param({"lora": LORA, "merges": True},
                 "They part at layers.0.self_attn.o_proj: DecodeAttention of the sampler, ", marks=pytest.mark.slow),
    pytest.param({"change": scaled("model.layers.1.mlp.down_proj.weight")}, "so other weights drew this response",
                 marks=pytest.mark.slow),
])  # fmt: skip
def test_what_parts_them_is_named(pynative, case: dict[str, Any], said: str) -> None:
    with pytest.raises(TrainingError) as error:
        make_case(**case).require()
    assert said in str(error.value), error.value
