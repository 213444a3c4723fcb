"""config.json to the model section and back; what the cells do not implement is refused."""

import json
from pathlib import Path

import pytest

from mindgspo.config import ModelSection
from mindgspo.config.huggingface_config import (
    check_architecture,
    generation_config,
    huggingface_config,
    read_model_section,
)
from mindgspo.config.model import RopeScalingSection
from mindgspo.errors import WeightsError

QWEN25_CONFIG = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "qwen2.5-tokenizer" / "config.json"

# As Qwen2.5-0.5B ships it, in the words of transformers 4.
OLD_STYLE = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True,
    "use_mrope": False, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
# The same model saved by transformers 5.
NEW_STYLE = {key: value for key, value in OLD_STYLE.items() if key not in ("rope_theta", "torch_dtype")} | {
    "dtype": "bfloat16", "layer_types": ["full_attention"] * 24,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "sliding_window": None,
}  # fmt: skip
# As Qwen3-8B ships it.
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip


# As Qwen3-30B-A3B and Llama-3.1-8B ship it.
QWEN3_MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "hidden_size": 2048, "intermediate_size": 6144,
    "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768,
    "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
    "num_key_value_heads": 4, "output_router_logits": False, "router_aux_loss_coef": 0.001,
}  # fmt: skip
LLAMA31 = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
    "vocab_size": 128256,
}  # fmt: skip
# As Mistral-7B-v0.2 ships it; v0.3 has 32,768 tokens.
MISTRAL = {
    "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
# As glm-4-9b-chat-hf ships it; GLM-4-0414 has the same fields.
GLM = {
    "architectures": ["GlmForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
    "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 13696, "max_position_embeddings": 131072, "model_type": "glm",
    "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "pad_token_id": 151329,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-07, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 151552,
}  # fmt: skip
GLM4 = GLM | {
    "architectures": ["Glm4ForCausalLM"], "attention_bias": False, "max_position_embeddings": 32768,
    "model_type": "glm4", "rms_norm_eps": 1e-05,
}  # fmt: skip

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


def write(folder: Path, config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("config", [OLD_STYLE, NEW_STYLE], ids=["transformers 4", "transformers 5"])
def test_both_styles_describe_the_same_model(config: dict, tmp_path: Path) -> None:
    assert read_model_section(write(tmp_path, config)) == ModelSection(
        path=tmp_path, architecture="qwen2", vocab_size=151936, hidden_size=896, intermediate_size=4864,
        num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, max_position_embeddings=32768,
        rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True, initializer_range=0.02, dtype="float32",
    )  # fmt: skip


@pytest.mark.shared_data
def test_the_real_qwen25_config_is_accepted() -> None:
    if not QWEN25_CONFIG.is_file():
        pytest.skip(f"{QWEN25_CONFIG} is not there")
    section = read_model_section(QWEN25_CONFIG.parent)
    assert (section.vocab_size, section.hidden_size, section.num_attention_heads) == (152064, 3584, 28)
    assert section.rope_theta == 1e6 and not section.tie_word_embeddings


@pytest.mark.parametrize("slices", [1, 2, 8, None])
def test_pretraining_tp_changes_nothing(slices: int | None, tmp_path: Path) -> None:
    section = read_model_section(write(tmp_path, LLAMA31 | {"pretraining_tp": slices}))
    assert section == read_model_section(write(tmp_path, LLAMA31))


def test_a_key_that_stands_twice_must_say_the_same(tmp_path: Path) -> None:
    text = json.dumps(OLD_STYLE)
    (tmp_path / "config.json").write_text(text[:-1] + ', "vocab_size": 151936}')
    assert read_model_section(tmp_path).vocab_size == 151936
    (tmp_path / "config.json").write_text(text[:-1] + ', "vocab_size": 151665}')
    with pytest.raises(WeightsError, match="'vocab_size' is given twice, as 151936 and as 151665"):
        read_model_section(tmp_path)


def test_fields_left_out_take_the_family_s_defaults(tmp_path: Path) -> None:
    left_out = ("num_key_value_heads", "tie_word_embeddings", "rope_theta")
    section = read_model_section(write(tmp_path, {k: v for k, v in OLD_STYLE.items() if k not in left_out}))
    assert section.num_key_value_heads == 14 and section.tie_word_embeddings is False
    assert section.rope_theta == 10_000


@pytest.mark.parametrize(("config", "changes", "message"), [
    (OLD_STYLE, {"model_type": "gpt2"},
     "model_type is 'gpt2'; supported: qwen2, qwen3, qwen3_moe, llama, mistral, glm, glm4"),
    (OLD_STYLE, {"model_type": None}, "model_type is None"),
    (OLD_STYLE, {"use_sliding_window": True}, "use_sliding_window is True"),
    (OLD_STYLE, {"use_mrope": True}, "use_mrope is True"),
    (OLD_STYLE, {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    (OLD_STYLE, {"rope_scaling": {"type": "longrope", "factor": 4.0}},
     "rope_scaling of type 'longrope' is not implemented; only default, linear, dynamic, yarn, llama3 are"),
    (OLD_STYLE, {"rope_scaling": {"rope_type": "yarm", "factor": 2.0}}, "did you mean 'yarn'"),
    (OLD_STYLE, {"rope_scaling": {"rope_type": ["yarn"]}}, "rope_scaling of type .'yarn'. is not implemented"),
    (OLD_STYLE, {"rope_parameters": {"rope_type": "su", "rope_theta": 1e6}}, "rope_parameters of type 'su'"),
    (OLD_STYLE, {"rope_scaling": {"type": "yarn"}}, "rope_scaling.factor: Field required"),
    (OLD_STYLE, {"rope_scaling": {"type": "linear", "factor": 0.5}}, "rope_scaling.factor: .*greater than or equal"),
    (OLD_STYLE, {"rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}},
     "rope_scaling.mrope_section is .16, 24, 24.; not implemented"),
    (OLD_STYLE, {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 32}},
     "rope_scaling.beta_fast: linear has none; remove it, or set rope_type to yarn"),
    (OLD_STYLE, {"rope_scaling": YARN | {"beta_fast": 2, "beta_slow": 4}},
     "beta_fast: 2 is less than beta_slow 4; nearest legal: 4"),
    (OLD_STYLE, {"rope_scaling": YARN | {"factor": None}, "max_position_embeddings": 16384},
     "rope_scaling.factor: .*valid number, got None"),
    (OLD_STYLE, {"rope_scaling": YARN | {"truncate": "no"}}, "rope_scaling.truncate: .*valid boolean"),
    (OLD_STYLE, {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16384}},
     "original_max_position_embeddings: dynamic has none; remove it, or set rope_type to yarn or llama3"),
    (OLD_STYLE, {"rope_theta": 1}, "rope_theta: .*greater than 1"),
    (OLD_STYLE, {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
    (OLD_STYLE, {"head_dim": 128}, "head_dim 128 x 14 heads is not hidden_size 896"),
    (OLD_STYLE, {"hidden_size": "896"}, "hidden_size: .*integer"),
    (OLD_STYLE, {"vocab_size": None}, "vocab_size"),
    (OLD_STYLE, {"rope_theta": "large"}, "rope_theta: .*number"),
    (OLD_STYLE, {"tie_word_embeddings": 1}, "tie_word_embeddings: .*boolean"),
    (OLD_STYLE, {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config is set .*gptq"),
    (OLD_STYLE, {"layer_types": "full_attention"}, "layer_types has 'full_attention'"),
    (QWEN3_MOE, {"shared_expert_intermediate_size": 768}, "shared_expert_intermediate_size is set"),
    (OLD_STYLE, {"rope_parameters": {"rope_type": "default", "rope_theta": None}}, "rope_theta: .*number"),
    (OLD_STYLE, {"layer_types": [{"kind": "full_attention"}, 3]}, "layer_types has {'kind': 'full_attention'}"),
    (OLD_STYLE, {"num_attention_heads": 15}, "896 / num_attention_heads 15 = 59.7333 must be an even whole number"),
    (OLD_STYLE, {"num_key_value_heads": 4}, "num_key_value_heads: 4 does not divide num_attention_heads 14"),
    (QWEN3, {"attention_bias": True}, "attention_bias is True; only False is implemented"),
    (QWEN3, {"head_dim": 127}, "head_dim: 127 must be even"),
    (QWEN3, {"head_dim": "wide"}, "head_dim: .*integer"),
    (QWEN3_MOE, {"decoder_sparse_step": 2}, "decoder_sparse_step is 2; only 1 is implemented"),
    (QWEN3_MOE, {"mlp_only_layers": [0]}, "mlp_only_layers is \\[0\\]; only \\[\\] is implemented"),
    (QWEN3_MOE, {"num_experts_per_tok": 129}, "num_experts_per_tok: 129 is more than num_experts 128"),
    (QWEN3_MOE, {"num_experts": None}, "num_experts: missing"),
    (QWEN3_MOE, {"moe_intermediate_size": None}, "moe_intermediate_size: missing"),
    (LLAMA31, {"mlp_bias": True}, "mlp_bias is True; only False is implemented"),
    (LLAMA31, {"attention_bias": True}, "attention_bias is True"),
    (LLAMA31, {"pretraining_tp": 0}, "pretraining_tp is 0; it is a whole number"),
    (LLAMA31, {"pretraining_tp": True}, "pretraining_tp is True"),
    (LLAMA31, {"pretraining_tp": "two"}, "pretraining_tp is 'two'"),
    (LLAMA31, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling.low_freq_factor"),
    (LLAMA31, {"rope_scaling": LLAMA31["rope_scaling"] | {"low_freq_factor": 4.0}},
     "high_freq_factor: 4 must be more than low_freq_factor 4"),
    (LLAMA31, {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; only 1 is implemented"),
    (MISTRAL, {"sliding_window": 4096}, "sliding_window 4096 is less than max_position_embeddings 32768; not impl"),
    ({key: MISTRAL[key] for key in MISTRAL if key != "sliding_window"}, {}, "sliding_window 4096 is less"),
    (MISTRAL, {"sliding_window": "4096"}, "sliding_window 4096 is less"),
    (GLM, {"partial_rotary_factor": 0.51}, "0.51 of head_dim 128 are 65 features, .*; nearest legal: 0.5 or 0.515625"),
    (GLM, {"partial_rotary_factor": 0.001}, "0.001 of head_dim 128 are 0 features, .*; nearest legal: 0.015625"),
    (GLM4, {"partial_rotary_factor": 1.5}, "partial_rotary_factor: .*less than or equal to 1"),
    (GLM4, {"attention_bias": "no"}, "attention_bias: .*valid boolean"),
    (LLAMA31, {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "longrope", "factor": 4.0}},
     "'longrope' is not implemented"),
])  # fmt: skip
def test_what_is_wrong_or_not_implemented_is_refused(config: dict, changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message) as caught:
        read_model_section(write(tmp_path, config | changes))
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    "harmless",
    [{"rope_scaling": None}, {"rope_scaling": {"rope_type": "default"}}, {"layer_types": None}, {"head_dim": 64}],
)
def test_a_detail_that_says_what_is_implemented_is_accepted(harmless: dict, tmp_path: Path) -> None:
    assert read_model_section(write(tmp_path, OLD_STYLE | harmless)).hidden_size == 896


def test_a_qwen3_keeps_its_own_head_width(tmp_path: Path) -> None:
    section = read_model_section(write(tmp_path, QWEN3 | {"num_attention_heads": 64}))
    assert (section.architecture, section.head_dim, section.hidden_size) == ("qwen3", 128, 4096)
    left_out = {key: value for key, value in QWEN3.items() if key != "head_dim"}
    assert read_model_section(write(tmp_path, left_out | {"hidden_size": 2048})).head_dim == 128


def test_a_glm_says_whether_it_has_biases_and_which_features_turn(tmp_path: Path) -> None:
    found = [read_model_section(write(tmp_path, one)) for one in (GLM, GLM4)]
    assert [(one.architecture, one.attention_bias, one.rotary_dim) for one in found] == [
        ("glm", True, 64), ("glm4", False, 64)
    ]  # fmt: skip
    nested = {key: value for key, value in GLM4.items() if key not in ("rope_theta", "partial_rotary_factor")}
    nested["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}
    assert read_model_section(write(tmp_path, nested)).rotary_dim == 32
    left_out = ("num_key_value_heads", "head_dim", "partial_rotary_factor", "rms_norm_eps", "attention_bias")
    few = {key: value for key, value in GLM.items() if key not in left_out}
    assert read_model_section(write(tmp_path, few)) == found[0]  # the families' own defaults


def test_a_mixture_of_experts_keeps_its_sizes(tmp_path: Path) -> None:
    section = read_model_section(write(tmp_path, QWEN3_MOE))
    sizes = (section.num_experts, section.num_experts_per_tok, section.moe_intermediate_size, section.norm_topk_prob)
    assert (section.architecture, sizes) == ("qwen3_moe", (128, 8, 768, True))
    renamed = {key: value for key, value in QWEN3_MOE.items() if key != "num_experts"}  # transformers 5 writes this
    assert read_model_section(write(tmp_path, renamed | {"num_local_experts": 128})) == section
    assert read_model_section(write(tmp_path, QWEN3_MOE | {"mlp_only_layers": None})) == section


def test_a_mistral_is_a_llama_whose_window_holds_its_sequences(tmp_path: Path) -> None:
    section = read_model_section(write(tmp_path, MISTRAL))
    assert (section.architecture, section.head_dim, section.rope_theta) == ("mistral", 128, 1_000_000)
    bounded = MISTRAL | {"sliding_window": 4096, "max_position_embeddings": 4096}  # v0.1, shortened
    assert read_model_section(write(tmp_path, bounded)).max_position_embeddings == 4096
    exported = huggingface_config(section, eos_ids=(2,), pad_id=0)
    assert exported["sliding_window"] is None
    assert read_model_section(write(tmp_path, exported)) == section


def test_a_qwen2_5_math_is_a_qwen2_of_short_sequences(tmp_path: Path) -> None:
    sizes = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12}
    math = {"max_position_embeddings": 4096, "rope_theta": 10000, "sliding_window": 4096, "max_window_layers": 21}
    section = read_model_section(write(tmp_path, OLD_STYLE | sizes | math))
    assert (section.architecture, section.max_position_embeddings, section.rope_theta) == ("qwen2", 4096, 10_000)


def test_a_llama_keeps_its_stretched_positions(tmp_path: Path) -> None:
    section = read_model_section(write(tmp_path, LLAMA31))
    assert (section.architecture, section.head_dim, section.rope_theta) == ("llama", 128, 500_000)
    scaling = section.rope_scaling
    assert (scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor) == (8, 1, 4)
    assert scaling.original_max_position_embeddings == 8192
    nested = {key: value for key, value in LLAMA31.items() if key not in ("rope_theta", "rope_scaling")}
    nested["rope_parameters"] = LLAMA31["rope_scaling"] | {"rope_theta": 500000.0}
    assert read_model_section(write(tmp_path, nested)) == section
    assert read_model_section(write(tmp_path, LLAMA31 | {"rope_scaling": None})).rope_scaling is None
    assert read_model_section(write(tmp_path, LLAMA31 | {"head_dim": None})).head_dim == 128


@pytest.mark.parametrize("family", [OLD_STYLE, QWEN3 | {"num_attention_heads": 64}, QWEN3_MOE, LLAMA31],
                         ids=lambda one: one["model_type"])  # fmt: skip
@pytest.mark.parametrize("longest", [32768, 40960, 131072])
def test_yarn_as_the_cards_of_qwen_publish_it(family: dict, longest: int, tmp_path: Path) -> None:
    """Qwen2.5's and Qwen3's: config.json keeps its own max_position_embeddings, or takes 131072."""
    expected = RopeScalingSection(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768)
    old = family | {"max_position_embeddings": longest, "rope_theta": 1e6, "rope_scaling": YARN}
    new = {key: value for key, value in old.items() if key not in ("rope_theta", "rope_scaling")}
    new["rope_parameters"] = {"rope_theta": 1e6, "attention_factor": None, **YARN, "rope_type": "yarn"}
    section = read_model_section(write(tmp_path, old))
    assert (section.rope_scaling, section.max_position_embeddings) == (expected, longest)
    assert read_model_section(write(tmp_path, new)) == section
    exported = huggingface_config(section, eos_ids=(1,), pad_id=0)
    assert exported["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert read_model_section(write(tmp_path, exported)) == section


@pytest.mark.parametrize(("scaling", "changes", "factor", "length", "truncate"), [
    ({}, {}, 4.0, 32768, None),
    ({}, {"original_max_position_embeddings": 16384}, 4.0, 16384, None),
    ({"factor": None}, {"original_max_position_embeddings": 16384}, 2.0, 16384, None),
    ({"factor": None, "original_max_position_embeddings": 8192}, {}, 4.0, 8192, None),
    ({"factor": None}, {}, 1.0, 32768, None),
    ({"truncate": None}, {}, 4.0, 32768, False),
])  # fmt: skip
def test_what_yarn_leaves_out_is_completed_as_by_transformers(
    scaling: dict, changes: dict, factor: float, length: int, truncate: bool | None, tmp_path: Path
) -> None:
    """For 32768 positions."""
    raw = OLD_STYLE | {"rope_scaling": {"type": "yarn", "factor": 4.0} | scaling} | changes
    assert read_model_section(write(tmp_path, raw)).rope_scaling == RopeScalingSection(
        rope_type="yarn", factor=factor, original_max_position_embeddings=length, truncate=truncate
    )


@pytest.mark.parametrize(
    "config",
    [OLD_STYLE, QWEN3 | {"num_attention_heads": 64}, QWEN3_MOE, LLAMA31, GLM, GLM4],
    ids=lambda one: one["model_type"],
)
def test_exported_families_read_back(config: dict, tmp_path: Path) -> None:
    section = read_model_section(write(tmp_path, config))
    exported = huggingface_config(section, eos_ids=(151645, 151643), pad_id=151643)
    assert exported["eos_token_id"] == [151645, 151643] and exported["pad_token_id"] == 151643
    assert exported["architectures"] == config["architectures"]
    assert exported.items() >= {key: config[key] for key in config.keys() & exported.keys() - _OF_THE_RUN}.items()
    (tmp_path / "export").mkdir()
    again = read_model_section(write(tmp_path / "export", exported))
    assert again == section.model_copy(update={"path": tmp_path / "export"})


_OF_THE_RUN = {"eos_token_id", "pad_token_id", "torch_dtype"}


@pytest.mark.parametrize("missing", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_missing_size_is_named(missing: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=missing):
        read_model_section(write(tmp_path, {k: v for k, v in OLD_STYLE.items() if k != missing}))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="holds no config.json; give a Hugging Face model folder"):
        read_model_section(tmp_path)
    with pytest.raises(
        WeightsError, match="Qwen/Qwen3-8B: no such folder; if Qwen/Qwen3-8B is a name on a hub, .*`hf download Qwen/"
    ):
        read_model_section(tmp_path / "Qwen" / "Qwen3-8B")
    (tmp_path / "config.json").write_text('{"model_type": "qwen2",')
    with pytest.raises(WeightsError, match="config.json: not JSON"):
        read_model_section(tmp_path)
    with pytest.raises(WeightsError, match="num_hidden_layers: .* less than or equal to 1000, got 10000000"):
        read_model_section(write(tmp_path, {**OLD_STYLE, "num_hidden_layers": 10**7}))
    with pytest.raises(WeightsError, match="model_type is None"):
        read_model_section(write(tmp_path, ["qwen2"]))
    with pytest.raises(WeightsError, match=r"cannot be read \(has 1,04.,... bytes, and at most 1,048,576 are read"):
        read_model_section(write(tmp_path, {**OLD_STYLE, "padding": "x" * (1 << 20)}))


def test_generation_stops_where_the_run_stopped() -> None:
    assert generation_config(eos_ids=(7, 9), pad_id=0) == {
        "do_sample": False, "eos_token_id": [7, 9], "pad_token_id": 0,
    }  # fmt: skip


def test_generation_samples_as_the_first_weights_folder_says(tmp_path: Path) -> None:
    published = {"bos_token_id": 1, "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": "0.8",
                 "eos_token_id": 5, "pad_token_id": 4, "max_new_tokens": 2048}  # fmt: skip
    (tmp_path / "generation_config.json").write_text(json.dumps(published))
    assert generation_config(eos_ids=(7, 9), pad_id=0, base=tmp_path) == {
        "bos_token_id": 1, "do_sample": True, "temperature": 0.7, "top_k": 20,
        "eos_token_id": [7, 9], "pad_token_id": 0,
    }  # fmt: skip


# As published, without fields that are read nowhere.
GLM_45 = {
    "model_type": "glm4_moe", "attention_bias": True, "hidden_act": "silu", "head_dim": 128, "hidden_size": 5120,
    "partial_rotary_factor": 0.5, "initializer_range": 0.02, "intermediate_size": 12_288, "first_k_dense_replace": 3,
    "max_position_embeddings": 131_072, "moe_intermediate_size": 1536, "norm_topk_prob": True,
    "num_attention_heads": 96, "n_group": 1, "topk_group": 1, "n_routed_experts": 160, "n_shared_experts": 1,
    "routed_scaling_factor": 2.5, "num_experts_per_tok": 8, "num_hidden_layers": 92, "num_key_value_heads": 8,
    "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-5, "rope_scaling": None, "rope_theta": 1_000_000,
    "tie_word_embeddings": False, "use_qk_norm": True, "vocab_size": 151_552,
}  # fmt: skip


def test_a_mixture_after_dense_layers_is_read_and_written(tmp_path: Path) -> None:
    section = read_model_section(write(tmp_path, GLM_45))
    assert (section.num_experts, section.n_shared_experts, section.routed_scaling_factor) == (160, 1, 2.5)
    assert section.expert_layers == range(3, 92) and section.left_out_layers == range(92, 93)
    assert section.use_qk_norm and section.attention_bias and section.partial_rotary_factor == 0.5
    written = huggingface_config(section, eos_ids=(1,), pad_id=0)
    assert (written["num_nextn_predict_layers"], written["mindgspo_left_out"]) == (0, ["model.layers.92"])
    again = read_model_section(write(tmp_path, written))
    assert again == section.model_copy(update={"num_nextn_predict_layers": 0})
    check_architecture(again, section)
    other_name = {key: value for key, value in GLM_45.items() if key != "n_routed_experts"} | {"num_local_experts": 160}
    assert read_model_section(write(tmp_path, other_name)) == section
    with pytest.raises(WeightsError, match="quantization_config is set"):
        read_model_section(write(tmp_path, GLM_45 | {"quantization_config": {"quant_method": "compressed-tensors"}}))
