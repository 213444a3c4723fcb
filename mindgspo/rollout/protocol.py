"""The interface of a rollout engine, and the random numbers of its sampler.

Each token has one uniform number, a pure function of seed, purpose, step, draw, prompt, sample and position. It depends
on neither batch, slot nor layout, and a resume does not change it. numpy's Philox 4x64 is counter-based: there is no
state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np

from mindgspo.config.schema import RolloutSection
from mindgspo.types import Float32Array, Prompt, Response


class Purpose(IntEnum):
    """Separates the random streams of training and evaluation."""

    TRAINING = 1
    EVALUATION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomStream:
    """The source of one step's uniform numbers."""

    seed: int
    """The run's; below 2**64."""
    purpose: Purpose
    step: int
    """Training step; below 2**48."""
    draw: int = 0
    """Number of draws before this one in the same step; a prompt that is drawn twice gets other responses."""

    def uniforms(self, prompt_index: int, sample_index: int, num_tokens: int) -> Float32Array:
        """Return float32 [num_tokens] in (0, 1]; entry t belongs to response token t, whatever num_tokens is.

        Zero is excluded, because an inverse CDF at 0 could pick a token of probability 0.
        """
        key = np.array([self.seed, (self.step << 8) | int(self.purpose)], dtype=np.uint64)
        counter = np.array([0, self.draw, prompt_index, sample_index], dtype=np.uint64)
        draws = np.random.Generator(np.random.Philox(key=key, counter=counter)).random(num_tokens)
        return (1.0 - draws).astype(np.float32)


class SamplingFilter(NamedTuple):
    """The tokens that can be drawn."""

    top_k: int = 0
    """Only the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Only the likeliest of these whose probabilities just reach this sum; 1 keeps all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """Settings of one call of an engine.

    Example: SamplingSettings(num_samples=8, temperature=1.0, max_new_tokens=512, stream=stream)
    """

    num_samples: int
    """Responses per prompt."""
    temperature: float
    """0 takes the likeliest token; then neither `stream` nor `sampling_filter` is used."""
    max_new_tokens: int
    """EOS included."""
    stream: RandomStream
    sampling_filter: SamplingFilter | None = None
    """None: that of the engine."""

    def __post_init__(self) -> None:
        assert self.num_samples >= 1 and self.max_new_tokens >= 1 and self.temperature >= 0, self


def training_sampling(section: RolloutSection, seed: int, *, step: int, draw: int = 0) -> SamplingSettings:
    """Return the settings for the training responses of one draw."""
    return SamplingSettings(
        num_samples=section.num_generations,
        temperature=section.temperature,
        max_new_tokens=section.max_new_tokens,
        stream=RandomStream(seed=seed, purpose=Purpose.TRAINING, step=step, draw=draw),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCounters:
    """The work of an engine in one call; 0 if it was not measured."""

    prefilled_prompts: int = 0
    """Prompts run through the model: once per group, and once more, with the tokens so far, after each preemption."""
    decode_steps: int = 0
    busy_slot_steps: int = 0
    """Slots with an unfinished sequence, summed over decode steps."""
    slot_steps: int = 0
    """All slots, summed over decode steps."""
    generated_tokens: int = 0
    """Response tokens, EOS included."""
    preemptions: int = 0
    """Sequences that had to leave the cache and were admitted again."""
    most_blocks: int = 0
    """Most cache blocks in use at once, on the replica with most."""
    fastest_us: int = 0
    """Shortest time from a response's admission to its end, in whole microseconds."""
    slowest_us: int = 0
    slowest_prompt: int = 0
    """Prompt tokens of the slowest response."""
    slowest_response: int = 0
    """Response tokens of the slowest response."""

    @property
    def busy_share(self) -> float:
        """Share of slot steps that worked on a sequence; 0 without any steps."""
        return self.busy_slot_steps / self.slot_steps if self.slot_steps else 0.0

    @staticmethod
    def total(counters: Iterable[RolloutCounters]) -> RolloutCounters:
        """Combine the counters of several calls, or of several replicas."""
        every = list(counters)
        slowest = max(every, key=lambda one: one.slowest_us, default=RolloutCounters())
        return replace(
            slowest,
            **{name: sum(getattr(one, name) for one in every) for name in _SUMS},
            most_blocks=max((one.most_blocks for one in every), default=0),
            fastest_us=min((one.fastest_us for one in every if one.slowest_us), default=0),
        )


_SUMS = ("prefilled_prompts", "decode_steps", "busy_slot_steps", "slot_steps", "generated_tokens", "preemptions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """The responses of one call, and the work that they took."""

    responses: tuple[tuple[Response, ...], ...]
    """responses[p] are the siblings of prompt p, by sample index."""
    counters: RolloutCounters


class RolloutEngine(Protocol):
    """Generates responses with the weights that it was given."""

    def load_weights(self, version: int) -> None:
        """Use the trained weights from now on, as version `version`."""
        ...

    def generate(self, prompts: Sequence[Prompt], settings: SamplingSettings, *, weight_version: int) -> Rollout:
        """Sample responses. Asserts that the loaded weights have version `weight_version`, so that stale ones are never
        used."""
        ...
