"""What a rollout engine is asked and what it answers.

What enters: prompts, sampling settings and the version of the weights to use. What leaves: responses in the order
of the prompts, with counters. The trainer and evaluation call any engine through `RolloutEngine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Protocol

from mindgspo.rollout.random import RandomStream
from mindgspo.types import Prompt, Response


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingSettings:
    """How the responses of one call are drawn.

    num_samples: responses per prompt. temperature: 0 takes the likeliest token. max_new_tokens: EOS included.
    stream: where the uniforms come from (not read when greedy).
    """

    num_samples: int
    temperature: float
    max_new_tokens: int
    stream: RandomStream

    def __post_init__(self) -> None:
        assert self.num_samples >= 1 and self.max_new_tokens >= 1 and self.temperature >= 0, self


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutCounters:
    """What the engine did in one call.

    prefilled_prompts: prompts run through the model (once each, whatever the group size). decode_steps: decode graphs
    launched. busy_slot_steps, slot_steps: slots that held an unfinished sequence, and all slots, summed over steps.
    generated_tokens: response tokens, EOS included.
    """

    prefilled_prompts: int
    decode_steps: int
    busy_slot_steps: int
    slot_steps: int
    generated_tokens: int

    @property
    def busy_share(self) -> float:
        """Share of slot steps that worked on a sequence; 0 where there was none."""
        return self.busy_slot_steps / self.slot_steps if self.slot_steps else 0.0

    @staticmethod
    def total(counters: Iterable[RolloutCounters]) -> RolloutCounters:
        """Of several calls."""
        rows = [astuple(one) for one in counters]
        return RolloutCounters(
            **{field.name: sum(row[place] for row in rows) for place, field in enumerate(fields(RolloutCounters))}
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
