"""Evaluates a model on one or several data sets (`mindgspo eval`). One model and one engine serve all of them;
everything that can be wrong in files and lengths is found before the weights are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mindgspo.config import ExperimentConfig
from mindgspo.config.cache import cache_budget_problems
from mindgspo.config.schema import SwapSection
from mindgspo.data.dataset import PromptDataset
from mindgspo.errors import ConfigError
from mindgspo.evaluation.datasets import HELD_OUT_SEED, open_checked_dataset
from mindgspo.evaluation.evaluate import Evaluator, single_temperature
from mindgspo.evaluation.scoring import ResponseScorer, start_scorer
from mindgspo.evaluation.summary import EvaluationSummary, ScoredProblem, summarize
from mindgspo.evaluation.tasks import EvalTask
from mindgspo.io import scratch_folder
from mindgspo.models.policy import build_model
from mindgspo.models.weights import fill_model
from mindgspo.parallel.plans.placement import ALONE
from mindgspo.parallel.platform.cluster import start_device
from mindgspo.progress import RowProgress
from mindgspo.rewards import Scorer
from mindgspo.rollout.build import build_engine
from mindgspo.swap.swap import Swap
from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.types import Prompt, ScoredGroup

ROUNDS_PER_CALL = 8
"""How often the slots are filled per call of the engine: few enough for progress and memory, many enough that slots
left empty at the end of a call do not matter."""

_NO_LIMIT = 1 << 30  # tokens; how long prompts may be is said once the longest is known

Keep = Callable[[EvalTask, Tokenizer, ScoredGroup], None]
"""Told every problem with its answers, the single ones first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """source: the rows' data source. dropped: rows of the data set that were left out, by reason. single: one answer
    per problem, greedy unless eval.do_sample. sampled: eval.num_samples of them, None where that is 1."""

    task: EvalTask
    source: str
    dropped: dict[str, int]
    single: EvaluationSummary
    sampled: EvaluationSummary | None


def evaluate_tasks(tasks: Sequence[EvalTask], keep: Keep = lambda *_: None) -> list[TaskResult]:
    """Answers and results of all tasks, which have their model, tokenizer and sampling settings in common.

    Raises the errors of `mindgspo.errors`.
    """
    first = tasks[0].config
    start_device(first)
    tokenizer = load_tokenizer(first.tokenizer, first.model.vocab_size)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("eval"))
        opened = []
        for number, task in enumerate(tasks):
            scorer = stack.enter_context(start_scorer(task.config.reward, ALONE))
            opened.append((task, scorer, _rows(task, tokenizer, scorer, folder / str(number))))
        config = _sized(first, [(task, rows) for task, _, rows in opened])
        model = build_model(config.model, ALONE)
        fill_model(model, config.model, config.seed)
        engine = build_engine(config, model, tokenizer, Swap(SwapSection(), None)).engine
        engine.load_weights(0)
        found = []
        for task, scorer, rows in opened:
            settings = task.config
            evaluator = Evaluator(
                engine,
                ResponseScorer(scorer, tokenizer),
                settings.eval,
                max_new_tokens=settings.rollout.max_new_tokens,
                seed=settings.seed,
            )
            told = partial(keep, task, tokenizer)
            found += evaluate_task(evaluator, task, list(rows), told, dropped=dict(rows.info.counts.dropped))
        return found


def evaluate_task(
    evaluator: Evaluator,
    task: EvalTask,
    prompts: Sequence[Prompt],
    keep: Callable[[ScoredGroup], None],
    *,
    dropped: dict[str, int],
) -> list[TaskResult]:
    """The results of one data set by data source, in alphabetical order. keep: told every problem with its answers."""
    section = task.config.eval
    settings = {"temperature": single_temperature(section), "num_samples": 1}
    single = _by_source(_answered(evaluator, task, prompts, keep, **settings))
    sampled: dict[str, list[ScoredProblem]] = {}
    if section.num_samples > 1:
        settings = {"temperature": section.temperature, "num_samples": section.num_samples}
        sampled = _by_source(_answered(evaluator, task, prompts, keep, **settings))
    return [
        TaskResult(
            task=task,
            source=source,
            dropped=dropped,
            single=summarize(some),
            sampled=summarize(sampled[source], section.pass_at_k) if sampled else None,
        )
        for source, some in sorted(single.items())
    ]


