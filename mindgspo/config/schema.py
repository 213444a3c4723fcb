"""The experiment's configuration: one pydantic model per section, text under every field.

What enters: plain values from `config.load`. What leaves: a frozen `ExperimentConfig`, which stops at
`trainer/build.py`; a room takes its own section. `algorithm` and `reward` have files of their own. Rules that need
one field only stand in these three, rules that join fields in `config.validate`. Neither MindSpore nor numpy is
imported. A field exists only if code reads it.

A key named `path` that is relative is resolved against the folder of the YAML file it stands in
(`config.layers`). Fields documented "None: ..." with a derived default are filled in by `config.load` (the model's by
itself), so that no reader guesses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from mindgspo.config.algorithm_section import AlgorithmSection
from mindgspo.config.plan import ParallelPlan
from mindgspo.config.reshard_section import ReshardSection
from mindgspo.config.reward_section import RewardSection
from mindgspo.config.section import Section
from mindgspo.config.swap_section import SwapSection
from mindgspo.config.watch_section import WatchSection

PositiveInt = Annotated[int, Field(ge=1)]


class RopeScalingSection(Section):
    """Llama 3.1's stretched rotary embedding, in Hugging Face's field names.

    With wavelength w of a pair of features and L = original_max_position_embeddings: pairs with w below
    L / high_freq_factor turn as they did, those with w above L / low_freq_factor turn `factor` times slower, and
    between the two the frequencies are interpolated linearly in L / w.
    """

    rope_type: Literal["llama3"] = "llama3"
    """Which rule; Llama 3.1's is the only one that is implemented."""
    factor: float = Field(gt=1)
    """How many times slower the long waves turn (Llama 3.1: 8)."""
    low_freq_factor: float = Field(gt=0)
    """Llama 3.1: 1."""
    high_freq_factor: float = Field(gt=0)
    """Llama 3.1: 4; more than low_freq_factor."""
    original_max_position_embeddings: int = Field(ge=1)
    """Longest sequence before stretching (Llama 3.1: 8192)."""


class ModelSection(Section):
    """The policy's architecture, in Hugging Face's field names, and where its weights come from."""

    path: Path | None = None
    """Hugging Face folder (config.json + *.safetensors). None: random weights drawn from `seed`."""
    backend: Literal["native", "mindformers"] = "native"
    """Whose transformer is trained: ours, or MindFormers' (qwen2 and llama, on CPU in one process; see
    docs/integrations.md). Generation is ours with either."""
    architecture: Literal["qwen2", "qwen3", "qwen3_moe", "llama"] = "qwen2"
    """Model family. qwen2 covers Qwen2 and Qwen2.5: biases on q, k and v. qwen3 covers the dense Qwen3: no biases, but
    an RMSNorm of every query and key head; qwen3_moe is the same with a mixture of experts in every layer. llama covers
    Llama 2 and 3: neither biases nor norms of heads."""
    vocab_size: int = Field(ge=2)
    """Rows of the embedding table; at least the tokenizer's size (Qwen2.5 pads its 151,665 tokens to
    151,936)."""
    hidden_size: int = Field(ge=1)
    """Width of the residual stream; where head_dim is not set, a multiple of num_attention_heads."""
    intermediate_size: int = Field(ge=1)
    """Width inside the SwiGLU feed-forward block. Not used where every layer has experts, but Hugging Face's
    config.json names it."""
    num_hidden_layers: int = Field(ge=1)
    """Decoder layers."""
    num_attention_heads: int = Field(ge=1)
    """Query heads."""
    num_key_value_heads: int = Field(ge=1)
    """Key/value heads (grouped-query attention); divides num_attention_heads."""
    head_dim: int | None = Field(default=None, ge=1)
    """Width of one head; even (RoPE). None: hidden_size / num_attention_heads, which is the only legal value for qwen2
    (Qwen3 has 128 whatever its width)."""
    num_experts: int | None = Field(default=None, ge=2)
    """qwen3_moe only: experts of every layer."""
    num_experts_per_tok: int | None = Field(default=None, ge=1)
    """qwen3_moe only: how many of them each token goes to; at most num_experts."""
    moe_intermediate_size: int | None = Field(default=None, ge=1)
    """qwen3_moe only: width inside each expert's SwiGLU."""
    norm_topk_prob: bool = False
    """qwen3_moe only: whether the router's weights of a token's experts are scaled to a sum of 1 (Qwen3-30B-A3B:
    true)."""
    max_position_embeddings: int = Field(default=32768, ge=1)
    """Longest sequence in tokens, prompt and response together."""
    rms_norm_eps: float = Field(default=1e-6, gt=0)
    """Added to the mean square in RMSNorm."""
    rope_theta: float = Field(default=1_000_000.0, gt=0)
    """Base of the rotary position embedding (Qwen2.5: 1e6, Llama 3: 5e5)."""
    rope_scaling: RopeScalingSection | None = None
    """llama only: stretched rotary embedding for long contexts. None: as trained."""
    tie_word_embeddings: bool = False
    """Whether the output head is the embedding table (Qwen2.5 up to 3B: true)."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of random initial weights (Hugging Face's default)."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of weights in the forward and backward pass. CPU has no bfloat16 kernels."""

    @model_validator(mode="after")
    def _with_head_dim(self) -> ModelSection:
        """Filled in here and not by `config.load`, because Python code builds sections too. It stays None where the
        quotient is not whole, which `config.validate` refuses."""
        if self.head_dim is None and self.hidden_size % self.num_attention_heads == 0:
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        return self


