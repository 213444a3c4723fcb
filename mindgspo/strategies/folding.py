"""Many entries as few lines: layers that are alike, and optimizer state beside its parameter.

What enters: (name, rest) pairs in order, where rest is all that is said of a name. What leaves: fewer pairs. Called by
the commands.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

_LAYER = re.compile(r"(?<=\blayers\.)\d+(?=\.)")

Rest = TypeVar("Rest", bound=Hashable)


def collapse_layers(pairs: Iterable[tuple[str, Rest]]) -> list[tuple[str, Rest]]:
    """Pairs that differ in the layer's number alone become one, model.layers.{0-13}.mlp.up_proj.weight, where the first
    of them stood."""
    numbers: dict[tuple[str, Rest], list[int]] = {}
    for name, rest in pairs:
        layer = _LAYER.search(name)
        template = _LAYER.sub("{}", name, count=1)
        numbers.setdefault((template, rest), []).extend([int(layer[0])] if layer else [])
    return [(name.replace("{}", _layers(layers), 1), rest) for (name, rest), layers in numbers.items()]


def without_state(pairs: Sequence[tuple[str, Rest]]) -> tuple[list[tuple[str, Rest]], dict[str, int]]:
    """The pairs without those `<prefix>.<parameter>` of which the same is said as of the parameter; {prefix: how many}
    of these, e.g. {"adamw.m.": 339}."""
    said = set(pairs)
    kept, left_out = [], {}
    for name, rest in pairs:
        prefix = next((name[: -len(short)] for short in _shorter(name) if (short, rest) in said), None)
        if prefix is None:
            kept.append((name, rest))
        else:
            left_out[prefix] = left_out.get(prefix, 0) + 1
    return kept, left_out


def ranges(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 3, 8] -> "0-3, 8"."""
    runs = []
    for _, run in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        runs.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ", ".join(runs)


def _layers(layers: list[int]) -> str:
    return str(layers[0]) if len(layers) == 1 else f"{{{ranges(layers)}}}"


def _shorter(name: str) -> Iterable[str]:
    """`a.b.c` gives `b.c` and `c`."""
    while "." in name:
        name = name.split(".", 1)[1]
        yield name
