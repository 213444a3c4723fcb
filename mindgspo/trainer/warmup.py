"""Supervised fine-tuning on worked solutions, before reinforcement learning.

It uses the updater of reinforcement learning with another loss, measures accuracy on a set of its own, and may stop
early.

Metrics:
  Supervised warm-up:
    sft/loss:
      meaning: mean negative log-likelihood of the solution tokens
      unit: nat
      healthy: falls
      action: 'stays: raise warmup.lr or warmup.max_steps; rises: lower warmup.lr'
    sft/grad_norm:
      meaning: global L2 norm of the gradient before clipping
      healthy: falls and settles
      action: 'spikes: lower warmup.lr'
    sft/lr:
      meaning: learning rate of the last warm-up update
      healthy: a cosine down to optimizer.min_lr_ratio of warmup.lr
    sft/updates:
      meaning: warm-up updates done
      unit: updates
      healthy: at most warmup.max_steps
    sft/accuracy:
      meaning: greedy accuracy on the rows that decide when the warm-up ends
      unit: share of problems
      healthy: rises; 0.3 to 0.8 is a good start for reinforcement learning
      action: 'near 0: warm up longer, no response would ever be rewarded'
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mindgspo import progress
from mindgspo.algorithms.losses.supervised import SupervisedLoss
from mindgspo.algorithms.optim.learning_rate import learning_rate
from mindgspo.algorithms.optim.updater import Updater, UpdateResult
from mindgspo.batches.micro_batches import BatchLayout, largest_shape, micro_batches
from mindgspo.batches.rows import TrainingSample
from mindgspo.config import ModelSection, WarmupSection
from mindgspo.config.section import LARGEST_INTEGER
from mindgspo.data.dataset import PromptDataset
from mindgspo.data.source_rows import turns_of
from mindgspo.data.stream import PromptStream
from mindgspo.errors import DataError
from mindgspo.evaluation.evaluator import Evaluator
from mindgspo.metrics import RunLog
from mindgspo.metrics.run_folder import reward_text
from mindgspo.models.policy import PolicyLogProbs
from mindgspo.swap.states import Phase
from mindgspo.tokenization import Tokenizer
from mindgspo.tokenization.dialogue import Dialogue
from mindgspo.trainer.step import Trainer
from mindgspo.trainer.updates import saved_on_failure
from mindgspo.types import BoolArray, Int32Array, Prompt

# Keeps the order of warm-up rows apart from the order of training prompts.
_WARMUP_STREAM = 0x5F7
_CONVERSATION = '[{"role": '  # the beginning of a solution of several turns, see `SourceRow.solution`


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """Checked inputs of a warm-up."""

    section: WarmupSection
    samples: tuple[TrainingSample, ...]
    check_set: PromptDataset | None
    """Rows for its accuracy; None if that is not watched."""


def warm_up(trainer: Trainer, warmup: Warmup, evaluator: Evaluator, log: RunLog) -> None:
    """Train until `max_steps` or until greedy accuracy on `check_set` reaches `stop_at_accuracy`.

    Raises TrainingError, with the batch saved, if a loss is not finite.
    """
    section = warmup.section
    own = {"lr": section.lr, "schedule": "cosine", "warmup_ratio": 0.05, "warmup_steps": None, "schedule_steps": None}
    optimizer = trainer.optimizer.model_copy(update=own)
    policy = PolicyLogProbs(trainer.model, temperature=1.0, with_entropy=False)
    updater = Updater(policy, SupervisedLoss(), optimizer, policy.model.place)
    stream = PromptStream(len(warmup.samples), trainer.seed ^ _WARMUP_STREAM)
    layout = _layout(trainer.layout, section, warmup.samples)
    log.show_warm_up(0, section.max_steps)
    for number in range(1, section.max_steps + 1):
        batches = micro_batches([warmup.samples[index] for index in stream.take(section.batch_size)], layout)
        lr = learning_rate(number - 1, section.max_steps, optimizer)
        update_phase = trainer.swap.phase(Phase.UPDATE)
        with update_phase, saved_on_failure(trainer.guard.failures_dir, f"warmup_{number:08d}", batches):
            result = updater.step(batches, lr)
        trainer.weights.version += 1
        log.show_warm_up(number, section.max_steps)
        progress.count(number, section.max_steps, "steps")
        if number % section.check_every and number != section.max_steps:
            continue
        accuracy, shown = None, ""
        if warmup.check_set is not None:
            trainer.weights.push()
            accuracy, reward = evaluator.greedy_figures(list(warmup.check_set), weight_version=trainer.weights.version)
            beside = ""
            if reward is not None and not math.isclose(accuracy, reward, abs_tol=1e-9):
                beside = f", reward {reward_text(reward)}"
            shown = f"  accuracy {accuracy:.3f}{beside} on {len(warmup.check_set)} problems"
        log.note(f"warm-up {number:>5}/{section.max_steps}  loss {result.loss:.4f}{shown}")
        if accuracy is not None and section.stop_at_accuracy is not None and accuracy >= section.stop_at_accuracy:
            break
    log.log_metrics(0, _metrics(result, lr=lr, updates=number, accuracy=accuracy))


def _layout(layout: BatchLayout, section: WarmupSection, samples: Sequence[TrainingSample]) -> BatchLayout:
    if layout.samples_per_micro_batch is not None:
        layout = replace(layout, samples_per_micro_batch=min(layout.samples_per_micro_batch, section.batch_size))
    if layout.one_shape is None:
        return layout
    longest, slots = max(one.length for one in samples), max(one.response_ids.size for one in samples)
    shape = largest_shape(layout, num_samples=section.batch_size, longest=longest, slots=slots)
    return replace(layout, one_shape=shape)


def _metrics(result: UpdateResult, *, lr: float, updates: int, accuracy: float | None) -> dict[str, float]:
    """Metrics of the last update."""
    metrics = {
        "sft/loss": result.loss,
        "sft/grad_norm": result.grad_norm,
        "sft/lr": lr,
        "sft/updates": updates,
        **{f"sft/{name}": value for name, value in result.metrics.items()},
    }
    return metrics if accuracy is None else {**metrics, "sft/accuracy": accuracy}


def supervised_sample(
    row: Prompt,
    tokenizer: Tokenizer,
    model: ModelSection,
    *,
    max_tokens: int | None = None,
    dialogue: Dialogue | None = None,
) -> TrainingSample:
    """The row's prompt with its solution and an EOS after it.

    max_tokens: the token budget of a micro-batch, if there is one. dialogue: given where there is an environment; a
    solution may then be a conversation, of which the assistant's turns are learnt. Raises DataError for a row without a
    solution, or with more tokens than the model has positions for or the budget holds.
    """
    if not row.solution:
        raise DataError(
            f"warmup: row {row.index} of the training data has no worked solution to learn from; "
            "remove the `warmup` section, or use data with solutions (gsm8k, arithmetic)"
        )
    actions = None
    if row.solution.startswith(_CONVERSATION):
        response_ids, actions = _conversation(row, tokenizer, dialogue)
    else:
        response_ids = np.array([*tokenizer.encode(row.solution), tokenizer.eos_ids[0]], dtype=np.int32)
    length = row.ids.size + response_ids.size
    if length > model.max_position_embeddings:
        raise DataError(
            f"warmup: row {row.index} of the training data has {row.ids.size} prompt + {response_ids.size} "
            f"solution = {length} tokens, model.max_position_embeddings is {model.max_position_embeddings}; "
            "raise it where the model allows, or remove such rows"
        )
    if max_tokens is not None and length > max_tokens:
        raise DataError(
            f"warmup: row {row.index} of the training data has {row.ids.size} prompt + {response_ids.size} "
            f"solution = {length} tokens, trainer.max_tokens_per_micro_batch holds {max_tokens}; "
            f"raise it to {length} or more, or remove such rows"
        )
    return TrainingSample(
        prompt_ids=row.ids,
        response_ids=response_ids,
        rollout_logp=np.zeros(response_ids.size if actions is None else actions.sum(), np.float32),
        number=0,
        actions=actions,
    )


def _conversation(row: Prompt, tokenizer: Tokenizer, dialogue: Dialogue | None) -> tuple[Int32Array, BoolArray]:
    """The tokens of a solution of several turns, and which of them the assistant says."""
    where = f"warmup: row {row.index} of the training data"
    try:
        messages = turns_of(json.loads(row.solution), where)
    except ValueError as error:
        raise DataError(f"{where}: a solution that begins like a conversation is no JSON: {error}") from error
    if dialogue is None:
        raise DataError(f"{where} is solved in several turns; set `environment`, or use data with solutions as text")
    if messages[0]["role"] != "assistant" or messages[-1]["role"] != "assistant":
        raise DataError(f"{where}: a solution of several turns begins and ends with the assistant")
    ids: list[int] = []
    actions: list[bool] = []
    for is_said, together in itertools.groupby(messages, key=lambda message: message["role"] == "assistant"):
        said = list(together)
        if not is_said:
            found = dialogue.continuation(said, last_id=ids[-1], max_tokens=LARGEST_INTEGER).ids
        elif len(said) > 1:
            raise DataError(f"{where}: two turns of the assistant with nothing between them")
        else:
            found = [*tokenizer.encode(said[0]["content"]), tokenizer.eos_ids[0]]
        ids += found
        actions += [is_said] * len(found)
    return np.array(ids, np.int32), np.array(actions)
