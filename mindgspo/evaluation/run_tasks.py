"""`mindgspo eval`: evaluate a model on one or several data sets, and write table, eval.json and generations.jsonl.

One model and one engine serve all data sets; files and lengths are checked before the weights are read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from mindgspo.config import ExperimentConfig
from mindgspo.config.cache import cache_budget_problems
from mindgspo.config.schema import SwapSection
from mindgspo.data.dataset import PromptDataset
from mindgspo.errors import ConfigError
from mindgspo.evaluation.datasets import HELD_OUT_SEED, open_checked_dataset
from mindgspo.evaluation.estimates import Estimate, EvaluationSummary, ScoredProblem, summarize_problems
from mindgspo.evaluation.evaluator import Evaluator, ResponseScorer, by_source, single_temperature, start_scorer
from mindgspo.evaluation.tasks import EvalTask
from mindgspo.io import Closing, fsync_tree, remove_leftovers, scratch_folder, temporary_path, write_error, write_json
from mindgspo.metrics.files import json_line
from mindgspo.metrics.run_log import ending
from mindgspo.models.policy import build_model
from mindgspo.models.weights import fill_model
from mindgspo.parallel.plans.placement import ALONE
from mindgspo.parallel.platform.cluster import start_device
from mindgspo.progress import RowProgress
from mindgspo.rewards import Scorer
from mindgspo.rollout.build import build_engine
from mindgspo.rollout.player import open_environment
from mindgspo.swap.swap import Swap
from mindgspo.text import aligned
from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.tokenization.tokenizer import JsonObject
from mindgspo.types import Prompt, ScoredGroup

ROUNDS_PER_CALL = 8
"""Times that the slots are filled per call of the engine: few enough for progress and memory, many enough that slots
left empty at the end of a call do not matter."""

NOTEWORTHY = 0.05
"""Share of answers from which on a remark is made."""

_NO_LIMIT = 1 << 30  # tokens; the limit for prompts is known once the longest is
_HEADER = ("data", "problems", "answers", "figure", "value", "95 % interval", "cut", "no answer", "tokens")
_LEFT = 4  # columns of words

OnGroup = Callable[[EvalTask, Tokenizer, ScoredGroup], None]
"""Called with every problem and its answers, the single ones first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """Result of a task for one data source."""

    task: EvalTask
    source: str
    """Data source of the rows."""
    dropped: dict[str, int]
    """Rows of the data set that were left out, by reason."""
    single: EvaluationSummary
    """One answer per problem, greedy unless eval.do_sample."""
    sampled: EvaluationSummary | None
    """eval.num_samples answers per problem, None if that is 1."""

    def summaries(self) -> Iterator[tuple[str, EvaluationSummary]]:
        """The summaries, each with the name of its answers."""
        section = self.task.config.eval
        yield answers_name(single_temperature(section), 1), self.single
        if self.sampled is not None:
            yield answers_name(section.temperature, section.num_samples), self.sampled


def answers_name(temperature: float, num_samples: int) -> str:
    """Name of answers to a problem: greedy, drawn, 8 samples."""
    if temperature == 0:
        return "greedy"
    return "drawn" if num_samples == 1 else f"{num_samples} samples"


def evaluate_tasks(tasks: Sequence[EvalTask], on_group: OnGroup = lambda *_: None) -> list[TaskResult]:
    """Evaluate tasks that have their model, tokenizer, environment and sampling settings in common.

    Raises the errors of `mindgspo.errors`.
    """
    first = tasks[0].config
    start_device(first)
    tokenizer = load_tokenizer(first.tokenizer, first.model.vocab_size)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch_folder("eval"))
        environment, tools = None, ()
        if first.environment is not None:
            environment = open_environment(first.environment, tokenizer)
            stack.enter_context(environment.player)
            tools = environment.tools
        opened = []
        for number, task in enumerate(tasks):
            scorer = stack.enter_context(start_scorer(task.config.reward, ALONE))
            opened.append((task, scorer, _rows(task, tokenizer, scorer, folder / str(number), tools)))
        config = _sized(first, [(task, rows) for task, _, rows in opened])
        model = build_model(config.model, ALONE)
        fill_model(model, config.model, config.seed)
        engine = build_engine(config, model, tokenizer, Swap(SwapSection(), None), environment).engine
        engine.load_weights(0)
        results = []
        for task, scorer, rows in opened:
            evaluator = Evaluator(
                engine,
                ResponseScorer(scorer, tokenizer),
                task.config.eval,
                max_new_tokens=task.config.rollout.max_new_tokens,
                seed=task.config.seed,
            )
            on_own = partial(on_group, task, tokenizer)
            results += evaluate_task(evaluator, task, list(rows), on_own, dropped=dict(rows.info.counts.dropped))
        return results