class PlansSection(Section):
    """Parallel plans of the graphs that share the cards."""

    train: ParallelPlan = ParallelPlan()
    """Plan of the policy while it is trained."""
    infer: ParallelPlan = ParallelPlan()
    """Plan of the policy while it generates. The same cards: its product equals that of `train`. Equal plans share one
    set of weights; otherwise weights are laid out anew after each step."""


class TokenizerSection(Section):
    """Which tokenizer, and which of its tokens end or pad a sequence. Nothing is guessed."""

    path: Path | None = None
    """Folder with vocab.json + merges.txt, or tokenizer.json, or one sentencepiece *.model; with
    tokenizer_config.json for the chat template. None: the small byte-level BPE built for the arithmetic task
    (refused for rows from files)."""
    eos_tokens: tuple[str, ...] = Field(default=("<|im_end|>", "<|endoftext|>"), min_length=1)
    """Tokens that end a response; the first one is appended to supervised answers."""
    pad_token: str = "<|endoftext|>"
    """Token written into padded slots. It is never trained on and never searched for."""


class ColumnsSection(Section):
    """Which columns of a file hold what, for the format `columns`. A dot reaches into nested columns:
    reward_model.ground_truth."""

    prompt: str
    """Column of the question: text, or a list of {role, content} messages."""
    answer: str
    """Column of the gold answer: text or a number."""
    solution: str | None = None
    """Column of the worked solution, which the supervised warm-up learns from."""
    data_source: str | None = None
    """Column whose text names the data source of each row."""
    data_source_name: str | None = None
    """One name for all rows instead of a column; reward.functions=[auto] and metrics go by it."""
    extra_info: tuple[str, ...] = ()
    """Further columns, kept for your own reward function as extra_info."""


DataFormat = Literal["gsm8k", "verl", "dapo", "math", "aime", "dianjin", "columns", "arithmetic", "prepared"]


class DataSourceSection(Section):
    """One data set: raw rows that are prepared on first use, or a folder prepared before."""

    format: DataFormat
    r"""gsm8k: rows {question, answer with '#### n'}. verl: rows {data_source, prompt, ability, reward_model,
    extra_info}. dapo: the same, put into DAPO's prompt where it is bare. math: MATH, MATH-lighteval, MATH-500:
    {problem, solution with \boxed{}, answer}. aime: {problem, answer}. dianjin: DianJin-R1-Data, {instruction, output}.
    columns: any rows, see `columns`. arithmetic: generated. prepared: a folder made by `mindgspo data prepare`."""
    path: Path | None = None
    """File (*.jsonl, *.parquet), or a prepared folder; not set for arithmetic."""
    columns: ColumnsSection | None = None
    """Which columns hold what; for the format `columns` only."""
    dedup: bool = False
    """Keep only the first of equal prompts, and none of those whose gold answers differ. Counted either way."""
    split: Literal["train", "dev", "test"] = "train"
    """Arithmetic only: which split to generate. The splits are disjoint by construction."""
    max_rows: int | None = Field(default=None, ge=1)
    """Use at most this many rows, from the start (arithmetic: how many to generate). None: all."""
    forgotten_carries: float = Field(default=0.0, ge=0, le=1)
    """Share of the carries (and borrows) that the worked solutions of generated arithmetic rows forget, as a
    careless teacher would. Gold answers stay right, so reinforcement learning can outdo its demonstrations."""


