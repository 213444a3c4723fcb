"""The section `model`, and what the model families differ in. Pure Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from mindgspo.config.lora import LoraSection, lora_problems
from mindgspo.config.section import Section
from mindgspo.text import divisors, either, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One value of `model.architecture`."""

    huggingface_class: str
    """Its name in config.json's `architectures`."""
    has_attention_bias: bool | None = False
    """Whether q, k and v have a bias. None: as `model.attention_bias` says."""
    has_partial_rotary: bool = False
    """Whether `model.partial_rotary_factor` may be less than 1."""
    joins_gate_and_up: bool = False
    """Whether files have the rows of gate_proj and up_proj as one matrix, gate_up_proj."""
    is_interleaved: bool = False
    """Whether rotary embedding turns neighbouring features (2 i, 2 i + 1) instead of (i, i + R / 2)."""
    has_head_norms: bool = False
    """Whether every query and key head has an RMSNorm."""
    has_sandwich_norms: bool = False
    """Whether the outputs of attention and of the feed-forward block have an RMSNorm before they are added."""
    has_own_head_dim: bool = True
    """Whether the width of a head may differ from hidden_size / num_attention_heads."""
    has_experts: bool = False
    """Whether every layer's feed-forward block is a mixture of experts."""


_GLM = Family(
    huggingface_class="GlmForCausalLM",
    has_attention_bias=None,
    has_partial_rotary=True,
    is_interleaved=True,
    joins_gate_and_up=True,
)
FAMILIES: Mapping[str, Family] = {
    "qwen2": Family(huggingface_class="Qwen2ForCausalLM", has_attention_bias=True, has_own_head_dim=False),
    "qwen3": Family(huggingface_class="Qwen3ForCausalLM", has_head_norms=True),
    "qwen3_moe": Family(huggingface_class="Qwen3MoeForCausalLM", has_head_norms=True, has_experts=True),
    "llama": Family(huggingface_class="LlamaForCausalLM"),
    "glm": _GLM,
    "glm4": replace(_GLM, huggingface_class="Glm4ForCausalLM", has_sandwich_norms=True),
}


class RopeScalingSection(Section):
    """Rotary embedding stretched for long contexts, in Hugging Face's field names and by transformers' definitions.

    linear: every pair of features turns `factor` times slower (arXiv 2306.15595). yarn: pairs that turn more than
    beta_fast times within original_max_position_embeddings tokens turn as before, those that turn less than beta_slow
    times turn `factor` times slower, and between the two the share grows linearly with the index of the pair; cos and
    sin are multiplied by attention_factor (arXiv 2309.00071). llama3: likewise with high_freq_factor and
    low_freq_factor, but linearly in the number of turns, and cos and sin stay as they are. dynamic: as trained, as
    transformers computes it in one forward pass of up to max_position_embeddings tokens; longer sequences are refused,
    because every length has a base of its own and cached keys would keep that of a shorter one. For sequences of up to
    M tokens set max_position_embeddings to M instead of N, and multiply rope_theta by
    (factor M / N - factor + 1)^(R / (R - 2)), where R features of a head turn.
    """

    rope_type: Literal["linear", "dynamic", "yarn", "llama3"] = "llama3"
    """Which rule."""
    factor: float = Field(ge=1)
    """How many times slower the long waves turn (Llama 3.1: 8; Qwen2.5 and Qwen3 by YaRN: 4)."""
    original_max_position_embeddings: int | None = Field(default=None, ge=1)
    """yarn and llama3 only: longest sequence before stretching (Llama 3.1: 8192; Qwen2.5 and Qwen3: 32768)."""
    low_freq_factor: float | None = Field(default=None, gt=0)
    """llama3 only (Llama 3.1: 1)."""
    high_freq_factor: float | None = Field(default=None, gt=0)
    """llama3 only: more than low_freq_factor (Llama 3.1: 4)."""
    attention_factor: float | None = Field(default=None, gt=0)
    """yarn only: what cos and sin are multiplied by. None: 0.1 ln(factor) + 1, or as mscale and mscale_all_dim say."""
    beta_fast: float | None = Field(default=None, gt=0)
    """yarn only. None: 32."""
    beta_slow: float | None = Field(default=None, gt=0)
    """yarn only: at most beta_fast. None: 1."""
    mscale: float | None = Field(default=None, ge=0)
    """yarn only: with mscale_all_dim, the attention factor is (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim
    ln(factor) + 1). One without the other has no effect."""
    mscale_all_dim: float | None = Field(default=None, ge=0)
    """yarn only: see mscale."""
    truncate: bool | None = None
    """yarn only: whether the first and last pair in between are whole numbers. None: true."""


