"""The interface of a rollout engine, and the sampler's random numbers: one uniform per token, a pure function of seed,
purpose, step, prompt, sample and position. Neither batch, slot, layout nor a resume matter; numpy's Philox 4x64 is
counter-based, so no state is kept anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np

from mindgspo.config.schema import RolloutSection
from mindgspo.types import Float32Array, Prompt, Response


class Purpose(IntEnum):
    """Keeps the streams of training and evaluation apart."""

    TRAINING = 1
    EVALUATION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomStream:
    """seed: the run's. step: training step. Both are below 2**48. draw: how often prompts were drawn before in this
    step, so that a prompt that comes twice is answered anew."""

    seed: int
    purpose: Purpose
    step: int
    draw: int = 0

    def uniforms(self, prompt_index: int, sample_index: int, num_tokens: int) -> Float32Array:
        """float32 [num_tokens] in (0, 1]; entry t belongs to response token t, whatever num_tokens is.

        Zero is left out: an inverse CDF at 0 could pick a token of probability 0.
        """
        key = np.array([self.seed, (self.step << 8) | int(self.purpose)], dtype=np.uint64)
        counter = np.array([0, self.draw, prompt_index, sample_index], dtype=np.uint64)
        draws = np.random.Generator(np.random.Philox(key=key, counter=counter)).random(num_tokens)
        return (1.0 - draws).astype(np.float32)


class SamplingFilter(NamedTuple):
    """Which tokens can be drawn: the top_k likeliest (0: all), and of these the fewest whose probability reaches top_p
    (1: all)."""

    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How the responses of one call are drawn.

    num_samples: responses per prompt. temperature: 0 takes the likeliest token. max_new_tokens: EOS included.
    stream: where the uniforms come from. sampling_filter: None: the engine's own. When greedy neither of these is read.
    """

    num_samples: int
    temperature: float
    max_new_tokens: int
    stream: RandomStream
    sampling_filter: SamplingFilter | None = None

    def __post_init__(self) -> None:
        assert self.num_samples >= 1 and self.max_new_tokens >= 1 and self.temperature >= 0, self


def training_sampling(section: RolloutSection, seed: int, *, step: int, draw: int = 0) -> SamplingSettings:
    """How the training responses of a draw are sampled."""
    return SamplingSettings(
        num_samples=section.num_generations,
        temperature=section.temperature,
        max_new_tokens=section.max_new_tokens,
        stream=RandomStream(seed=seed, purpose=Purpose.TRAINING, step=step, draw=draw),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCounters:
    """What the engine did in one call.

    prefilled_prompts: prompts run through the model: once each, whatever the group size, and once more, with the
    tokens so far, behind each pre-emption. decode_steps: decode graphs launched. busy_slot_steps, slot_steps: slots
    that held an unfinished sequence, and all slots, summed over steps. generated_tokens: response tokens, EOS included.
    preemptions: sequences that had to leave the cache and were taken up again. most_blocks: of the cache in use at
    once, on the replica with most. fastest_us, slowest_us: microseconds between a response's admission and its end,
    whole numbers as all counters; 0 where nobody measures. slowest_prompt, slowest_response: tokens of the slowest one.
    """

    prefilled_prompts: int
    decode_steps: int
    busy_slot_steps: int
    slot_steps: int
    generated_tokens: int
    preemptions: int
    most_blocks: int
    fastest_us: int = 0
    slowest_us: int = 0
    slowest_prompt: int = 0
    slowest_response: int = 0

    @property
    def busy_share(self) -> float:
        """Share of slot steps that worked on a sequence; 0 where there was none."""
        return self.busy_slot_steps / self.slot_steps if self.slot_steps else 0.0

    @staticmethod
    def total(counters: Iterable[RolloutCounters]) -> RolloutCounters:
        """Of several calls, or of several replicas."""
        every = list(counters)
        slowest = max(every, key=lambda one: one.slowest_us, default=None)
        sums = {name: sum(getattr(one, name) for one in every) for name in _SUMS}
        return RolloutCounters(
            **sums,
            most_blocks=max((one.most_blocks for one in every), default=0),
            fastest_us=min((one.fastest_us for one in every if one.slowest_us), default=0),
            **{name: getattr(slowest, name, 0) for name in _OF_SLOWEST},
        )


_OF_SLOWEST = ("slowest_us", "slowest_prompt", "slowest_response")
_SUMS = tuple(
    field.name for field in fields(RolloutCounters) if field.name not in ("most_blocks", "fastest_us", *_OF_SLOWEST)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """responses[p] are the siblings of prompts[p], in order of their sample index."""

    responses: tuple[tuple[Response, ...], ...]
    counters: RolloutCounters


class RolloutEngine(Protocol):
    """Generates responses with weights it was given. Implementations: native, scripted (tests)."""

    def load_weights(self, version: int) -> None:
        """Take over the trained weights and stamp them with `version`."""

    def generate(self, prompts: Sequence[Prompt], settings: SamplingSettings, *, weight_version: int) -> Rollout:
        """Sample; asserts that the loaded weights bear `weight_version`, so that stale ones cannot be used."""
