"""Scored groups for a training step: prompts -> responses -> rewards, whatever generates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mindgspo.config import RolloutSection
from mindgspo.data.dataset import PromptDataset
from mindgspo.data.stream import PromptStream
from mindgspo.evaluation.evaluator import ResponseScorer
from mindgspo.metrics.timers import Timers
from mindgspo.rollout.protocol import Rollout, RolloutCounters, RolloutEngine, training_sampling
from mindgspo.swap.states import Phase
from mindgspo.swap.swap import Swap
from mindgspo.types import Prompt, Response, ScoredGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGroup:
    """A scored group of responses to one prompt."""

    group: ScoredGroup
    baseline: float | None
    """Reward of the greedy response; None where there is none."""
    step: int
    """The step that generated it."""


class ResponseSource(Protocol):
    """Source of training responses: an engine that is asked in the step, or a feed that runs beside training."""

    def sample(
        self, num_prompts: int, *, step: int, draw: int, weight_version: int
    ) -> tuple[list[Prompt], Rollout, Rollout | None]:
        """Return the next prompts, their sampled responses and, where the advantage needs them, greedy ones."""

    def load_weights(self, version: int) -> None:
        """Generate with the policy's present weights from now on."""

    def metrics(self, trained: Sequence[Response], *, seconds: float) -> dict[str, float]:
        """Return the staleness of the trained responses and the shares of waiting, in a step of `seconds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSource:
    """Responses that the engine generates when the step asks for them (trainer.schedule=sync)."""

    engine: RolloutEngine
    prompts: PromptDataset
    stream: PromptStream
    rollout: RolloutSection
    seed: int
    needs_greedy: bool

    def sample(
        self, num_prompts: int, *, step: int, draw: int, weight_version: int
    ) -> tuple[list[Prompt], Rollout, Rollout | None]:
        """See `ResponseSource`."""
        prompts = [self.prompts[index] for index in self.stream.take(num_prompts)]
        settings = training_sampling(self.rollout, self.seed, step=step, draw=draw)
        sampled = self.engine.generate(prompts, settings, weight_version=weight_version)
        if not self.needs_greedy:
            return prompts, sampled, None
        settings = replace(settings, num_samples=1, temperature=0.0)
        return prompts, sampled, self.engine.generate(prompts, settings, weight_version=weight_version)

    def load_weights(self, version: int) -> None:
        """See `ResponseSource`."""
        self.engine.load_weights(version)

    def metrics(self, trained: Sequence[Response], *, seconds: float) -> dict[str, float]:
        """Return nothing: every response is of the present weights, and training waits for all of them."""
        return {}


@dataclass(slots=True, kw_only=True)
class WeightSync:
    """Brings trained weights to whatever generates, stamped with a version: the number of updates they have had."""

    source: ResponseSource
    swap: Swap
    version: int = 0

    def push(self) -> None:
        """Generate with the policy's present weights from now on."""
        with self.swap.phase(Phase.RESHARD):
            self.source.load_weights(self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """Samples and scores responses; all ranks call it at once and get the same groups."""

    source: ResponseSource
    reward: ResponseScorer
    timers: Timers
    swap: Swap
    may_draw_again: bool
    """Whether another rollout of the same step may follow (algorithm.filter_groups.refill)."""

    def sample(
        self, num_prompts: int, *, step: int, draw: int, weight_version: int
    ) -> tuple[list[SampledGroup], RolloutCounters]:
        """Return the scored groups of the next prompts. draw: number of the rollout within the step, from 0."""
        with self.timers("gen"), self.swap.phase(Phase.ROLLOUT):
            prompts, sampled, greedy = self.source.sample(
                num_prompts, step=step, draw=draw, weight_version=weight_version
            )
            if not self.may_draw_again:
                self.swap.prefetch(Phase.SCORE)
        with self.timers("reward"):
            groups = self.reward.score(prompts, sampled)
            baselines: list[float | None] = [None] * len(groups)
            if greedy is not None:
                baselines = [group.scores[0].value for group in self.reward.score(prompts, greedy)]
        return [
            SampledGroup(group=group, baseline=baseline, step=step)
            for group, baseline in zip(groups, baselines, strict=True)
        ], sampled.counters
