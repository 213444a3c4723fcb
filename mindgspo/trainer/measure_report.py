"""The figures of `mindgspo eval` for people and for programs.

What enters: `Measured`s. What leaves: the lines of a table with remarks, one JSON-able mapping, and records of single
answers. Called by the command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mindgspo.metrics.estimates import Estimate
from mindgspo.tokenization import Tokenizer
from mindgspo.trainer.figures import Figures
from mindgspo.trainer.measure import Measured
from mindgspo.trainer.measured_experiments import Task
from mindgspo.types import ScoredGroup

NOTEWORTHY = 0.05
"""Share of answers from which on a remark is made."""

_HEADER = ("data", "problems", "answers", "figure", "value", "95 % interval", "cut", "no answer", "tokens")
_LEFT = 4  # columns of words


def table_lines(found: Sequence[Measured]) -> list[str]:
    """A line per figure; what holds for all answers of a kind stands in the first line of that kind."""
    rows = [_HEADER, *(row for one in found for row in _rows_of(one, _label(one, found)))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    return [
        "  ".join(
            cell.ljust(width) if column < _LEFT else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def remarks(found: Sequence[Measured]) -> Iterator[str]:
    """What makes the figures less than they seem, and what to do about it."""
    told = set()
    for one in found:
        label, config = _label(one, found), one.task.config
        if one.dropped and one.task.label not in told:
            told.add(one.task.label)
            reasons = ", ".join(f"{count} x {reason}" for reason, count in one.dropped.items())
            yield f"{one.task.label}: {sum(one.dropped.values())} rows were left out ({reasons})"
        for kind, figures in _kinds(one):
            if figures.cut >= NOTEWORTHY:
                yield (
                    f"{label}, {kind}: {_percent(figures.cut)} cut at {config.rollout.max_new_tokens} tokens: raise "
                    "--max-new-tokens"
                )
            if figures.no_answer >= figures.cut + NOTEWORTHY:
                yield (
                    f"{label}, {kind}: no answer was found in {_percent(figures.no_answer)}: see generations.jsonl of "
                    "--out; the prompt must ask for a form that the reward function knows"
                )
            if figures.failed:
                yield (
                    f"{label}, {kind}: {_percent(figures.failed)} could not be judged and count as not correct; raise "
                    "reward.workers.timeout_s with --set if they took too long"
                )


def report(found: Sequence[Measured]) -> dict[str, object]:
    """All figures with what they were measured with. accuracy: of greedy answers, over all problems."""
    config = found[0].task.config
    problems = sum(one.greedy.num_problems for one in found)
    return {
        "model": str(config.model.path),
        "problems": problems,
        "accuracy": sum(one.greedy.num_correct for one in found) / problems,
        "settings": {
            "device": config.device,
            "dtype": config.model.dtype,
            "seed": config.seed,
            "max_new_tokens": config.rollout.max_new_tokens,
            "num_samples": config.eval.num_samples,
            "temperature": config.eval.temperature,
            "top_p": config.rollout.top_p,
            "top_k": config.rollout.top_k,
            "tokenizer": None if config.tokenizer.path is None else str(config.tokenizer.path),
            "eos_tokens": list(config.tokenizer.eos_tokens),
        },
        "results": [_result(one) for one in found],
    }


def generation_records(task: Task, tokenizer: Tokenizer, group: ScoredGroup) -> Iterator[dict[str, object]]:
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
            "length": response.length,
            "finish_reason": response.finish_reason.value,
            "answer": prompt.answer,
            "extracted": score.extracted,
            "verdict": score.verdict.value,
            "score": score.value,
        }


def _label(one: Measured, found: Sequence[Measured]) -> str:
    """The data set, with the data source where it has several."""
    is_mixed = sum(other.task is one.task for other in found) > 1
    return f"{one.task.label} ({one.source})" if is_mixed else one.task.label


def _kinds(one: Measured) -> Iterator[tuple[str, Figures]]:
    yield "greedy", one.greedy
    if one.sampled is not None:
        yield f"{one.task.config.eval.num_samples} samples", one.sampled


def _rows_of(one: Measured, label: str) -> Iterator[tuple[str, ...]]:
    names: tuple[str, str] = (label, f"{one.greedy.num_problems:,}")
    for kind, figures in _kinds(one):
        first = (kind, _percent(figures.cut), _percent(figures.no_answer), f"{figures.mean_length:.0f}")
        for name, estimate in figures.estimates.items():
            yield (*names, first[0], name, f"{estimate.value:.3f}", _interval(estimate), *first[1:])
            names, first = ("", ""), ("", "", "", "")


def _interval(estimate: Estimate) -> str:
    return "-" if estimate.low is None or estimate.high is None else f"{estimate.low:.3f} to {estimate.high:.3f}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.1 else f"{100 * share:.1f} %"


def _result(one: Measured) -> dict[str, object]:
    config = one.task.config
    (source,) = config.data.eval_sets.values()
    return {
        "data": one.task.label,
        "data_source": one.source,
        "path": None if source.path is None else str(source.path),
        "format": source.format,
        "problems": one.greedy.num_problems,
        "dropped": one.dropped,
        "system_prompt": config.data.system_prompt,
        "instruction_suffix": config.data.instruction_suffix,
        "reward": list(config.reward.functions),
        "greedy": _figures(one.greedy),
        "sampled": None if one.sampled is None else _figures(one.sampled),
    }


def _figures(figures: Figures) -> Mapping[str, object]:
    return {
        **{
            name: {"value": estimate.value, "low": estimate.low, "high": estimate.high}
            for name, estimate in figures.estimates.items()
        },
        "cut": figures.cut,
        "no_answer": figures.no_answer,
        "failed": figures.failed,
        "mean_length": figures.mean_length,
    }
