"""Supervised fine-tuning on worked solutions, before reinforcement learning.

What enters: the experiment's parts and its `warmup` section. What leaves: changed weights, lines in the log. It uses
the update cell of reinforcement learning with another loss, and stops early at a given accuracy on a set of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindgspo.algorithms import learning_rate
from mindgspo.algorithms.supervised import SupervisedLoss
from mindgspo.algorithms.update import PolicyUpdater
from mindgspo.config import WarmupSection
from mindgspo.data import PromptDataset, PromptStream
from mindgspo.data.rows import TrainingSample, lay_out
from mindgspo.errors import DataError
from mindgspo.metrics import RunLog
from mindgspo.models.policy import PolicyLogProbs
from mindgspo.trainer.evaluate import evaluate
from mindgspo.trainer.parts import TrainingParts
from mindgspo.types import Prompt

# Keeps the order of warm-up rows apart from the order of training prompts.
_WARMUP_STREAM = 0x5F7


def warm_up(parts: TrainingParts, section: WarmupSection, check_set: PromptDataset | None, log: RunLog) -> None:
    """Train until `max_steps` or until greedy accuracy on `check_set` reaches `stop_at_accuracy`."""
    optimizer = parts.config.optimizer.model_copy(
        update={"lr": section.lr, "schedule": "constant", "warmup_ratio": 0.05}
    )
    policy = PolicyLogProbs(parts.model, temperature=1.0, with_entropy=False)
    updater = PolicyUpdater(policy, SupervisedLoss(), optimizer)
    stream = PromptStream(len(parts.train_set), parts.config.seed ^ _WARMUP_STREAM)
    for number in range(1, section.max_steps + 1):
        rows = [parts.train_set[index] for index in stream.take(section.batch_size)]
        batches = lay_out(
            [supervised_sample(row, parts) for row in rows],
            samples_per_micro_batch=min(parts.config.trainer.samples_per_micro_batch, section.batch_size),
            length_multiple=parts.config.trainer.length_multiple,
            pad_id=parts.tokenizer.pad_id,
        )
        result = updater.update(batches, learning_rate(number - 1, section.max_steps, optimizer))
        parts.weight_version += 1
        if number % section.check_every and number != section.max_steps:
            continue
        accuracy = _check(parts, check_set)
        shown = "" if accuracy is None else f"  accuracy {accuracy:.3f} on {len(check_set or ())} problems"
        log.note(f"warm-up {number:>5}/{section.max_steps}  loss {result.loss:.4f}{shown}")
        if accuracy is not None and section.stop_at_accuracy is not None and accuracy >= section.stop_at_accuracy:
            break


def _check(parts: TrainingParts, check_set: Sequence[Prompt] | PromptDataset | None) -> float | None:
    if check_set is None:
        return None
    parts.engine.load_weights(parts.weight_version)
    return evaluate(parts, list(check_set), step=0).accuracy


def supervised_sample(row: Prompt, parts: TrainingParts) -> TrainingSample:
    """The row's prompt with its solution and an EOS behind it. Raises DataError for a row without a solution."""
    if not row.solution:
        raise DataError(
            f"warmup: row {row.index} of the training data has no worked solution to learn from; "
            "remove the `warmup` section, or use data with solutions (gsm8k, arithmetic)"
        )
    ids = [*parts.tokenizer.encode(row.solution), parts.tokenizer.eos_ids[0]]
    response_ids = np.array(ids, dtype=np.int32)
    return TrainingSample(
        prompt_ids=row.ids,
        response_ids=response_ids,
        rollout_logp=np.zeros(response_ids.size, np.float32),
        advantage=0.0,
    )
