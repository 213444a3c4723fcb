"""What survives a stop beside weights, optimizer and data cursor; and that a resumed run is the same experiment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mindgspo.checkpoint import open_run_folder
from mindgspo.config import dump_config
from mindgspo.errors import ConfigError, TrainingError
from mindgspo.trainer.progress import Best, Progress
from mindgspo.trainer.resume_checks import check_config, check_same_experiment


def test_seconds_are_summed_over_processes() -> None:
    first = Progress(accuracy_before=0.25, accuracy=0.25, seconds_before=-1000.0)  # its clock read 1000 at the start
    first.advance({"perf/time_per_step": 3.0, "perf/total_num_tokens": 70})
    saved = json.loads(json.dumps(first.state(1010.0)))
    assert saved["seconds"] == 10.0
    second = Progress.from_state(saved, started=5.0)
    second.advance({"perf/time_per_step": 4.0, "perf/total_num_tokens": 30})
    second.accuracy = 0.5
    assert (second.step, second.training_seconds, second.tokens) == (2, 7.0, 100)
    assert second.seconds(7.5) == 12.5
    assert (second.accuracy_before, second.accuracy) == (0.25, 0.5)


def test_the_best_evaluation_is_the_first_of_equals_and_survives_a_stop() -> None:
    progress = Progress()
    found = []
    for value in (0.5, 0.25, 0.75, None, 0.75):
        progress.evaluated(accuracy=0.125, value=value)
        found.append(progress.best)
        progress.advance({"perf/time_per_step": 1.0, "perf/total_num_tokens": 1})
    first, third = Best(step=0, value=0.5), Best(step=2, value=0.75)
    assert found == [first, first, third, third, third]
    saved = json.loads(json.dumps(progress.state(0.0)))
    assert Progress.from_state(saved, started=0.0).best == third


def test_the_accuracy_before_is_the_first_at_step_0_and_a_warm_up_replaces_the_best() -> None:
    progress = Progress()
    assert Progress.from_state(json.loads(json.dumps(progress.state(0.0))), started=0.0).best is None
    progress.evaluated(0.75, 0.75)
    progress.evaluated(0.5, 0.5)
    assert (progress.accuracy_before, progress.accuracy, progress.best) == (0.75, 0.5, Best(step=0, value=0.5))
    late = Progress(step=4)
    late.evaluated(0.5, 0.5)
    assert late.accuracy_before is None, "nothing was evaluated before the first step"


def test_settings_that_change_the_computation_are_all_named(load, tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    check_same_experiment(load(), saved)  # a run that stopped before its configuration was written can go on
    saved.write_text(dump_config(load()))
    check_same_experiment(load(), saved)
    check_same_experiment(load("resume=auto", "run_dir=elsewhere", "trainer.save_every=7", "eval.every=1"), saved)
    check_same_experiment(load("logging.tensorboard=true", "trainer.keep_checkpoints=9"), saved)
    with pytest.raises(ConfigError) as caught:
        check_same_experiment(load("seed=2", "rollout.max_new_tokens=8", "logging.progress=false"), saved)
    assert "seed: 2, the run has 1" in str(caught.value)
    assert "rollout.max_new_tokens: 8, the run has 16" in str(caught.value)
    assert "progress" not in str(caught.value)


def test_a_run_with_fewer_steps_than_asked_is_not_finished(cpu_runtime: None) -> None:
    from mindgspo.trainer.loop import require_all_steps

    require_all_steps(Progress(step=4), 4)
    with pytest.raises(TrainingError, match="ended at step 3 of 4: it is not finished"):
        require_all_steps(Progress(step=3), 4)


def test_a_reward_setting_that_differs_is_told_where_a_run_goes_on(load, tmp_path: Path) -> None:
    folder = open_run_folder(tmp_path / "run", resume="never", overwrite=False)
    folder.config.write_text(dump_config(load()))
    folder.close()
    again = open_run_folder(tmp_path / "run", resume="auto", overwrite=False)
    (line,) = check_config(load("reward.workers.timeout_s=2"), again)
    assert line.startswith("warning: reward.workers.timeout_s: 2.0, the run has")
    assert check_config(load("trainer.keep_best=2", "trainer.save_in_background=true"), again) == []
    with pytest.raises(ConfigError, match="reward.workers.timeout_s"):
        check_same_experiment(load("reward.workers.timeout_s=2"), folder.config)  # as comparisons ask
