"""The simulated schedules against the trainer's own queue, with a service that takes its time on a virtual clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from timed_service import TimedService, VirtualClock

from mindgspo.planner.simulated_replicas import Rates
from mindgspo.planner.timeline import simulate
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.trainer.feed import Feed
from mindgspo.types import Prompt

NOWHERE = Path("weights")


class Trainer:
    """Draws, trains for train_s seconds, hands over; lengths[prompt][sample] tokens at half a second each."""

    def __init__(
        self, lengths: list[list[int]], *, batch_size: int, slots: int, steps: int, train_s: float, load_s: float,
        **feed: int,
    ) -> None:  # fmt: skip
        self.clock = VirtualClock()
        self.lengths, self.batch_size, self.train_s, self.taken = lengths, batch_size, train_s, 0
        self.service = TimedService(
            lambda prompt, sample: [9] * self.lengths[prompt.index % len(lengths)][sample],
            slots=slots, token_s=0.5, load_s=load_s, clock=self.clock, sleep=self.clock.sleep,
        )  # fmt: skip
        self.service.load_weights(NOWHERE, 0)
        stream = RandomStream(seed=7, purpose=Purpose.TRAINING, step=0)
        sampling = SamplingSettings(num_samples=len(lengths[0]), temperature=1.0, max_new_tokens=1000, stream=stream)
        self.feed = Feed(
            self.service, self.take, sampling, batch_size=batch_size, total_steps=steps, clock=self.clock, **feed
        )
        self.feed.push_weights(NOWHERE, 0)

    def take(self, number: int) -> list[Prompt]:
        first, self.taken = self.taken, self.taken + number
        return [
            Prompt(index=index, ids=np.array([1], np.int32), text="", answer="", data_source="test")
            for index in range(first, self.taken)
        ]

    def step(self, step: int) -> tuple[float, float, float, float, float]:
        """Seconds until the responses are there, until the step is over; staleness, mean and most; waiting share."""
        begin = self.clock()
        groups = self.feed.draw(self.batch_size, step=step)
        drawn = self.clock()
        self.clock.sleep(self.train_s)
        self.feed.push_weights(NOWHERE, step)
        seconds = self.clock() - begin
        responses = [response for group in groups for response in group.responses(1.0)]
        metrics = self.feed.metrics(responses, seconds=seconds)
        staleness = metrics["staleness/token_mean"], metrics["staleness/token_max"]
        return drawn - begin, seconds, *staleness, metrics["schedule/trainer_idle_share"]


@given(
    lengths=st.lists(st.lists(st.integers(1, 40), min_size=2, max_size=2), min_size=1, max_size=16),
    batch_size=st.integers(1, 4),
    slots=st.integers(1, 8),
    schedule=st.sampled_from(["one_step_off", "bounded"]),
    staleness=st.integers(0, 4),
    train_s=st.integers(0, 40).map(lambda quarters: quarters / 4 + 0.1),
    load_s=st.sampled_from([0.0, 0.3]),
)
def test_each_step_takes_what_the_queue_of_the_trainer_makes_of_it(
    lengths: list[list[int]], batch_size: int, slots: int, schedule: str, staleness: int, train_s: float, load_s: float
) -> None:
    staleness = min(staleness, 1) if schedule == "one_step_off" else staleness
    steps = 8
    trainer = Trainer(
        lengths, batch_size=batch_size, slots=slots, steps=steps, train_s=train_s, load_s=load_s,
        max_staleness=staleness, is_strict=schedule == "one_step_off",
    )  # fmt: skip
    timeline = simulate(
        np.array(lengths), Rates(decode_step=0.5, train_step=train_s, push_weights=load_s), schedule=schedule,
        prompts_per_step=batch_size, replicas=1, slots=slots, steps=steps, max_staleness=staleness,
    )  # fmt: skip
    for number, step in enumerate(timeline.steps, start=1):
        expected = trainer.step(number)
        waiting = step.waiting / step.seconds
        got = (step.drawn - step.begin, step.seconds, step.staleness_mean, step.staleness_max, waiting)
        assert got == pytest.approx(expected, abs=1e-6), number
