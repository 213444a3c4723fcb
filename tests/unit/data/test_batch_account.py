"""Tokens of replicas and padding, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mindgspo.data.micro_batches import BatchLayout, batch_metrics, micro_batches, sample_lengths, tokens_of_replicas
from mindgspo.data.rows import TrainingSample, filler_like

# Tokens of prompt and response.
SIZES = [(2, 6), (1, 6), (1, 2), (1, 1)]


def samples() -> list[TrainingSample]:
    return [
        TrainingSample(
            prompt_ids=np.ones(prompt, np.int32),
            response_ids=np.ones(response, np.int32),
            rollout_logp=np.zeros(response, np.float32),
            number=10 + number,
        )
        for number, (prompt, response) in enumerate(SIZES)
    ]


@pytest.mark.parametrize("packing", [False, True])
def test_lengths_are_found_in_every_layout(packing: bool) -> None:
    layout = BatchLayout(max_tokens_per_micro_batch=24, packing=packing, length_multiple=4, pad_id=1)
    lengths: dict[int, int] = {}
    for batch in micro_batches(samples(), layout):
        lengths |= sample_lengths(batch)
        assert sample_lengths(filler_like(batch)) == {}
    assert lengths == {10: 8, 11: 7, 12: 3, 13: 2}


def test_metrics_worked_by_hand() -> None:
    # 8 + 7 and 3 + 2 in the order of the step; 8 + 2 and 7 + 3 balanced, each in a row of 12 slots.
    layout = BatchLayout(
        max_tokens_per_micro_batch=12,
        packing=True,
        in_one_row=True,
        length_multiple=4,
        pad_id=1,
        replicas=2,
        balanced=True,
    )
    batches = micro_batches(samples(), layout)
    assert sorted(tokens_of_replicas(batches, 2)) == [10, 10]
    assert [batch.ids_RT.shape for batch in batches] == [(1, 12), (1, 12)]
    assert batch_metrics([batches], 2) == pytest.approx(
        {
            "global_seqlen/min": 5,
            "global_seqlen/max": 15,
            "global_seqlen/minmax_diff": 10,
            "global_seqlen/balanced_min": 10,
            "global_seqlen/balanced_max": 10,
            "global_seqlen/mean": 10,
            "training/padding_share": 4 / 24,
            "training/micro_batches_per_update": 1,
        }
    )
    assert batch_metrics([], 2) == {}
