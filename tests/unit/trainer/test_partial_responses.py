"""Responses in the making: what a checkpoint keeps of them, with the experts that their tokens took."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from mindgspo.rollout.protocol import Purpose, RandomStream
from mindgspo.rollout.service import EpisodeSoFar, Piece
from mindgspo.trainer.partial_responses import PartialGroup, PartialResponse, arrays_of, describe, restore
from mindgspo.types import Episode, EpisodeEnd, FinishReason, Prompt, Routing, TurnSpan

STREAM = RandomStream(seed=7, purpose=Purpose.TRAINING, step=3, draw=1)
PROMPTS = [
    Prompt(index=index, ids=np.arange(length, dtype=np.int32), text="", answer="", data_source="test")
    for index, length in enumerate((3, 5))
]


def experts(first: int, rows: int) -> np.ndarray:
    return np.arange(first, first + 2 * rows, dtype=np.uint8).reshape(rows, 2)


def piece(first: int, length: int, *, prompt_rows: int, is_routed: bool, reason: FinishReason | None = None) -> Piece:
    """Tokens first, first + 1, ...; with experts that no other piece has."""
    ids = np.arange(first, first + length, dtype=np.int32)
    routing = Routing(prompt_LX=experts(first + 100, prompt_rows), response_LX=experts(first, length))
    return Piece(
        ids=ids, logprobs=-ids.astype(np.float32), finish_reason=reason, routing=routing if is_routed else None
    )


def waiting(*, is_routed: bool) -> list[PartialGroup]:
    """One response without a token, one cut in two versions, one that has ended, one cut in its first."""
    cut, ended, begun = PartialResponse(), PartialResponse(), PartialResponse()
    cut.append(piece(10, 2, prompt_rows=2, is_routed=is_routed), 4)
    cut.append(piece(12, 3, prompt_rows=4, is_routed=is_routed), 5)
    ended.append(piece(30, 4, prompt_rows=4, is_routed=is_routed, reason=FinishReason.STOP), 5)
    begun.append(piece(40, 1, prompt_rows=4, is_routed=is_routed), 5)
    return [
        PartialGroup(prompt=PROMPTS[0], stream=STREAM, partials=[PartialResponse(), cut]),
        PartialGroup(prompt=PROMPTS[1], stream=STREAM, partials=[ended, begun]),
    ]


def test_a_cut_response_keeps_the_experts_that_drew_each_token() -> None:
    routing = waiting(is_routed=True)[0].partials[1].routing
    assert routing is not None
    np.testing.assert_array_equal(routing.prompt_LX, experts(110, 2))  # of the prompt alone, as first recorded
    np.testing.assert_array_equal(routing.response_LX, [*experts(10, 2), *experts(12, 3)])


@pytest.mark.parametrize("is_routed", [True, False])
def test_what_waits_comes_back_from_a_checkpoint(is_routed: bool) -> None:
    groups = waiting(is_routed=is_routed)
    arrays = arrays_of(groups, with_routing=True)
    assert ("experts" in arrays) == is_routed
    found = restore(json.loads(json.dumps(describe(groups))), arrays, stream=STREAM, prompts=PROMPTS)
    for group, other in zip(groups, found, strict=True):
        assert group.prompt is other.prompt and group.stream == other.stream
        for partial, same in zip(group.partials, other.partials, strict=True):
            assert partial.finish_reason is same.finish_reason
            for name in ("ids", "logprobs", "versions"):
                np.testing.assert_array_equal(getattr(partial, name), getattr(same, name))
            assert (partial.routing is None) == (same.routing is None)
            if partial.routing is not None:
                np.testing.assert_array_equal(partial.routing.prompt_LX, same.routing.prompt_LX)
                np.testing.assert_array_equal(partial.routing.response_LX, same.routing.response_LX)


def observed(*, is_routed: bool) -> PartialGroup:
    """An episode aborted behind an observation, and one that goes on from there to its end: two turns, of two tokens
    and of one, with three tokens between."""
    turns = TurnSpan(start=0, stop=2, num_calls=1), TurnSpan(start=5, stop=6)
    first = replace(
        piece(10, 2, prompt_rows=2, is_routed=is_routed),
        so_far=EpisodeSoFar(turns=turns[:1], state={"moves": 1}, observed=(50, 51, 52)),
    )
    episode = Episode(turns=turns, end=EpisodeEnd.DONE, reward=1.0, is_correct=True, info={"moves": 2.0})
    second = replace(
        piece(50, 4, prompt_rows=4, is_routed=is_routed, reason=FinishReason.STOP),
        logprobs=np.float32([-53]),
        so_far=EpisodeSoFar(turns=turns, state={"moves": 1}, ended=episode),
    )
    drafts = [PartialResponse(), PartialResponse()]
    for draft in drafts:
        draft.append(first, 4)
    drafts[1].append(second, 5)
    return PartialGroup(prompt=PROMPTS[0], stream=STREAM, partials=drafts)


@pytest.mark.parametrize("is_routed", [True, False])
def test_turns_and_observations_come_back_from_a_checkpoint(is_routed: bool) -> None:
    groups = [*waiting(is_routed=is_routed), observed(is_routed=is_routed)]
    arrays = arrays_of(groups, with_routing=True)
    *others, found = restore(json.loads(json.dumps(describe(groups))), arrays, stream=STREAM, prompts=PROMPTS)
    assert not any(draft.so_far for one in others for draft in one.partials)
    for draft, other in zip(found.partials, groups[-1].partials, strict=True):
        assert draft.so_far == other.so_far and draft.finish_reason is other.finish_reason
    aborted, ended = found.partials
    assert (aborted.ids.tolist(), ended.ids.tolist()) == ([10, 11], [10, 11, 50, 51, 52, 53])
    response = ended.response(PROMPTS[0], 0, 1.0)
    assert response.logprobs.tolist() == [-10, -11, -53] and response.token_versions.tolist() == [4, 4, 5]
    assert response.episode is not None and response.episode.reward == 1.0 and response.length == 3
    if is_routed:
        np.testing.assert_array_equal(response.routing.whole, [*experts(110, 2), *experts(10, 2), *experts(50, 4)])


def test_a_message_to_other_ranks_leaves_routing_out() -> None:
    assert set(arrays_of(waiting(is_routed=True), with_routing=False)) == {"ids", "logprobs", "versions"}
