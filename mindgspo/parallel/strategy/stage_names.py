"""How a strategy file says which pipeline stage an entry belongs to.

What enters: records, or the entries of a file in order. What leaves: names and marks as written, or a record. Called by
`strategy.protobuf_format` and `strategy.json_format`.

A file of one stage has plain parameter names, and the stage in every item of `parallel_strategy_item`, which lists
operators in MindSpore's files. Its readers ask for one item at least and read the first one's stage; so one item per
stage is written here. A merged file has `<stage>-<parameter>` for names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from mindgspo.parallel.strategy.record import StoredLayout, Strategy, check_sizes

CURRENT_STAGE = 1
"""Field `current_stage`: MindSpore counts its saves in it; merged files have 1. Nobody reads it."""

_MERGED_NAME = re.compile(r"(\d{1,9})-(.+)", re.DOTALL)

Entry = TypeVar("Entry")


def stage_marks(strategy: Strategy) -> list[tuple[str, int]]:
    """(node name, stage) of the strategy items."""
    return [(f"stage_{stage}", stage) for stage in sorted(strategy.stages)]


def join_stages(strategy: Strategy) -> Iterator[tuple[int, str, StoredLayout]]:
    """(stage, parameter, stored layout) in the order of the file."""
    for stage in sorted(strategy.stages):
        for name, stored in strategy.stages[stage].items():
            yield stage, name, stored


def written_name(strategy: Strategy, stage: int, name: str) -> str:
    """The parameter's name as the file has it. Raises ValueError for one that MindSpore's readers would split."""
    if "-" in name:
        raise ValueError(f"{name}: MindSpore takes what stands before a '-' for a pipeline stage; rename the parameter")
    return name if len(strategy.stages) == 1 else f"{stage}-{name}"


def split_stages(
    entries: Iterable[tuple[str, Entry]], stored: Callable[[Entry], StoredLayout], *, own_stage: int, source: str
) -> Strategy:
    """The record of a file's (name, entry) pairs; plain names belong to `own_stage`.

    Raises ValueError: no entries, one twice, plain names beside merged ones, entries that are no layout.
    """
    stages: dict[int, dict[str, StoredLayout]] = {}
    kinds = set()
    for written, entry in entries:
        merged = _MERGED_NAME.fullmatch(written)
        kinds.add(merged is not None)
        stage, name = (int(merged[1]), merged[2]) if merged else (own_stage, written)
        if name in stages.setdefault(stage, {}):
            raise ValueError(f"{written}: named twice")
        try:
            stages[stage][name] = stored(entry)
        except ValueError as error:
            raise ValueError(f"{written}: {error}") from error
    if len(kinds) > 1:
        raise ValueError("names of merged stages ('0-...') stand beside plain ones")
    strategy = Strategy(stages={stage: stages[stage] for stage in sorted(stages)}, source=source)
    check_sizes(strategy)
    return strategy