# Fields that each rule needs beside the factor. All others are YaRN's, and may be left out.
ROPE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "linear": (),
    "dynamic": (),
    "yarn": ("original_max_position_embeddings",),
    "llama3": ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


class ModelSection(Section):
    """The policy's architecture, in Hugging Face's field names, and where its weights come from."""

    if TYPE_CHECKING:  # pydantic gives frozen sections a hash, which type checkers do not know

        def __hash__(self) -> int: ...

    path: Path | None = None
    """Hugging Face folder (config.json + *.safetensors), or a name on a hub: Qwen/Qwen3-0.6B, Qwen/Qwen3-0.6B@revision,
    modelscope:Qwen/Qwen3-0.6B. Architecture and sizes below are read from its config.json; those that are set must
    agree with it. None: random weights drawn from `seed`."""
    backend: Literal["native", "mindformers"] = "native"
    """Whose transformer is trained: ours, or MindFormers' (qwen2 and llama, on CPU in one process; see
    docs/integrations.md). Generation is ours with either."""
    architecture: Literal["qwen2", "qwen3", "qwen3_moe", "llama", "glm", "glm4"] = "qwen2"
    """Model family. qwen2 covers Qwen2 and Qwen2.5: biases on q, k and v. qwen3 covers the dense Qwen3: no biases, but
    an RMSNorm of every query and key head; qwen3_moe is the same with a mixture of experts in every layer. llama covers
    Llama 2 and 3: neither biases nor norms of heads. glm covers GLM-4 of 2024 (glm-4-9b-chat-hf): biases or none, and
    rotary embedding of neighbouring features of a part of each head; glm4, of 2025 (GLM-4-0414, GLM-Z1), is the same
    with an RMSNorm of each block's output."""
    vocab_size: int = Field(ge=2, le=1 << 24)
    """Rows of the embedding table; at least the tokenizer's size (Qwen2.5 pads its 151,665 tokens to
    151,936)."""
    table_rows: int | None = Field(default=None, ge=2, le=1 << 24)
    """Rows of the tables in memory: at least vocab_size, and a multiple of model_parallel if vocab_size is not one. The
    rows after vocab_size are zeros; they belong to no token, and exports leave them out.
    None: vocab_size."""
    hidden_size: int = Field(ge=1, le=1 << 20)
    """Width of the residual stream; a multiple of num_attention_heads unless head_dim is set."""
    intermediate_size: int = Field(ge=1, le=1 << 22)
    """Width inside the SwiGLU feed-forward block. Not used if every layer has experts, but Hugging Face's config.json
    names it."""
    num_hidden_layers: int = Field(ge=1, le=1000)
    """Decoder layers."""
    num_attention_heads: int = Field(ge=1, le=65_536)
    """Query heads."""
    num_key_value_heads: int = Field(ge=1, le=65_536)
    """Key/value heads (grouped-query attention); divides num_attention_heads."""
    head_dim: int | None = Field(default=None, ge=1, le=65_536)
    """Width of one head; even (RoPE). None: hidden_size / num_attention_heads, which is the only legal value for qwen2
    (Qwen3 has 128 whatever its width)."""
    attention_bias: bool | None = None
    """Whether q, k and v have a bias; a choice for glm and glm4 only. None: what the family has; of these two, true."""
    num_experts: int | None = Field(default=None, ge=2, le=1024)
    """qwen3_moe only: experts of every layer."""
    num_experts_per_tok: int | None = Field(default=None, ge=1)
    """qwen3_moe only: number of experts per token; at most num_experts."""
    moe_intermediate_size: int | None = Field(default=None, ge=1, le=1 << 22)
    """qwen3_moe only: width inside each expert's SwiGLU."""
    norm_topk_prob: bool = False
    """qwen3_moe only: whether the router's weights of a token's experts are scaled to a sum of 1 (Qwen3-30B-A3B:
    true)."""
    max_position_embeddings: int = Field(default=32768, ge=1)
    """Longest sequence in tokens, prompt and response together."""
    rms_norm_eps: float = Field(default=1e-6, gt=0)
    """Added to the mean square in RMSNorm."""
    rope_theta: float = Field(default=1_000_000.0, gt=1)
    """Base of the rotary position embedding (Qwen2.5: 1e6, Llama 3: 5e5)."""
    partial_rotary_factor: float = Field(default=1.0, gt=0, le=1)
    """glm and glm4 only: share of each head's features, the first ones, that rotary embedding turns (GLM-4: 0.5)."""
    rope_scaling: RopeScalingSection | None = None
    """Stretched rotary embedding for long contexts. None: as trained."""
    tie_word_embeddings: bool = False
    """Whether the output head is the embedding table (Qwen2.5 up to 3B: true)."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of random initial weights (Hugging Face's default)."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of weights and activations in the forward and backward pass. Trained weights, gradients and moments are
    float32. bfloat16 on CPU needs g++, which compiles the kernels."""
    lora: LoraSection | None = None
    """Train low-rank adapters of some projections and nothing else. None: train every weight."""

    @property
    def base(self) -> ModelSection:
        """The model without its adapters."""
        return self if self.lora is None else self.model_copy(update={"lora": None})

    @property
    def rows(self) -> int:
        """Rows of the tables in memory."""
        return self.vocab_size if self.table_rows is None else self.table_rows

    @property
    def rotary_dim(self) -> int:
        """Features of each head that rotary embedding turns."""
        assert self.head_dim is not None, "config.rules refuses a width that its heads do not divide"
        return int(self.head_dim * self.partial_rotary_factor)

    @model_validator(mode="after")
    def _has_rows_for_its_tokens(self) -> ModelSection:
        if self.rows < self.vocab_size:
            raise ValueError(f"table_rows {self.table_rows} is less than vocab_size {self.vocab_size}")
        return self

    @model_validator(mode="after")
    def _with_head_dim(self) -> ModelSection:
        """Filled in here and not by `config.load`, because Python code builds sections too. It stays None if the
        quotient is not whole, which `config.rules` rejects."""
        if self.head_dim is None and self.hidden_size % self.num_attention_heads == 0:
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        return self

    @model_validator(mode="after")
    def _with_attention_bias(self) -> ModelSection:
        if self.attention_bias is None:
            own = FAMILIES[self.architecture].has_attention_bias
            object.__setattr__(self, "attention_bias", own is None or own)
        return self


def model_problems(model: ModelSection) -> Iterator[str]:
    """Sizes that no model can have."""
    heads, kv_heads = model.num_attention_heads, model.num_key_value_heads
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


def _head_dim_problems(model: ModelSection) -> Iterator[str]:
    hidden, heads, head_dim = model.hidden_size, model.num_attention_heads, model.head_dim
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
    sizes = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
    if not FAMILIES[model.architecture].has_experts:
        for name in (*sizes, "norm_topk_prob"):
            if getattr(model, name):
                yield (
                    f"model.{name}: {model.architecture} has no experts; remove it, or set model.architecture=qwen3_moe"
                )
        return
    missing = [name for name in sizes if getattr(model, name) is None]
    for name in missing:
        yield f"model.{name}: missing; {model.architecture} needs it, and its config.json has it"
    chosen, every = model.num_experts_per_tok, model.num_experts
    if not missing and chosen is not None and every is not None and chosen > every:
        yield f"model.num_experts_per_tok: {chosen} is more than num_experts {every}; largest legal: {every}"


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
