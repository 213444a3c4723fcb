"""The parallel plan of one graph and the rules that need no device: sizes, products, divisibility.

What enters: the `plans` section of an experiment. What leaves: a frozen record and, for an illegal one, lines
that name the legal values. `config.validate` calls `check_plan`; the parallel room derives ranks and device
matrices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from mindgspo.config.legal import divisors, either, nearest
from mindgspo.config.section import Section

if TYPE_CHECKING:
    from mindgspo.config.schema import ModelSection


class ParallelPlan(Section):
    """How one graph is spread over cards, in MindSpore's words. The default is one process."""

    data_parallel: int = Field(default=1, ge=1)
    """Replicas of the model, each with its own share of the batch."""
    model_parallel: int = Field(default=1, ge=1)
    """Cards that split every weight matrix (tensor parallelism); divides the attention heads."""
    pipeline_stage: int = Field(default=1, ge=1)
    """Groups of consecutive layers on different cards; divides the number of layers."""
    context_parallel: int = Field(default=1, ge=1)
    """Cards that split one sequence in attention."""
    expert_parallel: int = Field(default=1, ge=1)
    """Cards that split the experts of a mixture-of-experts layer; taken from data_parallel x model_parallel,
    so it does not count in `world_size`."""
    micro_batch_num: int = Field(default=1, ge=1)
    """Micro-batches in flight in the pipeline; at least `pipeline_stage`, or stages stand idle."""
    use_seq_parallel: bool = False
    """Split activations along the sequence between tensor-parallel regions."""
    optimizer_shard: bool = False
    """Split optimizer state over the data-parallel replicas (MindSpore's enable_parallel_optimizer)."""
    vocab_emb_dp: bool = True
    """Replicate the embedding table instead of splitting it over `model_parallel` (MindFormers' default)."""

    @property
    def world_size(self) -> int:
        """Number of processes, one per card."""
        return self.data_parallel * self.model_parallel * self.pipeline_stage * self.context_parallel

    def __str__(self) -> str:
        return f"{self.data_parallel} x {self.model_parallel} x {self.pipeline_stage}"


def check_plan(name: str, plan: ParallelPlan, model: ModelSection) -> list[str]:
    """Everything wrong with the plan at `name` (e.g. "plans.train") for `model`, one line per problem."""
    return [
        *_model_parallel_problems(f"{name}.model_parallel", plan, model),
        *_pipeline_problems(name, plan, model),
        *_not_single_process(name, plan),
    ]


def _model_parallel_problems(name: str, plan: ParallelPlan, model: ModelSection) -> list[str]:
    size = plan.model_parallel
    legal = [mp for mp in divisors(model.num_attention_heads) if _fits(mp, plan, model)]
    if size in legal:
        return []
    sizes = f"{model.num_attention_heads} attention heads, {model.num_key_value_heads} key/value heads"
    return [
        f"{name}: {size} does not split the model evenly ({sizes}, intermediate_size "
        f"{model.intermediate_size}, vocab_size {model.vocab_size}); nearest legal: "
        f"{either(nearest(legal, size))}"
    ]


def _fits(model_parallel: int, plan: ParallelPlan, model: ModelSection) -> bool:
    """Few key/value heads may be shared by several cards, but then evenly: one size divides the other."""
    kv_heads = model.num_key_value_heads
    return (
        (kv_heads % model_parallel == 0 or model_parallel % kv_heads == 0)
        and model.intermediate_size % model_parallel == 0
        and (plan.vocab_emb_dp or model.vocab_size % model_parallel == 0)
    )


def _pipeline_problems(name: str, plan: ParallelPlan, model: ModelSection) -> list[str]:
    stages, layers = plan.pipeline_stage, model.num_hidden_layers
    problems = []
    if layers % stages:
        legal = either(nearest(divisors(layers), stages))
        problems.append(f"{name}.pipeline_stage: {stages} does not divide {layers} layers; nearest legal: {legal}")
    if stages > 1 and plan.micro_batch_num < stages:
        problems.append(
            f"{name}.micro_batch_num: {plan.micro_batch_num} is less than pipeline_stage {stages}; "
            f"smallest legal: {stages}"
        )
    return problems


def _not_single_process(name: str, plan: ParallelPlan) -> list[str]:
    """Only the default plan runs yet; every other entry is named, so that nothing set is silently without
    effect."""
    default = ParallelPlan()
    changed = [
        f"{field} {str(getattr(plan, field)).lower()}"
        for field in ParallelPlan.model_fields
        if getattr(plan, field) != getattr(default, field)
    ]
    if not changed:
        return []
    return [f"{name}: {', '.join(changed)}: only single-process plans run in this version; remove the entry"]
