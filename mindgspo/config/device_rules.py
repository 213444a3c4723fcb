"""What a device and a model backend require of plans and shapes.

The numbers for Ascend are those of MindSpore 2.10's compiler and fused operators; the dry run's tests compare them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, prod

from mindgspo.config.model import FAMILIES, ModelSection
from mindgspo.config.plan import ParallelPlan, legal_model_parallel
from mindgspo.config.schema import ExperimentConfig
from mindgspo.kernels.build import has_compiler
from mindgspo.text import divisors, either, nearest

_GROUPS = "on Ascend ranks work together by 1, 2, 4 or whole servers of 8"
_SERVER = 8
_HEAD_STEP = 16
_ARCHITECTURES = ("qwen2", "llama")


def device_problems(config: ExperimentConfig) -> Iterator[str]:
    """Every rule that holds on one device only."""
    yield from split_problems(config)
    if config.device == "CPU":
        return
    model, plans = config.model, config.plans
    yield from head_dim_problems(model)
    yield from _cache_problems(config)
    yield from _rank_problems("plans.train", plans.train, model)
    yield from _rank_problems("plans.infer", plans.infer, model)
    yield from _tied_layout_problems("plans.train", plans.train, model)
    yield from _tied_stage_problems("plans.train", plans.train, model)
    if plans.reference is not None:
        yield from _rank_problems("plans.reference", plans.reference, model)
        yield from _tied_layout_problems("plans.reference", plans.reference, model)


def compiler_problems(config: ExperimentConfig) -> Iterator[str]:
    """What this machine cannot compute on CPU: MindSpore's own operators have no bfloat16 there, only our kernels, and
    no collectives but sums."""
    if config.device != "CPU" or has_compiler():
        return
    if config.plans.train.world_size > 1:
        yield (
            f"plans.train: {config.plans.train.world_size} ranks on CPU talk by code that g++ compiles, and it is not "
            "installed; apt-get install g++, or set every dimension to 1"
        )
    missing = "bfloat16 on CPU takes kernels that g++ compiles, and it is not installed; apt-get install g++, or set"
    if config.model.dtype == "bfloat16":
        yield f"model.dtype: {missing} model.dtype=float32"
    elif config.rollout.cache_dtype == "bfloat16":
        yield f"rollout.cache_dtype: {missing} rollout.cache_dtype={config.model.dtype}"


def head_dim_problems(model: ModelSection) -> Iterator[str]:
    """Heads that a card's fused attention does not take."""
    head_dim, heads = model.head_dim, model.num_attention_heads
    if head_dim is None or head_dim % _HEAD_STEP == 0:
        return
    below = head_dim // _HEAD_STEP * _HEAD_STEP
    legal = [size for size in (below, below + _HEAD_STEP) if size]
    fix = f"nearest legal: {either(legal)}"
    if not FAMILIES[model.architecture].has_own_head_dim:
        fix += f" (model.hidden_size={either([size * heads for size in legal])} for {heads} heads)"
    yield f"model.head_dim: {head_dim}; FlashAttentionScore takes heads of a multiple of {_HEAD_STEP}; {fix}"


def default_cache_dtype(config: ExperimentConfig) -> str:
    """The model's, where the device's attention takes it."""
    return "bfloat16" if config.device == "Ascend" and config.model.dtype == "float32" else config.model.dtype


def _cache_problems(config: ExperimentConfig) -> Iterator[str]:
    if config.rollout.cache_dtype == "float32":
        yield (
            "rollout.cache_dtype: float32; ReshapeAndCache and PagedAttention take a cache of bfloat16 or float16; set "
            "rollout.cache_dtype=bfloat16"
        )


def _rank_problems(name: str, plan: ParallelPlan, model: ModelSection) -> Iterator[str]:
    """Model-parallel groups, stages and the whole, the first of them that is wrong: all are runs of consecutive
    ranks."""
    slices, parts, stages = plan.model_parallel, plan.context_parallel, plan.pipeline_stage
    replicas, stage_size = plan.data_parallel, plan.token_parts * slices
    legal = [size for size in legal_model_parallel(plan, model) if _is_group(size)]
    if not _is_group(slices):
        yield f"{name}.model_parallel: {slices}; {_GROUPS}; nearest legal: {either(nearest(legal, slices))}"
        return
    context = f"context_parallel {parts} x " if parts > 1 else ""
    if not _is_group(stage_size):
        legal = [number for number in range(1, replicas + _SERVER) if _is_group(number * parts * slices)]
        yield (
            f"{name}.data_parallel: {replicas} x {context}model_parallel {slices} = {stage_size} ranks; {_GROUPS}; "
            f"nearest legal: {either(nearest(legal, replicas))}"
        )
        return
    if not _is_group(stage_size * stages):
        legal = [number for number in divisors(model.num_hidden_layers) if _is_group(stage_size * number)]
        yield (
            f"{name}.pipeline_stage: {stages} stages of {replicas} x {f'{parts} x ' * (parts > 1)}{slices} ranks = "
            f"{stage_size * stages}; {_GROUPS}; nearest legal: {either(nearest(legal, stages))}"
        )


