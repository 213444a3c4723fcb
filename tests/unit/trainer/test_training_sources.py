"""Several sources and a curriculum in training: metrics by source, and draws that go on with late feedback."""

from __future__ import annotations

import dataclasses
import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from timed_service import TimedService, VirtualClock

from mindgspo.config.data import CurriculumSection, TrainSource
from mindgspo.data.curriculum import Curriculum
from mindgspo.data.mixture import MixtureStream
from mindgspo.data.stream import PromptStream
from mindgspo.metrics import unknown_names
from mindgspo.rollout.protocol import Purpose, RandomStream, SamplingSettings
from mindgspo.tensor_files.tensors import ArraySource
from mindgspo.trainer.feed import Feed
from mindgspo.trainer.source_metrics import source_metrics
from mindgspo.types import FinishReason, Prompt, Response, Score, ScoredGroup, Verdict

NOWHERE = Path("weights")
SAMPLING = SamplingSettings(
    num_samples=2, temperature=1.0, max_new_tokens=9, stream=RandomStream(seed=7, purpose=Purpose.TRAINING, step=0)
)


def group(source: str, rewards: list[float | None], lengths: list[int]) -> ScoredGroup:
    responses = [
        Response(
            prompt_index=0, sample_index=sample, ids=np.ones(length, np.int32), logprobs=np.zeros(length, np.float32),
            finish_reason=FinishReason.STOP, temperature=1.0, weight_version=0,
        )
        for sample, length in enumerate(lengths)
    ]  # fmt: skip
    verdicts = {None: Verdict.TIMEOUT, 1.0: Verdict.CORRECT}
    scores = [Score(value=reward, verdict=verdicts.get(reward, Verdict.WRONG)) for reward in rewards]
    prompt = Prompt(index=0, ids=np.ones(1, np.int32), text="?", answer="1", data_source="math", source=source)
    return ScoredGroup(prompt=prompt, responses=tuple(responses), scores=tuple(scores))


def test_metrics_by_source_by_hand() -> None:
    groups = [
        group("easy", [1.0, 1.0], [3, 5]),
        group("hard", [0.0, None], [9, 9]),
        group("easy", [1.0, 0.25], [4, 8]),
        group("easy", [None, None], [1, 3]),
    ]
    metrics = source_metrics(groups, {"easy": 1.5, "hard": 0.25, "rare": 0.0})
    assert metrics == {
        "train-core/easy/acc/mean": 3 / 6,
        "train-core/easy/reward/mean": 3.25 / 4,
        "train-aux/easy/zero_signal_group_ratio": 2 / 3,
        "train-aux/easy/response_length/mean": 24 / 6,
        "train-aux/easy/num_prompts": 3,
        "train-aux/easy/epoch": 1.5,
        "train-core/hard/acc/mean": 0.0,
        "train-core/hard/reward/mean": 0.0,
        "train-aux/hard/zero_signal_group_ratio": 1.0,
        "train-aux/hard/response_length/mean": 9.0,
        "train-aux/hard/num_prompts": 1,
        "train-aux/hard/epoch": 0.25,
        "train-aux/rare/num_prompts": 0,
        "train-aux/rare/epoch": 0.0,
    }
    assert unknown_names(metrics) == []
    assert source_metrics(groups, {}) == {}, "outside of a mixture"


