"""Rules of an experiment's environment: devices, backends, servers and schedules.

The numbers for Ascend are those of its fused operators; the dry run's tests compare them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import gcd, prod
from urllib.parse import urlsplit

from mindgspo.config.cache import BLOCK
from mindgspo.config.model import FAMILIES, ModelSection
from mindgspo.config.plan import ParallelPlan, check_same_world, legal_context_parallel, legal_model_parallel
from mindgspo.config.schema import ExperimentConfig
from mindgspo.text import either
from mindgspo_kernels.build import has_compiler

_HEAD_STEP = 16  # FlashAttentionScore takes heads of a multiple of this width
_WIDEST_LATENT = 576  # as MindSpore's own PagedAttention with mla_v_dim
_WIDEST_HEAD = 16_384 // BLOCK  # PagedAttention takes at most 16,384 numbers of a block and head
_ARCHITECTURES = ("qwen2", "llama")


def device_problems(config: ExperimentConfig) -> Iterator[str]:
    """Every rule that holds on one device only."""
    yield from split_problems(config)
    if config.device == "CPU":
        return
    yield from head_dim_problems(config.model)
    yield from _cache_problems(config)
    memory = config.memory
    if memory.device_gb is not None and memory.device_gb <= memory.reserve_gb:
        yield (
            f"memory.device_gb: {memory.device_gb:g} is not more than memory.reserve_gb {memory.reserve_gb:g}, which "
            "is taken before a run begins; an Atlas 800T A2 card has 64"
        )


def compiler_problems(config: ExperimentConfig) -> Iterator[str]:
    """Settings that this machine cannot compute on CPU: MindSpore's own operators have no bfloat16 there, only our
    kernels, and no collectives but sums."""
    if config.device != "CPU" or has_compiler():
        return
    if config.plans.train.world_size > 1:
        yield (
            f"plans.train: {config.plans.train.world_size} ranks on CPU talk by code that g++ compiles, and it is not "
            "installed; apt-get install g++, or set every dimension to 1"
        )
    if config.model.lora is not None and config.rollout.lora == "merged":
        yield (
            "rollout.lora: merged on CPU takes kernels that g++ compiles, and it is not installed; apt-get install "
            "g++, or set rollout.lora=separate"
        )
    missing = "bfloat16 on CPU takes kernels that g++ compiles, and it is not installed; apt-get install g++, or set"
    if config.model.dtype == "bfloat16":
        yield f"model.dtype: {missing} model.dtype=float32"
    elif config.rollout.cache_dtype == "bfloat16":
        yield f"rollout.cache_dtype: {missing} rollout.cache_dtype={config.model.dtype}"


def head_dim_problems(model: ModelSection) -> Iterator[str]:
    """Heads that a card's fused attention does not take."""
    head_dim, heads = model.head_dim, model.num_attention_heads
    latent, rotated = model.kv_lora_rank, model.qk_rope_head_dim
    if latent is not None and rotated is not None and latent + rotated > _WIDEST_LATENT:
        yield (
            f"model.kv_lora_rank: {latent} + qk_rope_head_dim {rotated} = {latent + rotated}; "
            f"PagedAttention takes latents with their rotated key of at most {_WIDEST_LATENT} features together; "
            "device=CPU has no such limit"
        )
    elif latent is None and head_dim is not None and head_dim > _WIDEST_HEAD:
        yield (
            f"model.head_dim: {head_dim}; with blocks of {BLOCK} tokens PagedAttention takes heads of at most "
            f"{_WIDEST_HEAD}; device=CPU has no such limit"
        )
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


def split_problems(config: ExperimentConfig) -> Iterator[str]:
    """Plans that do not split the tokens of a micro-batch evenly."""
    yield from _split_problems("plans.train", config.plans.train, config)
    if config.plans.reference is not None:
        yield from _split_problems("plans.reference", config.plans.reference, config)


def _split_problems(name: str, plan: ParallelPlan, config: ExperimentConfig) -> Iterator[str]:
    """Tokens of a micro-batch, flattened, are split, or divided among blocks of ranks that hold all experts; its width
    is any multiple of length_multiple."""
    model = config.model
    if plan.model_parallel not in legal_model_parallel(plan, model):
        return  # which the plan's own rules say, as below
    if plan.context_parallel not in legal_context_parallel(plan, model):
        return
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
    """Every architecture detail that MindFormers' legacy cells lack."""
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
    if model.rope_scaling is not None and model.rope_scaling.rope_type != "llama3":
        yield (
            f"model.rope_scaling.rope_type: {model.rope_scaling.rope_type} is not tested with MindFormers; "
            "legal with that backend: llama3; or use the native backend"
        )
    if model.dtype != "float32":
        yield f"model.dtype: {model.dtype}; the MindFormers backend is tested in float32 alone; set float32"


