import pytest

from mindgspo.algorithms import learning_rate
from mindgspo.config.schema import OptimizerSection


@pytest.mark.parametrize(("settings", "updates", "expected"), [
    ({"lr": 1.0, "warmup_ratio": 0.4, "schedule": "constant"}, 10, [0.25, 0.5, 0.75, *[1.0] * 7]),
    # One update of rise, then cos(pi k / 5), k = 0..5, mapped from [-1, 1] to [1, 2].
    ({"lr": 2.0, "warmup_ratio": 1 / 7, "schedule": "cosine", "min_lr_ratio": 0.5}, 7,
     [2.0, 2.0, 1.9045085, 1.6545085, 1.3454915, 1.0954915, 1.0]),
])  # fmt: skip
def test_whole_schedules(settings, updates, expected):
    section = OptimizerSection(**settings)
    assert [learning_rate(i, updates, section) for i in range(updates)] == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize(("index", "updates", "settings", "expected"), [
    (0, 5, {"lr": 3e-6, "warmup_ratio": 0.0, "schedule": "constant"}, 3e-6),
    (0, 5, {"lr": 3e-6, "warmup_ratio": 0.0, "schedule": "cosine"}, 3e-6),
    (0, 1, {"lr": 1e-6, "schedule": "cosine"}, 1e-6),
    (199, 200, {"lr": 1e-3, "warmup_ratio": 0.05, "schedule": "cosine", "min_lr_ratio": 0.1}, 1e-4),
    # 0.29 * 100 is 28.999999999999996 in binary: update 28 must be the 29th and last of the rise.
    (28, 100, {"lr": 1.0, "warmup_ratio": 0.29}, 1.0),
    (27, 100, {"lr": 1.0, "warmup_ratio": 0.29}, 28 / 29),
])  # fmt: skip
def test_single_rates(index, updates, settings, expected):
    assert learning_rate(index, updates, OptimizerSection(**settings)) == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("index", [-1, 10])
def test_an_update_outside_the_run_is_refused(index):
    with pytest.raises(AssertionError, match="of 10"):
        learning_rate(index, 10, OptimizerSection())
