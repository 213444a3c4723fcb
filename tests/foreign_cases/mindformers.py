"""One case or more for every row of MindFormers' table that sets something: YAML, and what it becomes here.

Each case: (key of the row, settings of a finetune file by dotted key, values here). None: nothing is set there.
"""

from __future__ import annotations

from typing import Any

C, T = "model.model_config", "processor.tokenizer"
_TINY = {f"{C}.num_layers": 4}
_MP = {"parallel_config.model_parallel": 4}
_COSINE = {"lr_schedule.type": "CosineWithWarmUpLR", "lr_schedule.learning_rate": 1e-5}
_FILES = {f"{T}.vocab_file": "/t/vocab.json", f"{T}.merges_file": "/t/merges.txt"}

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("run_mode", {"run_mode": "predict", "parallel_config.model_parallel": 2}, {"plans.infer.model_parallel": 2}),
    ("seed", {"seed": 5}, {"seed": 5}),
    ("trainer.model_name", {"trainer.model_name": "qwen 7b"}, {"experiment": "qwen-7b-gspo"}),
    ("load_checkpoint", {"load_checkpoint": "/w"}, {"model.path": "/w"}),
    ("load_checkpoint", {"load_checkpoint": "/w/rank_0.ckpt", "load_ckpt_format": "ckpt"}, {"model.path": None}),
    ("load_checkpoint", {"load_checkpoint": ""}, {"model.path": None}),
    (
        "pretrained_model_dir",
        {"pretrained_model_dir": "/m/Qwen3-8B"},
        {
            "model.path": "/m/Qwen3-8B",
            "tokenizer.path": "/m/Qwen3-8B",
            "model.architecture": "qwen3",
            "model.head_dim": 128,
        },
    ),
    ("resume_training", {"resume_training": True}, {"resume": "auto"}),
    ("resume_training", {"resume_training": False}, {"resume": None}),
    ("runner_config.epochs", {"runner_config.epochs": 3}, {"trainer.epochs": 3}),
    ("runner_config.batch_size", {"runner_config.batch_size": 2}, {"trainer.samples_per_micro_batch": 2}),
    ("runner_wrapper.max_grad_norm", {"runner_wrapper.max_grad_norm": 0.5}, {"optimizer.max_grad_norm": 0.5}),
    ("runner_wrapper.use_clip_grad", {"runner_wrapper.use_clip_grad": True}, {"optimizer.max_grad_norm": None}),
    ("optimizer.betas", {"optimizer.betas": [0.8, 0.9]}, {"optimizer.beta1": 0.8, "optimizer.beta2": 0.9}),
    ("optimizer.eps", {"optimizer.eps": 1e-7}, {"optimizer.eps": 1e-7}),
    ("optimizer.weight_decay", {"optimizer.weight_decay": 0.02}, {"optimizer.weight_decay": 0.02}),
    ("optimizer.learning_rate", {"optimizer.learning_rate": "5e-7"}, {"optimizer.lr": 5e-7}),
    ("optimizer.learning_rate", {"optimizer.learning_rate": 1e-3, **_COSINE}, {"optimizer.lr": 1e-5}),
    ("lr_schedule.type", {"lr_schedule.type": "CosineWithWarmUpLR"}, {"optimizer.schedule": "cosine"}),
    ("lr_schedule.type", {"lr_schedule.type": "ConstantWarmUpLR"}, {"optimizer.schedule": "constant"}),
    ("lr_schedule.type", {"lr_schedule.type": "PolynomialWithWarmUpLR"}, {"optimizer.schedule": None}),
    ("lr_schedule.learning_rate", {"lr_schedule.learning_rate": 2e-6}, {"optimizer.lr": 2e-6}),
    ("lr_schedule.lr_end", {**_COSINE, "lr_schedule.lr_end": 5e-6}, {"optimizer.min_lr_ratio": 0.5}),
    ("lr_schedule.warmup_ratio", {"lr_schedule.warmup_ratio": 0.03}, {"optimizer.warmup_ratio": 0.03}),
    ("lr_schedule.warmup_steps", {"lr_schedule.warmup_steps": 0}, {"optimizer.warmup_ratio": 0.0}),
    ("use_parallel", {"use_parallel": False, "parallel_config.data_parallel": 8}, {"plans.train.data_parallel": None}),
    (
        "parallel_config.data_parallel",
        {"parallel_config.data_parallel": 4},
        {
            "plans.train.data_parallel": 4,
            "plans.infer.data_parallel": 4,
        },
    ),
    ("parallel_config.model_parallel", _MP, {"plans.train.model_parallel": 4, "plans.infer.model_parallel": 4}),
    (
        "parallel_config.pipeline_stage",
        {"parallel_config.pipeline_stage": 2, **_MP},
        {
            "plans.train.pipeline_stage": 2,
            "plans.infer.data_parallel": 2,
            "plans.infer.model_parallel": 4,
        },
    ),
    ("parallel_config.context_parallel", {"parallel_config.context_parallel": 2}, {"plans.train.context_parallel": 2}),
    ("parallel_config.expert_parallel", {"parallel_config.expert_parallel": 2}, {"plans.train.expert_parallel": 2}),
    (
        "parallel_config.micro_batch_num",
        {"parallel_config.pipeline_stage": 2, "parallel_config.micro_batch_num": 8},
        {
            "plans.train.micro_batch_num": 8,
        },
    ),
    ("parallel_config.micro_batch_num", {"parallel_config.micro_batch_num": 8}, {"plans.train.micro_batch_num": None}),
    (
        "parallel_config.use_seq_parallel",
        {**_MP, "parallel_config.use_seq_parallel": True},
        {"plans.train.use_seq_parallel": True},
    ),
    (
        "parallel_config.use_seq_parallel",
        {"parallel_config.use_seq_parallel": True},
        {"plans.train.use_seq_parallel": None},
    ),
    ("parallel_config.vocab_emb_dp", {"parallel_config.vocab_emb_dp": False}, {"plans.train.vocab_emb_dp": False}),
    (
        "parallel_config.optimizer_shard",
        {"parallel_config.optimizer_shard": True, "parallel_config.data_parallel": 2},
        {
            "plans.train.optimizer_shard": True,
        },
    ),
    (
        "parallel.enable_parallel_optimizer",
        {"parallel.enable_parallel_optimizer": True, "parallel_config.data_parallel": 2},
        {
            "plans.train.optimizer_shard": True,
        },
    ),
    (
        "parallel.enable_parallel_optimizer",
        {"parallel.enable_parallel_optimizer": True},
        {"plans.train.optimizer_shard": None},
    ),
    ("recompute_config.recompute", {"recompute_config.recompute": True}, {"plans.train.recompute": "full"}),
    ("recompute_config.recompute", {"recompute_config.recompute": [7, 0]}, {"plans.train.recompute": "full"}),
    ("recompute_config.recompute", {"recompute_config.recompute": [0, 0]}, {"plans.train.recompute": None}),
    (
        "recompute_config.select_recompute*",
        {"recompute_config.select_recompute": True},
        {"plans.train.recompute": "selective"},
    ),
    (
        "recompute_config.select_recompute*",
        {r"recompute_config.select_recompute.feed_forward\mul": [1]},
        {
            "plans.train.recompute": "selective",
        },
    ),
    (
        "recompute_config.select_recompute*",
        {"recompute_config.select_recompute": True, "recompute_config.recompute": True},
        {
            "plans.train.recompute": "full",
        },
    ),
    ("context.device_target", {"context.device_target": "CPU"}, {"device": "CPU"}),
    ("context.device_target", {"context.device_target": "GPU"}, {"device": "Ascend"}),
    (f"{T}.eos_token", {f"{T}.eos_token": "<|im_end|>"}, {"tokenizer.eos_tokens": ["<|im_end|>"]}),
    (f"{T}.pad_token", {f"{T}.pad_token": "<pad>"}, {"tokenizer.pad_token": "<pad>"}),
    (f"{T}.vocab_file", _FILES, {"tokenizer.path": "/t"}),
    (
        f"{T}.merges_file",
        {f"{T}.vocab_file": "/a/vocab.json", f"{T}.merges_file": "/b/merges.txt"},
        {"tokenizer.path": None},
    ),
    (
        "callbacks.CheckpointMonitor.keep_checkpoint_max",
        {"callbacks": [{"type": "CheckpointMonitor", "keep_checkpoint_max": 5}]},
        {"trainer.keep_checkpoints": 5},
    ),
    (f"{C}.vocab_size", {f"{C}.vocab_size": 1000}, {"model.vocab_size": 1000}),
    (f"{C}.hidden_size", {f"{C}.hidden_size": 64}, {"model.hidden_size": 64}),
    (f"{C}.intermediate_size", {f"{C}.intermediate_size": 96}, {"model.intermediate_size": 96}),
    (f"{C}.num_layers", _TINY, {"model.num_hidden_layers": 4, "model.architecture": "llama"}),
    (f"{C}.num_hidden_layers", {f"{C}.num_hidden_layers": 6}, {"model.num_hidden_layers": 6}),
    (f"{C}.num_heads", {f"{C}.num_heads": 8}, {"model.num_attention_heads": 8}),
    (f"{C}.num_attention_heads", {f"{C}.num_attention_heads": 8}, {"model.num_attention_heads": 8}),
    (f"{C}.n_kv_heads", {f"{C}.n_kv_heads": 2}, {"model.num_key_value_heads": 2}),
    (f"{C}.num_key_value_heads", {f"{C}.num_key_value_heads": 2}, {"model.num_key_value_heads": 2}),
    (f"{C}.head_dim", {f"{C}.head_dim": 128}, {"model.head_dim": 128}),
    (f"{C}.max_position_embedding", {f"{C}.max_position_embedding": 4096}, {"model.max_position_embeddings": 4096}),
    (f"{C}.max_position_embeddings", {f"{C}.max_position_embeddings": 4096}, {"model.max_position_embeddings": 4096}),
    (
        f"{C}.num_experts",
        {**_TINY, f"{C}.num_experts": 16},
        {"model.num_experts": 16, "model.architecture": "qwen3_moe"},
    ),
    (f"{C}.num_experts_per_tok", {f"{C}.num_experts_per_tok": 4}, {"model.num_experts_per_tok": 4}),
    (f"{C}.moe_intermediate_size", {f"{C}.moe_intermediate_size": 32}, {"model.moe_intermediate_size": 32}),
    (f"{C}.norm_topk_prob", {f"{C}.norm_topk_prob": True}, {"model.norm_topk_prob": True}),
    (f"{C}.type", {**_TINY, f"{C}.type": "LlamaConfig"}, {"model.architecture": "llama"}),
    (f"{C}.type", {**_TINY, f"{C}.type": "DeepseekV3Config"}, {"model.architecture": "DeepseekV3Config"}),
    (f"{C}.model_type", {f"{C}.model_type": "qwen3"}, {"model.architecture": "qwen3"}),
    (f"{C}.model_type", {f"{C}.model_type": "glm4"}, {"model.architecture": "glm4"}),
    (
        f"{C}.architectures",
        {f"{C}.model_type": "qwen3", f"{C}.architectures": ["Qwen3ForCausalLM"]},
        {"model.architecture": "qwen3"},
    ),
    (f"{C}.qkv_has_bias", {**_TINY, f"{C}.qkv_has_bias": True}, {"model.architecture": "qwen2"}),
    (f"{C}.attention_bias", {**_TINY, f"{C}.attention_bias": True}, {"model.architecture": "qwen2"}),
    (f"{C}.add_qkv_bias", {**_TINY, f"{C}.add_qkv_bias": True}, {"model.architecture": "qwen2"}),
    (f"{C}.qk_layernorm", {**_TINY, f"{C}.qk_layernorm": True}, {"model.architecture": "qwen3"}),
    (f"{C}.rms_norm_eps", {f"{C}.rms_norm_eps": 1e-5}, {"model.rms_norm_eps": 1e-5}),
    (f"{C}.theta", {f"{C}.theta": 10000.0}, {"model.rope_theta": 10000.0}),
    (f"{C}.rope_theta", {f"{C}.rope_theta": 500000.0}, {"model.rope_theta": 500000.0}),
    (f"{C}.tie_word_embeddings", {f"{C}.tie_word_embeddings": True}, {"model.tie_word_embeddings": True}),
    (
        f"{C}.untie_embeddings_and_output_weights",
        {f"{C}.untie_embeddings_and_output_weights": False},
        {
            "model.tie_word_embeddings": True,
        },
    ),
    (f"{C}.initializer_range", {f"{C}.initializer_range": 0.01}, {"model.initializer_range": 0.01}),
    (
        f"{C}.kv_channels",
        {f"{C}.kv_channels": 16, f"{C}.hidden_size": 64, f"{C}.num_heads": 4},
        {"model.head_dim": None},
    ),
    (f"{C}.kv_channels", {f"{C}.kv_channels": 32, f"{C}.hidden_size": 64, f"{C}.num_heads": 4}, {"model.head_dim": 32}),
    (
        f"{C}.compute_dtype",
        {f"{C}.compute_dtype": "bfloat16"},
        {"model.dtype": "bfloat16", "trainer.max_ratio_error": 2e-3},
    ),
    (
        f"{C}.compute_dtype",
        {f"{C}.compute_dtype": "float16"},
        {"model.dtype": "float16", "trainer.max_ratio_error": None},
    ),
    (f"{C}.extend_method", {f"{C}.extend_method": "None"}, {"model.rope_scaling": None}),
    (f"{C}.scaling_factor", {f"{C}.scaling_factor": 1.0}, {"model.rope_scaling": None}),
    (f"{C}.scaling_factor.factor", {f"{C}.scaling_factor.factor": 8.0}, {"model.rope_scaling.factor": 8.0}),
    (
        f"{C}.scaling_factor.low_freq_factor",
        {f"{C}.scaling_factor.low_freq_factor": 1.0},
        {"model.rope_scaling.low_freq_factor": 1.0},
    ),
    (
        f"{C}.scaling_factor.high_freq_factor",
        {f"{C}.scaling_factor.high_freq_factor": 4.0},
        {"model.rope_scaling.high_freq_factor": 4.0},
    ),
    (
        f"{C}.scaling_factor.original_max_position_embeddings",
        {f"{C}.scaling_factor.original_max_position_embeddings": 8192},
        {"model.rope_scaling.original_max_position_embeddings": 8192},
    ),
    (f"{C}.seq_length", {f"{C}.seq_length": 4096}, {"data.max_prompt_length": 1024, "rollout.max_new_tokens": 3072}),
    (f"{C}.seq_length", {f"{C}.seq_length": 16384}, {"data.max_prompt_length": 2048, "rollout.max_new_tokens": 14336}),
]
