"""Samples laid into rows: a hand-worked mini-batch, and what must hold for any."""

from __future__ import annotations

import numpy as np

from mindgspo.batches.rows import TrainingSample, gathered, lay_out, predictions_in_parts, scattered

PAD = 77


def make_sample(prompt: list[int], response: list[int], number: int = 0) -> TrainingSample:
    return TrainingSample(prompt_ids=np.array(prompt, np.int32), response_ids=np.array(response, np.int32),
                          rollout_logp=-0.5 * np.array(response, np.float32), number=number)  # fmt: skip


def test_a_mini_batch_worked_by_hand() -> None:
    samples = [make_sample([1, 2], [3], number=4), make_sample([4], [5, 6, 7], number=0),
               make_sample([8, 9], [10, 11], number=9)]  # fmt: skip
    first, second = lay_out(samples, samples_per_micro_batch=2, length_multiple=2, pad_id=PAD)
    assert [sample.number for sample in samples] == [4, 0, 9], "the caller keeps its order"
    # Longest first; of the two of length 4 the one with the longer response leads.
    assert first.ids_RT.tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert first.positions_RT.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert first.segments_RT.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1]]
    # Three slots rounded up to four. Token 5 follows column 0 of row 0, token 10 column 1 of row 1 (flat 4 + 1).
    assert first.predict_NK.tolist() == [[0, 1, 2, 0], [5, 6, 0, 0]]
    assert first.targets_NK.tolist() == [[5, 6, 7, 0], [10, 11, 0, 0]]
    assert first.mask_NK.tolist() == [[True, True, True, False], [True, True, False, False]]
    assert first.rollout_logp_NK.tolist() == [[-2.5, -3, -3.5, 0], [-5, -5.5, 0, 0]]
    assert first.samples_N.tolist() == [0, 9]
    # Left for the trainer to fill in.
    assert first.old_logp_NK.tolist() == first.ref_logp_NK.tolist() == first.advantages_NK.tolist() == [[0] * 4] * 2
    assert first.correction_NK.tolist() == [[1] * 4] * 2
    # One sample of three tokens, and a filler row.
    assert second.ids_RT.tolist() == [[1, 2, 3, PAD], [PAD] * 4]
    assert second.positions_RT.tolist() == [[0, 1, 2, 0], [0, 0, 0, 0]]
    assert second.segments_RT.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0]]
    assert second.predict_NK.tolist() == [[1, 0], [0, 0]]
    assert second.targets_NK.tolist() == [[3, 0], [0, 0]]
    assert second.mask_NK.tolist() == [[True, False], [False, False]]
    assert second.rollout_logp_NK.tolist() == [[-1.5, 0], [0, 0]]
    assert second.samples_N.tolist() == [4, -1]
    assert second.old_logp_NK.tolist() == second.ref_logp_NK.tolist() == second.advantages_NK.tolist() == [[0] * 2] * 2
    assert second.correction_NK.tolist() == [[1] * 2] * 2
    # Denominators count the whole mini-batch, in both micro-batches.
    for batch in (first, second):
        assert (batch.num_sequences, batch.num_tokens) == (3, 6)


def test_rows_by_number_worked_by_hand() -> None:
    """Numbers 3 and 1 are laid out; 0 and 2 were left out of the update, so nothing is known of them."""
    samples = [make_sample([1], [5, 6, 7], number=3), make_sample([2], [8], number=1)]
    (batch,) = lay_out(samples, samples_per_micro_batch=3, length_multiple=4, pad_id=PAD)
    assert batch.samples_N.tolist() == [3, 1, -1]
    rows = [np.array(row, np.float32) for row in ([9, 9], [0.5], [9], [-1, 2, 0])]
    array_NK = scattered(batch, rows)
    assert array_NK.dtype == np.float32
    assert array_NK.tolist() == [[-1, 2, 0, 0], [0.5, 0, 0, 0], [0, 0, 0, 0]]
    rubbish_NK = np.where(batch.mask_NK, array_NK, np.float32(np.nan))
    found = gathered([batch], [rubbish_NK], num_samples=4)
    assert [row.tolist() for row in found] == [[], [0.5], [], [-1, 2, 0]]
    assert {row.dtype for row in found} == {np.dtype(np.float32)}
    assert gathered([], [], num_samples=2)[1].size == 0


def test_predictions_by_runs_of_tokens_worked_by_hand() -> None:
    samples = [make_sample([4], [5, 6, 7], number=0), make_sample([8, 9], [10, 11], number=9)]
    (batch,) = lay_out(samples, samples_per_micro_batch=2, length_multiple=4, pad_id=PAD)
    # Tokens 4 5 6 7 8 9 10 11; those in front of 5, 6, 7 are 0, 1, 2, those in front of 10 and 11 are 5 and 6.
    halves = predictions_in_parts(batch, batch.predict_P, 2)
    assert halves.predict.tolist() == [[0, 1, 2, 0], [1, 2, 0, 0]]
    assert halves.targets.tolist() == [[5, 6, 7, 0], [10, 11, 0, 0]]
    assert halves.place_NK.tolist() == [[0, 1, 2, 0], [4, 5, 0, 0]]
    quarters = predictions_in_parts(batch, batch.predict_P, 4, unread=-1)
    assert quarters.predict.tolist() == [[0, 1], [0, -1], [1, -1], [0, -1]]
    assert quarters.targets.tolist() == [[5, 6], [7, 0], [10, 0], [11, 0]]
    assert quarters.place_NK.tolist() == [[0, 1, 2, 0], [4, 6, 0, 0]]


def test_a_part_has_room_for_siblings_that_predict_from_one_token() -> None:
    """One prompt token and three answers of one token: all are predicted in the first of two runs of one token."""
    samples = [make_sample([4], [5 + number], number=number) for number in range(3)]
    (batch,) = lay_out(samples, samples_per_micro_batch=3, length_multiple=2, pad_id=PAD)
    shared_P = np.where(np.isin(np.arange(batch.predict_P.size), batch.place_NK[batch.mask_NK]), 0, -1).astype(np.int32)
    parts = predictions_in_parts(batch, shared_P, batch.ids_RT.size, unread=-1)
    places = parts.place_NK[batch.mask_NK]
    assert sorted(places.tolist()) == [0, 1, 2] and parts.targets[0, :3].tolist() == [5, 6, 7]
    assert (parts.predict[1:] == -1).all() and parts.predict[0, :3].tolist() == [0, 0, 0]
