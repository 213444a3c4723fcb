"""Rules of the section `model`: sizes that no model can have. Pure Python."""

from __future__ import annotations

from collections.abc import Iterator

from mindgspo.config.lora import lora_problems
from mindgspo.config.model import (
    EXPERT_FIELDS,
    FAMILIES,
    LATENT_FIELDS,
    ROPE_FIELDS,
    SHARED_EXPERT_FIELDS,
    ModelSection,
)
from mindgspo.text import divisors, either, nearest


def model_problems(model: ModelSection) -> Iterator[str]:
    """Sizes that no model can have."""
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
    yield from _latent_problems(model)
    yield from _head_dim_problems(model)
    yield from _expert_problems(model)
    yield from _rotary_problems(model)
    yield from _rope_scaling_problems(model)
    yield from lora_problems(model, joins_gate_and_up=FAMILIES[model.architecture].joins_gate_and_up)
    if heads % kv_heads:
        yield (
            f"model.num_key_value_heads: {kv_heads} does not divide num_attention_heads {heads}; "
            f"nearest legal: {either(nearest(divisors(heads), kv_heads))}"
        )


def _latent_problems(model: ModelSection) -> Iterator[str]:
    architecture = model.architecture
    if not FAMILIES[architecture].has_latent_attention:
        users = either([name for name, family in FAMILIES.items() if family.has_latent_attention])
        for name in LATENT_FIELDS:
            if getattr(model, name) is not None:
                yield f"model.{name}: {architecture} has none; remove it, or set model.architecture={users}"
        return
    for name in LATENT_FIELDS[1:]:
        if getattr(model, name) is None:
            yield f"model.{name}: missing; {architecture} needs it, and its config.json has it"
    rotated, key, value = model.qk_rope_head_dim, model.head_dim, model.v_head_dim
    if rotated is not None and rotated % 2:
        yield (
            f"model.qk_rope_head_dim: {rotated} must be even (RoPE turns pairs); nearest legal: "
            f"{either([rotated - 1, rotated + 1] if rotated > 1 else [2])}"
        )
    if value is not None and key is not None and value > key:
        yield f"model.v_head_dim: {value} is more than qk_nope_head_dim + qk_rope_head_dim; largest legal: {key}"
    if model.num_key_value_heads != model.num_attention_heads:
        yield (
            f"model.num_key_value_heads: {model.num_key_value_heads}; every head of {architecture} has its own keys "
            f"and values: {model.num_attention_heads}"
        )


