"""The work behind `mindgspo eval`: a model's answers to one or several data sets.

What enters: `Task`s of one model. What leaves: a `Measured` per data set and data source. One model and one engine
serve all of them. Everything that can be wrong in files and lengths is found before the weights are read.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mindgspo.config import ExperimentConfig
from mindgspo.config.schema import SwapSection
from mindgspo.data import PromptDataset
from mindgspo.data.progress import PreparationProgress
from mindgspo.errors import ConfigError
from mindgspo.parallel.placement import ALONE
from mindgspo.parallel.swap.swap import Swap
from mindgspo.rewards import Scorer
from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.trainer.build import generating_part, policy_model, started_scorer
from mindgspo.trainer.evaluate import answers
from mindgspo.trainer.figures import Answered, Figures, figures_of
from mindgspo.trainer.inputs import HELD_OUT_SEED
from mindgspo.trainer.measured_experiments import Task
from mindgspo.trainer.opened_data import judged_dataset
from mindgspo.trainer.parts import EvaluationParts
from mindgspo.trainer.ranks import start_device
from mindgspo.types import Prompt, ScoredGroup

ROUNDS_PER_CALL = 8
"""How often the slots are filled per call of the engine: few enough for progress and memory, many enough that slots
left empty at the end of a call do not matter."""

_NO_LIMIT = 1 << 30  # tokens; how long prompts may be is said once the longest is known

Keep = Callable[[Task, Tokenizer, ScoredGroup], None]
"""Told every problem with its answers, greedy ones first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """source: the rows' data source. dropped: rows of the data set that were left out, by reason. greedy: one answer
    per problem. sampled: eval.num_samples of them, None where that is 1."""

    task: Task
    source: str
    dropped: dict[str, int]
    greedy: Figures
    sampled: Figures | None


def measure(tasks: Sequence[Task], keep: Keep = lambda *_: None) -> list[Measured]:
    """Answers and figures of all tasks, which have their model, tokenizer and sampling settings in common.

    Raises the errors of `mindgspo.errors`.
    """
    first = tasks[0].config
    start_device(first)
    tokenizer = load_tokenizer(first.tokenizer, first.model.vocab_size)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mindgspo-eval-")))
        opened = []
        for number, task in enumerate(tasks):
            scorer = stack.enter_context(started_scorer(task.config))
            opened.append((task, scorer, _rows(task, tokenizer, scorer, folder / str(number))))
        config = _sized(first, [(task, rows) for task, _, rows in opened])
        model = policy_model(config, ALONE)
        engine = generating_part(config, model, tokenizer, Swap(SwapSection(), None)).engine
        found = []
        for task, scorer, rows in opened:
            parts = EvaluationParts(config=task.config, tokenizer=tokenizer, model=model, engine=engine, scorer=scorer)
            parts.bring_weights()
            found += measure_parts(parts, task, list(rows), keep, dropped=dict(rows.info.counts.dropped))
        return found


def measure_parts(
    parts: EvaluationParts, task: Task, prompts: Sequence[Prompt], keep: Keep, *, dropped: dict[str, int]
) -> list[Measured]:
    """The figures of one data set by data source, in alphabetical order."""
    section = parts.config.eval
    greedy = _by_source(_answered(parts, task, prompts, keep, temperature=0.0, num_samples=1))
    sampled: dict[str, list[Answered]] = {}
    if section.num_samples > 1:
        sampled = _by_source(
            _answered(parts, task, prompts, keep, temperature=section.temperature, num_samples=section.num_samples)
        )
    return [
        Measured(
            task=task,
            source=source,
            dropped=dropped,
            greedy=figures_of(some),
            sampled=figures_of(sampled[source], section.pass_at_k) if sampled else None,
        )
        for source, some in sorted(greedy.items())
    ]


def _answered(
    parts: EvaluationParts,
    task: Task,
    prompts: Sequence[Prompt],
    keep: Keep,
    *,
    temperature: float,
    num_samples: int,
) -> list[Answered]:
    """Call by call; what is sampled depends on the prompt alone, so the cut changes nothing."""
    size = max(1, ROUNDS_PER_CALL * parts.config.rollout.slots // num_samples)
    found: list[Answered] = []
    with PreparationProgress(is_wanted=parts.config.logging.progress) as progress:
        name = f"{task.label} " + ("greedy" if temperature == 0 else f"{num_samples} samples")
        advance = progress.stage(name, lambda: len(prompts))
        for start in range(0, len(prompts), size):
            groups = answers(
                parts, prompts[start : start + size], step=0, temperature=temperature, num_samples=num_samples
            )
            for group in groups:
                keep(task, parts.tokenizer, group)
                found.append(Answered.of(group))
            advance(len(groups))
    return found


def _by_source(answered: Sequence[Answered]) -> dict[str, list[Answered]]:
    by_source: dict[str, list[Answered]] = defaultdict(list)
    for one in answered:
        by_source[one.data_source].append(one)
    return by_source


def _rows(task: Task, tokenizer: Tokenizer, scorer: Scorer, folder: Path) -> PromptDataset:
    config = task.config
    if task.any_length:
        room = config.model.max_position_embeddings - config.rollout.max_new_tokens
        limit = _NO_LIMIT if config.data.truncation == "error" else room
        config = config.model_copy(update={"data": config.data.model_copy(update={"max_prompt_length": limit})})
    (source,) = config.data.eval_sets.values()
    return judged_dataset(config, source, tokenizer, scorer, folder, seed=HELD_OUT_SEED)


def _sized(config: ExperimentConfig, opened: Sequence[tuple[Task, PromptDataset]]) -> ExperimentConfig:
    """The configuration that the engine of all tasks is built with: room for the longest prompt, no more slots than
    there is to answer. Raises ConfigError where the model has too few positions."""
    rollout, positions = config.rollout, config.model.max_position_embeddings
    task, prompt = max(((task, prompt) for task, rows in opened for prompt in rows), key=lambda pair: pair[1].ids.size)
    _check_positions(task, prompt, rollout.max_new_tokens, positions)
    slots = min(rollout.slots, max(len(rows) for _, rows in opened) * config.eval.num_samples)
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={"max_prompt_length": prompt.ids.size}),
            "rollout": rollout.model_copy(update={"slots": slots, "num_generations": config.eval.num_samples}),
        }
    )


def _check_positions(task: Task, prompt: Prompt, max_new_tokens: int, positions: int) -> None:
    room = positions - prompt.ids.size
    if max_new_tokens > room:
        fewer = f"give at most --max-new-tokens {room}, or " if room >= 1 else ""
        raise ConfigError(
            f"{task.config.model.path}: {positions} positions, but the longest prompt of {task.label} has "
            f"{prompt.ids.size} tokens and responses up to {max_new_tokens}; {fewer}leave longer prompts out with "
            "--set data.truncation=drop"
        )
