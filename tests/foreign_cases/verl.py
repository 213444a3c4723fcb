"""One case or more for every row of verl's table that sets something: overrides, and what they become here.

Each case: (key of the row, overrides, values here). An empty mapping: nothing is set by that key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

A, R, M = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_CFG = "reward_model.reward_kwargs.overlong_buffer_cfg"
_NEW_CFG = "reward.reward_kwargs.overlong_buffer_cfg"
_OLD_CFG = "reward_model.overlong_buffer"
_MEGATRON = (f"{A}.strategy=megatron", "trainer.n_gpus_per_node=16")
_CLIPPED = (f"{A}.policy_loss.loss_mode=gspo",)

Case = tuple[str, tuple[str, ...], dict[str, Any]]


def _overlong(prefix: str) -> list[Case]:
    on = f"{prefix}.enable=True"
    return [
        (f"{prefix}.enable", (on,), {"reward.functions": ["auto", "overlong"]}),
        (f"{prefix}.enable", (f"{prefix}.enable=False",), {"reward.functions": None}),
        (f"{prefix}.len", (on, f"{prefix}.len=4096"), {"reward.overlong.buffer_len": 4096}),
        (f"{prefix}.len", (f"{prefix}.len=4096",), {"reward.overlong.buffer_len": None}),
        (f"{prefix}.penalty_factor", (on, f"{prefix}.penalty_factor=0.5"), {"reward.overlong.factor": 0.5}),
    ]


CASES: list[Case] = [
    (
        "data.train_files",
        ("data.train_files=/d/a.parquet",),
        {"data.train.format": "verl", "data.train.path": "/d/a.parquet"},
    ),
    ("data.train_files", ("data.train_files=\"['/d/a.parquet']\"",), {"data.train.path": "/d/a.parquet"}),
    ("data.train_files", ("data.train_files=\"['/d/a.parquet','/d/b.parquet']\"",), {"data.train.path": None}),
    ("data.train_files", ("data.train_files=~/a.parquet",), {"data.train.path": str(Path.home() / "a.parquet")}),
    (
        "data.val_files",
        ("data.val_files=/d/v.parquet",),
        {"data.eval.format": "verl", "data.eval.path": "/d/v.parquet"},
    ),
    ("data.val_files", ("data.val_files=\"['/d/a.parquet','/d/b.parquet']\"",), {"data.eval.path": None}),
    ("data.train_batch_size", ("data.train_batch_size=64",), {"rollout.prompts_per_step": 64}),
    ("data.max_prompt_length", ("data.max_prompt_length=2048",), {"data.max_prompt_length": 2048}),
    ("data.max_response_length", ("data.max_response_length=8192",), {"rollout.max_new_tokens": 8192}),
    ("data.shuffle", ("data.shuffle=False",), {"data.shuffle": False}),
    ("data.seed", ("data.seed=17",), {"seed": 17}),
    ("data.seed", ("data.seed=null",), {"seed": None}),
    ("data.filter_overlong_prompts", ("data.filter_overlong_prompts=True",), {"data.truncation": "drop"}),
    ("data.truncation", ("data.truncation=left",), {"data.truncation": "left"}),
    ("data.truncation", ("data.filter_overlong_prompts=True", "data.truncation=left"), {"data.truncation": "drop"}),
    ("data.train_max_samples", ("data.train_max_samples=100",), {"data.train.max_rows": 100}),
    ("data.train_max_samples", ("data.train_max_samples=-1",), {"data.train.max_rows": None}),
    ("data.val_max_samples", ("data.val_max_samples=20",), {"data.eval.max_rows": 20}),
    ("data.prompt_key", ("data.prompt_key=prompt",), {"data.train.columns.prompt": None}),
    ("data.reward_fn_key", ("data.reward_fn_key=data_source",), {"data.train.columns.data_source": None}),
    ("data.tokenizer", ("data.tokenizer=/t",), {"tokenizer.path": "/t"}),
    (
        f"{M}.path",
        (f"{M}.path=/models/Qwen2.5-3B",),
        {
            "model.path": "/models/Qwen2.5-3B",
            "tokenizer.path": "/models/Qwen2.5-3B",
            "model.architecture": "qwen2",
            "model.hidden_size": 2048,
            "model.num_hidden_layers": 36,
            "model.tie_word_embeddings": True,
        },
    ),
    (
        f"{M}.path",
        (f"{M}.path=Qwen/Qwen2.5-7B-Instruct",),
        {
            "model.path": None,
            "tokenizer.path": None,
            "model.hidden_size": 3584,
            "model.max_position_embeddings": 32768,
        },
    ),
    (
        f"{M}.path",
        (f"{M}.path=/models/a-model-of-my-own",),
        {"model.path": "/models/a-model-of-my-own", "model.hidden_size": None},
    ),
    (f"{M}.path", (f"{M}.path=/models/Qwen2.5-3B", "data.tokenizer=/t"), {"tokenizer.path": "/t"}),
    (
        f"{M}.enable_gradient_checkpointing",
        (f"{M}.enable_gradient_checkpointing=False",),
        {"plans.train.recompute": None},
    ),
    (
        f"{M}.enable_gradient_checkpointing",
        (f"{M}.enable_gradient_checkpointing=True",),
        {"plans.train.recompute": "full"},
    ),
    (
        f"{M}.override_config.max_position_embeddings",
        (f"{M}.path=/models/Qwen2.5-7B", f"+{M}.override_config.max_position_embeddings=65536"),
        {"model.max_position_embeddings": 65536},
    ),
    (f"{M}.tokenizer_path", (f"{M}.tokenizer_path=/t",), {"tokenizer.path": "/t"}),
    (f"{R}.n", (f"{R}.n=16",), {"rollout.num_generations": 16}),
    (f"{R}.temperature", (f"{R}.temperature=0.9",), {"rollout.temperature": 0.9}),
    (f"{R}.top_p", (f"{R}.top_p=0.95",), {"rollout.top_p": 0.95}),
    (f"{R}.top_k", (f"{R}.top_k=-1",), {"rollout.top_k": 0}),
    (f"{R}.top_k", (f"{R}.top_k=50",), {"rollout.top_k": 50}),
    (f"{R}.max_num_seqs", (f"{R}.max_num_seqs=32", f"{R}.tensor_model_parallel_size=2"), {"rollout.slots": 128}),
    (
        f"{R}.tensor_model_parallel_size",
        (f"{R}.tensor_model_parallel_size=4",),
        {
            "plans.infer.model_parallel": 4,
            "plans.infer.data_parallel": 2,
            "plans.train.model_parallel": 4,
            "plans.train.data_parallel": 2,
            "plans.train.optimizer_shard": True,
        },
    ),
    (f"{R}.expert_parallel_size", (f"{R}.expert_parallel_size=2",), {"plans.infer.expert_parallel": 2}),
    (f"{R}.val_kwargs.n", (f"{R}.val_kwargs.n=8",), {"eval.num_samples": 8, "eval.pass_at_k": [1, 8]}),
    (
        f"{R}.val_kwargs.temperature",
        (f"{R}.val_kwargs.n=8", f"{R}.val_kwargs.temperature=0.6"),
        {"eval.temperature": 0.6},
    ),
    (f"{R}.val_kwargs.temperature", (f"{R}.val_kwargs.temperature=0.6",), {"eval.temperature": None}),
    (f"{R}.val_kwargs.do_sample", (f"{R}.val_kwargs.do_sample=False",), {"eval.num_samples": None}),
    ("reward_model.reward_manager", ("reward_model.reward_manager=dapo",), {"reward.functions": None}),
    ("reward_manager.name", ("reward_manager.name=dapo",), {"reward.functions": None}),
    ("reward.reward_manager.name", ("reward.reward_manager.name=naive",), {"reward.functions": None}),
    *_overlong(_CFG),
    *_overlong(_OLD_CFG),
    *_overlong(_NEW_CFG),
    (
        "reward_model.reward_kwargs.max_resp_len",
        (f"{_CFG}.enable=True", "reward_model.reward_kwargs.max_resp_len=8192"),
        {"reward.overlong.max_len": 8192},
    ),
    (
        "reward.reward_kwargs.max_resp_len",
        (f"{_NEW_CFG}.enable=True", "reward.reward_kwargs.max_resp_len=8192"),
        {"reward.overlong.max_len": 8192},
    ),
    (
        "custom_reward_function.path",
        ("custom_reward_function.path=/r/mine.py",),
        {"reward.functions": ["/r/mine.py:compute_score"]},
    ),
    (
        "custom_reward_function.name",
        ("custom_reward_function.path=/r/mine.py", "custom_reward_function.name=judge"),
        {"reward.functions": ["/r/mine.py:judge"]},
    ),
    (
        "reward.custom_reward_function.path",
        ("reward.custom_reward_function.path=/r/mine.py", "reward.custom_reward_function.name=judge"),
        {"reward.functions": ["/r/mine.py:judge"]},
    ),
    ("reward.custom_reward_function.name", ("reward.custom_reward_function.name=judge",), {"reward.functions": None}),
    ("trainer.total_epochs", ("trainer.total_epochs=3",), {"trainer.epochs": 3}),
    ("trainer.total_training_steps", ("trainer.total_training_steps=500",), {"trainer.max_steps": 500}),
    ("trainer.total_training_steps", ("trainer.total_training_steps=null",), {"trainer.max_steps": None}),
    ("trainer.test_freq", ("trainer.test_freq=5",), {"eval.every": 5}),
    ("trainer.test_freq", ("trainer.test_freq=-1",), {"eval.every": None}),
    ("trainer.save_freq", ("trainer.save_freq=20",), {"trainer.save_every": 20}),
    ("trainer.max_actor_ckpt_to_keep", ("trainer.max_actor_ckpt_to_keep=4",), {"trainer.keep_checkpoints": 4}),
    ("trainer.experiment_name", ("trainer.experiment_name=my-run_1.0",), {"experiment": "my-run_1.0"}),
    ("trainer.experiment_name", ("trainer.experiment_name='my run/1'",), {"experiment": "my-run-1"}),
    ("trainer.default_local_dir", ("trainer.default_local_dir=/runs/a",), {"run_dir": "/runs/a"}),
    ("trainer.resume_mode", ("trainer.resume_mode=disable",), {"resume": "never"}),
    ("trainer.resume_mode", ("trainer.resume_mode=auto",), {"resume": "auto"}),
    ("trainer.logger", ('trainer.logger=\'["console","tensorboard"]\'',), {"logging.tensorboard": True}),
    ("trainer.logger", ('trainer.logger=\'["tensorboard","wandb"]\'',), {"logging.tensorboard": True}),
    ("trainer.device", ("trainer.device=npu",), {"device": "Ascend"}),
    ("trainer.nnodes", ("trainer.nnodes=4", f"{R}.tensor_model_parallel_size=8"), {"plans.infer.data_parallel": 4}),
    (
        "trainer.n_gpus_per_node",
        ("trainer.n_gpus_per_node=16", f"{R}.tensor_model_parallel_size=4"),
        {"plans.infer.data_parallel": 4},
    ),
    ("trainer.log_val_generations", ("trainer.log_val_generations=10",), {"eval.logged_problems": 10}),
    ("trainer.val_before_train", ("trainer.val_before_train=False",), {"eval.before": False}),
    (
        f"{A}.policy_loss.loss_mode",
        (f"{A}.policy_loss.loss_mode=gspo",),
        {
            "algorithm.name": "gspo",
            "algorithm.loss_agg_mode": None,
            "algorithm.clip_ratio_c": None,
        },
    ),
    (
        f"{A}.policy_loss.loss_mode",
        (f"{A}.policy_loss.loss_mode=vanilla",),
        {
            "algorithm.name": "grpo",
            "algorithm.log_ratio_max": 20.0,
            "algorithm.log_ratio_min": -20.0,
            "algorithm.clip_low": 0.2,
            "algorithm.clip_high": 0.2,
            "algorithm.clip_ratio_c": 3.0,
            "algorithm.loss_agg_mode": "token-mean",
        },
    ),
    (f"{A}.policy_loss.loss_mode", (f"{A}.policy_loss.loss_mode=geo_mean",), {"algorithm.name": "gmpo"}),
    (
        f"{A}.policy_loss.loss_mode",
        (f"{A}.policy_loss.loss_mode=gpg",),
        {"algorithm.name": "gpg", "algorithm.clip_low": None},
    ),
    (f"{A}.policy_loss.loss_mode", (f"{A}.policy_loss.loss_mode=cispo",), {"algorithm.name": "cispo"}),
    (f"{A}.clip_ratio_low", (*_CLIPPED, f"{A}.clip_ratio_low=0.0003"), {"algorithm.clip_low": 0.0003}),
    (f"{A}.clip_ratio_high", (*_CLIPPED, f"{A}.clip_ratio_high=4e-4"), {"algorithm.clip_high": 0.0004}),
    (
        f"{A}.clip_ratio",
        (f"{A}.clip_ratio=0.1", f"{A}.clip_ratio_low=null"),
        {"algorithm.clip_low": 0.1, "algorithm.clip_high": 0.2},
    ),
    (f"{A}.clip_ratio_c", (f"{A}.clip_ratio_c=10.0",), {"algorithm.clip_ratio_c": 10.0}),
    (f"{A}.clip_ratio_c", (*_CLIPPED, f"{A}.clip_ratio_c=10.0"), {"algorithm.clip_ratio_c": None}),
    (
        f"{A}.loss_agg_mode",
        (f"{A}.loss_agg_mode=seq-mean-token-sum",),
        {"algorithm.loss_agg_mode": "seq-mean-token-sum"},
    ),
    (f"{A}.loss_scale_factor", (f"{A}.loss_scale_factor=1000",), {"algorithm.loss_scale_factor": 1000.0}),
    (
        f"{A}.tau_pos",
        (f"{A}.policy_loss.loss_mode=sapo", f"{A}.tau_pos=1.5"),
        {"algorithm.name": "sapo", "algorithm.tau_pos": 1.5},
    ),
    (f"{A}.tau_neg", (f"{A}.policy_loss.loss_mode=sapo", f"{A}.tau_neg=1.2"), {"algorithm.tau_neg": 1.2}),
    (f"{A}.tau_neg", (f"{A}.tau_neg=1.2",), {"algorithm.tau_neg": None}),
    (f"{A}.entropy_coeff", (f"{A}.entropy_coeff=0.01",), {"algorithm.entropy_coef": 0.01}),
    *(
        ("algorithm.adv_estimator", (f"algorithm.adv_estimator={theirs}",), {"algorithm.advantage.estimator": ours})
        for theirs, ours in (
            *((name, name) for name in ("grpo", "rloo", "opo", "gpg", "remax", "reinforce_plus_plus")),
            ("reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline"),
            ("grpo_passk", "pass_k"),
            ("grpo_vectorized", "grpo"),
            ("rloo_vectorized", "rloo"),
            ("gae", None),
        )
    ),
    (
        "algorithm.norm_adv_by_std_in_grpo",
        ("algorithm.norm_adv_by_std_in_grpo=False",),
        {"algorithm.advantage.normalize_by_std": False},
    ),
    (
        "algorithm.gamma",
        ("algorithm.adv_estimator=reinforce_plus_plus", "algorithm.gamma=0.99"),
        {"algorithm.advantage.gamma": 0.99},
    ),
    ("algorithm.gamma", ("algorithm.adv_estimator=grpo", "algorithm.gamma=0.99"), {"algorithm.advantage.gamma": None}),
    (
        "algorithm.filter_groups.enable",
        ("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=acc"),
        {"algorithm.filter_groups.refill": True, "algorithm.filter_groups.when_short": "stop"},
    ),
    (
        "algorithm.filter_groups.enable",
        ("algorithm.filter_groups.enable=False",),
        {"algorithm.filter_groups.refill": None},
    ),
    *(
        (
            "algorithm.filter_groups.metric",
            ("algorithm.filter_groups.enable=True", f"algorithm.filter_groups.metric={theirs}"),
            {"algorithm.filter_groups.metric": ours},
        )
        for theirs, ours in (("acc", "accuracy"), ("score", "reward"), ("seq_final_reward", "reward"), ("x", None))
    ),
    (
        "algorithm.filter_groups.metric",
        ("algorithm.filter_groups.metric=acc",),
        {"algorithm.filter_groups.metric": None},
    ),
    *(
        (
            "algorithm.filter_groups.max_num_gen_batches",
            (
                "algorithm.filter_groups.enable=True",
                "algorithm.filter_groups.metric=acc",
                f"algorithm.filter_groups.max_num_gen_batches={theirs}",
            ),
            {"algorithm.filter_groups.max_num_gen_batches": ours},
        )
        for theirs, ours in ((10, 10), (0, 1000))
    ),
    (
        "data.gen_batch_size",
        (
            "algorithm.filter_groups.enable=True",
            "algorithm.filter_groups.metric=acc",
            "data.train_batch_size=512",
            "data.gen_batch_size=1536",
        ),
        {"algorithm.filter_groups.prompts_per_draw": 1536},
    ),
    ("data.gen_batch_size", ("data.gen_batch_size=1536",), {"algorithm.filter_groups.prompts_per_draw": None}),
    (f"{A}.ppo_epochs", (f"{A}.ppo_epochs=2",), {"trainer.epochs_per_rollout": 2}),
    (f"{A}.use_kl_loss", (f"{A}.use_kl_loss=True",), {"algorithm.kl.placement": "loss"}),
    (f"{A}.kl_loss_coef", (f"{A}.use_kl_loss=True", f"{A}.kl_loss_coef=0.005"), {"algorithm.kl.coef": 0.005}),
    (f"{A}.kl_loss_coef", (f"{A}.kl_loss_coef=0.005",), {"algorithm.kl.coef": None}),
    *(
        (
            f"{A}.kl_loss_type",
            (f"{A}.use_kl_loss=True", f"{A}.kl_loss_type={theirs}"),
            {
                "algorithm.kl.estimator": ours,
                "algorithm.kl.straight_through": straight,
            },
        )
        for theirs, ours, straight in (
            ("kl", "k1", None),
            ("k1+", "k1", True),
            ("mse", "k2", None),
            ("abs", "abs", None),
            ("low_var_kl", "k3", None),
            ("k3+", "k3", True),
            ("full", None, None),
        )
    ),
    (
        "algorithm.use_kl_in_reward",
        ("algorithm.use_kl_in_reward=True",),
        {
            "algorithm.kl.placement": "reward",
            "algorithm.kl.estimator": "k1",
        },
    ),
    (
        "algorithm.use_kl_in_reward",
        ("algorithm.use_kl_in_reward=True", f"{A}.use_kl_loss=True"),
        {"algorithm.kl.placement": "loss"},
    ),
    (
        "algorithm.kl_penalty",
        ("algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=k2"),
        {"algorithm.kl.estimator": "k2"},
    ),
    (
        "algorithm.kl_ctrl.kl_coef",
        ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.02"),
        {"algorithm.kl.coef": 0.02},
    ),
    (
        "algorithm.kl_ctrl.type",
        ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive"),
        {"algorithm.kl.target": 0.1},
    ),
    (
        "algorithm.kl_ctrl.target_kl",
        ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.target_kl=0.2"),
        {"algorithm.kl.target": 0.2},
    ),
    (
        "algorithm.kl_ctrl.target_kl",
        ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.target_kl=0.2"),
        {"algorithm.kl.target": None},
    ),
    (
        "algorithm.kl_ctrl.horizon",
        ("algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=5000"),
        {"algorithm.kl.horizon": 5000},
    ),
    (
        "algorithm.rollout_correction.rollout_is",
        ("algorithm.rollout_correction.rollout_is=token",),
        {"algorithm.rollout_correction.level": "token"},
    ),
    (
        "algorithm.rollout_correction.rollout_is_threshold",
        ("algorithm.rollout_correction.rollout_is=sequence", "algorithm.rollout_correction.rollout_is_threshold=5.0"),
        {"algorithm.rollout_correction.level": "sequence", "algorithm.rollout_correction.max": 5.0},
    ),
    (
        "algorithm.rollout_correction.bypass_mode",
        (
            "algorithm.rollout_correction.bypass_mode=True",
            "algorithm.rollout_correction.rollout_is=token",
            "algorithm.rollout_correction.rollout_is_threshold=5.0",
        ),
        {"algorithm.old_log_probs": "sampler", "algorithm.rollout_correction": None},
    ),
    (
        "algorithm.rollout_correction.bypass_mode",
        ("algorithm.rollout_correction.bypass_mode=False",),
        {"algorithm.old_log_probs": None},
    ),
    (f"{A}.optim.lr", (f"{A}.optim.lr=2e-6",), {"optimizer.lr": 2e-6}),
    (f"{A}.optim.weight_decay", (f"{A}.optim.weight_decay=0.1",), {"optimizer.weight_decay": 0.1}),
    (f"{A}.optim.betas", (f"{A}.optim.betas=[0.8,0.9]",), {"optimizer.beta1": 0.8, "optimizer.beta2": 0.9}),
    (f"{A}.grad_clip", (f"{A}.grad_clip=0.5",), {"optimizer.max_grad_norm": 0.5}),
    (f"{A}.optim.clip_grad", (f"{A}.optim.clip_grad=0.5",), {"optimizer.max_grad_norm": 0.5}),
    (
        f"{A}.optim.lr_warmup_steps",
        (f"{A}.optim.lr_warmup_steps=10", "trainer.total_training_steps=200"),
        {"optimizer.warmup_ratio": 0.05},
    ),
    (f"{A}.optim.lr_warmup_steps", (f"{A}.optim.lr_warmup_steps=10",), {"optimizer.warmup_ratio": None}),
    (f"{A}.optim.lr_warmup_steps", (f"{A}.optim.lr_warmup_steps=-1",), {"optimizer.warmup_ratio": 0.0}),
    (f"{A}.optim.lr_warmup_steps_ratio", (f"{A}.optim.lr_warmup_steps_ratio=0.03",), {"optimizer.warmup_ratio": 0.03}),
    (f"{A}.optim.lr_scheduler_type", (f"{A}.optim.lr_scheduler_type=cosine",), {"optimizer.schedule": "cosine"}),
    (f"{A}.optim.warmup_style", (f"{A}.optim.warmup_style=constant",), {"optimizer.schedule": "constant"}),
    (f"{A}.optim.lr_decay_style", (f"{A}.optim.lr_decay_style=cosine",), {"optimizer.schedule": "cosine"}),
    (f"{A}.optim.min_lr_ratio", (f"{A}.optim.min_lr_ratio=0.2",), {"optimizer.min_lr_ratio": 0.2}),
    (f"{A}.fsdp_config.*offload", (f"{A}.fsdp_config.param_offload=True",), {"swap.enabled": True}),
    (f"{A}.fsdp_config.*offload", (f"{A}.fsdp_config.optimizer_offload=False",), {"swap.enabled": None}),
    (f"{A}.megatron.*offload", (f"{A}.megatron.grad_offload=True",), {"swap.enabled": True}),
    (f"{A}.ppo_mini_batch_size", (f"{A}.ppo_mini_batch_size=32",), {"trainer.prompts_per_mini_batch": 32}),
    (
        f"{A}.ppo_micro_batch_size_per_gpu",
        (f"{A}.ppo_micro_batch_size_per_gpu=4",),
        {"trainer.samples_per_micro_batch": 4},
    ),
    (
        f"{A}.ppo_micro_batch_size",
        (f"{A}.ppo_micro_batch_size=64", f"{R}.tensor_model_parallel_size=1"),
        {"trainer.samples_per_micro_batch": 8},
    ),
    # Tokens count, where they are asked to; at least those of a sequence of 512 + 512.
    (
        f"{A}.use_dynamic_bsz",
        (f"{A}.use_dynamic_bsz=True", f"{A}.ppo_micro_batch_size_per_gpu=2"),
        {"trainer.max_tokens_per_micro_batch": 16384, "trainer.samples_per_micro_batch": None},
    ),
    (
        f"{A}.ppo_max_token_len_per_gpu",
        (f"{A}.use_dynamic_bsz=True", f"{A}.ppo_max_token_len_per_gpu=3000"),
        {"trainer.max_tokens_per_micro_batch": 3000, "trainer.samples_per_micro_batch": None},
    ),
    (
        f"{A}.ppo_max_token_len_per_gpu",
        (f"{A}.use_dynamic_bsz=True", f"{A}.ppo_max_token_len_per_gpu=1000"),
        {"trainer.max_tokens_per_micro_batch": 1024},
    ),
    ("trainer.balance_batch", ("trainer.balance_batch=False",), {"trainer.balance_batches": False}),
    (
        f"{A}.ppo_max_token_len_per_gpu",
        (f"{A}.ppo_max_token_len_per_gpu=3000",),
        {"trainer.max_tokens_per_micro_batch": None},
    ),
    (
        "model_engine",
        ("model_engine=megatron", f"{A}.megatron.tensor_model_parallel_size=4"),
        {"plans.train.model_parallel": 4},
    ),
    (
        "--config-name",
        ("--config-name=ppo_megatron_trainer.yaml", f"{A}.megatron.tensor_model_parallel_size=4"),
        {"plans.train.model_parallel": 4, "plans.infer.model_parallel": 2},
    ),
    (
        "--config-name",
        ("--config-name ppo_trainer", f"{A}.megatron.tensor_model_parallel_size=4"),
        {"plans.train.model_parallel": 2},
    ),
    (f"{A}.strategy", (f"{A}.strategy=fsdp2", f"{R}.tensor_model_parallel_size=4"), {"plans.train.model_parallel": 4}),
    (
        f"{A}.megatron.tensor_model_parallel_size",
        (*_MEGATRON, f"{A}.megatron.tensor_model_parallel_size=4"),
        {
            "plans.train.model_parallel": 4,
            "plans.train.data_parallel": 4,
            "plans.train.use_seq_parallel": True,
        },
    ),
    (
        f"{A}.megatron.pipeline_model_parallel_size",
        (*_MEGATRON, f"{A}.megatron.pipeline_model_parallel_size=4"),
        {
            "plans.train.pipeline_stage": 4,
            "plans.train.data_parallel": 4,
            "plans.train.micro_batch_num": 4,
            "plans.train.use_seq_parallel": None,
        },
    ),
    (
        f"{A}.megatron.context_parallel_size",
        (*_MEGATRON, f"{A}.megatron.context_parallel_size=2"),
        {"plans.train.context_parallel": 2, "plans.train.data_parallel": 8},
    ),
    (
        f"{A}.megatron.expert_model_parallel_size",
        (*_MEGATRON, f"{A}.megatron.expert_model_parallel_size=2"),
        {"plans.train.expert_parallel": 2, "plans.train.data_parallel": 16},
    ),
    (
        f"{A}.megatron.sequence_parallel",
        (*_MEGATRON, f"{A}.megatron.tensor_model_parallel_size=4", f"{A}.megatron.sequence_parallel=False"),
        {"plans.train.use_seq_parallel": False},
    ),
    (
        f"{A}.megatron.use_distributed_optimizer",
        (*_MEGATRON, f"{A}.megatron.use_distributed_optimizer=False"),
        {"plans.train.optimizer_shard": False},
    ),
    (
        f"{A}.megatron.override_transformer_config.recompute_granularity",
        (*_MEGATRON, f"{A}.megatron.override_transformer_config.recompute_granularity=selective"),
        {"plans.train.recompute": "selective"},
    ),
]
