"""The section `model.lora`: low-rank adapters (LoRA, arXiv 2106.09685) on frozen weights. Pure Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mindgspo.config.section import Section
from mindgspo.text import did_you_mean

if TYPE_CHECKING:
    from mindgspo.config.model import ModelSection
    from mindgspo.config.schema import ExperimentConfig

_ATTENTION = ("q_proj", "k_proj", "v_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_JOINED = frozenset({"gate_proj", "up_proj"})
_ROUTER = "gate"
_OF_EXPERTS: Mapping[str, tuple[str, ...]] = {"experts": _MLP, "router": (_ROUTER,)}
_WORDS: Mapping[str, tuple[str, ...]] = {
    "attention": _ATTENTION,
    "mlp": _MLP,
    "all": _ATTENTION + _MLP,
    **_OF_EXPERTS,
}
_TABLES = ("embed_tokens", "lm_head", "embeddings", "head")


class LoraSection(Section):
    """Train y = x W^T + scale (x A^T) B^T with W frozen, A [rank, in] and B [out, rank] for each target."""

    if TYPE_CHECKING:  # pydantic gives frozen sections a hash, which type checkers do not know

        def __hash__(self) -> int: ...

    rank: int = 16
    """Rows of A and columns of B; at most the width of the narrowest target."""
    alpha: float = Field(default=32.0, gt=0)
    """scale = alpha / rank."""
    use_rslora: bool = False
    """scale = alpha / sqrt(rank) instead (rsLoRA, arXiv 2312.03732)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Only 0 is implemented: the sampler would have to drop the same values as the trainer."""
    targets: tuple[str, ...] = Field(default=("all",), min_length=1)
    """Projections with adapters: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, of latent attention
    q_a_proj, q_b_proj, kv_a_proj_with_mqa and kv_b_proj; or attention, mlp, all. Of a mixture, those of the MLP are
    every expert's own, also called experts, and those of shared experts and of dense layers; router is its router,
    which `all` leaves out."""
    train_norms: bool = False
    """Train the vectors of all norms themselves, beside the adapters (PEFT's modules_to_save)."""
    init: Literal["kaiming", "gaussian", "pissa"] = "kaiming"
    """How A is drawn, as by PEFT: kaiming is uniform within 1 / sqrt(in), gaussian has the standard deviation 1 / rank.
    B begins with zeros, so that the first policy is the base model. pissa (arXiv 2404.02948): A and B begin with the
    principal parts of the weight, which is trained beside what these leave; exports have plain adapters of twice the
    rank on the base itself."""
    path: Path | None = None
    """PEFT folder (adapter_config.json + adapter_model.safetensors) to begin with, or its name on a hub. Its rank,
    alpha and targets must be those above. None: drawn from `seed`."""

    @property
    def scale(self) -> float:
        """The factor of an adapter's output."""
        return self.alpha / (sqrt(self.rank) if self.use_rslora else self.rank)

    @property
    def projections(self) -> tuple[str, ...]:
        """Names of the projections that have adapters, as far as a model has them."""
        named = {one for target in self.targets for one in _WORDS.get(target, (target,))}
        return tuple(one for one in (*_WORDS["all"], _ROUTER) if one in named)


def rollout_lora_problems(config: ExperimentConfig) -> Iterator[str]:
    """What generation cannot do with the adapters."""
    chosen, lora, api = config.rollout.lora, config.model.lora, config.rollout.servers.api
    if chosen == "auto":
        return
    if lora is None:
        yield f"rollout.lora: {chosen}; there are no adapters; set model.lora, or remove it"
    elif chosen == "merged" and config.device == "CPU" and config.model.kv_lora_rank is not None:
        if not config.has_servers:
            yield "rollout.lora: merged; on CPU latent attention has no merged weights; set auto"
    elif chosen == "separate" and config.has_servers:
        if lora.init == "pissa":
            yield "rollout.lora: separate; servers do not hold what model.lora.init=pissa leaves of the base; set auto"
        if lora.train_norms and api != "mindgspo":
            yield f"rollout.lora: separate; {api} takes no norms beside adapters (model.lora.train_norms); set auto"
        if lora.use_rslora and api == "sglang":
            yield (
                "rollout.lora: separate; sglang scales by alpha / rank even with model.lora.use_rslora; set that to "
                f"false and model.lora.alpha={lora.scale * lora.rank:g}, or rollout.lora=auto"
            )


def lora_problems(model: ModelSection, *, joins_gate_and_up: bool = False) -> Iterator[str]:
    """Adapters that the model cannot have. joins_gate_and_up: of its family."""
    lora = model.lora
    if lora is None:
        return
    if model.backend != "native":
        yield f"model.lora: the backend {model.backend} has no adapters; remove the section, or the backend"
    if lora.dropout:
        yield (
            f"model.lora.dropout: {lora.dropout:g}; with dropout the trainer's log-probs would not be the sampler's; "
            "only legal: 0"
        )
    if lora.init == "pissa" and lora.path is not None:
        yield (
            "model.lora.init: pissa begins with parts of the base, and model.lora.path with an adapter; remove one of "
            "them"
        )
    known = (*_WORDS, *(name for name in _sizes(model) if name != _ROUTER))
    yield from (_target_problem(model, target, known) for target in lora.targets if target not in known)
    if joins_gate_and_up and (joined := _JOINED & set(lora.projections)):
        if joined != _JOINED:
            yield (
                f"model.lora.targets: {', '.join(joined)} alone; files of {model.architecture} have one gate_up_proj, "
                "whose adapter is that of both; name gate_proj and up_proj, or neither"
            )
        if lora.init == "pissa":
            yield (
                f"model.lora.init: pissa has no parts of {model.architecture}'s gate_up_proj; set "
                "model.lora.targets=[attention,down_proj], or init=kaiming"
            )
    if model.num_experts is None and (of_experts := sorted(_OF_EXPERTS.keys() & set(lora.targets))):
        yield f"model.lora.targets: {', '.join(of_experts)}; {model.architecture} has no experts; set mlp or attention"
    narrowest = narrowest_target(model, lora)
    if lora.rank < 1 or (narrowest and lora.rank > narrowest):
        most = f" to {narrowest}, the width of the narrowest target" if narrowest else " or more"
        yield f"model.lora.rank: {lora.rank}; legal: 1{most}"


def narrowest_target(model: ModelSection, lora: LoraSection) -> int:
    """Smallest number of in- or output features of a target, which no rank exceeds; 0 without a known target."""
    return min((min(sizes) for name, sizes in _sizes(model).items() if name in lora.projections), default=0)


def _target_problem(model: ModelSection, target: str, known: Sequence[str]) -> str:
    if target in _TABLES:
        return (
            f"model.lora.targets: {target}; tables are no targets: a tied one is input and output at once, and a row "
            "per token is no projection; leave it out"
        )
    meant = "router" if target == _ROUTER and model.num_experts else target
    fix = did_you_mean(meant, known, otherwise=f"; known: {', '.join(known)}")
    return f"model.lora.targets: no projection {target!r}{fix}"


def _sizes(model: ModelSection) -> dict[str, tuple[int, int]]:
    """Input and output features of each projection."""
    hidden, inner = model.hidden_size, min(model.inner_sizes.values(), default=model.intermediate_size)
    return {
        **_attention_sizes(model),
        **{"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)},
        **({_ROUTER: (hidden, model.num_experts)} if model.num_experts else {}),
    }


def _attention_sizes(model: ModelSection) -> dict[str, tuple[int, int]]:
    hidden, heads, head_dim = model.hidden_size, model.num_attention_heads, model.head_dim or 1
    query, key_value = heads * head_dim, model.num_key_value_heads * head_dim
    if model.kv_lora_rank is None or model.head_dim is None:
        outs = {"q_proj": query, "k_proj": key_value, "v_proj": key_value}
        return {**{name: (hidden, out) for name, out in outs.items()}, "o_proj": (query, hidden)}
    latent, rotated = model.latent_dims
    queries = {"q_proj": (hidden, query)}
    if model.q_lora_rank is not None:
        queries = {"q_a_proj": (hidden, model.q_lora_rank), "q_b_proj": (model.q_lora_rank, query)}
    return {
        **queries,
        "kv_a_proj_with_mqa": (hidden, latent + rotated),
        "kv_b_proj": (latent, heads * (head_dim - rotated + model.value_dim)),
        "o_proj": (heads * model.value_dim, hidden),
    }
