"""Model and plans from an experiment or from a file that holds nothing else, with the same errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.config import load_config, load_model_and_plans
from mindgspo.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]
MODELS = sorted((ROOT / "model_configs").glob("*.yaml"))

# Weights of the published safetensors files.
PUBLISHED = {
    "qwen2_5_0_5b.yaml": 494_032_768,
    "qwen2_5_1_5b.yaml": 1_543_714_304,
    "qwen2_5_3b.yaml": 3_085_938_688,
    "qwen2_5_7b.yaml": 7_615_616_512,
    "qwen2_5_32b.yaml": 32_763_876_352,
    "qwen2_5_32b_64.yaml": 32_763_876_352,
    "qwen3_0_6b.yaml": 596_049_920,
    "qwen3_4b.yaml": 4_022_468_096,
    "qwen3_8b.yaml": 8_190_735_360,
    "qwen3_32b.yaml": 32_762_123_264,
    "qwen3_32b_64.yaml": 32_762_123_264,
    "qwen3_30b_a3b.yaml": 30_532_122_624,
    "llama3_1_8b.yaml": 8_030_261_248,
}
TINY = """
model:
  vocab_size: 64
  hidden_size: 32
  intermediate_size: 48
  num_hidden_layers: 4
  num_attention_heads: 8
  num_key_value_heads: 2
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(TINY, encoding="utf-8")
    return tmp_path / "tiny.yaml"


@pytest.mark.parametrize("name", PUBLISHED)
def test_shipped_models_have_the_published_number_of_weights(name: str):
    from math import prod

    from mindgspo.models.names import parameter_shapes

    model, _ = load_model_and_plans(ROOT / "model_configs" / name)
    assert sum(prod(shape) for shape in parameter_shapes(model).values()) == PUBLISHED[name]


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_shipped_plans_are_for_8_or_64_cards_or_16_for_many_experts(path: Path):
    _, plans = load_model_and_plans(path)
    cards = 64 if path.stem.endswith("_64") else 8 if path.name in PUBLISHED else 1
    cards = 16 if path.stem == "qwen3_30b_a3b" else cards
    assert plans.train.world_size == plans.infer.world_size == cards


@pytest.mark.parametrize("name", ["qwen2_5_32b_64.yaml", "qwen3_32b_64.yaml"])
def test_what_64_cards_train_fits_them(name: str):
    from math import prod

    from mindgspo.models.names import parameter_shapes
    from mindgspo.parallel.parameter_layouts import moment_layouts, parameter_layouts

    model, plans = load_model_and_plans(ROOT / "model_configs" / name)
    shapes = parameter_shapes(model)

    def held(layouts, rank: int) -> int:
        return sum(prod(held.shape) for layout in layouts.values() if (held := layout.slice_of(rank)) is not None)

    weights = parameter_layouts(shapes, model, plans.train)
    shards = moment_layouts(shapes, model, plans.train)
    for rank in (0, 63):
        # bfloat16 copy and float32 gradient of all that is computed with, float32 weight and two moments of the shard.
        num_bytes = 6 * held(weights, rank) + 12 * held(shards, rank)
        assert 12e9 < num_bytes < 14e9


def test_an_experiment_gives_what_load_config_gives(experiment: Path):
    config = load_config(experiment, ["seed=3", "model.num_attention_heads=8"])
    assert load_model_and_plans(experiment, ["seed=3", "model.num_attention_heads=8"]) == (config.model, config.plans)


def test_a_model_file_takes_overrides_and_default_plans(tiny: Path):
    model, plans = load_model_and_plans(tiny, ["model.hidden_size=64"])
    assert (model.hidden_size, model.head_dim, plans.train.world_size) == (64, 8, 1)
    _, plans = load_model_and_plans(tiny, ["plans.train.model_parallel=4", "plans.infer.model_parallel=4"])
    assert plans.train.model_parallel == 4


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        (["seed=3"], ["seed: the file holds model and plans only; leave it out"]),
        (["plans.train.model_paralel=2"], ["plans.train.model_paralel: unknown key; did you mean"]),
        (["model.vocab_size=many"], ["model.vocab_size: expected an integer, got 'many'"]),
        (
            ["plans.train.model_parallel=3", "plans.infer.model_parallel=3"],
            ["plans.train.model_parallel: 3 does not split", "plans.infer.model_parallel: 3 does not split"],
        ),
        (["plans.train.model_parallel=4"], ["plans.infer: plans.train 1 x 4 x 1 needs 4 workers"]),
        (["model.num_attention_heads=10"], ["model.hidden_size: 32 / num_attention_heads 10 = 3.2 must be"]),
    ],
)
def test_what_is_wrong_is_named_as_in_an_experiment(tiny: Path, overrides: list[str], lines: list[str]):
    with pytest.raises(ConfigError) as caught:
        load_model_and_plans(tiny, overrides)
    header, *said = str(caught.value).split("\n  ")
    assert header.startswith(f"{tiny}: {len(said)} problem")
    for line in lines:
        assert any(one.startswith(line) for one in said), said


def test_a_file_with_other_sections_must_be_a_whole_experiment(tmp_path: Path):
    (tmp_path / "half.yaml").write_text(TINY + "seed: 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="data: missing"):
        load_model_and_plans(tmp_path / "half.yaml")
    with pytest.raises(ConfigError, match="no such file"):
        load_model_and_plans(tmp_path / "none.yaml")
