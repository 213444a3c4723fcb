"""The experiment's configuration: one pydantic model per section, text under every field.

Rules that need one field only stand here, rules that join fields in `config.rules`. A relative key named `path` is
resolved against the folder of its YAML file. Fields documented "None: ..." with a derived default are filled in by
`config.load`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from mindgspo.config.algorithm import AlgorithmSection
from mindgspo.config.data import LEAST_TOP_P, DataSection, DataSourceSection, EvalSection, TokenizerSection
from mindgspo.config.environment import EnvironmentSection
from mindgspo.config.model import ModelSection
from mindgspo.config.plan import ParallelPlan
from mindgspo.config.profile import ProfileSection
from mindgspo.config.reward import RewardSection
from mindgspo.config.section import Section


class OptimizerSection(Section):
    """AdamW with bias correction, global-norm clipping and the learning-rate schedule (counted in
    updates)."""

    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate (TRL: learning_rate). 1e-6 is usual for models of billions of parameters; smaller
    ones take more: 5e-6 from 100 M on, 1e-5 from 10 M, 5e-5 below."""
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
    """Share of all updates over which the learning rate rises linearly (verl: lr_warmup_steps_ratio)."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """Training steps over which it rises, however long the run is. None: warmup_ratio decides (verl:
    lr_warmup_steps)."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Cosine only: last learning rate as a share of the peak."""
    schedule_steps: int | None = Field(default=None, ge=1)
    """Training steps that the schedule takes; later ones keep its last learning rate. It also sets the rates of a run
    that is extended beyond it. None: the whole run (Megatron: lr_decay_iters)."""
    router_bias_update_rate: float = Field(default=0.0, ge=0, lt=1)
    """glm4_moe and deepseek_v3 only: after each update every router's correction bias rises by this much for experts
    with less than the mean load of its layer, and falls for those with more. Loads are the update's tokens by expert,
    over all ranks. 0: the biases are frozen; DeepSeek-V3 was pre-trained with 0.001 (Megatron:
    moe_router_bias_update_rate)."""


class ReshardSection(Section):
    """Weights are sent in buckets, and can be verified bit for bit on arrival."""

    bucket_mb: int = Field(default=64, ge=1)
    """Largest buffer of one broadcast in MiB, hence the extra memory of a reshard. Larger buffers need fewer
    messages."""
    verify: Literal["off", "sampled", "full"] = "sampled"
    """Parameters whose SHA-256 is compared on both sides after a reshard: none, a few that change from step to step, or
    all (each rank then hashes everything it holds)."""


class ServersSection(Section):
    """Engines that answer over HTTP: completion servers that are running already, or those that `mindgspo run` starts
    on cards of their own."""

    urls: tuple[str, ...] = ()
    """Addresses of running servers, e.g. http://10.0.0.2:8000, which share the prompts. Empty: none, or the servers
    that the run starts."""
    api: Literal["mindgspo", "vllm", "sglang"] = "mindgspo"
    """Their API: that of `mindgspo serve`, vLLM or SGLang (docs/rollout_servers.md)."""
    weights_dir: Path | None = None
    """Folder in which a run creates its own folder for handing new weights to servers, which must see it under the same
    path; servers on other machines need shared storage. None: /dev/shm, memory of this machine, where all servers are
    on it and the weights take at most half of what is free there, else rollout_weights in run_dir."""
    api_key_file: Path | None = None
    """File with the key that the run and its servers share; `mindgspo serve` of the same experiment reads it too. The
    variable MINDGSPO_API_KEY takes precedence. None: no key, unless that is set. Servers that a run starts get a key of
    their own."""
    timeout_seconds: float = Field(default=3600.0, gt=0)
    """Time within which a server must answer a request. 3600: a long response of a large model takes tens of
    minutes."""
    retries: int = Field(default=3, ge=0)
    """Number of times a request is repeated after its connection broke or its server was busy; then that server counts
    as lost, and others get its requests."""
    patience_s: float = Field(default=900.0, ge=0)
    """Seconds for which a run waits while all of its servers are lost, before it ends. A server that comes back gets
    the present weights before any request. 900: a server of a large model takes minutes to start."""
    restart: bool = True
    """Start servers of the run again that have ended, after pauses growing from 1 s to 60 s. False: the run goes on
    with those that are left, and ends with the last one. Servers named in `urls` are restarted by whoever started
    them."""


