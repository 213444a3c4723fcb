"""Checks before a run (`mindgspo check`): every input file that can be read without MindSpore.

The rows are read and judged as in a run, so the counts equal those of the rows that the run drops.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from mindgspo.checkpoint.adapted import base_digest, base_record
from mindgspo.config import DataSourceSection, ExperimentConfig, batch_table, config_mapping, notes, planned_steps
from mindgspo.config.profile import check_profile
from mindgspo.config.rules import data_sources
from mindgspo.data.account import Account, judge_rows
from mindgspo.data.dataset import check_folder, row_lines
from mindgspo.data.rendering import RenderedRow, prompt_facts, render_row
from mindgspo.data.source_rows import DroppedRow, SourceRow
from mindgspo.data.sources import open_source
from mindgspo.errors import ConfigError, DataError, RewardError
from mindgspo.evaluation.datasets import (
    HELD_OUT_SEED,
    NUM_TRIAL_ROWS,
    check_curriculum,
    check_distinct_prompts,
    check_tools,
    trial_candidate,
)
from mindgspo.metrics.tracking import check_installed
from mindgspo.models.lora import ADAPTER_WEIGHTS, BASE_KEY, check_peft_folder
from mindgspo.models.weight_check import check_weights
from mindgspo.rewards import Scorer, gold_is_readable
from mindgspo.rollout.player import OpenEnvironment, open_environment
from mindgspo.tensor_files.reader import open_tensors
from mindgspo.text import counted, shorten
from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.tokenization.tokenizer import JsonObject
from mindgspo.types import Prompt, Verdict

_MOST_RENDERED = 20_000
"""Rows whose prompts are tokenized, which takes some seconds."""
_MOST_TRIED = 16
"""Rows on which the reward functions are tried while none gets a reward."""


def check_experiment(config: ExperimentConfig) -> Iterator[str]:
    """Lines about tokenizer, model, environment, data, reward and batches. Raises the errors of `mindgspo.errors`."""
    check_installed(config.logging.trackers)
    assert config.run_dir is not None, "config is not resolved"
    _check_writable(config.run_dir.expanduser().absolute())
    tokenizer = load_tokenizer(config.tokenizer, config.model.vocab_size)
    yield f"tokenizer: {tokenizer.name}, {tokenizer.vocab_size} ids, eos {tokenizer.eos_ids}, pad {tokenizer.pad_id}"
    if (folder := config.model.path) is not None:
        named = config_mapping(config)["model"]["path"]
        if named != str(folder) and not any(folder.glob("*.safetensors")):
            yield f"model: {named}: its weights are fetched when the run starts"
        else:
            check_weights(config.model.base, folder)
            yield f"model: {named}: weights fit its config.json"
    if config.model.lora is not None and (adapters := config.model.lora.path) is not None:
        with open_tensors(adapters / ADAPTER_WEIGHTS) as stored:
            record = base_record(config.model, config.seed) if BASE_KEY in stored.metadata else None
            base = None if record is None else base_digest(record)
            check_peft_folder(config.model, adapters, stored, base=base)
        yield f"adapters: {adapters}: they fit model.lora"
    with Scorer(config.reward) as scorer, ExitStack() as stack:
        scorer.start()
        environment = None
        if config.environment is not None:
            environment = open_environment(config.environment, tokenizer)
            stack.enter_context(environment.player)
            yield from _environment_lines(environment)
        num_rows = yield from _checked_sources(config, tokenizer, scorer, environment)
    check_distinct_prompts(config, *num_rows)
    check_curriculum(config, *num_rows)
    steps = planned_steps(config, sum(num_rows))
    assert steps is not None, "rows are counted"
    check_profile(config.profile, world_size=config.plans.train.world_size, num_steps=steps)
    yield ""
    table = batch_table(config, sum(num_rows), config.data.mixture(num_rows))
    width = max(len(name) for name, _ in table)
    yield from (f"{name:<{width}}  {text}" for name, text in table)
    yield from (f"note: {line}" for line in notes(config))
    if environment is not None:
        yield from (f"note: {line}" for line in _environment_notes(environment, tokenizer))


def _environment_lines(environment: OpenEnvironment) -> Iterator[str]:
    style = "turns are text" if environment.style == "none" else f"calls in the style {environment.style}"
    section = environment.section
    tools = counted(len(environment.tools), "tool") if environment.tools else "no tools"
    yield f"environment: {section.path}: {tools}, {style}, at most {counted(section.max_turns, 'turn')}"
    for tool in environment.tools:
        function: Any = tool["function"]
        arguments = ", ".join(function["parameters"]["properties"])
        yield f"  {function['name']}({arguments}): {shorten(' '.join(function['description'].split()), 80)}"


def _environment_notes(environment: OpenEnvironment, tokenizer: Tokenizer) -> Iterator[str]:
    if environment.tools and not tokenizer.presents(environment.tools):
        yield (
            f"environment.path: the chat template of {tokenizer.name} says nothing about tools, so prompts do not "
            "present them; describe them in data.system_prompt, or let a warm-up teach them"
        )
    if (difference := environment.dialogue.differences()) is not None:
        yield f"environment: {difference}"


def _check_writable(run_dir: Path) -> None:
    """Write a file there and remove it: permissions do not reveal full disks and folders like /proc."""
    folder = next(one for one in (run_dir, *run_dir.parents) if one.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix=".mindgspo-check-", dir=folder) as made:
            Path(made, "file").write_bytes(bytes(1 << 16))
    except OSError as error:
        raise ConfigError(
            f"run_dir: {run_dir}: nothing can be written into {folder} ({error.strerror}); choose another with "
            "--set run_dir=..."
        ) from error


def _checked_sources(
    config: ExperimentConfig, tokenizer: Tokenizer, scorer: Scorer, environment: OpenEnvironment | None
) -> Generator[str, None, list[int]]:
    """Lines about every data set, and the number of rows of each training source."""
    num_train_rows = []
    num_sources = len(config.data.train_sources)
    tools = () if environment is None else environment.tools
    for number, (key, source) in enumerate(data_sources(config)):
        is_trained = number < num_sources
        yield ""
        if source.format == "prepared":
            num_rows = _check_prepared(config, source, tokenizer, tools)
            yield f"{key}: {num_rows} prepared rows; `mindgspo data inspect {source.path}` shows them"
        else:
            seed = config.seed if is_trained else HELD_OUT_SEED
            account, prompts = _looked_at(config, key, source, tokenizer, scorer, tools, seed=seed)
            num_rows, left_out = account.counts.rows_out, _left_out(account, config.data.max_prompt_length)
            if environment is None:
                judged = _judgements(key, scorer, prompts, tokenizer, may_be_wrong=source.forgotten_carries > 0)
            else:  # as in a run: rewards are those of whole episodes
                tried = prompts[:NUM_TRIAL_ROWS]
                environment.player.try_out(tried)
                judged = ["of a whole episode; the environment begins one of this row"] * len(tried)
            yield f"{key}: {num_rows} rows{left_out}, the first {len(judged)}:"
            for prompt, reward in zip(prompts, judged, strict=False):
                yield from row_lines(prompt)
                yield f"--- reward: {reward}"
        if is_trained:
            num_train_rows.append(num_rows)
    return num_train_rows


def _check_prepared(
    config: ExperimentConfig, source: DataSourceSection, tokenizer: Tokenizer, tools: Sequence[JsonObject]
) -> int:
    assert source.path is not None
    info = check_folder(source.path, tokenizer, config.data)
    check_tools(source.path, info, tools)
    num_rows = info.counts.rows_out
    return min(num_rows, source.max_rows or num_rows)


def _looked_at(
    config: ExperimentConfig,
    key: str,
    source: DataSourceSection,
    tokenizer: Tokenizer,
    scorer: Scorer,
    tools: Sequence[JsonObject],
    *,
    seed: int,
) -> tuple[Account, list[Prompt]]:
    """Check every row as `data prepare` does; return the account and the first prompts. Gold answers are read by the
    functions of the configuration; lengths are those of the first `_MOST_RENDERED` rows."""
    opened = open_source(source, seed, tokenizer)
    facts = prompt_facts(source, config.data, tools)
    first: list[tuple[int, RenderedRow]] = []
    unreadable: list[tuple[int, str]] = []

    def rendered() -> Iterator[RenderedRow | DroppedRow]:
        for number, row in enumerate(opened.parsed()):
            found = render_row(row, facts, tokenizer) if number < _MOST_RENDERED else _unrendered(row)
            if isinstance(found, RenderedRow) and gold_is_readable(found.data_source, found.answer) is not False:
                if len(first) < _MOST_TRIED and 0 < found.ids.size <= facts.max_prompt_length:
                    first.append((number, found))
                if problem := scorer.unreadable(found.where, found.data_source, found.answer):
                    unreadable.append((number, problem))
            yield found

    label = f"{key}: {opened.label}"
    account = judge_rows(rendered(), facts, label=label, dedup=source.dedup, is_readable=gold_is_readable)
    problems = [problem for number, problem in unreadable if number not in account.reasons]
    if problems:
        raise DataError(
            f"{key}: {len(problems)} gold answers in {account.counts.rows_out} rows cannot be read, the first at "
            f"{problems[0]}; remove these rows, or name a reward function that fits them under reward.functions"
        )
    kept = [row for number, row in first if number not in account.reasons]
    return account, [row.as_prompt(number) for number, row in enumerate(kept)]


def _unrendered(row: SourceRow | DroppedRow) -> RenderedRow | DroppedRow:
    """A row without token ids, whose length is not checked."""
    if isinstance(row, DroppedRow):
        return row
    return RenderedRow(
        where=row.where,
        prompt_key=row.prompt_key,
        full_length=0,
        ids=np.zeros(0, dtype=np.int32),
        text=row.messages[-1]["content"],
        answer=row.answer,
        data_source=row.data_source,
        solution=row.solution,
        extra_info=row.extra_info,
        nulled=row.nulled,
    )


def _left_out(account: Account, max_prompt_length: int) -> str:
    """Numbers of rows that the run drops or cuts, with the reasons."""
    counts = account.counts
    dropped = ", ".join(f"{number} {reason}" for reason, number in counts.dropped.items())
    parts = [f"{counts.rows_in - counts.rows_out} more will be dropped: {dropped}"] if dropped else []
    parts += [f"{number} cut to {max_prompt_length} tokens" for number in counts.truncated.values()]
    if counts.rows_in > _MOST_RENDERED:
        parts.append(f"lengths are those of the first {_MOST_RENDERED:,} rows")
    return f" ({'; '.join(parts)})" if parts else ""


def _judgements(
    key: str, scorer: Scorer, prompts: Sequence[Prompt], tokenizer: Tokenizer, *, may_be_wrong: bool
) -> list[str]:
    """Try the reward functions on the first rows. Raises RewardError if none of `_MOST_TRIED` gets a reward."""
    found = []
    for number, prompt in enumerate(prompts):
        text, is_valued = _judged(scorer, prompt, tokenizer, may_be_wrong=may_be_wrong)
        found.append((text, is_valued))
        if number + 1 >= NUM_TRIAL_ROWS and any(is_valued for _, is_valued in found):
            break
    if found and not any(is_valued for _, is_valued in found):
        raise RewardError(
            f"reward.functions: of the first {counted(len(found), 'row')} of {key} none gets a reward: {found[0][0]}. "
            "A run would learn nothing; return a number"
        )
    return [text for text, _ in found[:NUM_TRIAL_ROWS]]


def _judged(scorer: Scorer, prompt: Prompt, tokenizer: Tokenizer, *, may_be_wrong: bool) -> tuple[str, bool]:
    """Score the row's own solution, or else its gold answer; return a line about it, and whether there is a reward.

    may_be_wrong: the solutions are a careless teacher's, so only one without an answer is rejected. A user's own
    function may return any verdict.
    """
    score = scorer.try_out([trial_candidate(prompt, tokenizer)])[0]
    accepted = {Verdict.CORRECT, *([Verdict.WRONG] if may_be_wrong else [])}
    if scorer.has_own or not scorer.has_verifier:
        accepted = set(Verdict)
    what = "own solution" if prompt.solution else "gold answer, written in three usual forms,"
    if score.verdict not in accepted:
        raise DataError(
            f"row {prompt.index}: the reward functions call its {what} {score.verdict.value} (extracted "
            f"{score.extracted!r}, gold {prompt.answer!r}); choose others under reward.functions"
        )
    value = f"no reward ({score.message})" if score.value is None else f"{score.value:g}"
    parts = " + ".join(f"{name} {part:g}" for name, part in score.parts.items()) if len(score.parts) > 1 else ""
    # A user's function need not return the answer it found.
    found = "" if scorer.has_own and score.extracted is None else f", found {score.extracted!r}"
    text = f"the row's {what} gets {value}{parts and f' ({parts})'}{found}, gold {prompt.answer!r}"
    return text, score.value is not None
