"""tools/bench_scaling.py: its ratios and fits by hand, and the operations that it expects."""

from __future__ import annotations

import bench_scaling as tool
import numpy as np
import pytest

from mindgspo.models.operations import Operations


def test_a_point_is_compared_with_the_best_before_it() -> None:
    assert tool.rises([4.0, 2.0, 3.0, 1.0, 1.1]) == pytest.approx([1, 0.5, 1.5, 0.5, 1.1])


def test_flat_is_less_than_a_tenth_above_the_best_by_each_clock() -> None:
    found = tool.judged({4: np.array([10.0, 20.0]), 8: np.array([11.5, 21.0]), 16: np.array([9.0, 21.5])})
    assert found["us"] == {4: 10.0, 8: 11.5, 16: 9.0} and found["us_ratio"] == {4: 1.0, 8: 1.15, 16: 0.9}
    assert not found["us_flat"] and found["cpu_us_flat"]
    by_work = tool.judged(
        {1: np.array([1.0, 1.0]), 2: np.array([4.0, 5.0])}, {1: np.array([1.0, 1.0]), 2: np.array([1.0, 1.25])}
    )
    assert by_work["us"] == {1: 1.0, 2: 4.0} and by_work["us_flat"] and not by_work["cpu_us_flat"]


def test_the_fit_finds_what_made_the_times() -> None:
    lengths, columns = [64, 128, 256, 512], [64.5, 96.5, 160.5, 288.5]
    times = [50 + 0.25 * column + 640 / length for length, column in zip(lengths, columns, strict=True)]
    assert tool.fitted(lengths, columns, times) == pytest.approx((50, 0.25, 640))


def test_lengths_are_flat_but_for_attention_and_not_where_more_grows() -> None:
    def report(more: float) -> dict:
        sizes = tool.SERIES["length"]
        times = {
            length: 50 + 0.25 * tool.mean_columns(of_size) + more * (length == 256) for length, of_size in sizes.items()
        }
        return tool.of_lengths(
            {length: {phase: np.array([time, 2 * time]) for phase in tool.PHASES} for length, time in times.items()}
        )

    found = report(0.0)
    assert found["columns"] == [64.5, 96.5, 160.5, 288.5]
    fit = found["update"]["cpu_us_fit"]
    assert found["update"]["cpu_us_flat"] and fit["per_column"] == pytest.approx(0.5)
    assert fit["attention_share"] == pytest.approx(0.25 * 288.5 / (50 + 0.25 * 288.5), abs=1e-3)
    assert not report(40.0)["update"]["cpu_us_flat"]


def test_operations_of_a_token() -> None:
    # 8 heads and 4 key/value heads of 32, inner 704, 4 layers, vocabulary 1024.
    layer = 256 * 512 + 256 * 256 + 3 * 256 * 704
    found = Operations.of(tool.of_width(256))
    assert found == Operations(trunk=2 * 4 * layer, head=2 * 1024 * 256, pair=4 * 256 * 4)


def test_the_least_of_all_rounds_is_taken_of_each_figure_by_itself() -> None:
    rounds = [{phase: np.array(pair) for phase in tool.PHASES} for pair in ([3.0, 5.0], [4.0, 2.0])]
    assert tool.least(rounds)["update"].tolist() == [3.0, 2.0]
