"""One case or more for every row of MindRLHF's table that sets something: YAML, and what it becomes here.

Each case: (key of the row, settings by dotted key, values here). None: nothing is set there. The rest of such a file is
empty, so that MindRLHF's defaults stand for it: 1 x 4 x 2 cards in both plans, batches of 1, 8 responses per prompt.
"""

from __future__ import annotations

from typing import Any

RL, A, G, P = "rl_config", "actor_config", "generate_config", "parallel_config"
_ONE_STAGE = {
    f"{A}.{P}.pipeline_stage": 1,
    f"{A}.{P}.model_parallel": 1,
    f"{G}.{P}.pipeline_stage": 1,
    f"{G}.{P}.model_parallel": 1,
}

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (f"{RL}.model_name", {f"{RL}.model_name": "qwen2.5"}, {"experiment": "qwen2.5-grpo"}),
    (f"{RL}.tokenizer_dir", {f"{RL}.tokenizer_dir": "/t"}, {"tokenizer.path": "/t"}),
    (f"{RL}.tokenizer_dir", {f"{RL}.tokenizer_dir": "/t/tokenizer.json"}, {"tokenizer.path": "/t"}),
    (f"{RL}.epochs", {f"{RL}.epochs": 3}, {"trainer.epochs": 3}),
    (f"{RL}.num_generations", {f"{RL}.num_generations": 16}, {"rollout.num_generations": 16}),
    (f"{RL}.num_rollouts", {f"{RL}.num_rollouts": 6}, {"rollout.prompts_per_step": 6}),
    (
        f"{RL}.chunk_size",
        {f"{RL}.chunk_size": 3, f"{RL}.num_rollouts": 2, f"{G}.{P}.data_parallel": 2},
        {
            "rollout.prompts_per_step": 12,
        },
    ),
    # An update there takes 4 x 1 x 4 = 16 responses, two whole groups of 8.
    (
        f"{RL}.batch_size",
        {f"{RL}.batch_size": 4},
        {"trainer.samples_per_micro_batch": 4, "trainer.prompts_per_mini_batch": 2},
    ),
    # 2 x 1 responses, less than a group: one group is the nearest.
    (f"{RL}.batch_size", {f"{RL}.batch_size": 2, **_ONE_STAGE}, {"trainer.prompts_per_mini_batch": 1}),
    (f"{RL}.beta", {f"{RL}.beta": 0.02}, {"algorithm.kl.placement": "loss", "algorithm.kl.coef": 0.02}),
    (f"{RL}.beta", {f"{RL}.beta": 0}, {"algorithm.kl.placement": None}),
    (f"{RL}.epsilon_low", {f"{RL}.epsilon_low": 0.1}, {"algorithm.clip_low": 0.1, "algorithm.name": "grpo"}),
    (f"{RL}.epsilon_high", {f"{RL}.epsilon_high": 0.3}, {"algorithm.clip_high": 0.3}),
    (f"{RL}.num_iterations", {f"{RL}.num_iterations": 1}, {"trainer.epochs": 10}),
    (f"{RL}.enable_oldpolicy", {f"{RL}.enable_oldpolicy": True}, {"algorithm.name": "grpo"}),
    (f"{RL}.seed", {f"{RL}.seed": 3}, {"seed": 3}),
    (f"{RL}.seed", {f"{RL}.seed": None}, {"seed": None}),
    (f"{RL}.save_ckpt_interval", {f"{RL}.save_ckpt_interval": 7}, {"trainer.save_every": 7}),
    (f"{RL}.save_max_ckpt_num", {f"{RL}.save_max_ckpt_num": 9}, {"trainer.keep_checkpoints": 9}),
    (f"{RL}.tensorboard", {f"{RL}.tensorboard": True}, {"logging.tensorboard": True}),
    (f"{RL}.reshard_mem_opt_level", {f"{RL}.reshard_mem_opt_level": 1}, {"swap.reshard_level": 1}),
    (f"{RL}.packing", {f"{RL}.packing": False}, {"trainer.epochs": 10}),
    (f"{A}.load", {f"{A}.load": "/w"}, {"model.path": "/w"}),
    (f"{A}.load", {f"{A}.load": "/w", f"{RL}.load_ckpt_format": "ckpt"}, {"model.path": None}),
    (
        f"{A}.{P}.data_parallel",
        {f"{A}.{P}.data_parallel": 2},
        {"plans.train.data_parallel": 2, "plans.train.optimizer_shard": True},
    ),
    (
        f"{A}.{P}.model_parallel",
        {f"{A}.{P}.model_parallel": 8},
        {"plans.train.model_parallel": 8, "plans.infer.data_parallel": 2},
    ),
    (f"{A}.{P}.pipeline_stage", {f"{A}.{P}.pipeline_stage": 4}, {"plans.train.pipeline_stage": 4}),
    (f"{A}.{P}.context_parallel", {f"{A}.{P}.context_parallel": 2}, {"plans.train.context_parallel": 2}),
    (f"{A}.{P}.expert_parallel", {f"{A}.{P}.expert_parallel": 2}, {"plans.train.expert_parallel": 2}),
    (f"{A}.{P}.micro_batch_num", {f"{A}.{P}.micro_batch_num": 16}, {"plans.train.micro_batch_num": 16}),
    (f"{A}.{P}.use_seq_parallel", {f"{A}.{P}.use_seq_parallel": False}, {"plans.train.use_seq_parallel": False}),
    (
        f"{A}.{P}.use_seq_parallel",
        {f"{A}.{P}.use_seq_parallel": True, **_ONE_STAGE},
        {"plans.train.use_seq_parallel": None},
    ),
    (f"{A}.{P}.vocab_emb_dp", {f"{A}.{P}.vocab_emb_dp": True}, {"plans.train.vocab_emb_dp": True}),
    (f"{A}.enable_parallel_optimizer", {f"{A}.enable_parallel_optimizer": True}, {"plans.train.optimizer_shard": None}),
    (
        f"{A}.enable_parallel_optimizer",
        {f"{A}.enable_parallel_optimizer": False, f"{A}.{P}.data_parallel": 2},
        {
            "plans.train.optimizer_shard": False,
        },
    ),
    (f"{A}.recompute_config.recompute", {f"{A}.recompute_config.recompute": True}, {"plans.train.recompute": "full"}),
    (
        f"{A}.recompute_config.select_recompute*",
        {f"{A}.recompute_config.select_recompute": True},
        {
            "plans.train.recompute": "selective",
        },
    ),
    (f"{A}.optimizer.adam_beta1", {f"{A}.optimizer.adam_beta1": 0.8}, {"optimizer.beta1": 0.8}),
    (f"{A}.optimizer.adam_beta2", {f"{A}.optimizer.adam_beta2": 0.99}, {"optimizer.beta2": 0.99}),
    (f"{A}.optimizer.eps", {f"{A}.optimizer.eps": 1e-7}, {"optimizer.eps": 1e-7}),
    (f"{A}.optimizer.weight_decay", {f"{A}.optimizer.weight_decay": 0.03}, {"optimizer.weight_decay": 0.03}),
    (f"{A}.optimizer.opt_offload", {f"{A}.optimizer.opt_offload": True}, {"swap.enabled": True}),
    (f"{A}.lr_schedule.lr", {f"{A}.lr_schedule.lr": "2e-6"}, {"optimizer.lr": 2e-6}),
    (
        f"{A}.lr_schedule.lr_decay_style",
        {f"{A}.lr_schedule.lr_decay_style": "constant"},
        {"optimizer.schedule": "constant"},
    ),
    (
        f"{A}.lr_schedule.min_lr",
        {f"{A}.lr_schedule.lr": 1e-6, f"{A}.lr_schedule.min_lr": 5e-7},
        {"optimizer.min_lr_ratio": 0.5},
    ),
    (f"{A}.lr_schedule.warmup_step", {f"{A}.lr_schedule.warmup_step": 0}, {"optimizer.warmup_ratio": 0.0}),
    (f"{A}.lr_schedule.warmup_step", {f"{A}.lr_schedule.warmup_step": 10}, {"optimizer.warmup_ratio": None}),
    (f"{A}.lr_schedule.decay_steps", {f"{A}.lr_schedule.decay_steps": 500}, {"optimizer.schedule": "cosine"}),
    ("ref_config.load", {"ref_config.load": ""}, {"model.path": None}),
    ("ref_config.ref_model_sync_steps", {"ref_config.ref_model_sync_steps": 50}, {"algorithm.kl.reference": None}),
    (
        "ref_config.sync_ref_model",
        {"ref_config.sync_ref_model": True, f"{RL}.beta": 0.01},
        {"algorithm.kl.reference.mode": "sync", "algorithm.kl.reference.every": 50},
    ),
    (
        "ref_config.ref_model_sync_steps",
        {"ref_config.sync_ref_model": True, "ref_config.ref_model_sync_steps": 7, f"{RL}.beta": 0.01},
        {"algorithm.kl.reference.every": 7},
    ),
    ("ref_config.sync_ref_model", {"ref_config.sync_ref_model": True, f"{RL}.beta": 0}, {"algorithm.kl": None}),
    (
        "reward_config.verifier_function",
        {"reward_config.verifier_function": ["accuracy_reward", "format_reward"]},
        {
            "reward.functions": ["math", "format"],
        },
    ),
    (
        "reward_config.verifier_function",
        {"reward_config.verifier_function": "accuracy_reward", f"{RL}.model_name": "deepseek"},
        {
            "reward.functions": ["gsm8k"],
        },
    ),
    ("reward_config.verifier_function", {"reward_config.verifier_function": ["kk_reward"]}, {"reward.functions": None}),
    ("reward_config.verifier_weight", {"reward_config.verifier_weight": [1, 0.5]}, {"reward.weights": [1.0, 0.5]}),
    (
        f"{G}.{P}.data_parallel",
        {f"{G}.{P}.data_parallel": 2, f"{G}.{P}.pipeline_stage": 1},
        {"plans.infer.data_parallel": 2},
    ),
    (
        f"{G}.{P}.model_parallel",
        {f"{G}.{P}.model_parallel": 8, f"{G}.{P}.pipeline_stage": 1},
        {"plans.infer.model_parallel": 8},
    ),
    (
        f"{G}.{P}.pipeline_stage",
        {f"{G}.{P}.pipeline_stage": 1},
        {"plans.infer.pipeline_stage": 1, "plans.infer.data_parallel": 2},
    ),
    (f"{G}.{P}.context_parallel", {f"{G}.{P}.context_parallel": 2}, {"plans.infer.context_parallel": 2}),
    (f"{G}.{P}.expert_parallel", {f"{G}.{P}.expert_parallel": 2}, {"plans.infer.expert_parallel": 2}),
    (f"{G}.{P}.vocab_emb_dp", {f"{G}.{P}.vocab_emb_dp": False}, {"plans.infer.vocab_emb_dp": False}),
    (
        f"{G}.max_num_seqs",
        {f"{G}.max_num_seqs": 32, f"{G}.{P}.data_parallel": 2, f"{G}.{P}.pipeline_stage": 1},
        {"rollout.slots": 64},
    ),
    (f"{G}.max_prompt_length", {f"{G}.max_prompt_length": 777}, {"data.max_prompt_length": 777}),
    (f"{G}.sampling_config.max_tokens", {f"{G}.sampling_config.max_tokens": 333}, {"rollout.max_new_tokens": 333}),
    (f"{G}.sampling_config.temperature", {f"{G}.sampling_config.temperature": 1.0}, {"rollout.temperature": 1.0}),
    (f"{G}.sampling_config.top_p", {f"{G}.sampling_config.top_p": 0.9}, {"rollout.top_p": 0.9}),
    (f"{G}.sampling_config.top_k", {f"{G}.sampling_config.top_k": -1}, {"rollout.top_k": 0}),
    ("context.device_target", {"context.device_target": "Ascend"}, {"device": "Ascend"}),
]