def _head_dim_problems(model: ModelSection) -> Iterator[str]:
    hidden, heads, head_dim = model.hidden_size, model.num_attention_heads, model.head_dim
    if model.kv_lora_rank is not None:
        return
    if head_dim is None or head_dim * heads == hidden:
        if hidden % heads or (hidden // heads) % 2:
            legal = [size for size in divisors(hidden) if (hidden // size) % 2 == 0]
            fix = f"nearest legal heads: {either(nearest(legal, heads))}" if legal else "use an even width"
            own = "; or set model.head_dim" if FAMILIES[model.architecture].has_own_head_dim else ""
            yield (
                f"model.hidden_size: {hidden} / num_attention_heads {heads} = {hidden / heads:g} must be an even "
                f"whole number (RoPE turns pairs); {fix}{own}"
            )
    elif not FAMILIES[model.architecture].has_own_head_dim:
        yield (
            f"model.head_dim: {head_dim} x {heads} attention heads = {head_dim * heads} is not hidden_size {hidden}, "
            f"as it must be for {model.architecture}; remove it, or set model.architecture=qwen3"
        )
    elif head_dim % 2:
        yield (
            f"model.head_dim: {head_dim} must be even (RoPE turns pairs); nearest legal: "
            f"{either([head_dim - 1, head_dim + 1] if head_dim > 1 else [2])}"
        )


def _expert_problems(model: ModelSection) -> Iterator[str]:
    family, architecture = FAMILIES[model.architecture], model.architecture
    if model.use_qk_norm and family.has_head_norms is not None:
        has = "no norms" if not family.has_head_norms else "norms"
        yield f"model.use_qk_norm: {architecture} has {has} of queries and keys, and no choice; remove it"
    foreign = () if family.has_experts else EXPERT_FIELDS
    foreign += () if family.has_shared_experts else SHARED_EXPERT_FIELDS
    for name in foreign:
        if getattr(model, name) != ModelSection.model_fields[name].default:
            users = [one for one, each in FAMILIES.items() if each.has_experts]
            what = "no experts"
            if name in SHARED_EXPERT_FIELDS:
                users, what = [one for one in users if FAMILIES[one].has_shared_experts], "none"
            yield f"model.{name}: {architecture} has {what}; remove it, or set model.architecture={either(users)}"
    if not family.has_experts:
        return
    missing = [name for name in EXPERT_FIELDS[:3] if getattr(model, name) is None]
    for name in missing:
        yield f"model.{name}: missing; {architecture} needs it, and its config.json has it"
    if not missing:
        yield from _choice_problems(model)


def _choice_problems(model: ModelSection) -> Iterator[str]:
    """Rules of the choice of experts, and of the layers that choose."""
    chosen, every, groups = model.num_experts_per_tok, model.num_experts, model.n_group
    assert chosen is not None and every is not None
    size, dense = every // groups, model.first_k_dense_replace
    if every % groups or (groups > 1 and size < 2):
        legal = [one for one in divisors(every) if every // one > 1]
        yield (
            f"model.n_group: {groups} does not split num_experts {every} into equal groups of 2 or more; nearest "
            f"legal: {either(nearest(legal, groups))}"
        )
    elif model.topk_group > groups:
        yield f"model.topk_group: {model.topk_group} is more than n_group {groups}; largest legal: {groups}"
    elif chosen > (most := size * model.topk_group):
        of_groups = f" in topk_group {model.topk_group} of n_group {groups} groups" if groups > 1 else ""
        yield f"model.num_experts_per_tok: {chosen} is more than num_experts {every}{of_groups}; largest legal: {most}"
    if dense >= model.num_hidden_layers:
        yield (
            f"model.first_k_dense_replace: {dense} of num_hidden_layers {model.num_hidden_layers} leave no layer with "
            f"experts; largest legal: {model.num_hidden_layers - 1}"
        )


def _rotary_problems(model: ModelSection) -> Iterator[str]:
    architecture, factor, head_dim = model.architecture, model.partial_rotary_factor, model.head_dim
    family = FAMILIES[architecture]
    if family.has_attention_bias not in (None, model.attention_bias):
        has = "no biases" if model.attention_bias else "biases"
        yield f"model.attention_bias: {architecture} has {has} of q, k and v, and no choice; remove it"
    if factor == 1 or head_dim is None:
        return
    if not family.has_partial_rotary:
        yield f"model.partial_rotary_factor: {factor:g}; {architecture} turns all features of a head; remove it"
    elif (turned := model.rotary_dim) % 2 or not turned:
        legal = [f"{size / head_dim:g}" for size in (turned - 1, turned + 1 + (not turned)) if size > 0]
        yield (
            f"model.partial_rotary_factor: {factor:g} of head_dim {head_dim} are {turned} features, which must be an "
            f"even number from 2 on (RoPE turns pairs); nearest legal: {either(legal)}"
        )


def _rope_scaling_problems(model: ModelSection) -> Iterator[str]:
    scaling = model.rope_scaling
    if scaling is None:
        return
    kind, at = scaling.rope_type, "model.rope_scaling"
    for name, value in scaling.model_dump(exclude={"rope_type", "factor"}).items():
        users = [rule for rule, needed in ROPE_FIELDS.items() if name in needed] or ["yarn"]
        if value is None and name in ROPE_FIELDS[kind]:
            yield f"{at}.{name}: missing; {kind} needs it"
        elif value is not None and kind not in users:
            yield f"{at}.{name}: {kind} has none; remove it, or set rope_type to {' or '.join(users)}"
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if low is not None and high is not None and high <= low:
        yield f"{at}.high_freq_factor: {high:g} must be more than low_freq_factor {low:g}"
    fast, slow = scaling.beta_fast or 32.0, scaling.beta_slow or 1.0
    if fast < slow:
        yield f"{at}.beta_fast: {fast:g} is less than beta_slow {slow:g}; nearest legal: {slow:g}"
