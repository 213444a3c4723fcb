"""A whole experiment: warm-up, evaluation, steps, checkpoints, export, report.

Called by `mindgspo run` and `mindgspo sft` on every rank of the plans; rank 0 alone writes.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo import faults
from mindgspo.checkpoint.adapted import PARTS, base_digest
from mindgspo.checkpoint.export import export_adapters, export_huggingface
from mindgspo.checkpoint.manifest import verify
from mindgspo.checkpoint.origin import Origin
from mindgspo.checkpoint.run_folder import RunFolder, RunStatus, open_run_folder, seen_run_id
from mindgspo.checkpoint.store import CHECKPOINT_FILES, best_first, complete_steps, evaluation_text, open_checkpoint
from mindgspo.config import ExperimentConfig, batch_table, config_mapping, dump_config, notes
from mindgspo.config.hub import hub_revisions
from mindgspo.config.huggingface_config import generation_config, huggingface_config
from mindgspo.config.rules import data_sources
from mindgspo.errors import TrainingError
from mindgspo.evaluation.evaluator import logged_groups
from mindgspo.io import make_folder, write_file
from mindgspo.launch.failures import move_earlier_aside, noted_failure
from mindgspo.launch.worker import copy_output
from mindgspo.metrics import RunLog, SilentLog, peak_rss_mb, report_of_finished, write_summary
from mindgspo.metrics.environment import processor_warning, record_start
from mindgspo.metrics.run_folder import exact_tokens, read_run
from mindgspo.metrics.tracking import TrackedRun, open_trackers
from mindgspo.models.initial_values import open_base
from mindgspo.models.lora import merged_weights
from mindgspo.models.names import stored_shapes
from mindgspo.models.principal import plain_adapters, plain_model
from mindgspo.parallel.collectives.host import exchange, require_agreement
from mindgspo.parallel.platform import heartbeat, runtime, worker_process
from mindgspo.parallel.platform.cluster import first_rank_first, is_first, start_device
from mindgspo.progress import enter_phase
from mindgspo.rollout.weight_transfer import weights_as_numpy
from mindgspo.swap.states import Phase
from mindgspo.tensor_files.tensors import float32_of
from mindgspo.trainer.build import Experiment, build_experiment, build_warmup
from mindgspo.trainer.checkpoints import Resume, Saver
from mindgspo.trainer.memory import MemoryAlarm, allocated_gb_of_ranks, memory_metrics, resident_gb_of_ranks
from mindgspo.trainer.resume_checks import (
    check_config,
    config_before,
    finished_line,
    is_complete,
    new_learning_rates,
    set_summary_aside,
)
from mindgspo.trainer.validation import Progress
from mindgspo.trainer.warmup import Warmup, warm_up


def run_experiment(config: ExperimentConfig, *, overwrite: bool = False, only_warm_up: bool = False) -> Path | None:
    """Run or continue an experiment; returns the report's path, None if the run was finished before.

    only_warm_up: no training steps; the accuracies before and after are then those before and after the warm-up. Raises
    the errors of `mindgspo.errors`. After an error, everything saved so far stays, and the run can be resumed.
    """
    assert config.run_dir is not None, "config is not resolved"
    start_device(config)
    warning = faults.arm(runtime.rank())
    run_dir = config.run_dir
    folder = _open_for_all(
        lambda: open_run_folder(run_dir, resume=config.resume, overwrite=overwrite, restore=config.restore)
    )
    try:
        warnings = check_config(config, folder)
        if is_complete(config, folder) or (only_warm_up and folder.status is RunStatus.FINISHED):
            if is_first():
                print(finished_line(folder))
            return None
        if worker_process.is_worker() and worker_process.launch_orders() is None:
            _log_under_msrun(folder)
        if folder.moved_aside is not None:
            print(f"the former run was moved to {folder.moved_aside}")
        if is_first():
            for line in (*([] if warning is None else [warning]), *warnings):
                print(line)
        return _run(config, folder, before=config_before(folder), only_warm_up=only_warm_up)
    finally:
        folder.close()


def _log_under_msrun(folder: RunFolder) -> None:
    """Write the logs of all ranks to where the launcher writes those of its workers; msrun's own are in the folder it
    was called from."""

    def begin() -> None:
        make_folder(folder.logs)
        move_earlier_aside(folder.logs, range(runtime.world_size()))

    first_rank_first(begin)
    copy_output(folder.logs, runtime.rank())


def _run(
    config: ExperimentConfig, folder: RunFolder, *, before: ExperimentConfig | None, only_warm_up: bool
) -> Path | None:
    """before: the configuration of the run that goes on."""
    started = time.perf_counter()
    new_run = folder.status is RunStatus.NEW
    experiment = build_experiment(
        config,
        data_dir=folder.data,
        failures_dir=folder.root / "failures",
        swap_dir=folder.root / "swap",
        new_run=new_run,
        only_warm_up=only_warm_up,
    )
    trainer, service = experiment.trainer, experiment.service
    environment = experiment.environment
    player = nullcontext() if environment is None else environment.player
    served, asked = (nullcontext() if one is None else closing(one) for one in (experiment.served, service))
    with experiment.scorer, player, closing(trainer.swap), served, asked:
        warmup = build_warmup(config, experiment, data_dir=folder.data, new_run=new_run)
        with (
            _open_log(config, folder, trainer.total_steps) as log,
            Saver(trainer, experiment.stateful, experiment.inputs, folder.checkpoints, log) as saver,
        ):
            _print_banner(config, experiment, log)
            start = Resume(
                trainer=trainer,
                stateful=experiment.stateful,
                inputs=experiment.inputs,
                folder=folder,
                log=log,
                saver=saver,
                started=started,
                learning_rates=partial(_learning_rates, config, before, experiment),
            ).restore()
            # From here on the folder holds a run. Any problem of the inputs has been raised before.
            first_rank_first(lambda: _begin(config, folder, log, start.progress))
            start.settle()
            with noted_failure(folder.logs):
                progress = start.progress
                if progress is None:
                    log.truncate_after(-1)
                    progress = Progress(seconds_before=-started)
                    _prepare(config, experiment, None if start.has_weights else warmup, folder, log, progress)
                    saver.save(progress)
                _train(config, experiment, log, saver, progress)
                saver.wait()
                require_all_steps(progress, trainer.total_steps)
                if config.swap.enabled:
                    log.note(trainer.swap.ledger.table())
                _finish(config, experiment, folder, log, progress)
    return report_of_finished(folder.root) if is_first() else None


def _learning_rates(
    config: ExperimentConfig, before: ExperimentConfig | None, experiment: Experiment, step: int
) -> str | None:
    """Describe the learning rates of steps added by extending the run. step: steps done so far."""
    trainer = experiment.trainer
    if before is None or trainer.total_steps == 0:
        return None
    rows, updates = len(experiment.train_set), trainer.updates_per_rollout
    return new_learning_rates(config, before, step=step, num_rows=rows, updates_per_step=updates)


def _begin(config: ExperimentConfig, folder: RunFolder, log: RunLog, progress: Progress | None) -> None:
    aside = set_summary_aside(folder)  # before the configuration, which alone tells that more steps are asked for
    if aside is not None:
        log.note(f"the run was finished and goes on; its summary until here is {aside}")
    log.history.config_text = dump_config(config)
    write_file(folder.config, log.history.config_text.encode())
    if config.device == "CPU" and (warning := processor_warning(folder.root)):
        log.note(warning)
    step, hub = 0 if progress is None else progress.step, hub_revisions(config_mapping(config))
    record_start(folder.root, step=step, device=config.device, hub=hub)


def _open_log(config: ExperimentConfig, folder: RunFolder, total_steps: int) -> RunLog:
    if not is_first():
        return SilentLog()
    logging = config.logging
    tracked = TrackedRun(
        folder=folder.root,
        run_id=folder.run_id,
        name=config.experiment,
        project=logging.tracker_project,
        config=config_mapping(config),
    )
    warn = None if folder.status is RunStatus.NEW else print
    trackers = open_trackers(logging.trackers, tracked, warn)
    return RunLog(folder.root, progress=logging.progress, trackers=trackers, total_steps=total_steps)


def _print_banner(config: ExperimentConfig, experiment: Experiment, log: RunLog) -> None:
    source_rows = experiment.source_rows
    rows = batch_table(config, len(experiment.train_set), config.data.mixture([len(one) for one in source_rows]))
    if runtime.is_emulated():
        rows.insert(0, ("device", "emulated Ascend cards: MindSpore's Ascend backend, operators computed on this CPU"))
    if experiment.served is not None:
        rows.append(("weights", f"handed to the servers in {experiment.served.folder}"))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        log.note(f"{name:<{width}}  {text}")
    data_sets = [*source_rows, *experiment.validation.sets.values()]
    for (key, _), rows in zip(data_sources(config), data_sets, strict=False):  # the warm-up's check set is last
        counts = rows.info.counts
        if counts.dropped:
            reasons = ", ".join(f"{number}: {reason}" for reason, number in counts.dropped.items())
            log.note(
                f"note: {key}: {counts.rows_in - counts.rows_out} of {counts.rows_in} rows are dropped ({reasons}); "
                "dropped.jsonl beside the prepared rows lists them"
            )
    for line in notes(config):
        log.note(f"note: {line}")


def _prepare(
    config: ExperimentConfig,
    experiment: Experiment,
    warmup: Warmup | None,
    folder: RunFolder,
    log: RunLog,
    progress: Progress,
) -> None:
    """Take a new run up to its first step: warm-up, reference policy, first evaluation."""
    trainer, validation = experiment.trainer, experiment.validation
    trainer.weights.push()
    if config.eval.before and trainer.total_steps == 0:
        validation.run(log, progress, weight_version=trainer.weights.version)
    if warmup is not None:
        with trainer.timers("warm_up"):
            warm_up(trainer, warmup, validation.evaluator, log)
        trainer.weights.push()
    reference = trainer.scorer.reference
    if reference is not None:
        with trainer.swap.phase(Phase.SCORE):
            reference.freeze(trainer.model, folder.reference, version=trainer.weights.version)
    if config.eval.before or trainer.total_steps == 0:
        validation.run(log, progress, weight_version=trainer.weights.version)


def _train(config: ExperimentConfig, experiment: Experiment, log: RunLog, saver: Saver, progress: Progress) -> None:
    """The remaining steps, with evaluations and checkpoints between them."""
    trainer, alarm = experiment.trainer, MemoryAlarm(config.watch.memory_growth)
    if progress.step < trainer.total_steps:
        experiment.validation.look_for_stop(log, progress)  # a run may be resumed after it stopped early
    while progress.step < trainer.total_steps and not progress.stopped:
        heartbeat.begin_step(progress.step + 1)
        experiment.profiler.begin_step(progress.step + 1)
        result = trainer.train_step(progress.step + 1)
        resident_gb = resident_gb_of_ranks()
        log.log_metrics(result.step, {**result.metrics, **memory_metrics(resident_gb, allocated_gb_of_ranks())})
        if (warning := alarm.observe(resident_gb)) is not None:
            log.note(warning)
        groups = logged_groups(result.groups, config.logging.groups_per_step)
        log.log_samples(result.step, groups, experiment.tokenizer.decode)
        faults.reach("log.after")
        progress.advance(result.metrics)
        is_last = progress.step == trainer.total_steps
        if is_last or _is_due(progress.step, config.eval.every):
            experiment.validation.run(log, progress, weight_version=trainer.weights.version)
            if not is_last:
                experiment.validation.look_for_stop(log, progress)
        is_last = is_last or bool(progress.stopped)
        # After the evaluation, which a run that is resumed here does not repeat.
        is_best = config.trainer.num_best_kept > 0 and progress.is_at_best
        if is_last or is_best or _is_due(progress.step, config.trainer.save_every):
            saver.save(progress)
        if (line := experiment.profiler.end_step()) is not None:
            log.note(line)
    if progress.stopped:
        log.note(f"stopped early at step {progress.step} of {trainer.total_steps}: {progress.stopped}")


def _is_due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def require_all_steps(progress: Progress, total_steps: int) -> None:
    """Raises TrainingError if the run ends with fewer steps than requested for no reason: it is not finished then."""
    if progress.step < total_steps and not progress.stopped:
        raise TrainingError(
            f"the run ended at step {progress.step} of {total_steps}: it is not finished. What was saved stays; look "
            "for the reason above, and continue it with resume=auto"
        )


def _finish(
    config: ExperimentConfig, experiment: Experiment, folder: RunFolder, log: RunLog, progress: Progress
) -> None:
    """Export in Hugging Face layout, then the summary, which marks the run as finished."""
    faults.reach("finish.before")
    enter_phase("export")
    trainer = experiment.trainer
    exports_best = config.trainer.export == "best" and progress.best is not None and not progress.is_at_best
    tensors: dict[str, np.ndarray] = {}
    if not exports_best:
        with trainer.swap.phase(Phase.SAVE):
            tensors = weights_as_numpy(trainer.model, config.model, among=stored_shapes(config.model))
    parts = experiment.stateful[PARTS].arrays() if PARTS in experiment.stateful else {}

    def write() -> None:
        step, weights = _best_weights(folder, log) if exports_best else (progress.step, tensors)
        _write_results(config, experiment, folder, progress, weights, parts, exported_step=step)

    first_rank_first(write)


def _best_weights(folder: RunFolder, log: RunLog) -> tuple[int, dict[str, np.ndarray]]:
    """Step and weights of the checkpoint with the best evaluation. Raises CheckpointError if it is damaged."""
    path = best_first(list(complete_steps(folder.checkpoints)))[0]  # at least the last step was evaluated
    verify(path, required=CHECKPOINT_FILES)
    with open_checkpoint(path) as saved:
        log.note(f"exported are the weights of step {saved.step}, the best evaluation here: {evaluation_text(path)}")
        return saved.step, {name: saved.parameters.read(name) for name in saved.parameters.tensors}


def _write_results(
    config: ExperimentConfig,
    experiment: Experiment,
    folder: RunFolder,
    progress: Progress,
    tensors: Mapping[str, np.ndarray],
    principal_parts: Mapping[str, np.ndarray],
    *,
    exported_step: int,
) -> None:
    trainer, tokenizer = experiment.trainer, experiment.tokenizer
    if config.model.lora is not None:
        plain, digest = plain_model(config.model), base_digest(experiment.inputs["base"])
        if principal_parts:
            tensors = plain_adapters(tensors, principal_parts)
        export_adapters(folder.adapter, plain, tensors, run_id=folder.run_id, base=digest)
        with open_base(config.model, config.seed) as base:
            tensors = merged_weights(plain, {name: float32_of(base, name) for name in base.tensors} | dict(tensors))
    export_huggingface(
        folder.export,
        tensors=tensors,
        model_config=huggingface_config(config.model, eos_ids=tokenizer.eos_ids, pad_id=tokenizer.pad_id),
        generation_config=generation_config(eos_ids=tokenizer.eos_ids, pad_id=tokenizer.pad_id, base=config.model.path),
        tokenizer=tokenizer,
        run_id=folder.run_id,
    )
    faults.reach("finish.inside")
    exact = None
    if config.trainer.require_exact_logprobs:
        exact = exact_tokens(read_run(folder.root, with_samples=False))
    write_summary(
        folder.root,
        finished=True,
        experiment=config.experiment,
        algorithm=config.algorithm.name if trainer.total_steps else "sft",
        seed=config.seed,
        accuracy_before=progress.accuracy_before,
        accuracy_after=progress.accuracy,
        reward_before=progress.reward_before,
        reward_after=progress.reward,
        best_metric=config.eval.best_metric,
        best_step=None if progress.best is None else progress.best.step,
        best_value=None if progress.best is None else progress.best.value,
        eval_problems=sum(len(rows) for rows in experiment.validation.sets.values()),
        steps=progress.step,
        stopped_early=progress.stopped or None,
        exported_step=exported_step,
        updates=trainer.updater.updates,
        updates_skipped=trainer.guard.skipped.total,
        exact_logprobs_tokens=exact,
        seconds=progress.seconds(time.perf_counter()),
        training_seconds=progress.training_seconds,
        tokens=progress.tokens,
        tokens_per_second=progress.tokens / progress.training_seconds if progress.training_seconds else None,
        peak_rss_mb=peak_rss_mb(),
    )


def _open_for_all(open_folder: Callable[[], RunFolder]) -> RunFolder:
    """The run folder, opened and locked by rank 0, known to all."""
    own = open_folder() if is_first() else None
    if runtime.world_size() == 1:
        assert own is not None
        return own
    facts: dict[str, Any] = {}
    if own is not None:
        facts = {"root": str(own.root), "status": own.status.value, "run_id": own.run_id}
        if own.origin is not None:
            facts["origin"] = {**dataclasses.asdict(own.origin), "path": str(own.origin.path)}
    told = json.loads(exchange(json.dumps(facts).encode(), senders=(0,))[0])
    require_agreement(
        "run folder",
        {"the run there": seen_run_id(Path(told["root"]), told["run_id"])},
        f"Every node needs {told['root']} on a file system that all of them share: rank 0 prepares data and writes "
        "checkpoints there, the others read them. Put run_dir on one that is mounted everywhere",
    )
    if own is not None:
        return own
    begun = told.get("origin")
    return RunFolder(
        root=Path(told["root"]),
        status=RunStatus(told["status"]),
        run_id=told["run_id"],
        origin=None if begun is None else Origin(**{**begun, "path": Path(begun["path"])}),
    )
