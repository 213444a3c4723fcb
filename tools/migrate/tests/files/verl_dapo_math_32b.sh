#!/usr/bin/env bash
# In verl's manner: DAPO of Qwen2.5-32B on DAPO-Math-17k, 16 servers of 8 cards, settings in lists.
export HYDRA_FULL_ERROR=1
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 20))
HOME_OF_DATA=${HOME_OF_DATA:-"/data"}
MODEL=${MODEL:-"${HOME_OF_DATA}/models/Qwen2.5-32B"}

DATA=(
    data.train_files="${HOME_OF_DATA}/dapo-math-17k.parquet"
    data.val_files="${HOME_OF_DATA}/aime-2024.parquet"
    data.prompt_key=prompt
    data.truncation='left'
    data.max_prompt_length=${max_prompt_length}
    data.max_response_length=${max_response_length}
    data.train_batch_size=512
    data.gen_batch_size=1536
)
ALGORITHM=(
    algorithm.adv_estimator=grpo
    algorithm.filter_groups.enable=True
    algorithm.filter_groups.metric=acc
    algorithm.filter_groups.max_num_gen_batches=10
    algorithm.kl_ctrl.kl_coef=0.0
    actor_rollout_ref.actor.clip_ratio_low=0.2
    actor_rollout_ref.actor.clip_ratio_high=0.28
    actor_rollout_ref.actor.clip_ratio_c=10.0
    actor_rollout_ref.actor.loss_agg_mode=token-mean
    actor_rollout_ref.actor.entropy_coeff=0
)
REWARD=(
    reward_model.reward_manager=dapo
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=$((1024 * 4))
    +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0
    +reward_model.reward_kwargs.max_resp_len=${max_response_length}
)

python3 -m recipe.dapo.main_dapo "${DATA[@]}" "${ALGORITHM[@]}" "${REWARD[@]}" \
    actor_rollout_ref.model.path="${MODEL}" \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps=10 \
    actor_rollout_ref.actor.optim.weight_decay=0.1 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=8 \
    actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    actor_rollout_ref.rollout.val_kwargs.n=32 \
    actor_rollout_ref.rollout.val_kwargs.temperature=0.6 \
    trainer.logger='["console","wandb"]' \
    trainer.experiment_name=DAPO-Qwen2.5-32B \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=16 \
    trainer.device=npu \
    trainer.test_freq=5 \
    trainer.save_freq=5 \
    trainer.total_epochs=1 \
    trainer.total_training_steps=200 "$@"