class MemorySection(Section):
    """Memory that a run may count on: for `mindgspo plan`, `mindgspo init`, and the cache's budget where it is open."""

    device_gb: float | None = Field(default=None, gt=0)
    """Memory of a card in GiB; on CPU that of the machine, which all processes share. None: 64 as on Atlas 800T A2, or
    what the machine has."""
    reserve_gb: float = Field(default=3.3, ge=0)
    """GiB of a card that are taken before a run begins; of an idle card of 64 GiB about 3.3 (`npu-smi info` shows
    yours). Of the rest MindSpore's pool takes 15/16, which a plan must fit; HCCL's buffers have what is left. Not read
    on CPU."""


class RolloutSection(Section):
    """How responses are sampled."""

    prompts_per_step: int = Field(ge=1, le=1_000_000)
    """Prompts drawn per training step (verl: train_batch_size)."""
    num_generations: int = Field(ge=1, le=65_536)
    """Responses per prompt: the group size G, at least 2 for an advantage within the group. Usual: 8 or
    16 (verl: n)."""
    max_new_tokens: int = Field(ge=1)
    """Longest response in tokens, EOS included (verl: max_response_length; TRL: max_completion_length)."""
    temperature: float = Field(default=1.0, ge=0)
    """Softmax temperature; also applied to the log-probs that are trained. 1 is the paper's; 0 (greedy) is rejected,
    because all responses of a group would be the same."""
    top_p: float = Field(default=1.0, ge=LEAST_TOP_P, le=1)
    """Sample from the smallest set of tokens that holds this probability mass; 1 switches it off, as in the
    paper."""
    top_k: int = Field(default=0, ge=0)
    """Sample from the k likeliest tokens; 0 switches it off, as in the paper."""
    slots: int = Field(default=64, ge=1, le=65_536)
    """Maximum number of sequences decoded at the same time, over all replicas of plans.infer; a finished sequence's
    slot is refilled at once. Changes memory and speed, not the result (vLLM: max_num_seqs)."""
    cache_gb: float | None = Field(default=None, gt=0)
    """Budget of the key/value cache of one rank, in GB of 2^30 bytes. It is divided into blocks of 128 tokens, which
    sequences get as they grow; if none is left, the youngest sequence waits and is run again. It must hold at least one
    longest sequence. Changes memory and speed, not the result. None: enough for all slots at their longest, and with
    an environment for as many episodes that wait for it; on Ascend no more than what `mindgspo plan` leaves on a card
    (vLLM: gpu_memory_utilization)."""
    tokens_per_sync: int | None = Field(default=None, ge=1, le=64)
    """Tokens drawn for every sequence before the host reads them, ends finished sequences and admits others. More
    tokens let the card work longer between two syncs with the host; tokens drawn after an end are dropped. Changes
    speed, not the result. None: 8 on Ascend, 1 on CPU."""
    cache_dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type of the key/value cache; one smaller than model.dtype takes less memory and rounds keys and values. On Ascend
    bfloat16 or float16, on CPU any; bfloat16 there needs g++, as model.dtype does. None: model.dtype, but bfloat16 if
    that is float32 on Ascend; `mindgspo check` and the start of a run say so (vLLM: kv_cache_dtype)."""

    record_experts: bool | None = None
    """Mixtures of experts: keep with each response which experts the sampler's routers chose, one byte per choice (two
    beyond 256 experts), e.g. 384 bytes per token of Qwen3-30B-A3B. The router/ metrics need it. None: only if
    algorithm.router_replay is rollout (verl: enable_rollout_routing_replay)."""
    lora: Literal["auto", "merged", "separate"] = "auto"
    """How generation applies the adapters of model.lora. separate: beside the frozen weights, as training does; one
    process on CPU then samples with the trainer's log-probs, bit for bit, and after the first hand-over only adapters
    travel. merged: cast(W + scale B A), summed in float32 and rounded once to model.dtype, anew from both at every
    hand-over; decoding is faster, and the rounding loses what is small beside W: with bfloat16 about 2^-9 of it. auto:
    separate where generation reads the trained weights in place, because merged matrices would be held a second time;
    merged where it has weights of its own, as where plans.train and plans.infer differ, and in `mindgspo serve`, which
    holds the base and gets adapters alone. vLLM and SGLang get these with separate, and else whole merged weights."""
    servers: ServersSection = ServersSection()
    """Generation by other processes, reached over HTTP."""


class SwapSection(Section):
    """Heterogeneous memory: only what the current phase of a step reads is resident. The rest is in host memory on
    Ascend, on disk on CPU."""

    enabled: bool = False
    """False: everything stays resident; the ledger of bytes is kept all the same."""
    path: Path | None = None
    """CPU only: folder on a disk for evicted memory (its files have no name and disappear with the process). None: a
    folder of the run."""
    reshard_level: Literal[0, 1] = 0
    """What is resident while weights go from the actor to the rollout. 0: both whole sets. 1: the parameters of one
    step of the reshard at a time, on both sides (MindRLHF: reshard_mem_opt_level)."""
    prefetch: bool = False
    """CPU only: page in what the next phase reads while the current one computes, if enough memory is free. It hides a
    slow disk, at the price of the memory of two phases at once."""


class TrainerSection(Section):
    """Length of the run, batches, saving and checks."""

    schedule: Literal["sync", "one_step_off", "bounded"] = "sync"
    """Who waits for whom. sync: a step generates, then trains, on the same cards. one_step_off: while a step trains,
    the responses of the next one are generated on cards of their own, with the weights before it (verl:
    one_step_off_policy). bounded: generation never stops; a step trains the first prompts whose responses have ended,
    and running requests continue under new weights when these arrive (verl: fully_async_policy)."""
    max_staleness: int = Field(default=1, ge=0, le=64)
    """Maximum number of steps by which the weights that drew the oldest token of a response may lag behind those at the
    start of a step. 0: none, as with sync. Not read with schedule=sync; one_step_off has 0 or 1 (verl:
    staleness_threshold)."""

    max_steps: int | None = Field(default=None, ge=1)
    """Training steps; one step is one rollout and all updates made from it. None: `epochs` decides
    (verl: total_training_steps)."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the prompts; only read when max_steps is None (verl: total_epochs; TRL:
    num_train_epochs)."""
    prompts_per_mini_batch: int = Field(ge=1)
    """Prompts (with all their responses) per optimizer update; divides rollout.prompts_per_step.
    The quotient is the number of updates per rollout; the paper makes 4 (verl: ppo_mini_batch_size)."""
    epochs_per_rollout: int = Field(default=1, ge=1)
    """Number of passes over the mini-batches of a rollout; after the first pass the responses are off-policy, which the
    ratio and its clipping account for. (verl: ppo_epochs; TRL: num_iterations)"""
    samples_per_micro_batch: int | None = Field(default=None, ge=1)
    """Responses per forward and backward pass; divides a mini-batch. Changes memory and speed, not the
    result. Either this or max_tokens_per_micro_batch is set (verl: ppo_micro_batch_size_per_gpu)."""
    max_tokens_per_micro_batch: int | None = Field(default=None, ge=1)
    """Token slots of a replica's forward and backward pass, padding included: as many responses as fit, so that short
    ones do not wait for long ones. At least the longest prompt and response together. Changes memory and speed, not the
    result (verl: ppo_max_token_len_per_gpu, with use_dynamic_bsz)."""
    packing: bool = False
    """Several responses with their prompts share a row, and none sees another: hardly any padding is computed, and few
    graphs are compiled. With max_tokens_per_micro_batch (verl: use_remove_padding; MindRLHF: packing)."""
    balance_batches: bool = True
    """The replicas of plans.train get equal numbers of tokens in each update. false: samples are dealt in turn by
    length. Changes speed, not the result (verl: balance_batch)."""
    length_multiple: int = Field(default=32, ge=1)
    """Sequence lengths are padded up to a multiple of this, so that few graphs are compiled."""
    save_every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints; one is always written at the end. None: only at the end
    (verl: save_freq; TRL: save_steps)."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints kept (verl: max_actor_ckpt_to_keep; TRL: save_total_limit)."""
    keep_best: int = Field(default=0, ge=0)
    """Number of additional checkpoints kept because their evaluations are the best. From 1 on, every evaluation that is
    the best so far is saved at once."""
    export: Literal["last", "best"] = "last"
    """Weights that the run exports at its end. best: those of the best evaluation by eval.best_metric, from its
    checkpoint, of which at least one is kept as by keep_best (TRL: load_best_model_at_end)."""
    save_in_background: bool = False
    """Write checkpoints in a thread of rank 0 while the run goes on. Its host memory then holds the copy of weights and
    moments, 12 bytes per parameter, during the next rollout, and disk errors are reported at the next save or at the
    end."""
    max_ratio_error: float = Field(default=1e-5, gt=0)
    """The run stops when |s - 1| exceeds this on the first mini-batch after a rollout, where the ratio s must be 1.
    1e-5 suits float32, and every type in one process on CPU, where kernels leave no difference; bfloat16 on Ascend
    needs about 2e-3."""
    max_rollout_mismatch: float = Field(default=0.1, gt=0)
    """Only with algorithm.old_log_probs=sampler, where that ratio says nothing: the run stops when sampler and trainer
    differ by more than this in the log-probs of the first mini-batch, in nats, mean of the absolute difference per
    token. float32: about 1e-6; bfloat16: 0.01 to 0.02; 0 in one process on CPU, unless the cache rounds more than the
    model."""
    require_exact_logprobs: bool = False
    """The run stops when the sampler's and the trainer's log-prob of a token differ in any bit. Before the first update
    of a step they are compared for all trained tokens that the present weights drew, with a scoring pass where
    algorithm.old_log_probs is sampler; then those of the first update's own graph. The error names the layer and the
    operator where the two part (docs/exact_log_probs.md)."""
    exact_logprobs_every: int = Field(default=1, ge=1)
    """Steps from one of these comparisons to the next; step 1 has the first one. 1: the claim is about every step, for
    a scoring pass each."""
    deterministic: bool = False
    """Ascend: kernels and collectives add up in one order, so that a run can be repeated and resumed bit for bit, as on
    CPU; some are slower (ms.set_deterministic, HCCL_DETERMINISTIC). false: gradients of norms and attention, sums by
    index and sums over ranks may differ in their last bits from run to run."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """Action on an update whose loss or gradient is not finite. Its batch is saved in run_dir/failures either way, and
    no weight, moment or update number changes. stop: the run ends, and can be resumed. skip: the run goes on with the
    next update; its samples count as dropped (verl: always skips, without a bound)."""
    max_nonfinite_skips: int = Field(default=20, ge=1)
    """Updates that a run may skip with on_nonfinite=skip; one more stops it. Counted over all its processes."""
    max_nonfinite_skips_in_a_row: int = Field(default=3, ge=1)
    """Consecutive updates that may be skipped; one more stops the run, because then the weights are broken rather than
    the batch."""
    dump_step: int | None = Field(default=None, ge=1)
    """Step whose inputs and results are written to run_dir/dumps, to be rerun elsewhere and compared number by number
    (`mindgspo replay`): weights twice, moments, gradients, batches and, for a single process, the output of each
    module. It takes about 20 bytes per parameter on disk. None: no step."""

    @property
    def num_best_kept(self) -> int:
        """Checkpoints kept because their evaluations are the best."""
        return max(self.keep_best, int(self.export == "best"))


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


class WatchSection(Section):
    """A stall is reported with the ranks that the others wait for and the Python lines where they are."""

    factor: float = Field(default=10.0, ge=1.0)
    """A stall is this multiple of the median step time without progress of any worker. 10: evaluations and checkpoints
    take the time of a few steps, and a report does no harm. Below 1, every step would be a stall."""
    min_seconds: float = Field(default=300.0, gt=0.0)
    """Minimum number of seconds without progress that make a stall; the only criterion until the first step has ended.
    300: graphs of large models take minutes to compile. A generating server that is silent for this long ends the
    run."""
    on_stall: Literal["report", "stop"] = "report"
    """Action after a report. report: none, the run may continue. stop: all workers of this machine are ended and the
    exit code is 124, so that the program that started the run can restart it with resume=auto. With stop, min_seconds
    must exceed the longest compilation and the longest job of a reward function."""
    memory_growth: float | None = Field(default=0.05, gt=0.0)
    """Share of its resident memory by which a worker may grow per 100 steps; a steady growth beyond it, over 48 steps
    from the 11th of a process on, is reported once per worker. 0.05: runs that compile no new graphs grow by less than
    0.01. None: no alarm."""
    poll_seconds: float = Field(default=1.0, gt=0.0)
    """Seconds between two checks of the workers' heartbeats. 1: a check reads one small file per worker."""


