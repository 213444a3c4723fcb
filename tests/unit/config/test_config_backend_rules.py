"""The rules of `model.backend`, refused before MindSpore or MindFormers is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config import ModelSection, load_config
from mindgspo.config.device_rules import mindformers_problems
from mindgspo.errors import ConfigError

EXPERIMENT = Path(__file__).resolve().parents[3] / "examples" / "arithmetic" / "gspo.yaml"
SIZES = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


def model(**settings: object) -> ModelSection:
    return ModelSection(**SIZES | {"num_key_value_heads": 2} | settings)


def test_the_tiny_experiment_is_legal() -> None:
    assert load_config(EXPERIMENT, ["model.backend=mindformers"]).model.backend == "mindformers"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            ["model.architecture=qwen3"],
            "model.architecture: qwen3 is not among .* legal with that backend: qwen2, llama",
        ),
        (["plans.train.data_parallel=2", "plans.infer.data_parallel=2"], "mindformers trains in one process"),
        (["device=Ascend"], "model.backend: mindformers is tested on CPU alone; set device=CPU"),
        (["model.dtype=float16"], "model.dtype: float16; .* float32 alone"),
    ],
)
def test_what_it_cannot_do_is_refused(setting: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(EXPERIMENT, ["model.backend=mindformers", *setting])


def test_heads_of_another_width() -> None:
    assert list(mindformers_problems(model(architecture="llama"))) == []
    (problem,) = mindformers_problems(model(architecture="llama", head_dim=6))
    assert problem.startswith("model.head_dim: 6 x 2 attention heads is not hidden_size 8")


def test_our_own_backend_asks_for_nothing() -> None:
    two = ["plans.train.data_parallel=2", "plans.infer.data_parallel=2", "trainer.samples_per_micro_batch=32"]
    assert load_config(EXPERIMENT, two).model.backend == "native"
