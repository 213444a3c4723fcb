#!/usr/bin/env bash
# In verl's manner: its DAPO recipe with Qwen3-32B, FSDP2 and Ulysses on 64 cards; responses of 20k tokens, no filter.
set -xeuo pipefail
home=${WORKING_DIR:-"${PWD}"}
answer=$((1024 * 20))
prompt=$((1024 * 2))
parts=4
share=$(((prompt + answer) / parts))
prompts=64
rows=/data/dapo-math-17k.parquet
python3 -m recipe.dapo.main_dapo \
    data.train_files="${rows}" data.val_files="${rows}" data.prompt_key=prompt data.truncation='left' \
    data.max_prompt_length=${prompt} data.max_response_length=${answer} \
    data.gen_batch_size=$((prompts * 1)) data.train_batch_size=${prompts} \
    algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False algorithm.kl_ctrl.kl_coef=0.0 \
    algorithm.filter_groups.enable=False algorithm.filter_groups.metric=acc \
    algorithm.filter_groups.max_num_gen_batches=10 \
    actor_rollout_ref.model.path=/models/Qwen3-32B actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.ref.strategy=fsdp2 \
    actor_rollout_ref.actor.fsdp_config.fsdp_size=-1 \
    actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=${parts} \
    actor_rollout_ref.ref.ulysses_sequence_parallel_size=${parts} \
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.clip_ratio_c=10.0 actor_rollout_ref.actor.loss_agg_mode="token-mean" \
    actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.actor.kl_loss_coef=0.0 \
    actor_rollout_ref.actor.entropy_coeff=0 actor_rollout_ref.actor.grad_clip=1.0 \
    actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.optim.weight_decay=0.1 actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True \
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${share} \
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=${share} \
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=${share} \
    actor_rollout_ref.actor.use_torch_compile=False actor_rollout_ref.ref.use_torch_compile=False \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 actor_rollout_ref.rollout.enforce_eager=False \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.70 actor_rollout_ref.rollout.enable_chunked_prefill=True \
    actor_rollout_ref.rollout.max_num_batched_tokens=$((prompt + answer)) \
    actor_rollout_ref.rollout.temperature=1.0 actor_rollout_ref.rollout.top_p=1.0 \
    actor_rollout_ref.rollout.top_k="-1" \
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0 actor_rollout_ref.rollout.val_kwargs.top_p=0.7 \
    actor_rollout_ref.rollout.val_kwargs.top_k=-1 actor_rollout_ref.rollout.val_kwargs.do_sample=True \
    actor_rollout_ref.rollout.val_kwargs.n=1 \
    reward_model.reward_manager=dapo reward_model.overlong_buffer.enable=True \
    reward_model.overlong_buffer.len=$((1024 * 4)) reward_model.overlong_buffer.penalty_factor=1.0 \
    trainer.logger='["console"]' trainer.project_name=DAPO trainer.experiment_name=dapo-32b \
    trainer.default_local_dir=/runs/dapo-32b trainer.n_gpus_per_node=16 trainer.nnodes=4 \
    trainer.val_before_train=False trainer.test_freq=-1 trainer.save_freq=100 trainer.total_epochs=10 \
    trainer.balance_batch=True trainer.resume_mode=auto \
    trainer.device=npu 2>&1 | tee "dapo_$(date +%Y%m%d_%H%M).log"
