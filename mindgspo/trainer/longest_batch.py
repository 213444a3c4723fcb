"""A micro-batch as large as an experiment can make one, to compile graphs with before the first rollout.

What enters: a configuration. What leaves: a `Batch` without a meaning. Called where graphs are compiled ahead.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mindgspo.config import ExperimentConfig
from mindgspo.data.micro_batches import micro_batches
from mindgspo.data.rows import TrainingSample, round_up
from mindgspo.trainer.batch_layout import batch_layout
from mindgspo.types import Batch


def longest_batch(config: ExperimentConfig) -> Batch:
    """Rows of the longest prompt and the longest response; under a token budget as many of them as it holds."""
    rows, slots = config.trainer.samples_per_micro_batch, config.rollout.max_new_tokens
    if rows is None:
        return _full_batch(config)
    width = round_up(config.data.max_prompt_length + slots, config.trainer.length_multiple)
    zeros_NK, floats_NK = np.zeros((rows, slots), np.int32), np.zeros((rows, slots), np.float32)
    return Batch(
        ids_RT=np.zeros((rows, width), np.int32),
        positions_RT=np.tile(np.arange(width, dtype=np.int32), (rows, 1)),
        segments_RT=np.ones((rows, width), np.int32),
        predict_P=zeros_NK.reshape(-1),
        targets_P=zeros_NK.reshape(-1),
        place_NK=np.arange(rows * slots, dtype=np.int32).reshape(rows, slots),
        mask_NK=np.ones((rows, slots), bool),
        samples_N=np.arange(rows, dtype=np.int32),
        rollout_logp_NK=floats_NK,
        old_logp_NK=floats_NK,
        ref_logp_NK=floats_NK,
        advantages_NK=floats_NK,
        correction_NK=floats_NK,
        num_sequences=rows,
        num_tokens=rows * slots,
    )


def _full_batch(config: ExperimentConfig) -> Batch:
    prompt_ids = np.zeros(config.data.max_prompt_length, np.int32)
    response_ids = np.zeros(config.rollout.max_new_tokens, np.int32)
    logp = np.zeros(response_ids.size, np.float32)
    assert config.trainer.max_tokens_per_micro_batch is not None
    layout = replace(batch_layout(config, pad_id=0), replicas=1, in_rounds=False, round_size=1)
    samples = [
        TrainingSample(prompt_ids=prompt_ids, response_ids=response_ids, rollout_logp=logp, number=number)
        for number in range(config.trainer.max_tokens_per_micro_batch // (prompt_ids.size + response_ids.size))
    ]
    return micro_batches(samples, layout)[0]