_CARDS = re.compile(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", re.ASCII)


def schedule_problems(config: ExperimentConfig) -> Iterator[str]:
    """Every violated rule, one line each."""
    trainer, plans = config.trainer, config.plans
    if plans.train.cards is not None:
        yield "plans.train.cards: training has the first cards; remove it (plans.infer.cards names those of generation)"
    if config.has_own_servers:
        yield from _card_problems(config)
    elif not config.has_servers:
        yield from check_same_world(plans.train, plans.infer, "plans.infer")
    servers = config.rollout.servers
    if servers.urls:
        yield from _url_problems(config)
    elif servers.api != "mindgspo":
        yield (
            f"rollout.servers.api: {servers.api} is for servers that somebody has started; name them in "
            "rollout.servers.urls, or remove it"
        )
    if trainer.schedule == "sync":
        return
    if trainer.schedule == "one_step_off" and trainer.max_staleness > 1:
        yield (
            f"trainer.max_staleness: {trainer.max_staleness}; with schedule=one_step_off responses are one step "
            "old; legal: 0 or 1, or set trainer.schedule=bounded"
        )
    if config.algorithm.advantage.estimator == "remax":
        yield (
            f"trainer.schedule: {trainer.schedule} draws no greedy responses, with which algorithm.advantage.estimator="
            "remax compares; set schedule=sync, or another estimator, e.g. rloo"
        )
    if config.algorithm.filter_groups.keep_surplus_steps:
        yield (
            "algorithm.filter_groups.keep_surplus_steps: with schedule="
            f"{trainer.schedule} prompts wait in its own queue; set it to 0 (trainer.max_staleness bounds their age)"
        )


def infer_cards(config: ExperimentConfig) -> tuple[int, ...]:
    """Cards of the servers that the run starts, replica by replica."""
    plans = config.plans
    first = plans.train.world_size
    named = plans.infer.card_numbers
    return tuple(range(first, first + plans.infer.world_size)) if named is None else named


def _card_problems(config: ExperimentConfig) -> Iterator[str]:
    train, infer = config.plans.train, config.plans.infer
    if infer.cards is not None and not _CARDS.fullmatch(infer.cards):
        yield f'plans.infer.cards: "{infer.cards}" names no cards; write numbers and ranges, e.g. "4-7" or "4,6"'
        return
    cards = infer_cards(config)
    shared = sorted({card for card in cards if card < train.world_size})
    free = f"{train.world_size}-{train.world_size + infer.world_size - 1}" if infer.world_size > 1 else train.world_size
    if shared:
        yield (
            f'plans.infer.cards: "{infer.cards}" holds card {shared[0]}, and plans.train {train} has the first '
            f'{train.world_size}; set plans.infer.cards="{free}"'
        )
    elif len(set(cards)) != infer.world_size or len(cards) != infer.world_size:
        yield (
            f'plans.infer.cards: "{infer.cards}" are {len(set(cards))} cards, plans.infer {infer} needs '
            f'{infer.world_size}; set plans.infer.cards="{free}", or plans.infer.data_parallel'
        )


def _url_problems(config: ExperimentConfig) -> Iterator[str]:
    urls = config.rollout.servers.urls
    if config.plans.infer.cards is not None:
        yield (
            f'plans.infer.cards: "{config.plans.infer.cards}" are for servers that the run starts, and '
            "rollout.servers.urls names others; remove one of them"
        )
    for url in urls:
        yield from address_problems("rollout.servers.urls", url, key_file="rollout.servers.api_key_file")
    if len(set(urls)) < len(urls):
        yield f"rollout.servers.urls: {max(urls, key=urls.count)} is named twice; name each server once"


def address_problems(key: str, url: str, *, key_file: str) -> Iterator[str]:
    """What is wrong with the address of a server. key_file: the setting that names the file of its key."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        yield f"{key}: {url!r} is no address of a server; write e.g. http://10.0.0.2:8000"
    elif "@" in parts.netloc or parts.query or parts.fragment:
        yield (
            f"{key}: that of {parts.hostname} has a user, a query or a fragment; remove it, and give a key by "
            f"{key_file}"
        )
