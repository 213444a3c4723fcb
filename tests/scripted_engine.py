"""A rollout engine that answers from a script: the fake that lets a whole training step run without a model. And what
such a step gave to the responses of its groups and to the rows of its updater."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mindgspo.rollout.protocol import Rollout, RolloutCounters, SamplingSettings
from mindgspo.types import Batch, FinishReason, Prompt, Response, StepResult


class ScriptedEngine:
    """script(prompt, sample_index) -> token ids of the response; log-probs are a constant.

    A response counts as stopped if it is shorter than max_new_tokens.
    """

    def __init__(self, script: Callable[[Prompt, int], Sequence[int]], logprob: float = -1.0) -> None:
        self._script, self._logprob = script, logprob
        self._weight_version: int | None = None

    def load_weights(self, version: int) -> None:
        """Remember the version; there are no weights."""
        self._weight_version = version

    def generate(self, prompts: Sequence[Prompt], settings: SamplingSettings, *, weight_version: int) -> Rollout:
        """Read the script; every prompt counts as prefilled and every slot as busy."""
        assert weight_version == self._weight_version, (weight_version, self._weight_version)
        groups = tuple(
            tuple(self._response(prompt, sample, settings, weight_version) for sample in range(settings.num_samples))
            for prompt in prompts
        )
        tokens = sum(response.length for group in groups for response in group)
        return Rollout(
            responses=groups,
            counters=RolloutCounters(
                prefilled_prompts=len(prompts),
                decode_steps=tokens,
                busy_slot_steps=tokens,
                slot_steps=tokens,
                generated_tokens=tokens,
                preemptions=0,
                most_blocks=0,
            ),
        )

    def _response(self, prompt: Prompt, sample: int, settings: SamplingSettings, version: int) -> Response:
        ids = np.array(self._script(prompt, sample), dtype=np.int32)[: settings.max_new_tokens]
        stopped = ids.size < settings.max_new_tokens
        return Response(
            prompt_index=prompt.index,
            sample_index=sample,
            ids=ids,
            logprobs=np.full(ids.size, self._logprob, dtype=np.float32),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            temperature=settings.temperature,
            weight_version=version,
        )


def responses_of(result: StepResult) -> list[Response]:
    return [response for group in result.groups for response in group.responses]


def micro_batches(trainer) -> list[Batch]:
    """Those of all updates."""
    return [batch for batches in trainer.updater.batches for batch in batches]


def rows_by_number(trainer) -> dict[int, np.ndarray]:
    """{number of the response: its advantages in the rows that the updater got}."""
    found = {}
    for batch in micro_batches(trainer):
        assert not batch.advantages_NK[~batch.mask_NK].any()
        for row, number in enumerate(batch.samples_N):
            if number >= 0:
                assert int(number) not in found
                found[int(number)] = batch.advantages_NK[row, batch.mask_NK[row]]
    return found


def assert_advantages(result: StepResult, trainer, expected: Sequence[np.ndarray | None], **tolerance: float) -> None:
    """Groups and batch rows hold these advantages, response after response; None: not trained, zeros."""
    advantages = [array for group in result.groups for array in group.advantages]
    rows = rows_by_number(trainer)
    assert sorted(rows) == [number for number, array in enumerate(expected) if array is not None]
    for number, (found, array) in enumerate(zip(advantages, expected, strict=True)):
        if array is None:
            assert not found.any()
            continue
        np.testing.assert_allclose(found, array, **tolerance)
        np.testing.assert_array_equal(rows[number], found)
