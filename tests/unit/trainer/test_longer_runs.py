"""A run that goes on beyond its end: what may differ, and what its new steps learn with."""

from __future__ import annotations

from pathlib import Path

import pytest

from mindgspo.checkpoint.run_folder import open_run_folder
from mindgspo.config import dump_config
from mindgspo.errors import ConfigError
from mindgspo.metrics import write_summary
from mindgspo.trainer.resume_checks import (
    asks_for_more,
    check_config,
    is_complete,
    new_learning_rates,
    set_summary_aside,
)


def rates(load, before: tuple[str, ...], now: tuple[str, ...], *, step: int = 4) -> str | None:
    """Two updates per step, 12 rows."""
    return new_learning_rates(load(*now), load(*before), step=step, num_rows=12, updates_per_step=2)


def test_a_constant_rate_stays_where_its_rise_is_over(load) -> None:
    four = ("trainer.max_steps=4", "optimizer={lr: 1e-3, warmup_ratio: 0.25}")  # rises over 2 of 8 updates
    assert rates(load, four, four) is None
    told = rates(load, four, (*four, "trainer.max_steps=6"))  # 3 of 12
    assert told == "the run goes on to step 6 instead of 4; learning rate 0.001 at step 5 and after"
    # Stopped after one step, update 2 would have had the whole rate, and would get 3/10 of it over 20 steps.
    with pytest.raises(ConfigError, match=r"trainer: 20 steps, the run has 4.*\(constant\)") as caught:
        rates(load, four, (*four, "trainer.max_steps=20"), step=1)
    assert "schedule_steps=4   the schedule stays: 0.001 at step 2 and after" in str(caught.value)
    assert "schedule_steps=20   over all 20 steps: 0.0003 at step 2, 0.001 at step 20" in str(caught.value)


def test_a_cosine_asks_what_the_new_steps_learn_with(load) -> None:
    four = ("trainer.max_steps=4", "optimizer={lr: 1e-3, schedule: cosine, warmup_ratio: 0, min_lr_ratio: 0.1}")
    six = (*four, "trainer.max_steps=6")
    with pytest.raises(ConfigError) as caught:
        rates(load, four, six)
    # 0.1 + 0.9 (1 + cos(pi 8 / 11)) / 2 = 0.2553 of the peak.
    assert "schedule_steps=4   the schedule stays: 0.0001 at step 5 and after" in str(caught.value)
    assert "schedule_steps=6   over all 6 steps: 0.0002553 at step 5, 0.0001 at step 6" in str(caught.value)
    kept = rates(load, four, (*six, "optimizer.schedule_steps=4"))
    assert kept is not None and kept.endswith("learning rate 0.0001 at step 5 and after")
    told = rates(load, four, (*six, "optimizer.schedule_steps=6"))
    assert told is not None and told.endswith("learning rate 0.0002553 at step 5, 0.0001 at step 6")
    # Once more, with the schedule that was said then.
    assert rates(load, (*six, "optimizer.schedule_steps=4"), (*six, "optimizer.schedule_steps=4"), step=5) is None


def test_epochs_may_grow_too(load) -> None:
    one, two = ("trainer.max_steps=null", "optimizer.warmup_ratio=0"), ("trainer.epochs=2",)
    assert asks_for_more(load(*one, *two), load(*one)) and not asks_for_more(load(*one), load(*one, *two))
    assert not asks_for_more(load("trainer.max_steps=9"), load(*one)), "nobody knows which is longer"
    steps = 12 // load().rollout.prompts_per_step
    told = rates(load, one, (*one, *two), step=steps)
    assert told is not None and told.startswith(f"the run goes on to step {2 * steps} instead of {steps};")


def test_a_finished_run_is_complete_until_more_is_asked_for(load, tmp_path: Path) -> None:
    folder = open_run_folder(tmp_path / "run", resume="never", overwrite=False)
    folder.config.write_text(dump_config(load("trainer.max_steps=4")))
    write_summary(folder.root, finished=True, steps=4)
    folder.close()
    again = open_run_folder(tmp_path / "run", resume="auto", overwrite=False)
    longer = load("trainer.max_steps=6", "optimizer.schedule_steps=4")
    assert is_complete(load("trainer.max_steps=4"), again) and not is_complete(longer, again)
    assert check_config(longer, again) == []
    with pytest.raises(ConfigError, match=r"trainer.max_steps: 3, the run has 4"):
        check_config(load("trainer.max_steps=3"), again)
    with pytest.raises(ConfigError, match=r"optimizer.schedule_steps: 2, the run has None"):
        check_config(load("trainer.max_steps=4", "optimizer.schedule_steps=2"), again)
    write_summary(folder.root, finished=True, steps=2, stopped_early="no gain")
    assert is_complete(longer, again), "more steps change nothing about why it stopped"
    patient = load("trainer.max_steps=4", "eval.every=1", "eval.stop.patience=9")
    assert not is_complete(patient, again) and check_config(patient, again) == []
    write_summary(folder.root, finished=True, steps=4)
    assert set_summary_aside(again) == again.root / "summary_step_4.json"
    assert set_summary_aside(again) is None and not again.summary.exists()
