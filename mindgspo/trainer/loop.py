"""A whole experiment: warm-up, evaluation, steps, checkpoints, export, report.

What enters: a resolved configuration. What leaves: a complete run folder. Called by `mindgspo run` and `mindgspo sft`,
on every rank of the plans; rank 0 alone writes.
"""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from mindgspo import faults
from mindgspo.checkpoint import (
    RunFolder,
    RunStatus,
    open_run_folder,
)
from mindgspo.config import ExperimentConfig, batch_table, dump_config, notes
from mindgspo.config.rules import data_sources
from mindgspo.io import write_file
from mindgspo.metrics import RunLog, SilentLog, plot_run, write_report
from mindgspo.parallel import runtime
from mindgspo.parallel.swap.states import Phase
from mindgspo.trainer.build import build_parts, build_warmup
from mindgspo.trainer.finishing import finish, require_all_steps
from mindgspo.trainer.logged_groups import logged_groups
from mindgspo.trainer.memory_alarm import MemoryAlarm, memory_metrics, resident_gb_of_ranks
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.progress import Progress
from mindgspo.trainer.ranks import first_rank_first, is_first, opened_for_all, start_device
from mindgspo.trainer.restoring import restored
from mindgspo.trainer.resume import check_config
from mindgspo.trainer.saving import Saver
from mindgspo.trainer.step import run_step
from mindgspo.trainer.validation import validate
from mindgspo.trainer.warmup import Warmup, warm_up


def run_experiment(config: ExperimentConfig, *, overwrite: bool = False, only_warm_up: bool = False) -> Path | None:
    """Run or continue an experiment; returns the report's path, None where the run was finished before.

    only_warm_up: no training steps; the accuracies before and after are then those around the warm-up. Raises the
    errors of `mindgspo.errors`. What was saved before an error stays, and the run can be resumed.
    """
    assert config.run_dir is not None, "config is not resolved"
    start_device(config)
    warning = faults.arm(runtime.rank())
    run_dir = config.run_dir
    folder = opened_for_all(
        lambda: open_run_folder(run_dir, resume=config.resume, overwrite=overwrite, restore=config.restore)
    )
    try:
        warnings = check_config(config, folder)
        if folder.status is RunStatus.FINISHED:
            if is_first() and not folder.report.is_file():  # stopped between summary and report
                _report(folder)
            if is_first():
                print(f"{folder.root}: this run is finished; its report is {folder.report}")
            return None
        if folder.moved_aside is not None:
            print(f"the former run was moved to {folder.moved_aside}")
        if is_first():
            for line in (*([] if warning is None else [warning]), *warnings):
                print(line)
        return _run(config, folder, only_warm_up=only_warm_up)
    finally:
        folder.close()


def _run(config: ExperimentConfig, folder: RunFolder, *, only_warm_up: bool) -> Path | None:
    started = time.perf_counter()
    new_run = folder.status is RunStatus.NEW
    parts = build_parts(
        config,
        data_dir=folder.data,
        failures_dir=folder.root / "failures",
        swap_dir=folder.root / "swap",
        new_run=new_run,
    )
    with parts.scorer, closing(parts.swap):
        return _run_with(parts, folder, started=started, new_run=new_run, only_warm_up=only_warm_up)


def _run_with(
    parts: TrainingParts, folder: RunFolder, *, started: float, new_run: bool, only_warm_up: bool
) -> Path | None:
    config = parts.config
    if only_warm_up:
        parts.total_steps = 0
    warmup = build_warmup(parts, data_dir=folder.data, new_run=new_run)
    with _log(parts, folder) as log, Saver(parts, folder) as saver:
        _print_banner(parts, log)
        start = restored(parts, folder, log, saver, started=started)
        # From here on the folder holds a run. Whatever was wrong with the inputs has been said before.
        first_rank_first(lambda: write_file(folder.config, dump_config(config).encode()))
        start.settle()
        progress = start.progress
        if progress is None:
            log.truncate_after(-1)
            progress = _prepared(parts, None if start.has_weights else warmup, folder, log, saver, started=started)
        _train(parts, log, saver, progress)
        saver.wait()
        require_all_steps(progress, parts.total_steps)
        if parts.config.swap.enabled:
            log.note(parts.swap.ledger.table())
        finish(parts, folder, progress)
    return _report(folder) if is_first() else None


def _log(parts: TrainingParts, folder: RunFolder) -> RunLog:
    if not is_first():
        return SilentLog()
    logging = parts.config.logging
    return RunLog(
        folder.root, tensorboard=logging.tensorboard, progress=logging.progress, total_steps=parts.total_steps
    )


def _report(folder: RunFolder) -> Path:
    plot_run(folder.root)
    return write_report(folder.root)


def _print_banner(parts: TrainingParts, log: RunLog) -> None:
    rows = batch_table(parts.config, len(parts.train_set))
    if runtime.is_emulated():
        rows.insert(0, ("device", "emulated Ascend cards: MindSpore's Ascend backend, operators computed on this CPU"))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        log.note(f"{name:<{width}}  {text}")
    data_sets = [parts.train_set, *parts.eval_sets.values()]
    for (key, _), rows in zip(data_sources(parts.config), data_sets, strict=False):  # the warm-up's check set is last
        counts = rows.info.counts
        if counts.dropped:
            reasons = ", ".join(f"{number}: {reason}" for reason, number in counts.dropped.items())
            log.note(
                f"note: {key}: {counts.rows_in - counts.rows_out} of {counts.rows_in} rows are dropped ({reasons}); "
                "dropped.jsonl beside the prepared rows lists them"
            )
    for line in notes(parts.config):
        log.note(f"note: {line}")


def _prepared(
    parts: TrainingParts, warmup: Warmup | None, folder: RunFolder, log: RunLog, saver: Saver, *, started: float
) -> Progress:
    """A new run up to its first step: warm-up, the accuracy before, a checkpoint to come back to."""
    progress = Progress(seconds_before=-started)
    is_wanted = parts.config.eval.before
    parts.bring_weights()
    if is_wanted and parts.total_steps == 0:
        validate(parts, log, progress)
    if warmup is not None:
        with parts.timers("warm_up"):
            warm_up(parts, warmup, log)
        parts.bring_weights()
    if parts.reference is not None:
        with parts.swap.phase(Phase.SCORE):
            parts.reference.freeze(parts.model, folder.reference, version=parts.weight_version)
    if is_wanted or parts.total_steps == 0:
        validate(parts, log, progress)
    saver.save(progress)
    return progress


def _train(parts: TrainingParts, log: RunLog, saver: Saver, progress: Progress) -> None:
    """The remaining steps, with evaluations and checkpoints between them."""
    config = parts.config
    alarm = MemoryAlarm(config.watch.memory_growth)
    while progress.step < parts.total_steps:
        result = run_step(parts, progress.step + 1)
        resident_gb = resident_gb_of_ranks()
        log.log_metrics(result.step, result.metrics | memory_metrics(resident_gb))
        if (warning := alarm.observe(resident_gb)) is not None:
            log.note(warning)
        log.log_samples(
            result.step, logged_groups(result.groups, config.logging.groups_per_step), parts.tokenizer.decode
        )
        faults.reach("log.after")
        progress.advance(result.metrics)
        is_last = progress.step == parts.total_steps
        if is_last or _is_due(progress.step, config.eval.every):
            validate(parts, log, progress)
        # After the evaluation: a run that is resumed here has it behind it.
        is_best = config.trainer.keep_best > 0 and progress.is_at_best
        if is_last or is_best or _is_due(progress.step, config.trainer.save_every):
            saver.save(progress)


def _is_due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
