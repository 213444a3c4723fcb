"""The section `trainer`: length of the run, sizes of its batches, saving, self-checks.

What enters: plain values from `config.load`. What leaves: a frozen `TrainerSection`, read by the trainer.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mindgspo.config.section import Section


class TrainerSection(Section):
    """Length of the run, batches, saving and checks."""

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
    """How often the mini-batches of a rollout are gone through; beyond the first time the responses are off-policy,
    which the ratio and its clipping take into account. (verl: ppo_epochs; TRL: num_iterations)"""
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
    """The replicas of plans.train get equal numbers of tokens in each update. false: samples are dealt out by length.
    Changes speed, not the result (verl: balance_batch)."""
    length_multiple: int = Field(default=32, ge=1)
    """Sequence lengths are padded up to a multiple of this, so that few graphs are compiled."""
    save_every: int | None = Field(default=None, ge=1)
    """Steps between checkpoints; one is always written at the end. None: only at the end
    (verl: save_freq; TRL: save_steps)."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Newest checkpoints kept (verl: max_actor_ckpt_to_keep; TRL: save_total_limit)."""
    keep_best: int = Field(default=0, ge=0)
    """Checkpoints kept beside those because their evaluation was among this many best ones. From 1 on, every evaluation
    that is the best so far is saved at once (TRL: load_best_model_at_end)."""
    save_in_background: bool = False
    """Write checkpoints in a thread of rank 0 while the run goes on. Its host memory then holds the copy of weights and
    moments, 12 bytes per parameter, beside the next rollout; and an error of the disk is told at the next save or at
    the end."""
    max_ratio_error: float = Field(default=1e-5, gt=0)
    """The run stops when |s - 1| exceeds this on the first mini-batch after a rollout, where the ratio s must
    be 1. 1e-5 suits float32; bfloat16 needs about 2e-3."""
    max_rollout_mismatch: float = Field(default=0.1, gt=0)
    """Only with algorithm.old_log_probs=sampler, where that ratio tells nothing: the run stops when sampler and trainer
    differ by more than this in the log-probs of the first mini-batch, in nats, mean of the absolute difference per
    token. float32: about 1e-6; bfloat16: 0.01 to 0.02."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What an update does whose loss or gradient is not finite. Its batch is saved in run_dir/failures either way, and
    no weight, moment or update number changes. stop: the run ends, and can be resumed. skip: the run goes on with the
    next update; its samples count as dropped (verl: always skips, without a bound)."""
    max_nonfinite_skips: int = Field(default=20, ge=1)
    """Updates that a run may skip with on_nonfinite=skip; one more stops it. Counted over all its processes."""
    max_nonfinite_skips_in_a_row: int = Field(default=3, ge=1)
    """Updates that may be skipped one after the other; one more stops the run, because then it is not the batch but
    the weights that are broken."""
