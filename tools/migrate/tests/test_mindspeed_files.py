"""MindSpeed-RL's two kinds of YAML: a run, and the sizes of the model that it names."""

from __future__ import annotations

from pathlib import Path

import pytest
from foreign_cases.conversions import findings_of, flat

from mindgspo.errors import ConfigError
from mindgspo_migrate.convert import convert
from mindgspo_migrate.tables import Status

RUN = """
defaults:
  - model:
      - small
megatron_training: {model: small, stage: ray_grpo, global_batch_size: 32, bf16: true, sequence_parallel: true}
actor_config: {model: small, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2, lr: 1e-6}
rl_config: {n_samples_per_prompt: 8, mini_batch_size: 32, actor_resource: {num_npus: 16}, init_kl_coef: 0.0}
generate_config: {infer_tensor_parallel_size: 1, max_num_seqs: 64}
"""
MODEL = """
small:
  num_layers: 4
  hidden_size: 64
  ffn_hidden_size: 128
  num_attention_heads: 8
  num_query_groups: 2
  kv_channels: 16
  rotary_base: 1000000
  norm_epsilon: 1e-6
  max_position_embeddings: 4096
  padded_vocab_size: 1024
  untie_embeddings_and_output_weights: true
  swiglu: true
  disable_bias_linear: true
"""
SIZES = {
    "model.num_hidden_layers": 4,
    "model.hidden_size": 64,
    "model.intermediate_size": 128,
    "model.num_attention_heads": 8,
    "model.num_key_value_heads": 2,
    "model.head_dim": 16,
    "model.rope_theta": 1000000.0,
    "model.rms_norm_eps": 1e-6,
    "model.max_position_embeddings": 4096,
    "model.vocab_size": 1024,
    "model.tie_word_embeddings": False,
    "model.dtype": "bfloat16",
}


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("layers", "family"),
    [("add_qkv_bias: true", "qwen2"), ("qk_layernorm: true", "qwen3"), ("normalization: RMSNorm", "llama"),
     ("{num_experts: 8, moe_router_topk: 2, moe_ffn_hidden_size: 32, norm_topk_prob: true}", "qwen3_moe")],
)  # fmt: skip
def test_a_run_and_the_model_that_it_names(tmp_path: Path, layers: str, family: str) -> None:
    run = written(tmp_path, "run.yaml", RUN)
    added = "".join(f"  {one.strip()}\n" for one in layers.strip("{}").split(","))
    model = written(tmp_path, "model/small.yaml", MODEL + added)
    for files in ([run], [run, model], [model, run]):
        found = convert(files)
        values = flat(found)
        assert found.suite == "mindspeed" and {key: values.get(key) for key in SIZES} == SIZES
        assert values["model.architecture"] == family
        if family == "qwen3_moe":
            experts = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")
            assert [values[f"model.{name}"] for name in experts] == [8, 2, 32, True]
        # 16 cards: 2 slices x 2 stages leave 4 replicas of training; one slice leaves 16 of generation.
        assert (values["plans.train.data_parallel"], values["plans.infer.data_parallel"]) == (4, 16)
        assert values["rollout.slots"] == 64 * 16 and values["algorithm.name"] == "grpo"
        assert found.refused == []
        assert findings_of(found, "model_config.swiglu")[0].status is Status.NOT_NEEDED


def test_a_model_that_is_not_there_is_reported(tmp_path: Path) -> None:
    found = convert([written(tmp_path, "run.yaml", RUN)])
    (finding,) = findings_of(found, "model/small.yaml")
    assert finding.status is Status.UNREADABLE and "not beside the file" in finding.text
    outside = convert([written(tmp_path, "run.yaml", RUN.replace("model: small", "model: ../../etc/passwd"))])
    assert not any("passwd" in finding.source for finding in outside.findings)


def test_two_of_a_kind_do_not_go_together(tmp_path: Path) -> None:
    run, model = written(tmp_path, "run.yaml", RUN), written(tmp_path, "small.yaml", MODEL)
    for files in ([model], [run, run], [model, model]):
        with pytest.raises(ConfigError, match="one file of a run"):
            convert(files)
    with pytest.raises(ConfigError, match="do not go together"):
        convert([run, model, model])


def test_ppo_and_preference_training_are_named_and_become_nothing_else(tmp_path: Path) -> None:
    for stage in ("ray_ppo", "ray_dpo"):
        found = convert([written(tmp_path, "run.yaml", RUN.replace("ray_grpo", stage))])
        assert findings_of(found, "megatron_training.stage")[0].status is Status.NOT_IMPLEMENTED
        assert "algorithm.name" in found.missing and flat(found)["algorithm.name"] is None
