# In verl's manner: its DAPO recipe with Qwen3-8B on 16 cards, groups without signal drawn anew, a reward of one's own.
set -x
export MODEL=/models/Qwen3-8B
export REWARD=/rewards/reward_score.py
export ROWS=/data/dianjin.parquet
python3 -m recipe.dapo.main_dapo \
    algorithm.adv_estimator=grpo algorithm.kl_ctrl.kl_coef=0.001 \
    algorithm.filter_groups.enable=True algorithm.filter_groups.metric=acc \
    algorithm.filter_groups.max_num_gen_batches=5 \
    data.train_files=$ROWS data.val_files=$ROWS data.train_batch_size=128 data.gen_batch_size=256 \
    data.max_prompt_length=1024 data.max_response_length=10000 data.filter_overlong_prompts=True \
    data.truncation='error' data.shuffle=True \
    actor_rollout_ref.model.path=$MODEL actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.use_torch_compile=False \
    actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.optim.weight_decay=0.01 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.actor.clip_ratio_c=10.0 \
    actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=True \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.max_num_batched_tokens=11024 actor_rollout_ref.rollout.gpu_memory_utilization=0.8 \
    actor_rollout_ref.rollout.temperature=0.6 actor_rollout_ref.rollout.top_p=0.95 \
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.enforce_eager=False \
    custom_reward_function.path=$REWARD custom_reward_function.name=compute_score \
    reward_model.overlong_buffer.enable=True reward_model.overlong_buffer.len=2048 \
    reward_model.overlong_buffer.penalty_factor=1.0 reward_model.reward_manager=dapo \
    trainer.critic_warmup=0 trainer.logger=['console'] trainer.n_gpus_per_node=16 trainer.nnodes=1 \
    trainer.save_freq=5 trainer.test_freq=-100 trainer.default_local_dir=/runs/8b trainer.val_before_train=False \
    trainer.device=npu trainer.max_actor_ckpt_to_keep=2 trainer.max_critic_ckpt_to_keep=2 trainer.total_epochs=5
