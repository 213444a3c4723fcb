"""Plans and models that do not go together, as `mindgspo check` refuses them.

Entries change the experiment of `shipped_experiment` with train 1 x 4 x 1 and infer 1 x 4 x 1. No MindSpore here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dryrun.shipped_experiment import write_experiment


@dataclass(frozen=True, kw_only=True)
class WrongPlan:
    """overrides: of the experiment. path, fix: what check names."""

    overrides: tuple[str, ...]
    path: str
    fix: str


def write_base(path: Path) -> Path:
    return write_experiment(path, architecture="qwen2", train="model_parallel: 4", infer="model_parallel: 4")


def sizes(data: int, model: int, stages: int = 1, micro_batches: int = 1) -> tuple[str, ...]:
    """Both plans over as many ranks."""
    return (
        f"plans.train={{data_parallel: {data}, model_parallel: {model}, pipeline_stage: {stages}, "
        f"micro_batch_num: {micro_batches}}}",
        f"plans.infer={{data_parallel: {data * stages}, model_parallel: {model}}}",
    )


_SIX_HEADS = ("model.num_attention_heads=6", "model.hidden_size=96")
WRONG_PLANS = {
    "vocabulary": WrongPlan(overrides=("model.vocab_size=510",),
        path="plans.train.model_parallel: 4 does not split the model evenly", fix="vocab_size 510); nearest legal: 2"),
    "attention heads": WrongPlan(overrides=_SIX_HEADS,
        path="plans.train.model_parallel: 4 does not split the model evenly (6 attention heads",
        fix="nearest legal: 2"),
    "width of the feed-forward block": WrongPlan(overrides=("model.intermediate_size=258",),
        path="plans.train.model_parallel: 4 does not split the model evenly",
        fix="intermediate_size 258, vocab_size 512); nearest legal: 2"),
    "3 key/value heads on 2 ranks": WrongPlan(overrides=(*_SIX_HEADS, "model.num_key_value_heads=3", *sizes(1, 2)),
        path="plans.train.model_parallel: 2 does not split the model evenly (6 attention heads, 3 key/value heads",
        fix="nearest legal: 1"),
    "layers over stages": WrongPlan(overrides=("model.num_hidden_layers=1", *sizes(1, 4, 2, 2)),
        path="plans.train.pipeline_stage: 2 is more", fix="than the 1 layers"),
    "micro-batches for the stages": WrongPlan(overrides=sizes(1, 4, 2, 1),
        path="plans.train.micro_batch_num: 1 is less than pipeline_stage 2", fix="smallest legal: 2"),
    "heads of 24": WrongPlan(overrides=("model.hidden_size=192", "model.head_dim=24"),
        path="model.head_dim: 24; FlashAttentionScore takes heads of a multiple of 16",
        fix="nearest legal: 16 or 32 (model.hidden_size=128 or 256 for 8 heads)"),
    "a float32 cache": WrongPlan(overrides=("rollout.cache_dtype=float32",),
        path="rollout.cache_dtype: float32; ReshapeAndCache and PagedAttention take a cache of bfloat16 or float16",
        fix="set rollout.cache_dtype=bfloat16"),
    "54 tokens in 4 parts": WrongPlan(overrides=("plans.train.use_seq_parallel=true", "trainer.length_multiple=1",
        "trainer.samples_per_micro_batch=1"),
        path="plans.train.use_seq_parallel: model_parallel 4 does not divide the tokens of a micro-batch",
        fix="nearest legal trainer.length_multiple: 4"),
    "plans of different sizes": WrongPlan(overrides=("plans.infer={data_parallel: 2, model_parallel: 4}",),
        path="plans.infer: plans.train 1 x 4 x 1 needs 4 workers, plans.infer 2 x 4 x 1 needs 8",
        fix="set plans.infer.data_parallel=1"),
    "micro-batches for the replicas": WrongPlan(overrides=(*sizes(8, 1), "trainer.samples_per_micro_batch=16"),
        path="trainer.samples_per_micro_batch: 16 makes 4 micro-batches per update, which data_parallel 8 x",
        fix="nearest legal trainer.samples_per_micro_batch: 8"),
    "prompts for the replicas": WrongPlan(
        overrides=(*sizes(24, 1), "trainer.prompts_per_mini_batch=32", "trainer.samples_per_micro_batch=1"),
        path="plans.infer.data_parallel: 24 replicas do not share rollout.prompts_per_step 32 evenly",
        fix="nearest legal: 16 or 32"),
}  # fmt: skip
