import numpy as np
import pytest

from mindgspo.algorithms.loss_metrics import Metric, ratio_error, summarize

TABLE = (
    Metric("by_sequence", "sum", "sequence"), Metric("by_token", "sum", "token"), Metric("log_ratio_max", "max"),
    Metric("log_ratio_min", "min"),
)  # fmt: skip


def test_micro_batches_combine_as_the_table_says():
    vectors = [np.array([1, 10, 0.25, -0.5], np.float32), np.array([2, 30, 0.125, -0.75], np.float32)]
    metrics = summarize(TABLE, vectors, num_sequences=4, num_tokens=80)
    expected = {"by_sequence": 0.75, "by_token": 0.5, "log_ratio_max": 0.25, "log_ratio_min": -0.75}
    assert metrics == expected | {"ratio_error_max": pytest.approx(1 - np.exp(-0.75))}


def test_a_micro_batch_of_fillers_does_not_move_the_extremes():
    vectors = [np.array([0, 0, -3e38, 3e38], np.float32), np.array([0, 0, 0.25, 0.25], np.float32)]
    metrics = summarize(TABLE, vectors, num_sequences=1, num_tokens=1)
    assert (metrics["log_ratio_max"], metrics["log_ratio_min"]) == (0.25, 0.25)


def test_ratio_error_resolves_what_float32_ratios_cannot():
    assert ratio_error(-1e-9, 2e-9) == pytest.approx(2e-9, rel=1e-6)
    assert ratio_error(-2e-9, 1e-9) == pytest.approx(2e-9, rel=1e-6)
    assert np.isfinite(ratio_error(0.0, 1e4))


def test_a_vector_of_another_length_is_refused():
    with pytest.raises(AssertionError, match="3 metrics for a table of 4"):
        summarize(TABLE, [np.zeros(3, np.float32)], num_sequences=1, num_tokens=1)