def test_a_draw_in_place_of_groups_without_a_signal_knows_them_already(make_trainer, answer) -> None:
    """Prompts 0 to 3 are always solved, the others by one answer of two. The first step draws 0 to 3 and then 4 to 7;
    the second one passes over the first four."""
    curriculum = Curriculum(CurriculumSection(), 8)
    stream = PromptStream(8, seed=1, shuffle=False, passes_over=curriculum.passes_over)

    def script(prompt: Prompt, sample: int) -> list[int]:
        return answer(prompt.answer if prompt.index < 4 or sample == 0 else "999")

    made = make_trainer(
        script, "algorithm.filter_groups.metric=accuracy", "algorithm.filter_groups.refill=true", stream=stream
    )
    report = dataclasses.replace(made.report, curriculum=curriculum)
    trainer = dataclasses.replace(made, curriculum=curriculum, report=report)
    first, second = (trainer.train_step(step) for step in (1, 2))
    assert [group.prompt.index for group in first.groups] == [4, 5, 6, 7, 0, 1, 2, 3]
    assert first.metrics["curriculum/known_share"] == 1.0 and first.metrics["curriculum/resting_share"] == 0.5
    assert first.metrics["curriculum/pass_rate"] == 0.75
    assert [group.prompt.index for group in second.groups] == [4, 5, 6, 7]
    assert second.metrics["curriculum/resting_share"] == 0.0, "their turn was passed over"


class FedRun:
    """A feed over two sources with a curriculum; prompts divisible by three are always solved, others by one of two."""

    def __init__(self, *, is_strict: bool) -> None:
        self.clock = VirtualClock()
        service = TimedService(
            lambda prompt, sample: [9] * (2 + prompt.index % 4), slots=8, clock=self.clock, sleep=self.clock.sleep
        )
        self.prompts = [
            Prompt(index=index, ids=np.array([index + 1], np.int32), text="?", answer="", data_source="test")
            for index in range(11)
        ]
        self.curriculum = Curriculum(CurriculumSection(), 11)
        sources = [
            TrainSource(name="a", num_rows=7, share=Fraction(2, 3)),
            TrainSource(name="b", num_rows=4, share=Fraction(1, 3)),
        ]
        self.stream = MixtureStream(sources, 5, passes_over=self.curriculum.passes_over)
        self.feed = Feed(
            service, lambda number: [self.prompts[index] for index in self.stream.take(number)], SAMPLING,
            batch_size=3, max_staleness=1, is_strict=is_strict, total_steps=9, clock=self.clock,
        )  # fmt: skip

    def step(self, step: int) -> list[int]:
        groups = self.feed.draw(3, step=step)
        self.curriculum.observe([self._scored(group.prompt, group.responses(1.0)) for group in groups])
        self.clock.sleep(3.0)
        self.feed.push_weights(NOWHERE, step)
        return [group.prompt.index for group in groups]

    def _scored(self, prompt: Prompt, responses: tuple[Response, ...]) -> ScoredGroup:
        rewards = (1.0, float(prompt.index % 3 == 0))
        scores = tuple(Score(value=one, verdict=Verdict.CORRECT if one else Verdict.WRONG) for one in rewards)
        return ScoredGroup(prompt=prompt, responses=responses, scores=scores)


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("cut", range(1, 8))
def test_prompts_that_were_drawn_ahead_go_on_from_a_checkpoint(is_strict: bool, cut: int) -> None:
    """Feedback comes a step after its prompt has made way for others; what is saved holds all of it."""
    whole = FedRun(is_strict=is_strict)
    whole.feed.push_weights(NOWHERE, 0)
    for step in range(1, cut + 1):
        whole.step(step)
    state = json.loads(json.dumps([whole.stream.to_json(), whole.feed.state()]))
    again = FedRun(is_strict=is_strict)
    again.stream.load_json(state[0])
    again.curriculum.load({}, ArraySource(whole.curriculum.arrays(), path=NOWHERE))
    again.feed.load(state[1], ArraySource(whole.feed.arrays(), path=NOWHERE), again.prompts)
    again.feed.push_weights(NOWHERE, cut)
    rest = range(cut + 1, 10)
    assert [again.step(step) for step in rest] == [whole.step(step) for step in rest]
    assert again.stream.to_json() == whole.stream.to_json()
    assert all(
        np.array_equal(one, other, equal_nan=True)
        for one, other in zip(again.curriculum.arrays().values(), whole.curriculum.arrays().values(), strict=True)
    )
