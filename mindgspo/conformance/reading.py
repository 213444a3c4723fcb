"""A conformance file -> checked cases.

What enters: a path. What leaves: `Case`s whose names, shapes, masks and (for the kinds that cells take part in)
definitions are legal; the options of the other kinds are checked by the functions that read them. A key `peer` or
`peer_raw`, or one that resembles none of the format's, is informative and ignored. Called by `command`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindgspo.conformance.arrays import read_array, read_number
from mindgspo.conformance.case import KINDS, Case, Float64Array
from mindgspo.conformance.checks import EXPECTED, INPUTS, METRICS, check_case, check_names
from mindgspo.conformance.spelling import did_you_mean
from mindgspo.conformance.strict_json import read_entries, type_name
from mindgspo.errors import DataError
from mindgspo.text import closest

_NEEDED = {"name": str, "kind": str, "source": str, "config": dict, "inputs": dict, "expected": dict}
_OPTIONAL = ("tags", "edge_margin", "peer", "peer_raw")
_SHOWN_PROBLEMS = 10


def read_cases(path: Path) -> list[Case]:
    """All cases of a file in the conformance format.

    Raises DataError: for a file that is not strict JSON, and with one line per wrong case (the first 10), each naming
    file, case, key, the rule and what was given.
    """
    cases, problems = [], []
    for number, entry in enumerate(read_entries(path), 1):
        try:
            cases.append(_case(entry))
        except DataError as error:
            problems.append(f"{case_place(path, _name(entry, number))}: {error}")
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        shown = problems[:_SHOWN_PROBLEMS] + ([f"... and {more} more wrong cases"] if more > 0 else [])
        raise DataError("\n".join(shown))
    return cases


def case_place(path: Path, name: str) -> str:
    """How a message begins that is about one case."""
    return f"{path}: case {name}"


def _name(entry: Any, number: int) -> str:
    name = entry.get("name") if isinstance(entry, dict) else None
    return repr(name) if isinstance(name, str) else f"number {number}"


def _case(entry: Any) -> Case:
    if not isinstance(entry, dict):
        raise DataError(f"expected an object with the keys {', '.join(_NEEDED)}, got {type_name(entry)}")
    _check_keys(entry)
    kind = entry["kind"]
    if kind not in KINDS:
        raise DataError(f"kind: unknown {kind!r}{did_you_mean(kind, KINDS)}")
    check_names("inputs", entry["inputs"], INPUTS[kind])
    check_names("expected", entry["expected"], EXPECTED[kind])
    case = Case(
        name=entry["name"],
        kind=kind,
        source=entry["source"],
        config=entry["config"],
        inputs=_arrays("inputs", entry["inputs"]),
        expected=_arrays("expected", {key: value for key, value in entry["expected"].items() if key != "metrics"}),
        metrics=_metrics(entry["expected"].get("metrics", {})),
        tags=_tags(entry.get("tags", [])),
        edge_margin=_edge_margin(entry.get("edge_margin")),
    )
    check_case(case)
    return case


def _check_keys(entry: Mapping[str, Any]) -> None:
    for key in entry:
        close = None if key in _NEEDED or key in _OPTIONAL else closest(key, (*_NEEDED, *_OPTIONAL))
        if close and close not in entry:
            raise DataError(f"{key}: unknown key; did you mean {close!r}?")
    for key, kind in _NEEDED.items():
        if key not in entry:
            raise DataError(f"{key}: missing; a case has the keys {', '.join(_NEEDED)}")
        if not isinstance(entry[key], kind):
            raise DataError(f"{key}: expected {type_name(kind())}, got {type_name(entry[key])}")
    for key in ("name", "source"):
        if not entry[key] or not entry[key].isprintable():
            raise DataError(f"{key}: expected one line of printable text, got {entry[key][:60]!r}")


def _arrays(place: str, given: Mapping[str, Any]) -> dict[str, Float64Array]:
    return {name: read_array(f"{place}.{name}", value) for name, value in given.items()}


def _metrics(given: Any) -> dict[str, float]:
    if not isinstance(given, dict):
        raise DataError(f"expected.metrics: expected an object, got {type_name(given)}")
    check_names("expected.metrics", given, METRICS)
    return {name: read_number(f"expected.metrics.{name}", value) for name, value in given.items()}


def _tags(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(tag, str) for tag in given):
        raise DataError("tags: expected a list of texts")
    return tuple(given)


def _edge_margin(given: Any) -> float:
    """inf where the case has none: no ratio is near a threshold."""
    return float("inf") if given is None else read_number("edge_margin", given)
