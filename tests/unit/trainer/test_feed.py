"""The queue of responses that are generated while a step trains, on a clock that passes at will."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timed_service import TimedService, VirtualClock

from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.tensor_files.tensors import ArraySource
from mindgspo.trainer.feed import Feed
from mindgspo.types import Prompt

SAMPLING = SamplingSettings(
    num_samples=2, temperature=1.0, max_new_tokens=100, stream=RandomStream(seed=7, purpose=Purpose.TRAINING, step=0)
)
NOWHERE = Path("weights")


def prompts(number: int) -> list[Prompt]:
    return [
        Prompt(index=index, ids=np.array([index + 1], np.int32), text=str(index), answer="", data_source="test")
        for index in range(number)
    ]


class Run:
    """A trainer that needs `train_s` seconds for each step of `batch_size` prompts; lengths(prompt, sample) tokens."""

    def __init__(self, lengths, *, batch_size=2, slots=4, steps=4, train_s=10.0, **feed) -> None:
        self.clock = VirtualClock()
        self.train_s, self.batch_size, self.steps = train_s, batch_size, steps
        self.service = TimedService(
            lambda prompt, sample: [9] * lengths(prompt.index, sample),
            slots=slots, clock=self.clock, sleep=self.clock.sleep,
        )  # fmt: skip
        self.prompts, self.taken = prompts(1000), 0
        self.feed = Feed(
            self.service, self.take, SAMPLING, batch_size=batch_size, total_steps=steps, clock=self.clock, **feed
        )
        self.drawn: list[list[int]] = []
        self.metrics: list[dict[str, float]] = []

    def take(self, number: int) -> list[Prompt]:
        found = self.prompts[self.taken : self.taken + number]
        self.taken += number
        return found

    def step(self, step: int) -> float:
        """Seconds of the step; its responses are in `responses`."""
        began = self.clock()
        groups = self.feed.draw(self.batch_size, step=step)
        self.drawn.append([group.prompt.index for group in groups])
        self.clock.sleep(self.train_s)
        self.feed.push_weights(NOWHERE, step)
        self.responses = [response for group in groups for response in group.responses(1.0)]
        self.metrics.append(self.feed.metrics(self.responses, seconds=self.clock() - began))
        return self.clock() - began

    def run(self) -> list[float]:
        self.feed.push_weights(NOWHERE, 0)
        return [self.step(step) for step in range(1, self.steps + 1)]


def constant(length: int):
    return lambda prompt, sample: length


@pytest.mark.parametrize("is_strict", [True, False])
def test_without_staleness_a_step_generates_and_then_trains(is_strict: bool) -> None:
    run = Run(constant(20), max_staleness=0, is_strict=is_strict)
    assert run.run() == pytest.approx([30.0] * 4)
    assert run.drawn == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [metrics["staleness/token_max"] for metrics in run.metrics] == [0.0] * 4
    assert [metrics["schedule/trainer_idle_share"] for metrics in run.metrics] == pytest.approx([2 / 3] * 4)
    assert [metrics["schedule/rollout_idle_share"] for metrics in run.metrics] == pytest.approx([1 / 3] * 4)


def test_one_step_off_takes_the_longer_of_generation_and_training() -> None:
    """Four slots: a batch of two prompts with two responses each. The first step waits for its own batch, and the next
    batch begins when that one has left the slots."""
    run = Run(constant(20), max_staleness=1, is_strict=True, steps=5)
    assert run.run() == pytest.approx([40.0, 20.0, 20.0, 20.0, 10.0])  # 20 + max(10, 20), then max(10, 20), at last 10
    assert run.drawn == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert [metrics["staleness/token_max"] for metrics in run.metrics] == [0, 1, 1, 1, 1]
    assert [metrics["samples/waiting"] for metrics in run.metrics] == [4, 4, 4, 4, 0]
    assert [metrics["samples/begun"] for metrics in run.metrics] == [8, 4, 4, 4, 0]
    assert all(metrics["staleness/mixed_share"] == 0 for metrics in run.metrics)


def test_one_step_off_with_slow_training_has_no_idle_trainer() -> None:
    run = Run(constant(20), max_staleness=1, is_strict=True, train_s=50.0)
    assert run.run() == pytest.approx([70.0, 50.0, 50.0, 50.0])
    assert [metrics["schedule/trainer_idle_share"] for metrics in run.metrics[1:]] == [0.0] * 3


def test_new_weights_come_between_two_tokens() -> None:
    """bounded: 20 tokens, the weights change after 10 and every 10 seconds from then on."""
    run = Run(constant(20), max_staleness=1, is_strict=False, slots=8, steps=3)
    assert run.run() == pytest.approx([30.0, 10.0, 20.0])
    # All eight run from the start, so the second batch has ended when the first is trained.
    assert [metrics["staleness/token_max"] for metrics in run.metrics] == [0, 1, 1]
    versions = [response.token_versions for response in run.responses]
    assert [version.tolist() for version in versions] == [[1] * 10 + [2] * 10] * 4
    np.testing.assert_array_equal(run.responses[0].logprobs, -versions[0].astype(np.float32))
    assert run.metrics[2]["staleness/token_mean"] == 0.5 and run.metrics[2]["staleness/mixed_share"] == 1.0
    continued = [request for request in run.service.submitted if request.prefix.size]
    assert [(request.samples, request.prefix.size) for request in continued] == [((0,), 10), ((1,), 10)] * 2


def straggler(prompt: int, sample: int) -> int:
    return 200 if (prompt, sample) == (2, 0) else 20


@pytest.mark.parametrize(("max_staleness", "is_strict", "slowest"), [(1, True, 100), (12, False, 20)])
def test_a_straggler_delays_nothing_but_itself_where_there_is_room(max_staleness, is_strict, slowest) -> None:
    """One response of 100 tokens (max_new_tokens), five times as slow as the others."""
    run = Run(straggler, max_staleness=max_staleness, is_strict=is_strict, slots=100, steps=14)
    seconds = run.run()
    assert max(seconds[1:]) <= slowest + 1e-6, seconds
    assert sorted(prompt for drawn in run.drawn for prompt in drawn) == list(range(28)), "every prompt is trained once"
    step = next(number for number, drawn in enumerate(run.drawn) if 2 in drawn)
    assert step == 1 if is_strict else 1 < step <= 13


@given(
    st.lists(st.integers(1, 90), min_size=7, max_size=7), st.integers(0, 4), st.integers(1, 4), st.integers(1, 12),
    st.booleans(),
)  # fmt: skip
def test_no_token_is_older_than_allowed_and_every_prompt_is_trained(lengths, staleness, batch, slots, is_strict):
    run = Run(
        lambda prompt, sample: lengths[(3 * prompt + sample) % 7], batch_size=batch, slots=slots, steps=9,
        max_staleness=min(staleness, 1) if is_strict else staleness, is_strict=is_strict,
    )  # fmt: skip
    run.run()
    assert max(metrics["staleness/token_max"] for metrics in run.metrics) <= staleness
    assert (
        sorted(prompt for drawn in run.drawn for prompt in drawn) == list(range(9 * batch)) and run.taken == 9 * batch
    )
    begun = sum(metrics["samples/begun"] for metrics in run.metrics)
    assert begun == 2 * 9 * batch and run.metrics[-1]["samples/waiting"] == 0 and len(run.feed) == 0
    assert "samples/expired" not in {name for metrics in run.metrics for name in metrics}


def test_steps_that_train_fewer_groups_than_a_batch_drop_what_became_too_old() -> None:
    run = Run(constant(1), batch_size=4, max_staleness=1, is_strict=False, slots=100, steps=9)
    run.feed.push_weights(NOWHERE, 0)
    run.batch_size = 2
    for step in (1, 2, 3):
        run.step(step)
    assert run.drawn == [[0, 1], [2, 3], [6, 7]], "4 and 5 of step 1 were two steps old"
    assert run.metrics[2]["samples/expired"] == 4


def test_evaluations_find_nothing_running_and_everything_goes_on() -> None:
    run = Run(constant(20), max_staleness=1, is_strict=True, slots=100)
    run.feed.push_weights(NOWHERE, 0)
    run.feed._step = 1
    run.feed._fill(2)
    run.clock.sleep(5.0)
    with run.feed.paused():
        run.service.load_weights(NOWHERE, 0)  # asserts that nothing runs
        run.clock.sleep(100.0)
    began = run.clock()
    assert [group.prompt.index for group in run.feed.draw(2, step=1)] == [0, 1]
    assert run.clock() - began == pytest.approx(15.0)


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_feed_goes_on_from_its_state(is_strict: bool) -> None:
    first = Run(lambda prompt, sample: 15 + 20 * (prompt % 3), max_staleness=1, is_strict=is_strict, slots=8)
    first.feed.push_weights(NOWHERE, 0)
    first.step(1)
    state, arrays = first.feed.state(), first.feed.arrays()
    second = Run(lambda prompt, sample: 15 + 20 * (prompt % 3), max_staleness=1, is_strict=is_strict, slots=8)
    second.taken = first.taken
    second.feed.load(state, ArraySource(arrays, path=NOWHERE), second.prompts)
    second.feed.push_weights(NOWHERE, 1)
    for step in (2, 3, 4):
        first.step(step), second.step(step)
        assert first.drawn[-1] == second.drawn[-1]
        for one, other in zip(first.responses, second.responses, strict=True):
            assert one.ids.tolist() == other.ids.tolist() and one.logprobs.tolist() == other.logprobs.tolist()
            assert one.weight_version == other.weight_version and one.finish_reason is other.finish_reason
    assert second.metrics[-1]["samples/waiting"] == 0
