"""How an experiment lays its samples out, from its configuration.

What enters: a configuration. What leaves: a `BatchLayout`, for the batches of its steps and of its warm-up.
"""

from __future__ import annotations

from mindgspo.config import ExperimentConfig
from mindgspo.data.micro_batches import BatchLayout

# Measured on CPU: with 256 hidden units an update costs twice as much in rows of 640 slots as in short ones. Attention
# grows with their product, the rest with the square of the hidden units.
COSTLY_ROW = 2.5


def batch_layout(config: ExperimentConfig, *, pad_id: int) -> BatchLayout:
    """For the replicas of the training plan. Ascend's fused attention takes a long row of many samples; there, replicas
    of one graph and its pipeline compute rounds of micro-batches together."""
    trainer, plan = config.trainer, config.plans.train
    is_fused = config.device == "Ascend"
    is_divided = is_fused and plan.world_size > 1
    return BatchLayout(
        samples_per_micro_batch=trainer.samples_per_micro_batch,
        max_tokens_per_micro_batch=trainer.max_tokens_per_micro_batch,
        packing=trainer.packing,
        in_one_row=is_fused,
        costly_row=round(COSTLY_ROW * config.model.hidden_size),
        length_multiple=trainer.length_multiple,
        pad_id=pad_id,
        replicas=plan.data_parallel,
        in_rounds=is_divided,
        round_size=plan.micro_batch_num if is_divided else 1,
        balanced=trainer.balance_batches,
    )
