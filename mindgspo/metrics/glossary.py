"""The glossary: every metric that a run may write, its meaning, unit, healthy range and what to do outside of it.

A metric is declared where it is computed: the docstring of that module ends with a block of YAML,

    Metrics:
      Title of a section:
        actor/lr:
          meaning: learning rate of the step's last update
          unit: steps
          healthy: ...
          action: ...

of which `meaning` alone is required. Declarations are read from the source, so that a report needs no MindSpore. The
Chinese texts are in metrics_cn.yaml, by name. Names follow verl's, so that curves of different suites can be compared;
`<...>` in a name is a placeholder.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from textwrap import dedent

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

# In the order in which a user looks: is it learning, is the update sound, is the rest in order.
_TITLES = (
    "Rewards and advantages",
    "Evaluation on held-out problems",
    "Clipping",
    "Importance ratio",
    "Gradient and learning rate",
    "Loss, KL and entropy",
    "Sampler against trainer",
    "Routing of a mixture of experts",
    "Lengths",
    "Environment",
    "Account of the samples",
    "Schedule",
    "Dynamic sampling",
    "Training data",
    "Rollout engine",
    "Batches of the updates",
    "Progress, time and memory",
    "Supervised warm-up",
)
_PACKAGE = Path(__file__).resolve().parents[1]
_MARK = "\nMetrics:\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricInfo:
    """One entry of the glossary."""

    meaning: str
    unit: str = ""
    """E.g. "tokens"; empty for a plain number."""
    healthy: str = ""
    """The range to expect."""
    action: str = ""
    """The remedy outside of it."""


Glossary = Mapping[str, Mapping[str, MetricInfo]]
"""Entries by title of their section and by name, in reading order."""


def _yaml(text: str) -> dict:
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def declarations(path: Path) -> dict[str, dict[str, MetricInfo]]:
    """Metrics that one module declares, by section and name; none for a module without a block."""
    source = path.read_text(encoding="utf-8")
    if _MARK not in source:
        return {}
    _, _, block = (ast.get_docstring(ast.parse(source)) or "").partition(_MARK)
    sections = _yaml(dedent(block)) or {}
    return {title: {name: MetricInfo(**info) for name, info in named.items()} for title, named in sections.items()}


@cache
def glossary() -> Glossary:
    """All declared metrics."""
    found: dict[str, dict[str, MetricInfo]] = {title: {} for title in _TITLES}
    for path in sorted(_PACKAGE.rglob("*.py")):
        for title, named in declarations(path).items() if path != Path(__file__) else ():
            twice = named.keys() & found[title].keys()
            assert not twice, f"{path}: declared before: {twice}"
            found[title] |= named
    return found


@cache
def metrics() -> dict[str, MetricInfo]:
    """All entries by name."""
    return {name: info for named in glossary().values() for name, info in named.items()}


@cache
def chinese_glossary() -> Glossary:
    """`glossary()` in Chinese: the same metrics in the same order."""
    words = _yaml(Path(__file__).with_name("metrics_cn.yaml").read_text(encoding="utf-8"))
    units = {"": "", **words["units"]}
    return {
        words["sections"][title]: {
            name: replace(MetricInfo(**words["metrics"][name]), unit=units[info.unit]) for name, info in named.items()
        }
        for title, named in glossary().items()
    }


_PLACEHOLDERS = {
    "<stat>": r"(?:mean|max|min)",
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
    "<layer>": r"[0-9]+",
}


@cache
def _patterns() -> dict[re.Pattern[str], str]:
    def pattern(name: str) -> re.Pattern[str]:
        parts = re.split(r"(<[a-z]+>)", name)
        return re.compile("".join(_PLACEHOLDERS.get(part) or re.escape(part) for part in parts))

    return {pattern(name): name for name in metrics() if "<" in name}


def glossary_name(metric: str) -> str | None:
    """The glossary's name for a metric: timing_s/gen -> timing_s/<phase>. None: unknown."""
    if metric in metrics():
        return metric
    return next((name for pattern, name in _patterns().items() if pattern.fullmatch(metric)), None)


def unknown_names(names: Iterable[str]) -> list[str]:
    """Names that the glossary lacks, sorted. names: e.g. the keys of a line of metrics.jsonl."""
    return sorted({name for name in names if name != "step" and glossary_name(name) is None})
