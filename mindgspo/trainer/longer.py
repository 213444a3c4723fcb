"""A run that goes on for more steps than it was begun with, and the learning rates of the new ones. No MindSpore.

Steps that were made stay as they are. Where more steps stretch the schedule of the learning rate, so that those that
follow would not get what they were to get, the user has to say which they shall have (optimizer.schedule_steps).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from mindgspo.algorithms import learning_rate
from mindgspo.checkpoint.run_folder import RunFolder, RunStatus
from mindgspo.config import ExperimentConfig, load_config, planned_steps
from mindgspo.config.schema import OptimizerSection
from mindgspo.errors import ConfigError
from mindgspo.io import unused_name
from mindgspo.metrics import read_summary, report_of_finished

LENGTH_KEYS = ("trainer.max_steps", "trainer.epochs", "optimizer.schedule_steps")
"""What may differ from the run's own configuration where it is to become longer."""


def asks_for_more(config: ExperimentConfig, saved: ExperimentConfig) -> bool:
    """Whether config is of a longer run than the saved one."""
    ours, theirs = config.trainer, saved.trainer
    if ours.max_steps is None or theirs.max_steps is None:
        return ours.max_steps is theirs.max_steps and ours.epochs > theirs.epochs
    return ours.max_steps > theirs.max_steps


def is_complete(config: ExperimentConfig, folder: RunFolder) -> bool:
    """Whether the run is finished and no more of it is asked for."""
    if folder.status is not RunStatus.FINISHED:
        return False
    return not folder.config.is_file() or not asks_for_more(config, load_config(folder.config, check_files=False))


def finished_line(folder: RunFolder) -> str:
    """What a user is told who starts a run that is finished: where its report is, and how it goes on."""
    steps = read_summary(folder.root).get("steps", 0)
    return (
        f"{folder.root}: this run is finished; its report is {report_of_finished(folder.root)}\n"
        f"--set trainer.max_steps=N with N above {steps} continues it"
    )


def config_before(folder: RunFolder) -> ExperimentConfig | None:
    """What the run was begun with, or the run whose checkpoint it begins with; None where there is none, or where the
    steps are counted from 0."""
    path = folder.config
    if folder.status is RunStatus.NEW:
        path = None if folder.origin is None or folder.origin.restore == "weights" else folder.origin.config
    return None if path is None or not path.is_file() else load_config(path, check_files=False)


def set_summary_aside(folder: RunFolder) -> Path | None:
    """A run that goes on is not finished any more: its summary gets another name, which is returned; None: it had
    none."""
    if not folder.summary.is_file():
        return None
    steps = read_summary(folder.root).get("steps", 0)
    aside = folder.root / f"summary_step_{steps}.json"
    aside = unused_name(aside) if aside.exists() else aside
    os.rename(folder.summary, aside)
    return aside


def new_learning_rates(
    config: ExperimentConfig, saved: ExperimentConfig, *, step: int, num_rows: int, updates_per_step: int
) -> str | None:
    """One line on the learning rates of the steps that are new; None where the run has not become longer.

    step: those that the checkpoint has behind it. num_rows: of the training set. Raises ConfigError where the schedule
    does not say what they learn with: both answers are named with their figures.
    """
    before, total = planned_steps(saved, num_rows), planned_steps(config, num_rows)
    assert before is not None and total is not None
    if total <= before:
        return None
    ours, told = config.optimizer, config.optimizer.schedule_steps
    kept = ours.model_copy(update={"schedule_steps": saved.optimizer.schedule_steps or before})
    stretched = ours.model_copy(update={"schedule_steps": told or total})

    per_step = updates_per_step

    def rates(section: OptimizerSection) -> Callable[[int], float]:
        return lambda update: learning_rate(update, total * per_step, section, updates_per_step=per_step)

    as_planned, now = rates(kept), rates(stretched)
    updates = range(step * per_step, total * per_step)
    if told is None and any(as_planned(update) != now(update) for update in updates):
        raise ConfigError(
            f"trainer: {total} steps, the run has {before}, over which its learning rate "
            f"({ours.schedule}) was planned. Say what the new steps learn with:\n"
            f"  --set optimizer.schedule_steps={kept.schedule_steps}   the schedule stays: "
            f"{_span(as_planned, updates, per_step)}\n"
            f"  --set optimizer.schedule_steps={total}   over all {total} steps: {_span(now, updates, per_step)}"
        )
    return f"the run goes on to step {total} instead of {before}; learning rate {_span(now, updates, per_step)}"


def _span(rate: Callable[[int], float], updates: range, per_step: int) -> str:
    first, last = rate(updates[0]), rate(updates[-1])
    ends = f"{first:.4g} at step {updates[0] // per_step + 1}"
    return f"{ends} and after" if first == last else f"{ends}, {last:.4g} at step {updates[-1] // per_step + 1}"
