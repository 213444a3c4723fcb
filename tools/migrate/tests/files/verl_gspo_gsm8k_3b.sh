#!/usr/bin/env bash
# In verl's manner: GSPO of Qwen2.5-3B on GSM8K, one server of 8 cards.
set -xeuo pipefail

export HCCL_CONNECT_TIMEOUT=1500
NNODES=${NNODES:-1}
CARDS=8

project=gspo
name=gsm8k-gspo-3b
data=/data/gsm8k
model=Qwen/Qwen2.5-3B

clip_ratio_low=0.0003   # the paper's
clip_ratio_high=0.0004
prompts=512
mini=$((prompts / 4))
n=16
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 8))
tokens=$(((max_prompt_length + max_response_length) * 4))

if [ "${1:-}" = "--clean" ]; then
    rm -rf runs
fi

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    algorithm.use_kl_in_reward=False \
    data.train_files="['$data/train.parquet']" \
    data.val_files="['$data/test.parquet']" \
    data.train_batch_size=${prompts} \
    data.max_prompt_length=${max_prompt_length} \
    data.max_response_length=${max_response_length} \
    data.filter_overlong_prompts=True \
    data.truncation='error' \
    actor_rollout_ref.model.path="${model}" \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.policy_loss.loss_mode=gspo \
    actor_rollout_ref.actor.loss_agg_mode="seq-mean-token-mean" \
    actor_rollout_ref.actor.clip_ratio_low=${clip_ratio_low} \
    actor_rollout_ref.actor.clip_ratio_high=${clip_ratio_high} \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.05 \
    actor_rollout_ref.actor.optim.weight_decay=0.1 \
    actor_rollout_ref.actor.grad_clip=1.0 \
    actor_rollout_ref.actor.ppo_mini_batch_size=${mini} \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${tokens} \
    actor_rollout_ref.actor.fsdp_config.param_offload=True \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=$n \
    actor_rollout_ref.rollout.temperature=1.0 \
    actor_rollout_ref.rollout.top_p=1.0 \
    actor_rollout_ref.rollout.top_k=-1 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.8 \
    actor_rollout_ref.rollout.max_num_seqs=32 \
    actor_rollout_ref.rollout.val_kwargs.n=1 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    trainer.logger='["console","tensorboard"]' \
    trainer.project_name="${project}" \
    trainer.experiment_name="${name}" \
    trainer.n_gpus_per_node=${CARDS} \
    trainer.nnodes="${NNODES}" \
    trainer.device=npu \
    trainer.test_freq=5 \
    trainer.save_freq=20 \
    trainer.total_epochs=10 \
    trainer.resume_mode=disable 2>&1 | tee log.txt