def evaluate_task(
    evaluator: Evaluator,
    task: EvalTask,
    prompts: Sequence[Prompt],
    on_group: Callable[[ScoredGroup], None],
    *,
    dropped: dict[str, int],
) -> list[TaskResult]:
    """Evaluate one data set; results by data source, in alphabetical order. on_group: called with every problem and
    its answers."""
    section = task.config.eval
    answered = partial(_answered, evaluator, task, prompts, on_group)
    single = by_source(answered(temperature=single_temperature(section), num_samples=1))
    sampled: dict[str, list[ScoredProblem]] = {}
    if section.num_samples > 1:
        sampled = by_source(answered(temperature=section.temperature, num_samples=section.num_samples))
    return [
        TaskResult(
            task=task,
            source=source,
            dropped=dropped,
            single=summarize_problems(problems),
            sampled=summarize_problems(sampled[source], section.pass_at_k) if sampled else None,
        )
        for source, problems in sorted(single.items())
    ]


def _answered(
    evaluator: Evaluator,
    task: EvalTask,
    prompts: Sequence[Prompt],
    on_group: Callable[[ScoredGroup], None],
    *,
    temperature: float,
    num_samples: int,
) -> list[ScoredProblem]:
    """Answer call by call; samples depend only on the prompt, so the size of a call changes nothing."""
    size = max(1, ROUNDS_PER_CALL * task.config.rollout.slots // num_samples)
    problems: list[ScoredProblem] = []
    with RowProgress(is_wanted=task.config.logging.progress) as progress:
        advance = progress.stage(f"{task.label} {answers_name(temperature, num_samples)}", lambda: len(prompts))
        for start in range(0, len(prompts), size):
            part = prompts[start : start + size]
            groups = evaluator.answers(part, step=0, temperature=temperature, num_samples=num_samples)
            for group in groups:
                on_group(group)
                problems.append(ScoredProblem.of(group))
            advance(len(groups))
    return problems


def _rows(
    task: EvalTask, tokenizer: Tokenizer, scorer: Scorer, folder: Path, tools: Sequence[JsonObject]
) -> PromptDataset:
    config = task.config
    if task.any_length:
        room = config.model.max_position_embeddings - config.rollout.max_new_tokens
        limit = _NO_LIMIT if config.data.truncation == "error" else room
        config = config.model_copy(update={"data": config.data.model_copy(update={"max_prompt_length": limit})})
    (source,) = config.data.eval_sets.values()
    return open_checked_dataset(config, source, tokenizer, scorer, folder, seed=HELD_OUT_SEED, tools=tools)


def _sized(config: ExperimentConfig, opened: Sequence[tuple[EvalTask, PromptDataset]]) -> ExperimentConfig:
    """The configuration of the engine of all tasks: room for the longest prompt, no more slots than there is to answer.

    Raises ConfigError if the model has too few positions, or the cache too few blocks.
    """
    rollout = config.rollout
    task, prompt = max(((task, prompt) for task, rows in opened for prompt in rows), key=lambda pair: pair[1].ids.size)
    _check_positions(task, prompt, rollout.max_new_tokens, config.model.max_position_embeddings)
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


# ----- what is printed and written


def results_table(results: Sequence[TaskResult]) -> list[str]:
    """A line per figure; what holds for all answers of a summary stands in the first line of that summary."""
    return aligned([_HEADER, *(row for result in results for row in _table_rows(result, results))], left=_LEFT)


def _table_rows(result: TaskResult, results: Sequence[TaskResult]) -> Iterator[tuple[str, ...]]:
    names: tuple[str, str] = (_label(result, results), f"{result.single.num_problems:,}")
    for answers, summary in result.summaries():
        first = (answers, _percent(summary.cut), _percent(summary.no_answer), f"{summary.mean_length:.0f}")
        for figure, estimate in summary.estimates.items():
            yield (*names, first[0], figure, f"{estimate.value:.3f}", _interval(estimate), *first[1:])
            names, first = ("", ""), ("", "", "", "")


def _label(result: TaskResult, results: Sequence[TaskResult]) -> str:
    """The data set, with the data source where it has several."""
    is_mixed = sum(other.task is result.task for other in results) > 1
    return f"{result.task.label} ({result.source})" if is_mixed else result.task.label


def _interval(estimate: Estimate) -> str:
    return "-" if estimate.low is None or estimate.high is None else f"{estimate.low:.3f} to {estimate.high:.3f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.1 else f"{100 * share:.1f} %"


def remarks(results: Sequence[TaskResult]) -> Iterator[str]:
    """Reasons to trust the figures less than they suggest, each with a remedy."""
    named = set()
    for result in results:
        task, label = result.task, _label(result, results)
        if result.dropped and task.label not in named:
            named.add(task.label)
            reasons = ", ".join(f"{count} x {reason}" for reason, count in result.dropped.items())
            yield f"{task.label}: {sum(result.dropped.values())} rows were left out ({reasons})"
        for answers, summary in result.summaries():
            if summary.cut >= NOTEWORTHY:
                length = task.config.rollout.max_new_tokens
                yield f"{label}, {answers}: {_percent(summary.cut)} cut at {length} tokens: raise --max-new-tokens"
            if summary.no_answer >= summary.cut + NOTEWORTHY:
                yield (
                    f"{label}, {answers}: no answer was found in {_percent(summary.no_answer)}: see generations.jsonl "
                    "of --out; the prompt must ask for a form that the reward function knows"
                )
            if summary.failed:
                yield (
                    f"{label}, {answers}: {_percent(summary.failed)} could not be verified and count as not correct; "
                    "raise reward.workers.timeout_s with --set if they took too long"
                )


def eval_report(results: Sequence[TaskResult]) -> dict[str, object]:
    """Content of eval.json: all summaries and the settings. accuracy: of one answer each, over all problems."""
    config = results[0].task.config
    problems = sum(result.single.num_problems for result in results)
    return {
        "model": str(config.model.path),
        "problems": problems,
        "accuracy": sum(result.single.num_correct for result in results) / problems,
        "settings": {
            "device": config.device,
            "dtype": config.model.dtype,
            "seed": config.seed,
            "max_new_tokens": config.rollout.max_new_tokens,
            **config.eval.model_dump(include={"num_samples", "do_sample", "temperature", "top_p", "top_k"}),
            "tokenizer": None if config.tokenizer.path is None else str(config.tokenizer.path),
            "eos_tokens": list(config.tokenizer.eos_tokens),
            "environment": None if config.environment is None else config.environment.model_dump(exclude={"workers"}),
        },
        "results": [_result_record(result) for result in results],
    }


def _result_record(result: TaskResult) -> dict[str, object]:
    config = result.task.config
    (source,) = config.data.eval_sets.values()
    (single_name, single), *_ = result.summaries()
    return {
        "data": result.task.label,
        "data_source": result.source,
        "path": None if source.path is None else str(source.path),
        "format": source.format,
        "problems": single.num_problems,
        "dropped": result.dropped,
        "system_prompt": config.data.system_prompt,
        "instruction_suffix": config.data.instruction_suffix,
        "reward": list(config.reward.functions),
        single_name: _summary_record(single),
        "sampled": None if result.sampled is None else _summary_record(result.sampled),
    }


def _summary_record(summary: EvaluationSummary) -> Mapping[str, object]:
    figures = {
        name: {"value": estimate.value, "low": estimate.low, "high": estimate.high}
        for name, estimate in summary.estimates.items()
    }
    shares = {"cut": summary.cut, "no_answer": summary.no_answer, "failed": summary.failed}
    return {**figures, **shares, "mean_length": summary.mean_length}


def generation_records(task: EvalTask, tokenizer: Tokenizer, group: ScoredGroup) -> Iterator[dict[str, object]]:
    """One record per answer to one problem, special tokens included in its text."""
    prompt = group.prompt
    for response, score in zip(group.responses, group.scores, strict=True):
        yield {
            "data": task.label,
            "data_source": prompt.data_source,
            "index": prompt.index,
            "sample": response.sample_index,
            "temperature": response.temperature,
            "prompt": prompt.text,
            "response": tokenizer.decode(response.ids.tolist()),
            **ending(response, tokenizer.decode),
            "answer": prompt.answer,
            "extracted": score.extracted,
            "verdict": score.verdict.value,
            "score": score.value,
        }


REPORT = "eval.json"
GENERATIONS = "generations.jsonl"


class EvalFolder(Closing):
    """Folder of `--out`, filled under another name in a `with` statement and renamed by `finish`; removed if that is
    not reached. Raises ConfigError if the folder is there already, or cannot be made."""

    def __init__(self, path: Path) -> None:
        self._path, self._aside = path, temporary_path(path.absolute())
        self._refuse_taken()
        with self._named_errors():
            self._aside.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self._aside.parent, self._path.name)
            self._aside.mkdir()
            self._generations: BinaryIO = (self._aside / GENERATIONS).open("wb")

    def close(self) -> None:
        """Remove what was not finished."""
        with suppress(OSError):  # a full disk, once more; the file goes anyway
            self._generations.close()
        shutil.rmtree(self._aside, ignore_errors=True)

    def write(self, records: Iterable[Mapping[str, object]]) -> None:
        """Append lines to generations.jsonl. Raises ConfigError if the disk is full."""
        with self._named_errors():
            self._generations.writelines(map(json_line, records))

    def finish(self, report: Mapping[str, object]) -> None:
        """Write eval.json and give the folder its name. Raises ConfigError if somebody else took it meanwhile."""
        with self._named_errors():
            self._generations.close()
            write_json(self._aside / REPORT, report)
            fsync_tree(self._aside)
        self._refuse_taken()
        with self._named_errors():
            os.rename(self._aside, self._path)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"--out {write_error(self._path, error)}") from error

    def _refuse_taken(self) -> None:
        is_empty = self._path.is_dir() and not any(self._path.iterdir())
        if self._path.is_symlink() or (self._path.exists() and not is_empty):
            raise ConfigError(f"--out {self._path}: is there already and is not overwritten; choose another folder")
