"""The glossary: every metric that a run may write, its meaning, unit, healthy range and what to do outside of it.

The texts are in glossary_en.yaml and glossary_cn.yaml. Metric names follow verl's, so that curves of different suites
can be compared. `<...>` in a name is a placeholder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

LOG_RATIO_EDGES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Bounds of |log ratio| for the histogram actor/log_ratio_hist/<bin>, ascending: signed decades, the same in every run.
A value exactly on an edge belongs to the bin further from 0."""

LOG_RATIO_BINS = (
    "below_-1e-1",
    "-1e-1_to_-1e-2",
    "-1e-2_to_-1e-3",
    "-1e-3_to_-1e-4",
    "within_1e-4",
    "1e-4_to_1e-3",
    "1e-3_to_1e-2",
    "1e-2_to_1e-1",
    "above_1e-1",
)
"""Names of the bins, from the most negative to the most positive."""

assert len(LOG_RATIO_BINS) == 2 * len(LOG_RATIO_EDGES) + 1


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """One entry of the glossary; unit is "" for a plain number, action is what to do outside `healthy`."""

    meaning: str
    unit: str = ""
    healthy: str = ""
    action: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlossarySection:
    """Metrics that are read together, entries by name in reading order."""

    title: str
    metrics: Mapping[str, MetricInfo]


def _read(name: str) -> dict[str, dict]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


SECTIONS: tuple[GlossarySection, ...] = tuple(
    GlossarySection(title=title, metrics={name: MetricInfo(**entry) for name, entry in entries.items()})
    for title, entries in _read("glossary_en.yaml").items()
)
"""In the order in which a user looks: is it learning, is the update sound, is the rest in order."""

METRICS: dict[str, MetricInfo] = {name: info for section in SECTIONS for name, info in section.metrics.items()}
assert len(METRICS) == sum(len(section.metrics) for section in SECTIONS), "a metric stands in two sections"


def chinese_sections() -> tuple[GlossarySection, ...]:
    """`SECTIONS` in Chinese: the same metrics in the same order, with translated units."""
    document = _read("glossary_cn.yaml")
    units = {"": "", **document["units"]}
    return tuple(
        GlossarySection(
            title=title,
            metrics={name: MetricInfo(**entry, unit=units[METRICS[name].unit]) for name, entry in entries.items()},
        )
        for title, entries in document["sections"].items()
    )


_PLACEHOLDERS = {
    "<stat>": r"(?:mean|max|min|std)",
    "<source>": r".+",
    "<figure>": r"(?:acc|reward)/[a-z]+@[1-9][0-9]*",
    "<bound>": r"(?:low|high)",
    "<n>": r"[1-9][0-9]*",
    "<reason>": r"[a-z0-9_]+",
    "<name>": r"[\w.-]+",
    "<key>": r"[\w.-]+",
    "<phase>": r"[a-z0-9_]+(?:/[a-z0-9_]+)*",
    "<bin>": "(?:" + "|".join(re.escape(name) for name in LOG_RATIO_BINS) + ")",
    "<decile>": r"(?:[1-9]|10)",
}


def _pattern(name: str) -> re.Pattern[str]:
    parts = re.split(r"(<[a-z]+>)", name)
    return re.compile("".join(_PLACEHOLDERS.get(part, re.escape(part)) for part in parts))


_PATTERNS = {_pattern(name): name for name in METRICS if "<" in name}


def glossary_name(metric: str) -> str | None:
    """The glossary's name for a metric: timing_s/gen -> timing_s/<phase>. None: unknown."""
    if metric in METRICS:
        return metric
    return next((name for pattern, name in _PATTERNS.items() if pattern.fullmatch(metric)), None)


def unknown_names(metrics: Iterable[str]) -> list[str]:
    """The names among `metrics` (a mapping or any iterable of names) that the glossary lacks, sorted."""
    return sorted({name for name in metrics if name != "step" and glossary_name(name) is None})
