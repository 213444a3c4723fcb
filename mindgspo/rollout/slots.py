"""Which sample sits in which slot: bookkeeping in plain numpy, without MindSpore.

The engine calls `admissions` -> graphs -> `advance` until `done`.

Legend: S slots.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from mindgspo.rollout.protocol import SamplingSettings
from mindgspo.types import FinishReason, Prompt, Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A sample enters a slot. prompt: position in the list of prompts; sample: its index among the G siblings."""

    slot: int
    prompt: int
    sample: int


class SlotTable:
    """The state of all slots during one call of `generate`.

    Samples enter prompt by prompt, so the siblings of a prompt share one prefill; a slot is free again in the very
    step in which its sequence ends.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        settings: SamplingSettings,
        *,
        num_slots: int,
        eos_ids: Collection[int],
        weight_version: int,
    ) -> None:
        self._prompts, self._settings = prompts, settings
        self._eos_ids, self._weight_version = np.array(sorted(eos_ids), dtype=np.int32), weight_version
        self._next_sample = 0
        self._num_samples = len(prompts) * settings.num_samples
        size = (num_slots, settings.max_new_tokens)
        self._occupant = np.full(num_slots, -1, dtype=np.int64)
        self._lengths = np.zeros(num_slots, dtype=np.int64)
        self._ids, self._logprobs = np.zeros(size, np.int32), np.zeros(size, np.float32)
        self._uniforms = np.ones(size, dtype=np.float32)
        self._finished: dict[int, Response] = {}
        # What the next decode step is fed.
        self.ids_S, self.positions_S = np.zeros(num_slots, np.int32), np.zeros(num_slots, np.int32)

    @property
    def done(self) -> bool:
        """Every sample has ended."""
        return len(self._finished) == self._num_samples

    @property
    def num_busy(self) -> int:
        """Slots that hold an unfinished sequence."""
        return int((self._occupant >= 0).sum())

    def admissions(self, limit: int) -> list[Admission]:
        """The samples that may enter free slots now, at most `limit`; they are not placed yet."""
        free = np.flatnonzero(self._occupant < 0)[:limit]
        waiting = range(self._next_sample, min(self._next_sample + len(free), self._num_samples))
        per_prompt = self._settings.num_samples
        return [
            Admission(slot=int(slot), prompt=number // per_prompt, sample=number % per_prompt)
            for slot, number in zip(free, waiting, strict=False)
        ]

    def place(self, admission: Admission) -> None:
        """Put a sample into its slot: its next token is the prompt's last one."""
        settings, slot = self._settings, admission.slot
        prompt = self._prompts[admission.prompt]
        assert self._occupant[slot] < 0, f"slot {slot} is taken"
        self._occupant[slot] = admission.prompt * settings.num_samples + admission.sample
        assert self._occupant[slot] == self._next_sample, "samples enter in order"
        self._next_sample += 1
        self._lengths[slot] = 0
        self.ids_S[slot], self.positions_S[slot] = prompt.ids[-1], prompt.ids.size - 1
        if settings.temperature > 0:
            self._uniforms[slot] = settings.stream.uniforms(prompt.index, admission.sample, settings.max_new_tokens)

    def uniforms(self) -> np.ndarray:
        """float32 [S]: each slot's uniform for the token it draws next; 1 in idle slots."""
        slots = np.arange(self._occupant.size)
        return self._uniforms[slots, np.minimum(self._lengths, self._settings.max_new_tokens - 1)]

    def advance(self, ids_S: np.ndarray, logprobs_S: np.ndarray) -> None:
        """Take the tokens of one decode step: append, end sequences, and prepare the next step."""
        busy = np.flatnonzero(self._occupant >= 0)
        columns = self._lengths[busy]
        self._ids[busy, columns], self._logprobs[busy, columns] = ids_S[busy], logprobs_S[busy]
        self._lengths[busy] += 1
        self.ids_S[busy] = ids_S[busy]
        self.positions_S[busy] += 1
        stopped = np.isin(ids_S[busy], self._eos_ids)
        full = self._lengths[busy] == self._settings.max_new_tokens
        for slot, stop in zip(busy[stopped | full], stopped[stopped | full], strict=True):
            self._finish(int(slot), FinishReason.STOP if stop else FinishReason.LENGTH)

    def _finish(self, slot: int, reason: FinishReason) -> None:
        number, length = int(self._occupant[slot]), int(self._lengths[slot])
        prompt, sample = divmod(number, self._settings.num_samples)
        self._finished[number] = Response(
            prompt_index=self._prompts[prompt].index,
            sample_index=sample,
            ids=self._ids[slot, :length].copy(),
            logprobs=self._logprobs[slot, :length].copy(),
            finish_reason=reason,
            temperature=self._settings.temperature,
            weight_version=self._weight_version,
        )
        self._occupant[slot] = -1
        self.ids_S[slot] = self.positions_S[slot] = 0

    def responses(self) -> tuple[tuple[Response, ...], ...]:
        """All responses by prompt, then by sample index."""
        assert self.done
        per_prompt = self._settings.num_samples
        return tuple(
            tuple(self._finished[prompt * per_prompt + sample] for sample in range(per_prompt))
            for prompt in range(len(self._prompts))
        )
