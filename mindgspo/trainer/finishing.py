"""What a finished run leaves: the model in Hugging Face layout, then the summary, which marks the run as finished.

What enters: the parts after the last step. What leaves: `export/` and `summary.json`. Called by `loop`, on every rank;
rank 0 writes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from mindgspo import faults
from mindgspo.checkpoint import RunFolder, export_huggingface
from mindgspo.errors import TrainingError
from mindgspo.metrics import peak_rss_mb, write_summary
from mindgspo.models.huggingface_config import generation_config, huggingface_config
from mindgspo.models.weights import weights_as_numpy
from mindgspo.parallel.swap.states import Phase
from mindgspo.trainer.parts import TrainingParts
from mindgspo.trainer.progress import Progress
from mindgspo.trainer.ranks import first_rank_first


def require_all_steps(progress: Progress, total_steps: int) -> None:
    """Raises TrainingError where the run ends with fewer steps than it was asked for: it is not finished then."""
    if progress.step < total_steps:
        raise TrainingError(
            f"the run ended at step {progress.step} of {total_steps}: it is not finished. What was saved stays; look "
            "for the reason above, and continue it with resume=auto"
        )


def finish(parts: TrainingParts, folder: RunFolder, progress: Progress) -> None:
    """Export in Hugging Face layout, then the summary, which marks the run as finished."""
    faults.reach("finish.before")
    with parts.swap.phase(Phase.SAVE):
        tensors = weights_as_numpy(parts.model, parts.config.model)
    first_rank_first(lambda: _write_results(parts, folder, progress, tensors))


def _write_results(
    parts: TrainingParts, folder: RunFolder, progress: Progress, tensors: Mapping[str, np.ndarray]
) -> None:
    tokenizer = parts.tokenizer
    export_huggingface(
        folder.export,
        tensors=tensors,
        model_config=huggingface_config(parts.config.model, eos_ids=tokenizer.eos_ids, pad_id=tokenizer.pad_id),
        generation_config=generation_config(
            eos_ids=tokenizer.eos_ids,
            pad_id=tokenizer.pad_id,
            max_new_tokens=parts.config.rollout.max_new_tokens,
        ),
        tokenizer=tokenizer,
        run_id=folder.run_id,
    )
    faults.reach("finish.inside")
    seconds = progress.seconds(time.perf_counter())
    write_summary(
        folder.root,
        finished=True,
        experiment=parts.config.experiment,
        algorithm=parts.config.algorithm.name if parts.total_steps else "sft",
        seed=parts.config.seed,
        accuracy_before=progress.accuracy_before,
        accuracy_after=progress.accuracy,
        best_metric=parts.config.eval.best_metric,
        best_step=None if progress.best is None else progress.best.step,
        best_value=None if progress.best is None else progress.best.value,
        eval_problems=sum(len(rows) for rows in parts.eval_sets.values()),
        steps=progress.step,
        updates=parts.updater.updates,
        updates_skipped=parts.skips.total,
        seconds=seconds,
        training_seconds=progress.training_seconds,
        tokens=progress.tokens,
        tokens_per_second=progress.tokens / progress.training_seconds if progress.training_seconds else None,
        peak_rss_mb=peak_rss_mb(),
    )