class PlansSection(Section):
    """Parallel plans of the graphs that share the cards."""

    train: ParallelPlan = ParallelPlan()
    """Plan of the policy while it is trained."""
    infer: ParallelPlan = ParallelPlan()
    """Plan of the policy while it generates. It uses the same cards unless it has its own: its product equals that of
    `train`. Equal plans share one set of weights; otherwise weights are resharded after each step."""
    reference: ParallelPlan | None = None
    """Plan of the reference policy of a KL term, which only scores. The same cards: its product equals that of `train`.
    Its replicas share the micro-batches; its weights are resharded from the trained ones. None: as `train`, without
    optimizer shards (verl: actor_rollout_ref.ref; MindRLHF: ref_config.parallel_config)."""

    @property
    def scoring(self) -> ParallelPlan:
        """The plan that the reference policy scores with."""
        if self.reference is not None:
            return self.reference
        return self.train.model_copy(update={"optimizer_shard": False, "overlap_grad_reduce": False})


class LoggingSection(Section):
    """Outputs of a run beside metrics.jsonl."""

    trackers: tuple[Literal["tensorboard", "swanlab", "wandb"], ...] = ()
    """Further receivers of every metric. tensorboard: event files below run_dir/tensorboard. swanlab, wandb: SwanLab,
    Weights & Biases, with keys and modes of their own (docs/integrations.md) (verl: trainer.logger)."""
    tracker_project: str = Field(default="mindgspo", min_length=1, max_length=100)
    """Project of SwanLab and Weights & Biases in which the run appears (verl: trainer.project_name)."""
    groups_per_step: int | None = Field(default=4, ge=1)
    """Groups written to samples.jsonl per step. None: all."""
    progress: bool = True
    """Show a progress bar on a terminal: steps of warm-up and training, the time left, what the step does."""
    peak_tflops: float | None = Field(default=None, gt=0)
    """Dense peak of one card in the type of model.dtype, in 10^12 operations per second (verl takes 354 for Ascend
    910B). With it the metric perf/mfu/actor says what share of it the updates reach. None: not reported."""


