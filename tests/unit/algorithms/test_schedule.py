import pytest

from mindgspo.algorithms import learning_rate
from mindgspo.config.schema import OptimizerSection


def test_linear_rise_then_constant():
    section = OptimizerSection(lr=1.0, warmup_ratio=0.4, schedule="constant")
    assert [learning_rate(i, 10, section) for i in range(10)] == [0.25, 0.5, 0.75, *[1.0] * 7]


def test_a_rise_of_whole_steps_whatever_the_length_of_the_run():
    section = OptimizerSection(lr=1.0, warmup_ratio=0.5, warmup_steps=2)
    for total in (8, 80):  # two updates per step: four of rise
        assert [learning_rate(i, total, section, updates_per_step=2) for i in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert learning_rate(0, 8, section.model_copy(update={"warmup_steps": 0}), updates_per_step=2) == 1.0
    longer = section.model_copy(update={"warmup_steps": 16})
    assert learning_rate(7, 8, longer, updates_per_step=1) == 0.5, "the run ends within the rise"


def test_linear_rise_then_cosine_to_the_floor():
    section = OptimizerSection(lr=2.0, warmup_ratio=1 / 7, schedule="cosine", min_lr_ratio=0.5)
    # One update of rise, then cos(pi k / 5), k = 0..5, mapped from [-1, 1] to [1, 2].
    expected = [2.0, 2.0, 1.9045085, 1.6545085, 1.3454915, 1.0954915, 1.0]
    assert [learning_rate(i, 7, section) for i in range(7)] == pytest.approx(expected, abs=1e-7)
    section = OptimizerSection(lr=1e-3, warmup_ratio=0.05, schedule="cosine", min_lr_ratio=0.1)
    assert learning_rate(199, 200, section) == pytest.approx(1e-4, rel=1e-12)


@pytest.mark.parametrize(("index", "updates", "settings"), [
    (0, 5, {"warmup_ratio": 0.0, "schedule": "constant"}),
    (0, 5, {"warmup_ratio": 0.0, "schedule": "cosine"}),
    (0, 1, {"schedule": "cosine"}),
    # 0.29 * 100 is 28.999999999999996 in binary: update 28 must be the 29th and last of the rise.
    (28, 100, {"warmup_ratio": 0.29}),
])  # fmt: skip
def test_updates_at_exactly_the_peak(index, updates, settings):
    assert learning_rate(index, updates, OptimizerSection(lr=3e-6, **settings)) == 3e-6


@pytest.mark.parametrize("index", [-1, 10])
def test_an_update_outside_the_run_is_refused(index):
    with pytest.raises(AssertionError, match="of 10"):
        learning_rate(index, 10, OptimizerSection())


def test_steps_beyond_the_schedule_keep_its_last_rate():
    section = OptimizerSection(lr=2.0, warmup_ratio=0.5, schedule="cosine", min_lr_ratio=0.5, schedule_steps=2)
    # Two updates per step: the schedule is that of 4 updates, whatever the length of the run.
    rates = [learning_rate(i, 12, section, updates_per_step=2) for i in range(12)]
    assert rates == [1.0, 2.0, 2.0, *[1.0] * 9]
    constant = section.model_copy(update={"schedule": "constant"})
    assert [learning_rate(i, 12, constant, updates_per_step=2) for i in range(6)] == [1.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert learning_rate(1, 2, section.model_copy(update={"schedule_steps": 8})) == 1.0, "the run ends within it"