class DataSection(Section):
    """Data sets and how a row becomes a prompt."""

    train: DataSourceSection
    """Prompts for reinforcement learning (and rows for the supervised warm-up, if they hold solutions)."""
    eval: DataSourceSection
    """Held-out problems for accuracy before, during and after."""
    system_prompt: str | None = None
    """System message put before the question. None: what the chat template does by itself."""
    instruction_prefix: str = ""
    """Text put before the question; as instruction_suffix."""
    instruction_suffix: str = ""
    """Text appended to the question, e.g. how to write the final answer (verl and dapo rows bring theirs)."""
    max_prompt_length: int = Field(ge=1)
    """Longest prompt in tokens, chat template included; with rollout.max_new_tokens it must fit
    model.max_position_embeddings."""
    truncation: Literal["error", "left", "right", "middle", "drop"] = "error"
    """What happens to a longer prompt: stop, cut at that side, or drop the row; counted in dataset.json."""
    shuffle: bool = True
    """Draw prompts in an order seeded by `seed` and the epoch; false: file order."""


class WarmupSection(Section):
    """Supervised fine-tuning on the data's worked solutions before reinforcement learning."""

    max_steps: int = Field(ge=1)
    """Upper bound on optimizer updates."""
    batch_size: int = Field(ge=1)
    """Rows per update."""
    lr: float = Field(gt=0)
    """Peak learning rate of the warm-up: linear rise over 5 % of max_steps, then a cosine down to
    optimizer.min_lr_ratio of it, so that the model ends settled and not in the middle of a jump."""
    stop_at_accuracy: float | None = Field(default=None, gt=0, le=1)
    """Stop as soon as greedy accuracy on the rows of `check` reaches this. None: never early."""
    check_every: int = Field(default=10, ge=1)
    """Updates between two progress lines, each with the accuracy on `check` where that is set."""
    check: DataSourceSection | None = None
    """Rows for that accuracy; they must be neither training nor evaluation rows. Needed by
    stop_at_accuracy."""


class RolloutSection(Section):
    """How responses are sampled."""

    prompts_per_step: int = Field(ge=1)
    """Prompts drawn per training step (verl: train_batch_size)."""
    num_generations: int = Field(ge=1)
    """Responses per prompt: the group size G, at least 2 for an advantage within the group. Usual: 8 or
    16 (verl: n)."""
    max_new_tokens: int = Field(ge=1)
    """Longest response in tokens, EOS included (verl: max_response_length; TRL: max_completion_length)."""
    temperature: float = Field(default=1.0, ge=0)
    """Softmax temperature; also applied to the log-probs that are trained. 1 is the paper's; 0 (greedy) is
    refused, because all responses of a group would be the same."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the smallest set of tokens that holds this probability mass; 1 switches it off, as in the
    paper."""
    top_k: int = Field(default=0, ge=0)
    """Sample from the k likeliest tokens; 0 switches it off, as in the paper."""
    slots: int = Field(default=64, ge=1)
    """Sequences decoded at the same time; a finished sequence's slot is refilled at once. Sets the size of
    the key/value cache, not the result."""


