"""The data sets of an experiment: prepared where needed, opened, and every row checked for a gold answer that the
reward functions can read. Rank 0 prepares while the others wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mindgspo.config import DataSourceSection, ExperimentConfig, planned_steps
from mindgspo.config.rules import train_sources
from mindgspo.data.dataset import PromptDataset, open_dataset
from mindgspo.data.dataset_info import DatasetInfo
from mindgspo.data.mixture import most_drawn
from mindgspo.data.prepare import prepare_dataset
from mindgspo.errors import ConfigError, DataError
from mindgspo.rewards import Candidate, Scorer, gold_is_readable
from mindgspo.tokenization import Tokenizer
from mindgspo.tokenization.chat import plain_schemas
from mindgspo.tokenization.tokenizer import JsonObject
from mindgspo.types import Prompt

NUM_TRIAL_ROWS = 2
"""Rows on which the reward functions are tried out before a model loads."""

# Seed of generated held-out rows. Not the run's: runs with different seeds are compared on the same problems.
HELD_OUT_SEED = 0


def trial_candidate(prompt: Prompt, tokenizer: Tokenizer) -> Candidate:
    """A response that must be judged correct: the row's own solution or, without one, its gold answer in every form
    that a data set asks for."""
    gold = prompt.answer
    text = prompt.solution or f"\\boxed{{{gold}}}\nAnswer: {gold}\n#### {gold}"
    return Candidate(
        text=text,
        gold=gold,
        data_source=prompt.data_source,
        index=prompt.index,
        num_tokens=len(tokenizer.encode(text)),
        extra_info=prompt.extra_info,
    )


def open_checked_dataset(
    config: ExperimentConfig,
    source: DataSourceSection,
    tokenizer: Tokenizer,
    scorer: Scorer,
    folder: Path,
    *,
    seed: int,
    new_run: bool = True,
    tools: Sequence[JsonObject] = (),
) -> PromptDataset:
    """Open a prepared folder, or prepare the raw rows into `folder` first; every row can be rewarded. tools: JSON
    schemas that the prompts present."""
    if source.format == "prepared":
        assert source.path is not None
        rows = open_dataset(source.path, tokenizer, config.data, max_rows=source.max_rows)
        check_tools(source.path, rows.info, tools)
    else:
        from mindgspo.parallel.platform.cluster import first_rank_first  # MindSpore comes with it

        first_rank_first(lambda: _prepare(config, source, tokenizer, folder, tools, seed=seed, new_run=new_run))
        rows = open_dataset(folder, tokenizer, config.data)
    try:
        scorer.check_rows(list(rows))
    except DataError as error:
        raise DataError(f"{source.path or folder}: {error}") from error
    return rows


def check_tools(folder: Path, info: DatasetInfo, tools: Sequence[JsonObject]) -> None:
    """Raises DataError unless a folder's prompts present just these tools."""
    if plain_schemas(info.prompt.tools) != plain_schemas(tools):
        what = "do not present the environment's tools" if tools else "present tools that no environment has"
        raise DataError(f"{folder}: its prompts {what}; give the rows that it was made of, and the run prepares them")


def _prepare(
    config: ExperimentConfig,
    source: DataSourceSection,
    tokenizer: Tokenizer,
    folder: Path,
    tools: Sequence[JsonObject],
    *,
    seed: int,
    new_run: bool,
) -> None:
    prepare = partial(
        prepare_dataset, source, config.data, tokenizer, folder, seed=seed, tools=tools,
        show_progress=config.logging.progress,
        # Gold answers of data sources without a known function are read by the run's own functions.
        is_readable=lambda name, gold: gold_is_readable(name, gold) is not False,
    )  # fmt: skip
    try:
        prepare()
    except DataError:
        # Left by a failed start with other settings: no run was trained on it.
        if not new_run or not folder.is_dir():
            raise
        prepare(force=True)


def training_prompts(source_rows: Sequence[Iterable[Prompt]], names: Sequence[str]) -> tuple[Prompt, ...]:
    """The rows of all training sources, numbered through. names: of the sources of a list; empty if there is none."""
    rows = [(row, name) for part, name in zip(source_rows, names or [""], strict=True) for row in part]
    return tuple(replace(row, index=index, source=name) for index, (row, name) in enumerate(rows))


def open_eval_sets(
    config: ExperimentConfig,
    tokenizer: Tokenizer,
    scorer: Scorer,
    folder: Path,
    *,
    new_run: bool,
    tools: Sequence[JsonObject] = (),
) -> dict[str, PromptDataset]:
    """The held-out problems by set; sets that have names are prepared in folders of their own. tools: see
    `open_checked_dataset`."""
    return {
        name: open_checked_dataset(
            config,
            source,
            tokenizer,
            scorer,
            folder / name if config.data.names_eval_sets else folder,
            seed=HELD_OUT_SEED,
            new_run=new_run,
            tools=tools,
        )
        for name, source in config.data.eval_sets.items()
    }


def check_curriculum(config: ExperimentConfig, *num_rows: int) -> None:
    """Check that a curriculum has something to hold back: rows whose turn comes twice. Raises ConfigError; num_rows: of
    each source of data.train."""
    if config.data.curriculum is None or config.algorithm.filter_groups.refill:
        return
    steps = planned_steps(config, sum(num_rows))
    assert steps is not None, "rows are counted"
    drawn = steps * config.rollout.prompts_per_step
    passes = [drawn * source.share / source.num_rows for source in config.data.mixture(num_rows)]
    if max(passes, default=drawn / num_rows[0]) <= 1:
        raise ConfigError(
            f"data.curriculum: the run draws {drawn:,} prompts from {sum(num_rows):,} rows, none of them twice, so no "
            "row is ever held back; train longer (trainer.epochs, trainer.max_steps), or remove it"
        )


def check_distinct_prompts(config: ExperimentConfig, *num_rows: int) -> None:
    """Check that no draw contains a prompt twice: it would be sampled with the same random numbers, and counted double.
    Raises ConfigError; num_rows: of each source of data.train."""
    mixture = config.data.mixture(num_rows)
    for key, prompts in (
        ("rollout.prompts_per_step", config.rollout.prompts_per_step),
        ("algorithm.filter_groups.prompts_per_draw", config.algorithm.filter_groups.prompts_per_draw),
    ):
        if prompts is None:
            continue
        if not mixture and prompts > num_rows[0]:
            raise ConfigError(
                f"{key}: {prompts} different prompts cannot be drawn from {num_rows[0]} rows of "
                f"data.train; largest legal: {num_rows[0]}"
            )
        for (place, _), source in zip(train_sources(config), mixture, strict=False):
            most = partial(most_drawn, source, len(mixture))
            if most(prompts) > source.num_rows:
                legal = next((fewer for fewer in range(prompts, 0, -1) if most(fewer) <= source.num_rows), None)
                fewer = "" if legal is None else f"largest legal: {legal}, or "
                raise ConfigError(
                    f"{key}: of {prompts} prompts up to {most(prompts)} are drawn from {place} ({source.name}), which "
                    f"has {source.num_rows} rows, so one could be drawn twice at once; {fewer}give it a smaller weight"
                )
