"""What MindSpore says when it refuses a graph, cut to the lines that matter, and which entry of the plan to change.

MindSpore raises a few words with pages of call stacks, and logs the reason with its numbers. A refusal that no rule
knows gets no hint: it may be a defect of a cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mindgspo.ascend.dryrun.job import Failure
from mindgspo.config import ParallelPlan

_MOST_REASONS = 3
_MOST_CHARACTERS = 600

# From here on a message is call stacks.
_STACKS = re.compile(r"\n\s*-{20,}\n|\n\nAt:\n|\n# \d+ In file | \(See file ")
# [ERROR] PARALLEL(3372,7f4a4fe4cb80,python):2026-11-22-00:15:00 [mindspore/ccsrc/a/b.cc:248] Function] text
_LOGGED = re.compile(r"^\[(?:ERROR|CRITICAL)\] \w+\([^)]*\):\S+ \[[^\]]*\] (?:\w+\] )?(?P<text>.*)$", re.MULTILINE)
# What follows from a reason that was logged just before, or repeats what is raised.
_CONSEQUENCE = re.compile(
    r"\b(?:Check\w*|Init|Infer\w*) ?failed\.?$|: Invalid strategy value$|infer failed, failed info: |"
    r"Exception happened, check the information"
)
_OPERATOR = re.compile(r"^(\w+?)Info\d* ?: ")
# "# 3 In file /a/b.py:40, 15~42" or without the number; the line of code follows. A range of lines is a whole function.
_FRAME = re.compile(r"^#(?: \d+)? In file (?P<file>[^\n]+?):(?P<line>\d+), [^\n]*\n(?P<code>[^\n]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """message: what was raised. reasons: what was logged about it, with numbers. place: our line of code, or ""."""

    message: str
    reasons: tuple[str, ...]
    place: str

    def text(self) -> str:
        """Message and reasons, for `plan_hints`."""
        return "\n".join((self.message, *self.reasons))


def cut(failure: Failure, log: str) -> Refusal:
    """log: all that the process said; "" if that is not known."""
    message = _STACKS.split(failure.text, maxsplit=1)[0].strip().removeprefix("Failure:")
    if not message:
        message = failure.kind
    elif failure.phase in ("compile", "reading the graph"):
        message = f"{failure.kind}: {message}"
    return Refusal(
        message=_short(message), reasons=_reasons(log, message), place=_place(failure.text) or _shown(failure.place)
    )


def _reasons(log: str, message: str) -> tuple[str, ...]:
    found: dict[str, None] = {}  # an ordered set
    for match in _LOGGED.finditer(log):
        text = match["text"].strip()
        if text and text not in message and not _CONSEQUENCE.search(text):
            found[_short(_OPERATOR.sub(r"\1: ", text))] = None
    return tuple(found)[-_MOST_REASONS:]


def _place(text: str) -> str:
    """The innermost line of a cell outside of installed packages: stacks list callers first."""
    frames = [frame for frame in _FRAME.finditer(text) if "site-packages" not in frame["file"]]
    return _shown(f"{frames[-1]['file']}:{frames[-1]['line']}: {frames[-1]['code'].strip()}") if frames else ""


def _shown(place: str) -> str:
    """Paths of our own package from its name on."""
    package = Path(__file__).resolve().parents[3]
    return place.removeprefix(f"{package}/")


def _short(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} ..."


def plan_hints(text: str, section: str, plan: ParallelPlan) -> list[str]:
    """section: the plan's path in the configuration, e.g. "plans.train"."""
    found: dict[str, None] = {}
    for pattern, advice in _RULES:
        for match in pattern.finditer(text):
            for line in advice(match, plan):
                found[f"{section}.{line}"] = None
    return list(found)


def _does_not_divide(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    size, ways = int(match["size"]), int(match["ways"])
    return [f"{entry} does not divide {size}" for entry in _entries(ways, plan)]


def _heads(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    return [f"model_parallel: {match['ways']} does not divide {match['size']} attention heads"]


def _no_power_of_two(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    ways = int(match["ways"])
    return [f"{entry} is no power of 2, as MindSpore wants it here" for entry in _entries(ways, plan)]


def _too_many_ranks(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    here = f"{plan.token_parts} x {plan.model_parallel}"
    return [
        f"model_parallel: {_parts(plan)} x model_parallel is {here}; an operator is split {match['ways']} ways, but a "
        f"stage has {match['size']} ranks"
    ]


def _stages(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    return [f"pipeline_stage: {match['ways']} does not divide {match['size']} ranks"]


def _micro_batches(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    return [f"micro_batch_num: {match['ways']} does not divide the {match['size']} rows of a mini-batch"]


def _few_micro_batches(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    return [f"micro_batch_num: {plan.micro_batch_num}; {plan.pipeline_stage} pipeline stages need at least as many"]


def _one_cache(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    return [f"data_parallel: {plan.data_parallel}; a KV cache belongs to one replica, its tokens cannot be split"]


def _whole_axis(match: re.Match[str], plan: ParallelPlan) -> list[str]:
    return [f"model_parallel: {plan.model_parallel}; an operator wants an axis whole that is split over ranks"]


def _entries(ways: int, plan: ParallelPlan) -> list[str]:
    """The entries that split an axis so many ways, each with its value; none if no entry does."""
    parts, slices = plan.token_parts, plan.model_parallel
    fitting = []
    if slices == ways:
        fitting.append(f"model_parallel: {ways}")
    if plan.data_parallel == ways:
        fitting.append(f"data_parallel: {ways}")
    elif parts == ways:
        fitting.append(f"context_parallel: {_parts(plan)} = {ways}")
    if parts * slices == ways and not fitting:
        fitting.append(f"model_parallel: {_parts(plan)} x model_parallel = {ways}")
    return fitting


def _parts(plan: ParallelPlan) -> str:
    """What splits tokens."""
    return "data_parallel" if plan.context_parallel == 1 else "data_parallel x context_parallel"


_Advice = Callable[[re.Match[str], ParallelPlan], list[str]]
_RULES: tuple[tuple[re.Pattern[str], _Advice], ...] = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (r"shape value (?P<size>\d+) at .* cannot be divisible by strategy value (?P<ways>\d+)", _does_not_divide),
        (r"head_num % \S+ must be 0, but got (?P<size>\d+)\(head_num\) and (?P<ways>\d+)", _heads),
        (r"must be the power of 2, but get (?P<ways>\d+)", _no_power_of_two),
        (r"it requires (?P<ways>\d+) devices, but the device number of this stage is (?P<size>\d+)", _too_many_ranks),
        (r"the device_num : (?P<size>\d+) ?and the split_stage_num : (?P<ways>\d+)", _stages),
        (r"shape of input\((?P<size>\d+)\) must be divided by micro size\((?P<ways>\d+)\)", _micro_batches),
        (r"setting micro_batch_num > 1|MicroBatch num must be larger or equal than StageNum", _few_micro_batches),
        (r"The (?:slot_mapping|num_blocks|token num|block_size) can't be shard", _one_cache),
        (r"[Tt]he (?:axis|dim|hidden|head_dim|num_head) can(?: ?not|'t) be (?:split|shard)", _whole_axis),
    )
)