class OptimizerSection(Section):
    """AdamW with bias correction, global-norm clipping and the learning-rate schedule (counted in
    updates)."""

    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate (TRL: learning_rate). 1e-6 is usual for models of billions of parameters."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment (common for language models; torch's default is 0.999)."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment (torch's convention: after bias correction)."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled decay of matrices (0.1 is usual for language models); biases and norm weights are never
    decayed."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this global L2 norm (verl: grad_clip)."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after the rise."""
    warmup_ratio: float = Field(default=0.05, ge=0, lt=1)
    """Share of all updates over which the learning rate rises linearly."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Cosine only: last learning rate as a share of the peak."""


class TrainerSection(Section):
    """Length of the run, batches, saving and checks."""

    max_steps: int | None = Field(default=None, ge=1)
    """Training steps; one step is one rollout and all updates made from it. None: `epochs` decides
    (verl: total_training_steps)."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the prompts; only read when max_steps is None (verl: total_epochs; TRL:
    num_train_epochs)."""
    prompts_per_mini_batch: int = Field(ge=1)
    """Prompts (with all their responses) per optimizer update; divides rollout.prompts_per_step.
    The quotient is the number of updates per rollout; the paper makes 4 (verl: ppo_mini_batch_size)."""
    samples_per_micro_batch: int = Field(ge=1)
    """Responses per forward and backward pass; divides a mini-batch. Changes memory and speed, not the
    result (verl: ppo_micro_batch_size_per_gpu)."""
    length_multiple: int = Field(default=32, ge=1)
    """Sequence lengths are padded up to a multiple of this, so that few graphs are compiled."""
    save_every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints; one is always written at the end. None: only at the end
    (verl: save_freq; TRL: save_steps)."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints kept."""
    max_ratio_error: float = Field(default=1e-5, gt=0)
    """The run stops when |s - 1| exceeds this on the first mini-batch after a rollout, where the ratio s must
    be 1. 1e-5 suits float32; bfloat16 needs about 2e-3."""


class EvalSection(Section):
    """Accuracy on the held-out problems."""

    every: int | None = Field(default=None, ge=1)
    """Steps between evaluations. None: only before the first and after the last step, where there is always
    one (verl: test_freq; TRL: eval_steps)."""
    num_samples: int = Field(default=1, ge=1)
    """Samples per problem for pass@k; 1: greedy accuracy only."""
    pass_at_k: tuple[PositiveInt, ...] = Field(default=(1,), min_length=1)
    """Values of k reported as pass@k; each at most num_samples."""
    temperature: float = Field(default=1.0, gt=0)
    """Temperature of those samples (greedy accuracy ignores it)."""


class LoggingSection(Section):
    """What a run writes down beside metrics.jsonl."""

    tensorboard: bool = False
    """Also write TensorBoard event files below run_dir/tensorboard."""
    groups_per_step: int | None = Field(default=4, ge=1)
    """Groups written to samples.jsonl per step. None: all."""
    progress: bool = True
    """Show a progress bar on a terminal."""


class ExperimentConfig(Section):
    """One experiment."""

    experiment: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name; also the default run folder's name."""
    run_dir: Path | None = None
    """Folder for everything the run writes, relative to the current folder. None: runs/<experiment>."""
    seed: int = Field(default=1, ge=0)
    """Master seed: weights, data order and sampling derive their streams from it."""
    device: Literal["CPU", "Ascend"] = "CPU"
    """Where graphs run."""
    resume: Literal["never", "auto"] = "never"
    """never: a run folder that holds a run is refused. auto: continue from its newest complete checkpoint."""
    model: ModelSection
    """The policy."""
    plans: PlansSection = PlansSection()
    """Parallel plans; one process by default."""
    reshard: ReshardSection = ReshardSection()
    """How weights go from the train plan to the infer plan."""
    swap: SwapSection = SwapSection()
    """What leaves the device while no graph reads it."""
    watch: WatchSection = WatchSection()
    """When a stage of a run on several workers counts as stalled."""
    tokenizer: TokenizerSection = TokenizerSection()
    """Text to token ids and back."""
    data: DataSection
    """Where prompts come from."""
    warmup: WarmupSection | None = None
    """Supervised warm-up before reinforcement learning. None: no warm-up."""
    rollout: RolloutSection
    """Generation of responses."""
    algorithm: AlgorithmSection = AlgorithmSection()
    """The loss that is minimised."""
    reward: RewardSection = RewardSection()
    """Judgement of responses."""
    optimizer: OptimizerSection = OptimizerSection()
    """Update of the weights."""
    trainer: TrainerSection
    """Length of the run and sizes of its batches."""
    eval: EvalSection = EvalSection()
    """Measurement on held-out problems."""
    logging: LoggingSection = LoggingSection()
    """What is written down and shown."""
