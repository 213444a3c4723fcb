"""The section `model`, and what the model families differ in. Pure Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from mindgspo.config.lora import LoraSection
from mindgspo.config.section import Section


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
    has_head_norms: bool | None = False
    """Whether every query and key head has an RMSNorm. None: as `model.use_qk_norm` says."""
    has_sandwich_norms: bool = False
    """Whether the outputs of attention and of the feed-forward block have an RMSNorm before they are added."""
    has_own_head_dim: bool = True
    """Whether the width of a head may differ from hidden_size / num_attention_heads."""
    has_latent_attention: bool = False
    """Whether keys and values are expanded from one latent of each token (arXiv 2405.04434)."""
    has_experts: bool = False
    """Whether layers' feed-forward blocks are mixtures of experts."""
    has_shared_experts: bool = False
    """Whether mixtures are as DeepSeek-V3's (arXiv 2412.19437): after dense layers, beside shared experts, with scores
    that are sigmoids and a frozen bias for choosing alone."""


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
    "mistral": Family(huggingface_class="MistralForCausalLM"),
    "glm": _GLM,
    "glm4": replace(_GLM, huggingface_class="Glm4ForCausalLM", has_sandwich_norms=True),
    "glm4_moe": Family(
        huggingface_class="Glm4MoeForCausalLM",
        has_attention_bias=None,
        has_partial_rotary=True,
        has_head_norms=None,
        has_experts=True,
        has_shared_experts=True,
    ),
    "deepseek_v3": Family(
        huggingface_class="DeepseekV3ForCausalLM",
        is_interleaved=True,
        has_latent_attention=True,
        has_experts=True,
        has_shared_experts=True,
    ),
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
# Fields of latent attention; q_lora_rank may be left out.
LATENT_FIELDS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
# Fields of mixtures, and those of mixtures with shared experts alone.
EXPERT_FIELDS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")
SHARED_EXPERT_FIELDS = (
    "n_shared_experts",
    "first_k_dense_replace",
    "n_group",
    "topk_group",
    "routed_scaling_factor",
    "num_nextn_predict_layers",
)


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
    architecture: Literal[
        "qwen2", "qwen3", "qwen3_moe", "llama", "mistral", "glm", "glm4", "glm4_moe", "deepseek_v3"
    ] = "qwen2"
    """Model family. qwen2 covers Qwen2, Qwen2.5 and Qwen2.5-Math: biases on q, k and v. qwen3 covers the dense Qwen3:
    no biases, but an RMSNorm of every query and key head; qwen3_moe is the same with a mixture of experts in every
    layer. llama covers Llama 2 and 3: neither biases nor norms of heads; mistral is the same without a sliding window
    (Mistral-7B from v0.2 on). glm covers GLM-4 of 2024 (glm-4-9b-chat-hf): biases or none, and rotary embedding of
    neighbouring features of a part of each head; glm4, of 2025 (GLM-4-0414, GLM-Z1), is the same with an RMSNorm of
    each block's output. glm4_moe covers GLM-4.5 and GLM-4.5-Air: dense layers, then mixtures with shared experts;
    rotary embedding of a part of each head. deepseek_v3 covers DeepSeek-V3, DeepSeek-R1 and Moonlight-16B-A3B: the same
    with multi-head latent attention."""
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
    """Width inside the SwiGLU feed-forward block of dense layers. Not used if every layer has experts, but Hugging
    Face's config.json names it."""
    num_hidden_layers: int = Field(ge=1, le=1000)
    """Decoder layers."""
    num_attention_heads: int = Field(ge=1, le=65_536)
    """Query heads."""
    num_key_value_heads: int = Field(ge=1, le=65_536)
    """Key/value heads (grouped-query attention); divides num_attention_heads."""
    head_dim: int | None = Field(default=None, ge=1, le=65_536)
    """Width of one head; even (RoPE). None: hidden_size / num_attention_heads, which is the only legal value for qwen2
    (Qwen3 has 128 whatever its width)."""
    q_lora_rank: int | None = Field(default=None, ge=1, le=1 << 20)
    """deepseek_v3 only: width of the latent that queries are made of (DeepSeek-V3: 1536). None: of the hidden states
    (Moonlight)."""
    kv_lora_rank: int | None = Field(default=None, ge=1, le=1 << 20)
    """deepseek_v3 only: width of the latent that keys and values are made of (512)."""
    qk_nope_head_dim: int | None = Field(default=None, ge=1, le=65_536)
    """deepseek_v3 only: features of a query and key head without position (128)."""
    qk_rope_head_dim: int | None = Field(default=None, ge=1, le=65_536)
    """deepseek_v3 only: features of a query and key head that rotary embedding turns, the last ones (64)."""
    v_head_dim: int | None = Field(default=None, ge=1, le=65_536)
    """deepseek_v3 only: features of a value head (128); at most those of a key head."""
    attention_bias: bool | None = None
    """Whether q, k and v have a bias; a choice for glm, glm4 and glm4_moe only. None: what the family has; of
    these three, true."""
    use_qk_norm: bool = False
    """glm4_moe only: whether every query and key head has an RMSNorm (GLM-4.5: true, GLM-4.5-Air: false)."""
    num_experts: int | None = Field(default=None, ge=2, le=1024)
    """Mixtures only: experts of a layer (config.json: num_experts, n_routed_experts or num_local_experts)."""
    num_experts_per_tok: int | None = Field(default=None, ge=1)
    """Mixtures only: number of experts per token; at most num_experts."""
    moe_intermediate_size: int | None = Field(default=None, ge=1, le=1 << 22)
    """Mixtures only: width inside each expert's SwiGLU."""
    norm_topk_prob: bool = False
    """Mixtures only: whether the router's weights of a token's experts are scaled to a sum of 1 (Qwen3-30B-A3B:
    true)."""
    n_shared_experts: int = Field(default=0, ge=0, le=1024)
    """glm4_moe and deepseek_v3 only: one dense block of so many times moe_intermediate_size computes every token beside
    the experts."""
    first_k_dense_replace: int = Field(default=0, ge=0)
    """glm4_moe and deepseek_v3 only: so many layers at the beginning are dense."""
    n_group: int = Field(default=1, ge=1)
    """glm4_moe and deepseek_v3 only: equal groups of experts, by their numbers."""
    topk_group: int = Field(default=1, ge=1)
    """glm4_moe and deepseek_v3 only: number of groups that a token's experts come from: those with the largest sums of
    their two largest scores."""
    routed_scaling_factor: float = Field(default=1.0, gt=0)
    """glm4_moe and deepseek_v3 only: factor of the router's weights (GLM-4.5 and DeepSeek-V3: 2.5)."""
    num_nextn_predict_layers: int = Field(default=0, ge=0, le=100)
    """glm4_moe and deepseek_v3 only: so many layers after the last one in files of weights predict further tokens. They
    are not loaded, not trained and not exported."""
    max_position_embeddings: int = Field(default=32768, ge=1)
    """Longest sequence in tokens, prompt and response together."""
    rms_norm_eps: float = Field(default=1e-6, gt=0)
    """Added to the mean square in RMSNorm."""
    rope_theta: float = Field(default=1_000_000.0, gt=1)
    """Base of the rotary position embedding (Qwen2.5: 1e6, Llama 3: 5e5)."""
    partial_rotary_factor: float = Field(default=1.0, gt=0, le=1)
    """glm, glm4 and glm4_moe only: share of each head's features, the first ones, that rotary embedding turns (GLM-4:
    0.5)."""
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
        if self.qk_rope_head_dim is not None:
            return self.qk_rope_head_dim
        assert self.head_dim is not None, "config.rules refuses a width that its heads do not divide"
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def value_dim(self) -> int:
        """Features of a value head."""
        size = self.head_dim if self.v_head_dim is None else self.v_head_dim
        assert size is not None, "config.rules refuses a width that its heads do not divide"
        return size

    @property
    def latent_dims(self) -> tuple[int, int]:
        """Features of a token's latent and of its rotated key, which latent attention caches."""
        assert self.kv_lora_rank is not None and self.qk_rope_head_dim is not None, "config.rules refuses it"
        return self.kv_lora_rank, self.qk_rope_head_dim

    @property
    def has_head_norms(self) -> bool:
        """Whether every query and key head has an RMSNorm."""
        own = FAMILIES[self.architecture].has_head_norms
        return self.use_qk_norm if own is None else own

    @property
    def expert_layers(self) -> range:
        """Numbers of the layers that are mixtures of experts."""
        return range(self.first_k_dense_replace if self.num_experts else self.num_hidden_layers, self.num_hidden_layers)

    @property
    def left_out_layers(self) -> range:
        """Numbers of the layers in files of weights that predict further tokens."""
        return range(self.num_hidden_layers, self.num_hidden_layers + self.num_nextn_predict_layers)

    @property
    def inner_sizes(self) -> dict[str, int]:
        """Widths inside the feed-forward blocks that the model has, by what they follow from; of shared experts the sum
        of all."""
        dense = len(self.expert_layers) < self.num_hidden_layers
        sizes = {"intermediate_size": self.intermediate_size} if dense else {}
        if self.moe_intermediate_size and self.expert_layers:
            sizes["moe_intermediate_size"] = self.moe_intermediate_size
            if self.n_shared_experts:
                shared = self.n_shared_experts * self.moe_intermediate_size
                sizes["n_shared_experts x moe_intermediate_size"] = shared
        return sizes

    @model_validator(mode="after")
    def _has_rows_for_its_tokens(self) -> ModelSection:
        if self.rows < self.vocab_size:
            raise ValueError(f"table_rows {self.table_rows} is less than vocab_size {self.vocab_size}")
        return self

    @model_validator(mode="after")
    def _with_head_dim(self) -> ModelSection:
        """Filled in here and not by `config.load`, because Python code builds sections too. It is None if the quotient
        is not whole, or a part of latent attention's is missing, both of which `config.rules` rejects."""
        if self.qk_nope_head_dim is not None and self.qk_rope_head_dim is not None:
            object.__setattr__(self, "head_dim", self.qk_nope_head_dim + self.qk_rope_head_dim)
        elif self.kv_lora_rank is not None:
            object.__setattr__(self, "head_dim", None)
        elif self.head_dim is None and self.hidden_size % self.num_attention_heads == 0:
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        return self

    @model_validator(mode="after")
    def _with_attention_bias(self) -> ModelSection:
        if self.attention_bias is None:
            own = FAMILIES[self.architecture].has_attention_bias
            object.__setattr__(self, "attention_bias", own is None or own)
        return self
