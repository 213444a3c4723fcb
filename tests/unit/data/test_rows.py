"""Samples laid into rows: a hand-worked mini-batch, and what must hold for any."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.data.rows import TrainingSample, lay_out, round_up, training_samples
from mindgspo.types import FinishReason, Group, Prompt, Response, Score, Verdict

PAD = 77


def make_sample(prompt: list[int], response: list[int], advantage: float = 0.0) -> TrainingSample:
    return TrainingSample(
        prompt_ids=np.array(prompt, np.int32),
        response_ids=np.array(response, np.int32),
        rollout_logp=-0.5 * np.array(response, np.float32),
        advantage=advantage,
    )


def test_a_mini_batch_worked_by_hand() -> None:
    samples = [
        make_sample([1, 2], [3], advantage=0.5),
        make_sample([4], [5, 6, 7], advantage=-1.0),
        make_sample([8, 9], [10, 11], advantage=2.0),
    ]
    first, second = lay_out(samples, samples_per_micro_batch=2, length_multiple=2, pad_id=PAD)

    # Longest first; of the two of length 4 the one with the longer response leads.
    assert first.ids_RT.tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert first.positions_RT.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert first.segments_RT.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1]]
    # Three slots rounded up to four. Token 5 follows column 0 of row 0, token 10 column 1 of row 1 (flat 4 + 1).
    assert first.predict_NK.tolist() == [[0, 1, 2, 0], [5, 6, 0, 0]]
    assert first.targets_NK.tolist() == [[5, 6, 7, 0], [10, 11, 0, 0]]
    assert first.mask_NK.tolist() == [[True, True, True, False], [True, True, False, False]]
    assert first.rollout_logp_NK.tolist() == [[-2.5, -3, -3.5, 0], [-5, -5.5, 0, 0]]
    assert first.advantages_N.tolist() == [-1, 2]
    assert first.old_logp_NK.tolist() == [[0] * 4] * 2

    # One sample of three tokens, and a filler row.
    assert second.ids_RT.tolist() == [[1, 2, 3, PAD], [PAD] * 4]
    assert second.positions_RT.tolist() == [[0, 1, 2, 0], [0, 0, 0, 0]]
    assert second.segments_RT.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0]]
    assert second.predict_NK.tolist() == [[1, 0], [0, 0]]
    assert second.targets_NK.tolist() == [[3, 0], [0, 0]]
    assert second.mask_NK.tolist() == [[True, False], [False, False]]
    assert second.rollout_logp_NK.tolist() == [[-1.5, 0], [0, 0]]
    assert second.advantages_N.tolist() == [0.5, 0]

    # Denominators count the whole mini-batch, in both micro-batches.
    for batch in (first, second):
        assert (batch.num_sequences, batch.num_tokens) == (3, 6)


def test_the_caller_keeps_its_samples_and_their_order() -> None:
    samples = [make_sample([1], [2]), make_sample([3, 4, 5], [6])]
    lay_out(samples, samples_per_micro_batch=4, length_multiple=8, pad_id=PAD)
    assert [sample.prompt_ids.tolist() for sample in samples] == [[1], [3, 4, 5]]


TOKENS = st.lists(st.integers(0, 50), min_size=1, max_size=9)


@given(
    pairs=st.lists(st.tuples(TOKENS, TOKENS), min_size=1, max_size=12),
    rows=st.integers(1, 5),
    multiple=st.integers(1, 8),
)
def test_every_real_token_stands_exactly_once_and_is_predicted_from_the_one_before(pairs, rows, multiple) -> None:
    # The advantage numbers the samples, so that each row tells whose it is.
    samples = [make_sample(*pair, advantage=float(number + 1)) for number, pair in enumerate(pairs)]
    batches = lay_out(samples, samples_per_micro_batch=rows, length_multiple=multiple, pad_id=PAD)
    assert len(batches) == -(-len(samples) // rows)
    seen, lengths = [], []
    for batch in batches:
        assert batch.ids_RT.shape[0] == batch.mask_NK.shape[0] == rows
        assert batch.ids_RT.shape[1] % multiple == batch.mask_NK.shape[1] % multiple == 0
        assert batch.num_sequences == len(samples)
        assert batch.num_tokens == sum(len(response) for _, response in pairs)
        flat_ids, width = batch.ids_RT.reshape(-1), batch.ids_RT.shape[1]
        for row in range(rows):
            mask = batch.mask_NK[row]
            padded = [batch.targets_NK, batch.predict_NK, batch.rollout_logp_NK]
            assert all((array[row][~mask] == 0).all() for array in padded)
            assert (batch.ids_RT[row][batch.segments_RT[row] == 0] == PAD).all()
            if batch.advantages_N[row] == 0:
                assert not mask.any() and not batch.segments_RT[row].any(), "a filler row is nothing but padding"
                continue
            number = int(batch.advantages_N[row]) - 1
            prompt, response = pairs[number]
            seen.append(number)
            lengths.append(len(prompt) + len(response))
            real = batch.segments_RT[row] == 1
            assert batch.ids_RT[row][real].tolist() == [*prompt, *response]
            assert batch.positions_RT[row][real].tolist() == list(range(lengths[-1]))
            assert batch.targets_NK[row][mask].tolist() == response
            before = batch.predict_NK[row][mask]
            assert (before // width == row).all(), "a row is predicted from itself"
            assert flat_ids[before + 1].tolist() == response
            assert flat_ids[before].tolist() == [prompt[-1], *response[:-1]]
            np.testing.assert_array_equal(batch.rollout_logp_NK[row][mask], samples[number].rollout_logp)
    assert sorted(seen) == list(range(len(samples)))
    assert lengths == sorted(lengths, reverse=True)


def test_an_abstained_reward_leaves_no_sample() -> None:
    def response(index: int) -> Response:
        return Response(
            prompt_index=0,
            sample_index=index,
            ids=np.array([index + 1], np.int32),
            logprobs=np.array([-0.25 * index], np.float32),
            finish_reason=FinishReason.STOP,
            temperature=1.0,
            weight_version=1,
        )

    group = Group(
        prompt=Prompt(index=0, ids=np.array([9, 8], np.int32), text="", answer="", data_source="test"),
        responses=(response(0), response(1), response(2)),
        scores=(
            Score(value=1.0, verdict=Verdict.CORRECT),
            Score(value=None, verdict=Verdict.TIMEOUT),
            Score(value=0.0, verdict=Verdict.WRONG),
        ),
        advantages=np.array([0.7, 0.0, -0.7], np.float32),
    )
    kept = training_samples([group])
    assert [sample.response_ids.tolist() for sample in kept] == [[1], [3]]
    assert [sample.prompt_ids.tolist() for sample in kept] == [[9, 8], [9, 8]]
    assert [sample.advantage for sample in kept] == pytest.approx([0.7, -0.7])
    assert [sample.rollout_logp.tolist() for sample in kept] == [[0.0], [-0.5]]


@given(length=st.integers(0, 10_000), multiple=st.integers(1, 512))
def test_round_up_is_the_next_multiple(length, multiple) -> None:
    rounded = round_up(length, multiple)
    assert rounded % multiple == 0 and 0 <= rounded - length < multiple
