"""One training step on episodes: what is judged, what is trained, and that one turn changes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
from episodes import episode_of, response_of
from scripted_engine import ScriptedEngine, assert_advantages, micro_batches, responses_of

from mindgspo.trainer.routing_transfer import _Sampled
from mindgspo.types import Prompt, Response, Routing, Score, ScoredGroup, Verdict

HALF = math.sqrt(0.5)  # rewards 1 and 0: (1 - 0.5) / std, ddof 1
BY_TURN = "algorithm.ratio_over=turn"


class EpisodeEngine(ScriptedEngine):
    """Responses of the script, made episodes by `form`."""

    def __init__(self, script: Callable, form: Callable[[Response], Response]) -> None:
        super().__init__(script)
        self._form = form

    def _response(self, *arguments: object) -> Response:
        return self._form(super()._response(*arguments))


def one_turn(response: Response) -> Response:
    return replace(response, episode=episode_of((0, response.ids.size)))


@pytest.fixture
def second_turn(answer) -> Callable[[Response], Response]:
    """The response as the second turn, after a first one of three tokens and an observation that says #### 999."""

    def form(response: Response) -> Response:
        first, observation = [65, 66, 256], answer("999")
        start = len(first) + len(observation)
        ids = np.array([*first, *observation, *response.ids], np.int32)
        logprobs = np.concatenate([np.full(3, -1, np.float32), response.logprobs])
        return replace(response, ids=ids, logprobs=logprobs, episode=episode_of((0, 3), (start, ids.size)))

    return form


def test_a_step_on_two_turns_by_hand(make_trainer, prompts, answer, second_turn) -> None:
    """The last turn is judged, although the observation says what a sibling says; sampled tokens alone are trained."""

    def right_first(prompt, sample: int) -> list[int]:
        return answer(prompt.answer if sample == 0 else "998")

    trainer = make_trainer(right_first, BY_TURN, engine=EpisodeEngine(right_first, second_turn))
    result = trainer.train_step(1)
    responses, size = responses_of(result), len(answer("999"))
    assert [score.extracted for group in result.groups for score in group.scores][1::2] == ["998"] * 4
    lengths = [3 + len(right_first(prompt, sample)) for prompt in prompts[:4] for sample in range(2)]
    assert [response.length for response in responses] == lengths
    expected = [np.full(length, (HALF, -HALF)[number % 2]) for number, length in enumerate(lengths)]
    assert_advantages(result, trainer, expected, rtol=1e-5)
    metrics, total = result.metrics, sum(lengths)
    assert (metrics["reward/correct_ratio"], metrics["response_length/mean"]) == (0.5, total / 8)
    assert (metrics["env/turns/mean"], metrics["env/observation_tokens/mean"]) == (2, size)
    assert metrics["env/action_token_share"] == total / (total + 8 * size)
    computed = sum(prompt.ids.size for prompt in prompts[:4]) * 2 + total + 8 * size
    assert metrics["perf/total_num_tokens"] == computed
    assert metrics["global_seqlen/mean"] == computed / 2, "two updates"
    assert metrics["actor/entropy"] == pytest.approx(0.5)
    assert metrics["training/rollout_logprob_diff_max"] == pytest.approx(0.25)
    batches = micro_batches(trainer)
    assert sum(batch.mask_NK.sum() for batch in batches) == total
    for batch in batches:
        for turns_K, mask_K in zip(batch.turns_NK, batch.mask_NK, strict=True):
            assert turns_K[mask_K].tolist() == [0] * 3 + [1] * (mask_K.sum() - 3)


def test_a_step_on_episodes_of_one_turn_is_one_without_episodes(make_trainer, one_of_two_right) -> None:
    plain = make_trainer(one_of_two_right)
    trainer = make_trainer(one_of_two_right, engine=EpisodeEngine(one_of_two_right, one_turn))
    found, expected = trainer.train_step(1), plain.train_step(1)
    measured = ("perf/", "timing_s/")
    extra = {name for name in found.metrics if name.startswith("env/")}
    assert extra and found.metrics.keys() - extra == expected.metrics.keys()
    for name, value in expected.metrics.items():
        assert name.startswith(measured) or found.metrics[name] == value, name
    for one, other in zip(micro_batches(trainer), micro_batches(plain), strict=True):
        for field in fields(other):
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), err_msg=field.name)
        assert one.turns_NK is None


def test_messages_of_routing_count_observations() -> None:
    """Two groups of two; a message has each prompt's rows once, and a row per token behind it."""
    rng, groups = np.random.default_rng(3), []
    for index, length in enumerate((4, 6)):
        prompt = Prompt(index=index, ids=np.arange(length, dtype=np.int32), text="", answer="", data_source="test")
        prompt_LX = rng.integers(0, 9, (length - 1, 2)).astype(np.uint8)
        responses = [
            response_of(range(size), episode, sample=sample, routing=Routing(
                prompt_LX=prompt_LX, response_LX=rng.integers(0, 9, (size, 2)).astype(np.uint8)
            ))
            for sample, (size, episode) in enumerate([(9, episode_of((0, 2), (6, 8))), (3, None)])
        ]  # fmt: skip
        scores = (Score(value=1.0, verdict=Verdict.CORRECT),) * 2
        groups.append(ScoredGroup(prompt=prompt, responses=tuple(responses), scores=scores))
    sampled, numbers = _Sampled.of(groups), (0, 1, 2)
    message = sampled.flattened(numbers)
    assert len(message) == sampled.num_rows(numbers) == 3 + 9 + 3 + 5 + 9
    for number, routing in sampled.unflattened(message, numbers).items():
        np.testing.assert_array_equal(routing.whole, sampled.routing(number).whole)
