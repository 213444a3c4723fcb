"""A small experiment of the shipped cells, whose sizes the tests of their graphs work with by hand."""

from __future__ import annotations

from pathlib import Path

ARITHMETIC = Path(__file__).parents[2] / "examples" / "arithmetic" / "gspo.yaml"
NUM_RANKS = 8

# 2 rows of 64 slots (prompts of 32, responses of 22) are the 128 tokens of a micro-batch. Every weight is split by 8;
# all but the key/value weights and the norms have 64 KB or more, from which on MindSpore cuts them over replicas.
_TEXT = """
include: {include}
experiment: small
device: Ascend
model:
  architecture: {architecture}
  hidden_size: 128
  intermediate_size: 256
  num_hidden_layers: 2
  num_attention_heads: 8
  num_key_value_heads: 2
  head_dim: {head_dim}
  tie_word_embeddings: false
  {more}
  dtype: bfloat16
plans:
  train: {{{train}}}
  infer: {{{infer}}}
  {reference}
rollout: {{slots: 16}}
trainer: {{samples_per_micro_batch: 2}}
"""
HEAD_DIM = {"qwen2": 16, "qwen3": 32, "qwen3_moe": 32, "llama": 16, "glm4": 32}
# 16 x 64 x 128 numbers of each of an expert layer's three matrices.
_MORE = {
    "qwen3_moe": """num_experts: 16
  num_experts_per_tok: 2
  moe_intermediate_size: 64
  norm_topk_prob: true""",
    "glm4": "partial_rotary_factor: 0.5",
}


def write_experiment(path: Path, *, architecture: str, train: str, infer: str, reference: str = "") -> Path:
    """train, infer, reference: entries of the plans as YAML, e.g. "model_parallel: 4"; no reference: as train."""
    text = _TEXT.format(
        include=ARITHMETIC,
        architecture=architecture,
        head_dim=HEAD_DIM[architecture],
        more=_MORE.get(architecture, ""),
        train=train,
        infer=infer,
        reference=f"reference: {{{reference}}}" if reference else "",
    )
    path.write_text(text, encoding="utf-8")
    return path