def _answered(
    evaluator: Evaluator,
    task: EvalTask,
    prompts: Sequence[Prompt],
    keep: Callable[[ScoredGroup], None],
    *,
    temperature: float,
    num_samples: int,
) -> list[ScoredProblem]:
    """Call by call; what is sampled depends on the prompt alone, so the cut changes nothing."""
    size = max(1, ROUNDS_PER_CALL * task.config.rollout.slots // num_samples)
    found: list[ScoredProblem] = []
    with RowProgress(is_wanted=task.config.logging.progress) as progress:
        name = f"{task.label} {kind_of(temperature, num_samples)}"
        advance = progress.stage(name, lambda: len(prompts))
        for start in range(0, len(prompts), size):
            groups = evaluator.answers(
                prompts[start : start + size], step=0, temperature=temperature, num_samples=num_samples
            )
            for group in groups:
                keep(group)
                found.append(ScoredProblem.of(group))
            advance(len(groups))
    return found


def kind_of(temperature: float, num_samples: int) -> str:
    """What answers of a problem are called."""
    if temperature == 0:
        return "greedy"
    return "drawn" if num_samples == 1 else f"{num_samples} samples"


def _by_source(answered: Sequence[ScoredProblem]) -> dict[str, list[ScoredProblem]]:
    by_source: dict[str, list[ScoredProblem]] = defaultdict(list)
    for one in answered:
        by_source[one.data_source].append(one)
    return by_source


def _rows(task: EvalTask, tokenizer: Tokenizer, scorer: Scorer, folder: Path) -> PromptDataset:
    config = task.config
    if task.any_length:
        room = config.model.max_position_embeddings - config.rollout.max_new_tokens
        limit = _NO_LIMIT if config.data.truncation == "error" else room
        config = config.model_copy(update={"data": config.data.model_copy(update={"max_prompt_length": limit})})
    (source,) = config.data.eval_sets.values()
    return open_checked_dataset(config, source, tokenizer, scorer, folder, seed=HELD_OUT_SEED)


def _sized(config: ExperimentConfig, opened: Sequence[tuple[EvalTask, PromptDataset]]) -> ExperimentConfig:
    """The configuration that the engine of all tasks is built with: room for the longest prompt, no more slots than
    there is to answer. Raises ConfigError where the model has too few positions, or the cache too few
    blocks."""
    rollout, positions = config.rollout, config.model.max_position_embeddings
    task, prompt = max(((task, prompt) for task, rows in opened for prompt in rows), key=lambda pair: pair[1].ids.size)
    _check_positions(task, prompt, rollout.max_new_tokens, positions)
    slots = min(rollout.slots, max(len(rows) for _, rows in opened) * config.eval.num_samples)
    sized = config.model_copy(
        update={
            "data": config.data.model_copy(update={"max_prompt_length": prompt.ids.size}),
            "rollout": rollout.model_copy(update={"slots": slots, "num_generations": config.eval.num_samples}),
        }
    )
    for problem in cache_budget_problems(sized):
        raise ConfigError(f"{task.label}, whose longest prompt has {prompt.ids.size} tokens: {problem}")
    return sized


def _check_positions(task: EvalTask, prompt: Prompt, max_new_tokens: int, positions: int) -> None:
    room = positions - prompt.ids.size
    if max_new_tokens > room:
        fewer = f"give at most --max-new-tokens {room}, or " if room >= 1 else ""
        raise ConfigError(
            f"{task.config.model.path}: {positions} positions, but the longest prompt of {task.label} has "
            f"{prompt.ids.size} tokens and responses up to {max_new_tokens}; {fewer}leave longer prompts out with "
            "--set data.truncation=drop"
        )