class ExperimentConfig(Section):
    """One experiment."""

    experiment: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name; also the default run folder's name."""
    run_dir: Path | None = None
    """Folder for everything the run writes, relative to the current folder. None: runs/<experiment>."""
    seed: int = Field(default=1, ge=0, le=2**64 - 1)
    """Master seed: weights, data order and sampling derive their streams from it."""
    device: Literal["CPU", "Ascend"] = "CPU"
    """Where graphs run."""
    resume: Literal["never", "auto"] | Path = "never"
    """never: a run folder that holds a run is rejected. auto: continue from its newest complete checkpoint. Or a path,
    relative to the current folder: a checkpoint, a folder of checkpoints or a run, whose newest complete one counts.
    With an earlier checkpoint of its own, a run rolls back and sets later ones aside; with another run's checkpoint, a
    new run starts (verl: resume_mode, resume_from_path; TRL: resume_from_checkpoint)."""
    restore: Literal["all", "weights"] = "all"
    """State that a new run takes from another run's checkpoint named by `resume`. all: it continues at that step, with
    its optimizer, counters and position in the data. weights: only the weights; it starts at step 0, without a
    warm-up."""
    model: ModelSection
    """The policy."""
    plans: PlansSection = PlansSection()
    """Parallel plans; one process by default."""
    reshard: ReshardSection = ReshardSection()
    """How weights go from the train plan to the infer plan."""
    swap: SwapSection = SwapSection()
    """Data that leaves the device while no graph reads it."""
    memory: MemorySection = MemorySection()
    """Memory that a run may count on."""
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
    environment: EnvironmentSection | None = None
    """What answers the policy's turns. None: a response is one turn, and nothing answers it."""
    algorithm: AlgorithmSection = AlgorithmSection()
    """The loss that is minimised."""
    reward: RewardSection = RewardSection()
    """Scoring of responses."""
    optimizer: OptimizerSection = OptimizerSection()
    """Update of the weights."""
    trainer: TrainerSection
    """Length of the run and sizes of its batches."""
    eval: EvalSection = EvalSection()
    """Evaluation on held-out problems."""
    logging: LoggingSection = LoggingSection()
    """Outputs of a run."""
    profile: ProfileSection = ProfileSection()
    """Steps recorded for a profiler's timeline."""

    @property
    def has_own_servers(self) -> bool:
        """Whether the run starts servers that generate, on cards of their own."""
        return not self.rollout.servers.urls and (self.trainer.schedule != "sync" or self.plans.infer.cards is not None)

    @property
    def has_servers(self) -> bool:
        """Whether other processes generate."""
        return bool(self.rollout.servers.urls) or self.has_own_servers

    @property
    def sends_adapters(self) -> bool:
        """Whether servers hold the base, and get adapters alone; see `RolloutSection.lora`. What principal parts leave
        of the base is nowhere but in the trainer."""
        lora, rollout = self.model.lora, self.rollout
        is_told = rollout.servers.api == "mindgspo" or rollout.lora == "separate"
        return lora is not None and lora.init != "pissa" and is_told

    @property
    def reference_model(self) -> ModelSection:
        """The reference policy's model: the base, where the policy still is the base when reinforcement learning
        begins."""
        lora, follows = self.model.lora, self.algorithm.kl.reference.mode != "frozen"
        begins_with_base = lora is not None and lora.path is None and lora.init != "pissa"
        is_base = begins_with_base and self.warmup is None and not follows
        return self.model.base if is_base else self.model

    @property
    def shares_base(self) -> bool:
        """Whether the reference policy computes with the policy's frozen weights, of which there is one copy then."""
        return self.model.lora is not None and self.plans.reference is None

    @property
    def staleness(self) -> int:
        """Steps by which responses may be old: `trainer.max_staleness`, 0 with schedule=sync."""
        return 0 if self.trainer.schedule == "sync" else self.trainer.max_staleness
