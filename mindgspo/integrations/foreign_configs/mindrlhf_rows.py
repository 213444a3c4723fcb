"""MindRLHF's keys: a GRPO YAML with rl_config, actor_config, ref_config, reward_config, generate_config and context.

Defaults are those of its configuration classes. What several keys decide together is worked out in `mindrlhf`.
"""

from __future__ import annotations

from mindgspo.integrations.foreign_configs import mindrlhf_values as values
from mindgspo.integrations.foreign_configs.given import flag, number, seed, whole
from mindgspo.integrations.foreign_configs.mindformers_rows import device, recompute, selective
from mindgspo.integrations.foreign_configs.mindrlhf_values import ACTOR, GENERATE, REF, RL, SAMPLING
from mindgspo.integrations.foreign_configs.table import joined, left_out, needless, to, unbuilt
from mindgspo.integrations.foreign_configs.values import unlimited_below_one

_RECOMPUTE_CONFIG = f"{ACTOR}.recompute_config"
_RECOMPUTE = f"{_RECOMPUTE_CONFIG}.recompute"
_PLAN_KEYS = ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel", "expert_parallel")

ROWS = (
    # rl_config
    to(f"{RL}.model_name", "experiment", values.experiment, note="with -grpo behind it"),
    to(f"{RL}.tokenizer_dir", "tokenizer.path", values.tokenizer),
    to(f"{RL}.epochs", "trainer.epochs", whole, default=10),
    to(f"{RL}.num_generations", "rollout.num_generations", whole, default=8),
    joined(f"{RL}.num_rollouts", "rollout.prompts_per_step", "chunk_size x replicas x num_rollouts", default=4),
    joined(f"{RL}.chunk_size", "rollout.prompts_per_step", "chunk_size x replicas x num_rollouts", default=1),
    joined(
        f"{RL}.batch_size",
        "trainer.samples_per_micro_batch, trainer.prompts_per_mini_batch",
        "responses of one pass; times replicas and micro-batches an update",
        default=1,
    ),
    needless(f"{RL}.seq_length", "generate_config.max_prompt_length and max_tokens say it"),
    to(
        f"{RL}.beta",
        "algorithm.kl.placement, algorithm.kl.coef",
        values.penalty,
        note="0: none; else k3 in the loss",
        default=0.01,
    ),
    to(f"{RL}.epsilon_low", "algorithm.clip_low", number, default=0.2),
    to(f"{RL}.epsilon_high", "algorithm.clip_high", number, default=0.2),
    to(f"{RL}.num_iterations", "", values.iterations, note="1 only"),
    to(f"{RL}.enable_oldpolicy", "", values.old_policy, note="always done here"),
    to(f"{RL}.seed", "seed", lambda value, given: left_out("none is set") if value is None else seed(value)),
    to(f"{RL}.save_ckpt_interval", "trainer.save_every", unlimited_below_one, default=1),
    to(f"{RL}.save_max_ckpt_num", "trainer.keep_checkpoints", whole, default=5),
    to(f"{RL}.tensorboard", "logging.tensorboard", flag),
    to(f"{RL}.reshard_mem_opt_level", "swap.reshard_level", whole, note="with swap.enabled"),
    to(f"{RL}.packing", "", values.pack, note="false only; see trainer.packing"),
    unbuilt(f"{RL}.pack_num", "trainer.packing fills rows up to trainer.max_tokens_per_micro_batch", harmless=(1,)),
    unbuilt(f"{RL}.micro_batch_interleaved", "micro-batches are not interleaved", harmless=(1,)),
    unbuilt(
        f"{RL}.dataset_file",
        "a MindRecord without the texts: prepare the rows with `mindgspo data prepare`, then set data.train",
    ),
    needless(f"{RL}.tokenizer_type", "read from tokenizer.path"),
    needless(f"{RL}.deterministic", "runs are deterministic"),
    needless(f"{RL}.align_type", "one kind of training"),
    needless(f"{RL}.sink_size", "how data is fed, not what"),
    needless(f"{RL}.use_parallel", "the sizes of the plans say it"),
    needless(f"{RL}.load_ckpt_format", "weights are read from Hugging Face folders"),
    needless(f"{RL}.parallel_mode", "set by the program"),
    needless(f"{RL}.enable_compile_cache", "set by the program"),
    needless(f"{RL}.save_strategy_dir", "tools/generate_strategy.py writes strategy files"),
    needless(f"{RL}.save_data_file", "samples stay in memory; samples.jsonl holds them for people"),
    needless(f"{RL}.save_prompt_completions_*", "samples.jsonl holds the samples (logging.groups_per_step)"),
    needless(f"{RL}.save_ckpt_format", "one format; an export is safetensors"),
    needless(f"{RL}.save_checkpoint_dir", "runs/<experiment>, or run_dir"),
    needless(f"{RL}.enable_reshard_optimizer", "moments stay in the train plan"),
    needless(f"{RL}.reshard_mode", "`reshard` has the settings"),
    needless(f"{RL}.tensorboard_*", "below run_dir/tensorboard"),
    needless(f"{RL}.enable_full_monitor", "metrics.jsonl has everything"),
    needless(f"{RL}.calculate_entropy", "entropy is always measured"),
    needless(f"{RL}.performance_stats", "timing_s/* metrics tell where time goes"),
    needless(f"{RL}.gen_experience_kwargs", "not read there either"),
    # actor_config
    to(f"{ACTOR}.load", "model.path", values.load, note="a Hugging Face folder"),
    joined(f"{ACTOR}.model_config", "model.*", "the MindFormers file, if it is there or a further FILE"),
    *(
        joined(f"{ACTOR}.parallel_config.{key}", f"plans.train.{key}", "plan of training", default=default)
        for key, default in zip(_PLAN_KEYS, (1, 4, 2, 1, 1), strict=True)
    ),
    joined(f"{ACTOR}.parallel_config.micro_batch_num", "plans.train.micro_batch_num", "with stages", default=4),
    joined(
        f"{ACTOR}.parallel_config.use_seq_parallel", "plans.train.use_seq_parallel", "with model_parallel", default=True
    ),
    joined(f"{ACTOR}.parallel_config.vocab_emb_dp", "plans.train.vocab_emb_dp", "as it is", default=False),
    joined(f"{ACTOR}.enable_parallel_optimizer", "plans.train.optimizer_shard", "with data_parallel", default=True),
    to(_RECOMPUTE, "plans.train.recompute", recompute, note="true: full"),
    to(
        f"{_RECOMPUTE_CONFIG}.select_recompute*", "plans.train.recompute", selective(_RECOMPUTE), note="selective, else"
    ),
    needless(f"{ACTOR}.recompute_config.*", "what of the communication is computed again"),
    unbuilt(f"{ACTOR}.optimizer.type", "AdamW", harmless=("adamw", "AdamW")),
    to(f"{ACTOR}.optimizer.adam_beta1", "optimizer.beta1", number),
    to(f"{ACTOR}.optimizer.adam_beta2", "optimizer.beta2", number),
    to(f"{ACTOR}.optimizer.eps", "optimizer.eps", number),
    to(
        f"{ACTOR}.optimizer.weight_decay",
        "optimizer.weight_decay",
        values.decay,
        note="MindRLHF itself reads 0.1 whatever stands here",
        default=0.01,
    ),
    to(f"{ACTOR}.optimizer.opt_offload", "swap.enabled", values.opt_offload, note="between updates"),
    to(f"{ACTOR}.lr_schedule.lr", "optimizer.lr", number, default=5e-7),
    to(f"{ACTOR}.lr_schedule.lr_decay_style", "optimizer.schedule", values.schedule, default="cosine"),
    to(f"{ACTOR}.lr_schedule.min_lr", "optimizer.min_lr_ratio", values.last_rate, note="min_lr / lr", default=1e-10),
    to(
        f"{ACTOR}.lr_schedule.warmup_step",
        "optimizer.warmup_ratio",
        values.warmup,
        note="0 only: runs differ in length",
    ),
    to(f"{ACTOR}.lr_schedule.decay_steps", "", values.decay_steps, note="the cosine ends with the run"),
    unbuilt(f"{ACTOR}.loss_scale_value", "no loss scaling: bfloat16 does not need it", harmless=(1,)),
    unbuilt(f"{ACTOR}.offset", "stages get equal numbers of layers", harmless=(0,)),
    needless(f"{ACTOR}.save", "runs/<experiment>, or run_dir"),
    needless(f"{ACTOR}.enable_alltoall", "set by the plan itself"),
    needless(f"{ACTOR}.use_eod_attn_mask_compression", "attention is this project's own"),
    # ref_config
    to(f"{REF}.load", "", values.ref_load, note="the first policy"),
    to(f"{REF}.sync_ref_model", "algorithm.kl.reference.mode", values.sync, note="true: sync", default=False),
    to(
        f"{REF}.ref_model_sync_steps",
        "algorithm.kl.reference.every",
        values.sync_steps,
        note="with sync_ref_model",
        default=50,
    ),
    needless(f"{REF}.*", "the reference is computed with plans.train, or set plans.reference"),
    # reward_config
    to(
        "reward_config.verifier_function",
        "reward.functions",
        values.verifiers,
        note="accuracy_reward: gsm8k (of a Qwen: math); qwen_accuracy_reward, accuracy_reward_2: math; format_reward",
    ),
    to("reward_config.verifier_weight", "reward.weights", values.weights),
    # generate_config
    joined(f"{GENERATE}.model_config", "model.*", "the MindFormers file, if it is there or a further FILE"),
    *(
        joined(f"{GENERATE}.parallel_config.{key}", f"plans.infer.{key}", "plan of generation", default=default)
        for key, default in zip(_PLAN_KEYS, (1, 4, 2, 1, 1), strict=True)
    ),
    joined(f"{GENERATE}.parallel_config.vocab_emb_dp", "plans.infer.vocab_emb_dp", "as it is"),
    needless(f"{GENERATE}.parallel_config.*", "of training"),
    joined(f"{GENERATE}.max_num_seqs", "rollout.slots", "per replica there, altogether here"),
    to(f"{GENERATE}.max_prompt_length", "data.max_prompt_length", whole, default=2048),
    to(f"{SAMPLING}.max_tokens", "rollout.max_new_tokens", whole, default=512),
    to(f"{SAMPLING}.temperature", "rollout.temperature", number, default=0.8),
    to(f"{SAMPLING}.top_p", "rollout.top_p", number, default=0.8),
    to(f"{SAMPLING}.top_k", "rollout.top_k", values.top_k, default=20),
    unbuilt(
        f"{SAMPLING}.repetition_penalty",
        "no such penalty: the trained ratio would not be against the policy that sampled",
        harmless=(1, 1.0),
        default=1.05,
    ),
    unbuilt(f"{SAMPLING}.min_tokens", "responses end at the first end token", harmless=(0, None)),
    unbuilt(f"{SAMPLING}.min_p", "rollout.top_p and top_k", harmless=(0, 0.0, None)),
    needless(f"{SAMPLING}.*_token_id", "tokens are named: tokenizer.eos_tokens, tokenizer.pad_token"),
    needless(f"{SAMPLING}.detokenize", "prompts keep text and ids"),
    needless(f"{SAMPLING}.logprobs", "the sampler's log-probs are always kept"),
    needless(f"{GENERATE}.load", "generation gets the weights of training"),
    needless(f"{GENERATE}.*", "a setting of another engine"),
    # the rest
    to("context.device_target", "device", device),
    needless("context.*", "set by the program"),
    needless("monitor_config.*", "memory of the host is in the metrics"),
    needless("profiler_config.*", "timing_s/* metrics tell where time goes"),
)
