"""What the model families may set, beside each other; experts' plans too."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from mindgspo.config import ModelSection, ParallelPlan, dump_config, load_config
from mindgspo.config.model import FAMILIES
from mindgspo.config.plan import check_infer_plan, check_train_plan, inner_size, legal_model_parallel
from mindgspo.errors import ConfigError

EXPERTS = (
    "model.architecture=qwen3_moe",
    "model.num_experts=8",
    "model.num_experts_per_tok=2",
    "model.moe_intermediate_size=48",
)
SCALING = (
    "model.rope_scaling={factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, "
    "original_max_position_embeddings: 64}"
)
MIXTURE = ModelSection(
    architecture="qwen3_moe",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=100,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=4,
    num_experts=12,
    num_experts_per_tok=2,
    moe_intermediate_size=12,
)


def test_a_family_differs_in_what_the_table_says() -> None:
    assert list(FAMILIES) == ["qwen2", "qwen3", "qwen3_moe", "llama"]
    assert [name for name, family in FAMILIES.items() if family.has_attention_bias] == ["qwen2"]
    assert [name for name, family in FAMILIES.items() if family.has_head_norms] == ["qwen3", "qwen3_moe"]
    assert [name for name, family in FAMILIES.items() if family.scales_rope] == ["llama"]
    assert {name: family.huggingface_class for name, family in FAMILIES.items()} == {
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "qwen3_moe": "Qwen3MoeForCausalLM",
        "llama": "LlamaForCausalLM",
    }


def test_settings_of_a_mixture_are_written_down_and_read_back(load, tmp_path) -> None:
    config = load(*EXPERTS, "model.norm_topk_prob=true")
    assert (config.model.num_experts, config.model.norm_topk_prob) == (8, True)
    (tmp_path / "dumped.yaml").write_text(dump_config(config), encoding="utf-8")
    assert load_config(tmp_path / "dumped.yaml") == config


def test_stretched_positions_are_written_down_and_read_back(load, tmp_path) -> None:
    config = load("model.architecture=llama", SCALING)
    assert (config.model.rope_scaling.factor, config.model.rope_scaling.rope_type) == (8.0, "llama3")
    (tmp_path / "dumped.yaml").write_text(dump_config(config), encoding="utf-8")
    assert load_config(tmp_path / "dumped.yaml") == config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (EXPERTS[:1], "model.num_experts: qwen3_moe needs it"),
        (EXPERTS[:3], "model.moe_intermediate_size: qwen3_moe needs it"),
        (EXPERTS[1:2], "model.num_experts: qwen2 has no experts; remove it, or set model.architecture=qwen3_moe"),
        (("model.norm_topk_prob=true",), "model.norm_topk_prob: qwen2 has no experts"),
        ((*EXPERTS, "model.num_experts_per_tok=9"), "9 is more than num_experts 8; largest legal: 8"),
        ((SCALING,), "model.rope_scaling: not implemented for qwen2; remove it"),
        (
            ("model.architecture=llama", SCALING.replace("high_freq_factor: 4.0", "high_freq_factor: 1.0")),
            "model.rope_scaling.high_freq_factor: 1 must be more than low_freq_factor 1",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused_in_one_line(load, overrides, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load(*overrides)


def test_a_rule_for_stretching_that_is_not_implemented_is_refused(load) -> None:
    with pytest.raises(ConfigError, match="rope_scaling"):
        load("model.architecture=llama", SCALING.replace("{", "{rope_type: yarn, "))
    with pytest.raises(ValidationError):
        ModelSection(**MIXTURE.model_dump(exclude={"num_experts"}), num_experts=1)


def test_model_parallel_divides_the_features_of_an_expert() -> None:
    # 12 features of each expert divide over 4 ranks, not over 8; the dense width of 100 does not matter.
    assert inner_size(MIXTURE) == 12 and legal_model_parallel(MIXTURE) == [1, 2, 4]
    (line,) = check_train_plan("p", ParallelPlan(model_parallel=8), MIXTURE)
    assert "moe_intermediate_size 12" in line and line.endswith("nearest legal: 4")


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        (
            ParallelPlan(data_parallel=4, expert_parallel=8),
            "p.expert_parallel: 8 must divide data_parallel 4 and the 12 experts; nearest legal: 4",
        ),
        (
            ParallelPlan(data_parallel=8, expert_parallel=8),
            "p.expert_parallel: 8 must divide data_parallel 8 and the 12 experts; nearest legal: 4",
        ),
    ],
)
def test_experts_divide_over_replicas(plan, line) -> None:
    assert check_train_plan("p", plan, MIXTURE) == [line]
    assert check_train_plan("p", plan.model_copy(update={"expert_parallel": 4}), MIXTURE) == []


def test_replicas_that_generate_have_all_experts() -> None:
    (line,) = check_infer_plan("p", ParallelPlan(data_parallel=4, expert_parallel=2), MIXTURE)
    assert line == "p.expert_parallel: 2; replicas generate on their own, each with all experts; remove it"


def test_experts_are_split_on_ascend_only(load) -> None:
    plans = ("plans.train.data_parallel=2", "plans.infer.data_parallel=2", "plans.train.expert_parallel=2")
    with pytest.raises(ConfigError, match="plans.train.expert_parallel: 2; .* set it to 1 .*or device=Ascend"):
        load(*EXPERTS, *plans)
