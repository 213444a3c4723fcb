"""config.json to the model section and back; what the cells do not implement is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.config import ModelSection
from mindgspo.errors import WeightsError
from mindgspo.models.huggingface_config import generation_config, huggingface_config, read_model_section

QWEN25_CONFIG = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "qwen2.5-tokenizer" / "config.json"

# As Qwen2.5-0.5B ships it, in the words of transformers 4.
OLD_STYLE = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 896,
    "initializer_range": 0.02,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
# The same model saved by transformers 5.
NEW_STYLE = {key: value for key, value in OLD_STYLE.items() if key not in ("rope_theta", "torch_dtype")} | {
    "dtype": "bfloat16",
    "layer_types": ["full_attention"] * 24,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "sliding_window": None,
}
# As Qwen3-8B ships it.
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def write(folder: Path, config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize("config", [OLD_STYLE, NEW_STYLE], ids=["transformers 4", "transformers 5"])
def test_both_styles_describe_the_same_model(config: dict, tmp_path: Path) -> None:
    assert read_model_section(write(tmp_path, config)) == ModelSection(
        path=tmp_path,
        architecture="qwen2",
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        rope_theta=1e6,
        tie_word_embeddings=True,
        initializer_range=0.02,
        dtype="float32",
    )


@pytest.mark.shared_data
def test_the_real_qwen25_config_is_accepted() -> None:
    if not QWEN25_CONFIG.is_file():
        pytest.skip(f"{QWEN25_CONFIG} is not there")
    section = read_model_section(QWEN25_CONFIG.parent)
    assert (section.vocab_size, section.hidden_size, section.num_attention_heads) == (152064, 3584, 28)
    assert section.rope_theta == 1e6 and not section.tie_word_embeddings


def test_fields_left_out_take_the_family_s_defaults(tmp_path: Path) -> None:
    left_out = ("num_key_value_heads", "tie_word_embeddings", "rope_theta")
    section = read_model_section(write(tmp_path, {k: v for k, v in OLD_STYLE.items() if k not in left_out}))
    assert section.num_key_value_heads == 14 and section.tie_word_embeddings is False
    assert section.rope_theta == 10_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'; supported: qwen2, qwen3"),
        ({"model_type": None}, "model_type is None"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"use_mrope": True}, "use_mrope is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling of type 'yarn'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling of type 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e6}}, "rope_parameters of type 'llama3'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"head_dim": 128}, "head_dim 128 x 14 heads is not hidden_size 896"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"rope_theta": "large"}, "rope_theta: .*number"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": None}}, "rope_theta: .*number"),
        ({"layer_types": [{"kind": "full_attention"}, 3]}, "layer_types has {'kind': 'full_attention'}"),
        ({"num_attention_heads": 15}, "896 / num_attention_heads 15 = 59.7333 must be an even whole number"),
        ({"num_attention_heads": 128, "num_key_value_heads": 8}, "= 7 must be an even whole number"),
        ({"num_key_value_heads": 4}, "num_key_value_heads 4 does not divide num_attention_heads 14"),
    ],
)
def test_what_is_wrong_or_not_implemented_is_refused(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message) as caught:
        read_model_section(write(tmp_path, OLD_STYLE | changes))
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias is True; only False is implemented"),
        ({"head_dim": 127}, "head_dim 127 must be even"),
        ({"head_dim": "wide"}, "head_dim: .*integer"),
        ({"num_key_value_heads": 5}, "num_key_value_heads 5 does not divide num_attention_heads 32"),
    ],
)
def test_what_is_wrong_with_a_qwen3_is_refused(changes: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message):
        read_model_section(write(tmp_path, QWEN3 | changes))


@pytest.mark.parametrize("missing", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_missing_size_is_named(missing: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=missing):
        read_model_section(write(tmp_path, {k: v for k, v in OLD_STYLE.items() if k != missing}))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="config.json: cannot be read.*Hugging Face model folder"):
        read_model_section(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2",')
    with pytest.raises(WeightsError, match="config.json: is not JSON"):
        read_model_section(tmp_path)
    with pytest.raises(WeightsError, match="model_type is None"):
        read_model_section(write(tmp_path, ["qwen2"]))


def test_an_exported_config_reads_back(tmp_path: Path) -> None:
    section = read_model_section(write(tmp_path, OLD_STYLE))
    exported = huggingface_config(section, eos_ids=(151645, 151643), pad_id=151643)
    assert exported["architectures"] == ["Qwen2ForCausalLM"]
    assert exported["eos_token_id"] == [151645, 151643] and exported["pad_token_id"] == 151643
    (tmp_path / "export").mkdir()
    again = read_model_section(write(tmp_path / "export", exported))
    assert again == section.model_copy(update={"path": tmp_path / "export"})


def test_an_exported_qwen3_reads_back(tmp_path: Path) -> None:
    section = read_model_section(write(tmp_path, QWEN3 | {"num_attention_heads": 64}))
    exported = huggingface_config(section, eos_ids=(151645,), pad_id=151643)
    assert exported["architectures"] == ["Qwen3ForCausalLM"]
    assert (exported["head_dim"], exported["attention_bias"]) == (128, False)
    (tmp_path / "export").mkdir()
    again = read_model_section(write(tmp_path / "export", exported))
    assert again == section.model_copy(update={"path": tmp_path / "export"})


def test_generation_stops_where_the_run_stopped() -> None:
    assert generation_config(eos_ids=(7, 9), pad_id=0, max_new_tokens=40) == {
        "do_sample": False,
        "eos_token_id": [7, 9],
        "pad_token_id": 0,
        "max_new_tokens": 40,
    }
