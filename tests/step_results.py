"""What a training step with scripted answers gave to the responses of its groups and to the rows of its updater."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindgspo.types import Batch, Response, StepResult


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
