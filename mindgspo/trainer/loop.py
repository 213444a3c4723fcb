"""A whole experiment: warm-up, evaluation, steps, checkpoints, export, report.

What enters: a resolved configuration. What leaves: a complete run folder. Called by `mindgspo run` and `mindgspo sft`.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from mindgspo.checkpoint import (
    RunFolder,
    RunStatus,
    export_huggingface,
    load_checkpoint,
    newest_checkpoint,
    open_run_folder,
    save_checkpoint,
)
from mindgspo.config import ExperimentConfig, batch_table, dump_config, notes
from mindgspo.data import StreamState
from mindgspo.errors import TrainingError
from mindgspo.metrics import RunLog, peak_rss_mb, plot_run, write_report, write_summary
from mindgspo.metrics.files import replace_file
from mindgspo.models.huggingface_config import generation_config, huggingface_config
from mindgspo.models.weights import load_weights, weights_as_numpy
from mindgspo.trainer.build import build_parts, warmup_check_set
from mindgspo.trainer.evaluate import Evaluation, evaluate
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.progress import Progress
from mindgspo.trainer.resume import check_same_experiment
from mindgspo.trainer.step import run_step
from mindgspo.trainer.warmup import warm_up


def run_experiment(config: ExperimentConfig, *, overwrite: bool = False) -> Path | None:
    """Run or continue an experiment; returns the report's path, None where the run was finished before.

    Raises the errors of `mindgspo.errors`; TrainingError also where fewer steps were done than asked.
    """
    assert config.run_dir is not None, "config is not resolved"
    folder = open_run_folder(config.run_dir, resume=config.resume, overwrite=overwrite)
    try:
        if folder.status is RunStatus.FINISHED:
            print(f"{folder.root}: this run is finished; its report is {folder.report}")
            return None
        if folder.status is RunStatus.RESUMED:
            check_same_experiment(config, folder.config)
        if folder.moved_aside is not None:
            print(f"the former run was moved to {folder.moved_aside}")
        return _run(config, folder)
    finally:
        folder.close()


def _run(config: ExperimentConfig, folder: RunFolder) -> Path:
    started = time.perf_counter()
    parts = build_parts(config, data_dir=folder.data, failures_dir=folder.root / "failures")
    replace_file(folder.config, dump_config(config).encode())
    with RunLog(
        folder.root,
        tensorboard=config.logging.tensorboard,
        progress=config.logging.progress,
        total_steps=parts.total_steps,
    ) as log:
        _print_banner(parts, log)
        progress = _resumed(parts, folder, log) if folder.status is RunStatus.RESUMED else None
        if progress is None:
            log.truncate_after(-1)
            progress = _prepared(parts, folder, log)
        progress.seconds_before -= started
        last = _train(parts, folder, log, progress)
        _finish(parts, folder, progress, last)
    plot_run(folder.root)
    return write_report(folder.root)


def _print_banner(parts: TrainingParts, log: RunLog) -> None:
    rows = batch_table(parts.config, len(parts.train_set))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        log.note(f"{name:<{width}}  {text}")
    for line in notes(parts.config):
        log.note(f"note: {line}")


def _prepared(parts: TrainingParts, folder: RunFolder, log: RunLog) -> Progress:
    """A new run up to its first step: warm-up, the accuracy before, a checkpoint to come back to."""
    config = parts.config
    if config.warmup is not None:
        warm_up(parts, config.warmup, warmup_check_set(config, parts.tokenizer, folder.data), log)
    parts.engine.load_weights(parts.weight_version)
    before = _evaluated(parts, log, step=0)
    progress = Progress(accuracy_before=before.accuracy)
    _save(parts, folder, progress)
    return progress


def _resumed(parts: TrainingParts, folder: RunFolder, log: RunLog) -> Progress | None:
    """Put the newest complete checkpoint into the parts; None where the run stopped before its first one."""
    path = newest_checkpoint(folder.checkpoints)
    if path is None:
        log.note(f"{folder.root}: no checkpoint yet; starting from the beginning")
        return None
    saved = load_checkpoint(path)
    load_weights(parts.model, parts.config.model, saved.parameters, where=path)
    parts.updater.load_state(saved.optimizer)
    progress = Progress.from_state(saved.state["progress"])
    stream = dict(saved.state["stream"])
    parts.stream.restore(StreamState(**{**stream, "deferred": tuple(stream["deferred"])}))
    parts.weight_version = int(saved.state["weight_version"])
    parts.engine.load_weights(parts.weight_version)
    log.truncate_after(progress.step)
    log.note(f"resumed at step {progress.step} from {path}")
    return progress


def _train(parts: TrainingParts, folder: RunFolder, log: RunLog, progress: Progress) -> Evaluation:
    """The remaining steps, with evaluations and checkpoints between them; returns the last evaluation."""
    trainer, every = parts.config.trainer, parts.config.eval.every
    evaluation = None
    while progress.step < parts.total_steps:
        result = run_step(parts, progress.step + 1)
        progress.advance(result.metrics)
        log.log_metrics(result.step, result.metrics)
        log.log_samples(
            result.step, result.groups[: parts.config.logging.groups_per_step], parts.tokenizer.decode
        )
        last = progress.step == parts.total_steps
        if last or (every is not None and progress.step % every == 0):
            evaluation = _evaluated(parts, log, step=progress.step)
        if last or (trainer.save_every is not None and progress.step % trainer.save_every == 0):
            _save(parts, folder, progress)
    if progress.step != parts.total_steps:
        raise TrainingError(f"{progress.step} steps were done, {parts.total_steps} were asked for")
    return evaluation or _evaluated(parts, log, step=progress.step)


def _evaluated(parts: TrainingParts, log: RunLog, *, step: int) -> Evaluation:
    with parts.timers("testing"):
        evaluation = evaluate(parts, list(parts.eval_set), step)
    log.log_metrics(step, {**evaluation.metrics, **parts.timers.collect()})
    return evaluation


def _save(parts: TrainingParts, folder: RunFolder, progress: Progress) -> None:
    save_checkpoint(
        folder.checkpoints,
        step=progress.step,
        parameters=weights_as_numpy(parts.model, parts.config.model),
        optimizer=parts.updater.state(),
        state={
            "progress": progress.state(time.perf_counter()),
            "stream": {**asdict(parts.stream.state()), "deferred": list(parts.stream.state().deferred)},
            "weight_version": parts.weight_version,
        },
        keep=parts.config.trainer.keep_checkpoints,
    )


def _finish(parts: TrainingParts, folder: RunFolder, progress: Progress, last: Evaluation) -> None:
    """Export in Hugging Face layout, then the summary, which marks the run as finished."""
    tokenizer = parts.tokenizer
    export_huggingface(
        folder.export,
        tensors=weights_as_numpy(parts.model, parts.config.model),
        model_config=huggingface_config(parts.config.model, eos_ids=tokenizer.eos_ids, pad_id=tokenizer.pad_id),
        generation_config=generation_config(
            eos_ids=tokenizer.eos_ids,
            pad_id=tokenizer.pad_id,
            max_new_tokens=parts.config.rollout.max_new_tokens,
        ),
        tokenizer=tokenizer,
        run_id=folder.run_id,
    )
    seconds = progress.seconds(time.perf_counter())
    write_summary(
        folder.root,
        finished=True,
        experiment=parts.config.experiment,
        algorithm=parts.config.algorithm.name,
        seed=parts.config.seed,
        accuracy_before=progress.accuracy_before,
        accuracy_after=last.accuracy,
        eval_problems=len(parts.eval_set),
        steps=progress.step,
        updates=parts.updater.updates,
        seconds=seconds,
        training_seconds=progress.training_seconds,
        tokens=progress.tokens,
        tokens_per_second=progress.tokens / progress.training_seconds if progress.training_seconds else None,
        peak_rss_mb=peak_rss_mb(),
    )


