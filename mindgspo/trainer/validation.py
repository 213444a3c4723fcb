"""Accuracy on the held-out problems while a run goes on.

What enters: the parts of an experiment and how far it has come. What leaves: metrics, answers and a verdict
in the log, accuracy and best step in the progress. Called by `loop` before, between and after the training steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from mindgspo.config import ExperimentConfig
from mindgspo.config.data import CHANGE, OVERALL
from mindgspo.config.rules import part_of
from mindgspo.data import PromptDataset
from mindgspo.errors import ConfigError
from mindgspo.metrics import RunLog, verdict_lines
from mindgspo.trainer.evaluate import evaluate, part_names, with_bounds
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.progress import Progress


def validate(parts: TrainingParts, log: RunLog, progress: Progress) -> None:
    """Accuracy on data.eval with the weights of the present, noted in `progress`, with all its metrics in the log."""
    with parts.timers("testing"):
        sets = {name: list(rows) for name, rows in parts.eval_sets.items()}
        evaluation = evaluate(parts, sets, progress.step)
    metrics = {**evaluation.metrics, **parts.timers.collect()}
    change = parts.baseline.change(evaluation.solved)
    if change is not None:
        metrics |= with_bounds(CHANGE, change)
    section = parts.config.eval
    progress.evaluated(evaluation.accuracy, metrics.get(section.best_metric))
    log.log_metrics(progress.step, metrics)
    for one in evaluation.sets:
        for groups in (one.greedy, one.sampled):
            log.log_validation(progress.step, one.name, groups, parts.tokenizer.decode)
    for line in verdict_lines(log.history, step=progress.step, best=_best_text(section.best_metric, progress)):
        log.note(line)


def _best_text(name: str, progress: Progress) -> str:
    best = progress.best
    if best is None:
        return f"{name} was not measured"
    where = "here" if best.step == progress.step else f"at step {best.step}"
    value = f"{best.value:.1%}" if "/acc/" in name else f"{best.value:.4g}"
    return f"best {'' if name == OVERALL else f'{name} '}{value} {where}"


def check_best_metric(config: ExperimentConfig, eval_sets: Mapping[str, PromptDataset]) -> None:
    """Raises ConfigError where eval.best_metric is about a data source that no set holds."""
    part = part_of(config.eval.best_metric)
    names = [
        name
        for set_name, rows in eval_sets.items()
        for name in part_names(config, set_name, (row.data_source for row in rows))
    ]
    if part is not None and part not in names:
        raise ConfigError(
            f"eval.best_metric: {config.eval.best_metric} is not measured: data.eval holds {', '.join(names)}"
        )
