"""The glossary's door: every metric that a run may write, what it means and what to do about it.

Names follow the field's convention (verl), so that curves of different suites can be laid side by side.
Read by `report`, by tools/write_glossary.py and by the test that a run writes no name outside this table. `<...>`
in a name is a placeholder. The texts are in the folder `glossary`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mindgspo.metrics.glossary.entry import GlossarySection, MetricInfo
from mindgspo.metrics.glossary.machine import BATCHES, MISMATCH, PROGRESS, ROLLOUT, WARMUP
from mindgspo.metrics.glossary.policy import CLIP_BAND, CLIPPING, GRADIENT, LOSS, RATIO
from mindgspo.metrics.glossary.samples import ACCOUNT, EVALUATION, LENGTHS, REWARDS, SAMPLING
from mindgspo.metrics.log_ratio_bins import NAMES as LOG_RATIO_BINS

__all__ = ["CLIP_BAND", "METRICS", "SECTIONS", "GlossarySection", "MetricInfo", "glossary_name", "unknown_names"]

SECTIONS: tuple[GlossarySection, ...] = (
    REWARDS,
    EVALUATION,
    CLIPPING,
    RATIO,
    GRADIENT,
    LOSS,
    MISMATCH,
    LENGTHS,
    ACCOUNT,
    SAMPLING,
    ROLLOUT,
    BATCHES,
    PROGRESS,
    WARMUP,
)
"""In the order in which a user looks: is it learning, is the update sound, is the rest in order."""

METRICS: dict[str, MetricInfo] = {name: info for section in SECTIONS for name, info in section.metrics.items()}
assert len(METRICS) == sum(len(section.metrics) for section in SECTIONS), "a metric stands in two sections"

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