def _is_group(num_ranks: int) -> bool:
    return num_ranks in (1, 2, 4) or num_ranks % _SERVER == 0


def _tied_layout_problems(name: str, plan: ParallelPlan, model: ModelSection) -> Iterator[str]:
    if model.tie_word_embeddings and plan.vocab_emb_dp and plan.model_parallel > 1:
        yield (
            f"{name}.vocab_emb_dp: true, but model.tie_word_embeddings makes the embedding table the output table, "
            f"which model_parallel {plan.model_parallel} splits, and the compiler keeps one layout per parameter: "
            f"every log-prob would be wrong; set {name}.vocab_emb_dp=false, or leave it out"
        )


def _tied_stage_problems(name: str, plan: ParallelPlan, model: ModelSection) -> Iterator[str]:
    stages = plan.pipeline_stage
    if not model.tie_word_embeddings or stages == 1:
        return
    more = plan.model_parallel * stages
    by_slices = f"model_parallel={more} or " if more in legal_model_parallel(plan, model) and _is_group(more) else ""
    yield (
        f"{name}.pipeline_stage: {stages} stages, but model.tie_word_embeddings makes one table of the first stage's "
        f"and the last one's, and their two copies are not kept equal on Ascend; set pipeline_stage=1, "
        f"micro_batch_num=1 and {by_slices}data_parallel={plan.data_parallel * stages}"
    )


def split_problems(config: ExperimentConfig) -> Iterator[str]:
    """Plans that do not split the tokens of a micro-batch evenly."""
    yield from _split_problems("plans.train", config.plans.train, config)
    if config.plans.reference is not None:
        yield from _split_problems("plans.reference", config.plans.reference, config)


def _split_problems(name: str, plan: ParallelPlan, config: ExperimentConfig) -> Iterator[str]:
    """Tokens of a micro-batch, flattened, are split, or shared out between blocks of ranks that have all experts; its
    width is any multiple of length_multiple."""
    multiple = config.trainer.length_multiple
    rows = config.trainer.samples_per_micro_batch or 1  # under a token budget any number
    by = {"context_parallel": plan.context_parallel}
    if plan.use_seq_parallel or plan.expert_block < plan.model_parallel:
        by["model_parallel"] = plan.model_parallel
    parts = prod(by.values())
    if rows * multiple % parts == 0:
        return
    key = "context_parallel"
    if "model_parallel" in by:
        key = "use_seq_parallel" if plan.use_seq_parallel else "expert_parallel"
    sizes = " x ".join(f"{axis} {size}" for axis, size in by.items() if size > 1)
    given = f"trainer.length_multiple {multiple}"
    if config.trainer.samples_per_micro_batch is not None:
        given = f"trainer.samples_per_micro_batch {rows} x {given} = {rows * multiple}"
    step = parts // gcd(parts, rows)
    below = multiple // step * step
    legal = [number for number in (below, below + step) if number]
    yield (
        f"{name}.{key}: {sizes} does not divide the tokens of a micro-batch, "
        f"{given}; nearest legal trainer.length_multiple: {either(legal)}"
    )


def backend_problems(config: ExperimentConfig) -> Iterator[str]:
    """Every violated rule of a backend that is not ours."""
    if config.model.backend == "native":
        return
    yield from mindformers_problems(config.model)
    use_native = "or leave model.backend=native"
    if config.device != "CPU":
        yield f"model.backend: mindformers is tested on CPU alone; set device=CPU, {use_native}"
    if config.plans.train.world_size > 1:
        yield f"model.backend: mindformers trains in one process; leave out plans, {use_native}"
    if config.trainer.packing:
        yield f"trainer.packing: rows of MindFormers' cells hold one sample each; set it to false, {use_native}"


def mindformers_problems(model: ModelSection) -> Iterator[str]:
    """Every detail of an architecture that MindFormers' legacy cells do not have."""
    if model.architecture not in _ARCHITECTURES:
        yield (
            f"model.architecture: {model.architecture} is not among the legacy cells of MindFormers; legal with that "
            f"backend: {', '.join(_ARCHITECTURES)}"
        )
    if model.head_dim is not None and model.head_dim * model.num_attention_heads != model.hidden_size:
        yield (
            f"model.head_dim: {model.head_dim} x {model.num_attention_heads} attention heads is not hidden_size "
            f"{model.hidden_size}, as it must be in the cells of MindFormers; use the native backend"
        )
    if model.rows != model.vocab_size:
        yield "model.table_rows: the cells of MindFormers have no padded tables; leave it out"
    if model.dtype != "float32":
        yield f"model.dtype: {model.dtype}; the MindFormers backend is tested in float32 alone; set float32"
