"""The alarm about memory, on series made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mindgspo.trainer.memory import (
    QUARTER,
    WINDOW,
    MemoryAlarm,
    allocated_gb_of_ranks,
    growth_of,
    memory_metrics,
    resident_gb_of_ranks,
)

SHARE = 0.05
STEPS = np.arange(WINDOW)


def test_steady_noisy_and_stepwise_growth() -> None:
    growth = growth_of(4.0 + 0.01 * STEPS, SHARE)
    assert growth is not None
    assert growth.gb_per_step == pytest.approx(0.01) and growth.gb == pytest.approx(4.47)
    random = np.random.default_rng(0)
    for _ in range(50):
        growth = growth_of(4.0 + 0.01 * STEPS + 0.05 * random.random(WINDOW), SHARE)
        assert growth is not None and growth.gb_per_step == pytest.approx(0.01, rel=0.2)
    assert growth_of(4.0 + 0.1 * (STEPS // 6), SHARE) is not None


@pytest.mark.parametrize("figures", [
    pytest.param(np.full(WINDOW, 4.0), id="flat"), pytest.param(4.0 - 0.01 * STEPS, id="falling"),
    pytest.param(4.0 + 0.1 * (STEPS % QUARTER), id="saw-tooth"),
    pytest.param(4.0 + 0.1 * (STEPS % 7), id="saw-tooth of another period"),
    pytest.param(4.0 + 1.0 * (STEPS >= 20), id="one jump"),
    pytest.param(4.0 + 1.0 * (STEPS >= 20) + 0.5 * (STEPS >= 33), id="two jumps"),
    pytest.param(4.0 + 2.0 * (STEPS == 40), id="one peak"),
    pytest.param(4.0 + 1.0 * (STEPS >= WINDOW - 5), id="a jump at the end"),
    pytest.param(4.0 * (1 + 0.0004 * STEPS), id="4 % in 100 steps"),
    pytest.param(4.0 + 0.1 * STEPS[: WINDOW - 1], id="too few"),
    pytest.param(5.0 - np.exp(-STEPS / 8), id="growth that dies away"),
])  # fmt: skip
def test_what_is_no_growth(figures: np.ndarray) -> None:
    assert growth_of(figures.tolist(), SHARE) is None


def observed(alarm: MemoryAlarm, figures: np.ndarray) -> list[tuple[int, str]]:
    """(Step, warning) of a run. figures: [steps, ranks]."""
    told = [(step, alarm.observe(row.tolist(), room_gb=6.0)) for step, row in enumerate(figures, start=1)]
    return [(step, text) for step, text in told if text is not None]


def test_each_rank_is_told_of_once_and_an_alarm_that_is_off_says_nothing() -> None:
    steps = np.arange(200)
    figures = np.stack([np.full(200, 2.0), 3.0 + 0.01 * steps, 2.0 + 0.02 * np.maximum(steps - 100, 0)], axis=1)
    (first_step, first), (second_step, second) = observed(MemoryAlarm(SHARE), figures)
    assert first_step == 10 + WINDOW
    assert first.startswith(
        "warning: resident memory grows: rank 1 holds 3.57 GB and grows by 10.2 MB per step. The 6.0"
    )
    assert "last for about 600 more steps" in first
    assert second_step > 100 and "rank 1 holds" in second and "rank 2 holds" in second
    steps = np.arange(150)[:, None]
    start = 1.0 + 0.3 * np.minimum(steps, 10)  # ten steps that compile
    assert observed(MemoryAlarm(SHARE), start) == []
    assert observed(MemoryAlarm(None), 1.0 + 0.1 * steps) == []


def test_a_process_knows_its_own(cpu_runtime: None) -> None:
    (own,) = resident_gb_of_ranks()
    assert 0.05 < own < 50 and allocated_gb_of_ranks() == [] and memory_metrics([own], []) == {}
    assert memory_metrics([1.0, 3.0, 2.0], []) == {"perf/cpu_memory_used_max_gb": 3.0}
    assert memory_metrics([1.0], [20.0]) == {"perf/max_memory_allocated_gb": 20.0}, "of a single card, too"
