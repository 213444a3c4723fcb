#!/usr/bin/env bash
# In verl's manner: GSPO of Qwen2.5-3B on GSM8K with FSDP and Ulysses on 16 cards, evaluated by one drawn answer.
set -x
export NNODES=1
export GPUS_PER_NODE=16
echo "$NNODES nodes"

# The folder is spelt as nobody publishes it.
weights=mine/Qwen25-3B-Instruct
engine=vllm
if [ "$engine" = "vllm" ]; then
    export VLLM_USE_V1=1
fi
prompt=$((1024 * 2))
answer=$((1024 * 8))
tokens=$(((prompt + answer) * 1))
loss=gspo
run="${loss}-$(basename $weights)"
dynamic=true
offload=true
rows="['gsm8k/train.parquet']"
held_out="['gsm8k/test.parquet']"

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    algorithm.use_kl_in_reward=false \
    algorithm.kl_ctrl.kl_coef=0.0 \
    data.train_files="${rows}" \
    data.val_files="${held_out}" \
    data.shuffle=true \
    data.prompt_key=prompt \
    data.truncation='error' \
    data.filter_overlong_prompts=true \
    data.return_raw_chat="True" \
    data.train_batch_size=512 \
    data.max_prompt_length=${prompt} \
    data.max_response_length=${answer} \
    actor_rollout_ref.model.path="${weights}" \
    actor_rollout_ref.model.use_remove_padding=true \
    actor_rollout_ref.model.enable_gradient_checkpointing=true \
    actor_rollout_ref.actor.policy_loss.loss_mode=${loss} \
    actor_rollout_ref.actor.loss_agg_mode="seq-mean-token-mean" \
    actor_rollout_ref.actor.clip_ratio_low=0.0003 \
    actor_rollout_ref.actor.clip_ratio_high=0.0004 \
    actor_rollout_ref.actor.use_kl_loss=false \
    actor_rollout_ref.actor.kl_loss_coef=0.0 \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.actor.entropy_checkpointing=true \
    actor_rollout_ref.actor.grad_clip=1.0 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.05 \
    actor_rollout_ref.actor.optim.weight_decay=0.1 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.actor.use_dynamic_bsz=${dynamic} \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${tokens} \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=4 \
    actor_rollout_ref.actor.use_torch_compile=False \
    actor_rollout_ref.actor.fsdp_config.param_offload=${offload} \
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=${offload} \
    actor_rollout_ref.ref.fsdp_config.param_offload=${offload} \
    actor_rollout_ref.ref.log_prob_use_dynamic_bsz=${dynamic} \
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=${tokens} \
    actor_rollout_ref.ref.ulysses_sequence_parallel_size=4 \
    actor_rollout_ref.rollout.name=${engine} \
    actor_rollout_ref.rollout.mode=async \
    actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \
    actor_rollout_ref.rollout.enforce_eager=True \
    actor_rollout_ref.rollout.enable_chunked_prefill=true \
    actor_rollout_ref.rollout.max_num_batched_tokens=$((prompt + answer)) \
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=${dynamic} \
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=${tokens} \
    actor_rollout_ref.rollout.temperature=1.0 \
    actor_rollout_ref.rollout.top_p=1.0 \
    actor_rollout_ref.rollout.top_k=-1 \
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0 \
    actor_rollout_ref.rollout.val_kwargs.top_p=0.7 \
    actor_rollout_ref.rollout.val_kwargs.top_k=-1 \
    actor_rollout_ref.rollout.val_kwargs.do_sample=true \
    actor_rollout_ref.rollout.val_kwargs.n=1 \
    reward_model.reward_manager=dapo \
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=false \
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=$((1024 * 4)) \
    +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0 \
    +reward_model.reward_kwargs.overlong_buffer_cfg.log=false \
    +reward_model.reward_kwargs.max_resp_len=${answer} \
    trainer.logger='["console"]' \
    trainer.project_name=gspo \
    trainer.experiment_name="${run}" \
    trainer.default_local_dir="/runs/${run}" \
    trainer.n_gpus_per_node=${GPUS_PER_NODE} \
    trainer.nnodes=${NNODES} \
    trainer.use_legacy_worker_impl=disable \
    trainer.val_before_train=false \
    trainer.test_freq=10 \
    trainer.save_freq=-1 \
    trainer.total_epochs=10 \
    trainer.total_training_steps=500 \
    trainer.log_val_generations=2 \
    trainer.resume_mode=auto \
    trainer.device=npu \
    $@
