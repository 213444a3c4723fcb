"""`mindgspo strategy show | diff | merge`: paths in, lines out.

Called by the command line. Records of several graphs (a folder that tools/generate_strategy.py made) are taken one by
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mindgspo.config import load_model_and_plans
from mindgspo.errors import CheckpointError
from mindgspo.models.names import parameter_shapes
from mindgspo.parallel.strategy.compare import compare_strategies
from mindgspo.parallel.strategy.file import save_strategy
from mindgspo.parallel.strategy.record import Strategy
from mindgspo.strategies.folding import collapse_layers, without_state
from mindgspo.strategies.listing import table_lines
from mindgspo.strategies.sources import SINGLE, read_folder, read_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """What `strategy diff` found."""

    lines: list[str]
    """To print, the sum last."""
    number: int
    """Of differences; 0: the two are equal."""


def show_lines(path: Path, *, shows_all: bool = False, config: Path | None = None) -> Iterator[str]:
    """The table of a file or folder. config: an experiment or model file, for the shapes that protobuf files lack.

    Raises CheckpointError for what is no strategy, ConfigError for a wrong config.
    """
    shapes = None if config is None else parameter_shapes(load_model_and_plans(config).model)
    for name, strategy in read_source(path).items():
        yield f"{_label(name)}{_summary(strategy)}"
        yield from table_lines(strategy, shows_all=shows_all, shapes=shapes)


def diff_lines(
    left: Path, right: Path, *, shows_all: bool = False, spelling: bool = False, common: bool = False
) -> Differences:
    """What two files or folders place differently, by parameter; equal layouts written differently are equal.

    shows_all: layers and state of which the same is said have lines of their own. spelling: report other spellings of
    equal layouts, too. common: leave out parameters that only one of the two has. Raises CheckpointError.
    """
    one, other = read_source(left), read_source(right)
    lines, number, equal = [f"left   {left}", f"right  {right}"], 0, []
    for name in dict.fromkeys((*one, *other)):
        if name not in one or name not in other:
            found = [f"missing in {'left' if name not in one else 'right'}"]
        else:
            pair = _common(one[name], other[name]) if common else (one[name], other[name])
            found = compare_strategies(*pair, spelling=spelling)
            equal.append(f"{_label(name)}{_summary(pair[0])}")
        number += len(found)
        lines += [f"{_label(name)}{line}" for line in (found if shows_all else _folded(found))]
    lines.append(_counted(number, "difference") if number else f"equal: {'; '.join(equal)}")
    return Differences(lines=lines, number=number)


def _folded(lines: list[str]) -> list[str]:
    """Lines "<parameter> ...": layers and state of which the same is said in one."""
    pairs, state = without_state([(name, rest) for name, _, rest in (line.partition(" ") for line in lines)])
    folded = [f"{name} {rest}" for name, rest in collapse_layers(pairs)]
    return [*folded, *(f"{prefix}*: {number} entries, as their parameters" for prefix, number in state.items())]


def merge_files(folder: Path, out: Path) -> str:
    """Write the record of all stages in a folder of ranks' files to one file; returns the line to print."""
    merged = read_folder(folder)
    save_strategy(out, merged)
    return f"merged {_summary(merged)} into {out}"


def _label(name: str) -> str:
    return "" if name == SINGLE else f"{name}: "


def _summary(strategy: Strategy) -> str:
    stages, ranks = len(strategy.stages), strategy.stage_size
    return (
        f"{_counted(len(strategy.parameters), 'parameter')} on {_counted(stages, 'stage')} of {_counted(ranks, 'rank')}"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _common(left: Strategy, right: Strategy) -> tuple[Strategy, Strategy]:
    """Both without what the other lacks on the same stage."""

    def cut(one: Strategy, other: Strategy) -> Strategy:
        stages = {
            stage: {name: stored for name, stored in entries.items() if name in other.stages.get(stage, {})}
            for stage, entries in one.stages.items()
        }
        kept: Mapping[int, Mapping] = {stage: entries for stage, entries in stages.items() if entries}
        if not kept:
            raise CheckpointError(f"{one.source} and {other.source} have no parameter of one stage in common")
        return replace(one, stages=kept)

    return cut(left, right), cut(right, left)
