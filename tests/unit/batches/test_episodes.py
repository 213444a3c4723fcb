"""Responses of several turns in batches: only sampled tokens are predicted, and one turn is a plain response."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from episodes import episode_of, random_spans, response_of, training_sample
from hypothesis import given
from hypothesis import strategies as st

from mindgspo.batches.micro_batches import BatchLayout, micro_batches
from mindgspo.batches.rows import TrainingSample, evened, gathered, lay_out, packed_tokens, scattered
from mindgspo.types import Batch, Episode, EpisodeEnd, Response, TurnSpan

PLAIN = BatchLayout(samples_per_micro_batch=3, length_multiple=4, pad_id=0)
PACKED = BatchLayout(max_tokens_per_micro_batch=96, packing=True, length_multiple=4, pad_id=0)
LAYOUTS = {"rows": PLAIN, "packed": PACKED, "one row": replace(PACKED, in_one_row=True)}


def test_an_episode_worked_by_hand() -> None:
    """Turns 7 8 and 11 with the observation 9 10 between them, and 12 after the last one."""
    response = response_of([7, 8, 9, 10, 11, 12], episode_of((0, 2), (4, 5)))
    assert (response.length, response.ids.size) == (3, 6)
    assert response.actions.tolist() == [True, True, False, False, True, False]
    assert response.last_turn.tolist() == [11]
    (batch,) = lay_out(
        [training_sample(np.array([5, 6], np.int32), response, 0)], samples_per_micro_batch=1, length_multiple=4,
        pad_id=0,
    )  # fmt: skip
    assert batch.ids_RT.tolist() == [[5, 6, 7, 8, 9, 10, 11, 12]]
    assert batch.positions_RT.tolist() == [list(range(8))] and batch.segments_RT.tolist() == [[1] * 8]
    # 7 follows column 1, 8 column 2, 11 column 5.
    assert batch.predict_NK.tolist() == [[1, 2, 5, 0]] and batch.targets_NK.tolist() == [[7, 8, 11, 0]]
    assert batch.mask_NK.tolist() == [[True, True, True, False]]
    assert batch.rollout_logp_NK.tolist() == [[-0.5, -1, -1.5, 0]]
    assert batch.turns_NK.tolist() == [[0, 0, 1, 0]]
    assert (batch.num_sequences, batch.num_tokens) == (1, 3)
    packed = packed_tokens(batch)
    assert packed.ids_1M[0, :6].tolist() == [5, 6, 7, 8, 9, 10], "11 predicts nothing, and 12 comes after it"
    assert packed.predict_P.tolist() == [1, 2, 5, -1]


@pytest.mark.parametrize(
    "spans", [[], [(1, 2)], [(0, 3), (2, 4)], [(0, 2), (2, 2)], [(2, 3), (0, 1)]],
    ids=["none", "late", "overlap", "empty", "backwards"],
)  # fmt: skip
def test_turns_that_cannot_be_are_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(AssertionError, match="turn"):
        episode_of(*spans)


def test_an_episode_that_does_not_fit_its_response_is_refused() -> None:
    with pytest.raises(AssertionError, match="logprobs"):
        response_of([1, 2, 3], episode_of((0, 2)), logprobs=np.zeros(3, np.float32))
    with pytest.raises(AssertionError, match="TurnSpan"):
        response_of([1, 2, 3], episode_of((0, 1), (2, 4)))
    for wrong in ({"info": {"score": np.inf}}, {"reward": np.nan}):
        with pytest.raises(AssertionError, match="finite"):
            episode_of((0, 2), **wrong)


def test_an_episode_survives_json() -> None:
    turns = (
        TurnSpan(start=0, stop=3, num_calls=2, errors=("failed",), seconds=0.5, num_left_out=7),
        TurnSpan(start=9, stop=10),
    )
    episode = Episode(
        turns=turns, end=EpisodeEnd.FAILED, reward=0.25, is_correct=False, info={"moves": 3.0}, message="gone"
    )
    assert Episode.from_json(episode.to_json()) == episode


def arrays_of(batch: Batch) -> dict[str, np.ndarray]:
    return {one.name: getattr(batch, one.name) for one in fields(batch) if one.name != "turns_NK"}


def episodes(seed: int, count: int = 7) -> tuple[list[np.ndarray], list[Response]]:
    """Prompts, of which some are equal, and responses to them."""
    rng = np.random.default_rng(seed)
    prompts, responses = [], []
    for number in range(count):
        shared = number > 2 and rng.random() < 0.5
        prompts.append(prompts[-1] if shared else rng.integers(1, 50, rng.integers(1, 6), np.int32))
        spans, size = random_spans(rng)
        responses.append(response_of(rng.integers(1, 50, size), episode_of(*spans), sample=number))
    return prompts, responses


@given(seed=st.integers(0, 2**32 - 1), layout=st.sampled_from(sorted(LAYOUTS)))
def test_any_turns_are_predicted_and_come_back_by_number(seed: int, layout: str) -> None:
    prompts, responses = episodes(seed)
    samples = [training_sample(prompt, one, i) for i, (prompt, one) in enumerate(zip(prompts, responses, strict=True))]
    batches = micro_batches(samples, LAYOUTS[layout])
    rng = np.random.default_rng(seed)
    rows = [rng.normal(size=one.length).astype(np.float32) for one in responses]
    for form in (batches, evened(batches)):
        found = gathered(form, [scattered(batch, rows) for batch in form], len(samples))
        assert all(np.array_equal(one, other) for one, other in zip(found, rows, strict=True))
        found = gathered(form, [batch.rollout_logp_NK for batch in form], len(samples))
        assert all(np.array_equal(one, other.logprobs) for one, other in zip(found, responses, strict=True))
        targets = gathered(form, [batch.targets_NK for batch in form], len(samples))
        sources = gathered(form, [batch.ids_RT.reshape(-1)[batch.predict_NK] for batch in form], len(samples))
        places = gathered(form, [batch.positions_RT.reshape(-1)[batch.predict_NK] for batch in form], len(samples))
        turns = gathered(form, [batch.turns_NK for batch in form], len(samples))
        for i, response in enumerate(responses):
            whole, actions = np.concatenate([prompts[i], response.ids]), np.flatnonzero(response.actions)
            assert targets[i].tolist() == response.ids[actions].tolist(), "an observation is a target"
            # Each is predicted from the token in front of it, be that an observation.
            assert places[i].tolist() == (prompts[i].size + actions - 1).tolist()
            assert sources[i].tolist() == whole[prompts[i].size + actions - 1].tolist()
            spans = response.episode.turns
            assert turns[i].tolist() == [j for j, turn in enumerate(spans) for _ in range(turn.length)]
    total = sum(one.length for one in responses)
    assert {(batch.num_sequences, batch.num_tokens) for batch in batches} == {(len(samples), total)}
    assert sum(int(batch.mask_NK.sum()) for batch in batches) == total


@given(seed=st.integers(0, 2**32 - 1), layout=st.sampled_from(sorted(LAYOUTS)))
def test_packed_tokens_are_those_in_front_of_the_last_sampled_one(seed: int, layout: str) -> None:
    prompts, responses = episodes(seed)
    samples = [training_sample(prompt, one, i) for i, (prompt, one) in enumerate(zip(prompts, responses, strict=True))]
    for batch in micro_batches(samples, LAYOUTS[layout]):
        packed, ids_M = packed_tokens(batch), batch.ids_RT.reshape(-1)
        used = np.flatnonzero(packed.place_M >= 0)
        np.testing.assert_array_equal(packed.ids_1M[0][packed.place_M[used]], ids_M[used])
        np.testing.assert_array_equal(
            packed.positions_1M[0][packed.place_M[used]], batch.positions_RT.reshape(-1)[used]
        )
        places = batch.place_NK[batch.mask_NK]
        np.testing.assert_array_equal(packed.predict_P[places], packed.place_M[batch.predict_P[places]])
        assert (packed.predict_P[np.setdiff1d(np.arange(batch.predict_P.size), places)] == -1).all()


@given(seed=st.integers(0, 2**32 - 1), layout=st.sampled_from(sorted(LAYOUTS)))
def test_an_episode_of_one_turn_is_laid_out_as_a_plain_response(seed: int, layout: str) -> None:
    rng = np.random.default_rng(seed)
    plain, single = [], []
    for number in range(6):
        prompt_ids = rng.integers(1, 50, rng.integers(1, 6), np.int32)
        ids = rng.integers(1, 50, rng.integers(1, 9))
        response, episode = response_of(ids, None), response_of(ids, episode_of((0, ids.size)))
        assert response.actions is None and episode.actions.all() and response.length == episode.length
        plain.append(
            TrainingSample(
                prompt_ids=prompt_ids, response_ids=response.ids, rollout_logp=response.logprobs, number=number
            )
        )
        single.append(training_sample(prompt_ids, episode, number))
    found, expected = (micro_batches(samples, LAYOUTS[layout]) for samples in (single, plain))
    for one, other in zip(found, expected, strict=True):
        assert other.turns_NK is None and not one.turns_NK.any()
        for name, array in arrays_of(other).items():
            np.testing.assert_array_equal(getattr(one, name), array, err_msg=name)
            assert np.asarray(getattr(one, name)).dtype == np.asarray(array).dtype
