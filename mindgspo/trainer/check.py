"""What `mindgspo check` looks at before a run: every input file that can be checked without MindSpore.

The rows are read as the run reads them; only the first ones are rendered, so the answer comes in seconds.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from mindgspo.config import DataSourceSection, ExperimentConfig, batch_table, notes
from mindgspo.config.rules import data_sources
from mindgspo.data.account import PromptIndex
from mindgspo.data.dataset import check_folder, row_lines
from mindgspo.data.rendering import PromptFacts, prompt_facts, render_row
from mindgspo.data.source_rows import DroppedRow, SourceRow
from mindgspo.data.sources import open_source
from mindgspo.errors import DataError
from mindgspo.evaluation.datasets import HELD_OUT_SEED, NUM_TRIAL_ROWS, check_distinct_prompts, trial_candidate
from mindgspo.metrics.tracking import check_installed
from mindgspo.models.weight_check import check_weights
from mindgspo.rewards import Scorer, gold_is_readable
from mindgspo.tokenization import Tokenizer, load_tokenizer
from mindgspo.types import Prompt, Verdict


def check_experiment(config: ExperimentConfig) -> Iterator[str]:
    """Lines about tokenizer, model, data, reward and batches. Raises the errors of `mindgspo.errors`."""
    check_installed(config.logging.trackers)
    tokenizer = load_tokenizer(config.tokenizer, config.model.vocab_size)
    yield f"tokenizer: {tokenizer.name}, {tokenizer.vocab_size} ids, eos {tokenizer.eos_ids}, pad {tokenizer.pad_id}"
    if config.model.path is not None:
        check_weights(config.model, config.model.path)
        yield f"model: {config.model.path}: weights fit its config.json"
    with Scorer(config.reward) as scorer:
        scorer.start()
        num_train_rows = yield from _checked_sources(config, tokenizer, scorer)
    if num_train_rows is not None:
        check_distinct_prompts(config, num_train_rows)
    yield ""
    table = batch_table(config, num_train_rows)
    width = max(len(name) for name, _ in table)
    yield from (f"{name:<{width}}  {text}" for name, text in table)
    yield from (f"note: {line}" for line in notes(config))


def _checked_sources(
    config: ExperimentConfig, tokenizer: Tokenizer, scorer: Scorer
) -> Generator[str, None, int | None]:
    """Lines about every data set, and the number of training rows."""
    num_train_rows = None
    for key, source in data_sources(config):
        yield ""
        if source.format == "prepared":
            num_rows = _check_prepared(config, source, tokenizer)
            yield f"{key}: {num_rows} prepared rows; `mindgspo data inspect {source.path}` shows them"
        else:
            prompts, num_rows, num_dropped = _first_prompts(config, key, source, tokenizer, scorer)
            left_out = f" ({num_dropped} more will be dropped)" if num_dropped else ""
            yield f"{key}: {num_rows} rows{left_out}, the first {len(prompts)}:"
            for prompt in prompts:
                yield from row_lines(prompt)
                yield f"--- reward: {_judged(scorer, prompt, tokenizer, may_be_wrong=source.forgotten_carries > 0)}"
        if key == "data.train":
            num_train_rows = num_rows
    return num_train_rows


def _check_prepared(config: ExperimentConfig, source: DataSourceSection, tokenizer: Tokenizer) -> int:
    assert source.path is not None
    num_rows = check_folder(source.path, tokenizer, config.data).counts.rows_out
    return min(num_rows, source.max_rows or num_rows)


def _first_prompts(
    config: ExperimentConfig, key: str, source: DataSourceSection, tokenizer: Tokenizer, scorer: Scorer
) -> tuple[list[Prompt], int, int]:
    """The first rows as prompts, and the numbers of those that the run would keep and drop, long prompts aside. Every
    row is read, and its gold answer by the functions of the configuration."""
    opened = open_source(source, config.seed if key == "data.train" else HELD_OUT_SEED, tokenizer)
    index, first, num_rows, num_dropped, unreadable = PromptIndex(), [], 0, 0, []
    for row in opened.parsed():
        if isinstance(row, DroppedRow) or gold_is_readable(row.data_source, row.answer) is False:
            num_dropped += 1
            continue
        if len(first) < NUM_TRIAL_ROWS:
            first.append(row)
        if source.dedup:
            text = row.messages[-1]["content"]
            index.add(row.prompt_key, number=num_rows, where=row.where, answer=row.answer, text=text)
        unreadable += filter(None, [scorer.unreadable(row.where, row.data_source, row.answer)])
        num_rows += 1
    if not first:
        raise DataError(f"{key}: {source.path} holds no row with a gold answer that can be read")
    if unreadable:
        raise DataError(
            f"{key}: {len(unreadable)} gold answers in {num_rows} rows cannot be read, the first at {unreadable[0]}; "
            "remove these rows, or name a reward function that fits them under reward.functions"
        )
    facts = prompt_facts(source, config.data)
    prompts = [_prompt(number, row, facts, tokenizer) for number, row in enumerate(first)]
    num_repeated = len(index.superfluous())
    return prompts, num_rows - num_repeated, num_dropped + num_repeated


def _prompt(index: int, row: SourceRow, facts: PromptFacts, tokenizer: Tokenizer) -> Prompt:
    rendered = render_row(row, facts, tokenizer)
    if rendered.full_length > facts.max_prompt_length and facts.truncation == "error":
        raise DataError(
            f"{row.where}: the prompt has {rendered.full_length} tokens, data.max_prompt_length is "
            f"{facts.max_prompt_length}; raise it, or set data.truncation to left, right, middle or drop"
        )
    return rendered.as_prompt(index)


def _judged(scorer: Scorer, prompt: Prompt, tokenizer: Tokenizer, *, may_be_wrong: bool) -> str:
    """What the reward functions make of the row's own solution, or else of its gold answer.

    may_be_wrong: the solutions are a careless teacher's, so only one without an answer is refused. A user's function is
    taken at its word.
    """
    score = scorer.try_out([trial_candidate(prompt, tokenizer)])[0]
    accepted = {Verdict.CORRECT, *([Verdict.WRONG] if may_be_wrong else [])}
    if scorer.has_files or not scorer.has_verifier:
        accepted = set(Verdict)
    what = "own solution" if prompt.solution else "gold answer, written in three usual forms,"
    if score.verdict not in accepted:
        raise DataError(
            f"row {prompt.index}: the reward functions call its {what} {score.verdict.value} (extracted "
            f"{score.extracted!r}, gold {prompt.answer!r}); choose others under reward.functions"
        )
    value = f"no reward ({score.message})" if score.value is None else f"{score.value:g}"
    parts = " + ".join(f"{name} {part:g}" for name, part in score.parts.items()) if len(score.parts) > 1 else ""
    return f"the row's {what} gets {value}{parts and f' ({parts})'}, found {score.extracted!r}, gold {prompt.answer!r}"
