"""The report of a conversion as lines for a terminal.

What enters: a `Conversion`. What leaves: lines, most urgent first. Called by the command `mindgspo convert config`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mindgspo.integrations.foreign_configs.convert import TABLES, Conversion
from mindgspo.integrations.foreign_configs.reading import Finding
from mindgspo.integrations.foreign_configs.table import Fate, plain, shown

_LONGEST = 1000  # characters of a reason
_ORDER = (
    Fate.UNKNOWN,
    Fate.UNREADABLE,
    Fate.NOT_BUILT,
    Fate.ADJUSTED,
    Fate.ASSUMED,
    Fate.NOT_NEEDED,
    Fate.MAPPED,
)


def report_lines(conversion: Conversion) -> Iterator[str]:
    """What must be set, what is refused, then every key of the source under what became of it, then the count."""
    names_files = len({finding.file for finding in conversion.findings if finding.file}) > 1
    if conversion.missing:
        yield f"still to be set ({len(conversion.missing)}): no file says so; use --set or write it into the result"
        yield from (f"  {key}" for key in conversion.missing)
    if conversion.refused:
        yield f"refused here ({len(conversion.refused)}): the result holds what the files say; change it"
        yield from (f"  {plain(line, _LONGEST)}" for line in conversion.refused)
    for fate in _ORDER:
        found = [finding for finding in conversion.findings if finding.fate is fate]
        if found:
            yield f"{fate.value} ({len(found)})"
            yield from (f"  {line}" for line in _together(found, names_files=names_files))
    yield _summary(conversion)


def _together(found: list[Finding], *, names_files: bool) -> Iterator[str]:
    """One line per finding; those of a file with the same reason, and without keys here, share one."""
    by_reason: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        by_reason.setdefault((finding.file, finding.text), []).append(finding)
    for (file, reason), group in by_reason.items():
        start = f"{plain(file)}: " if names_files and file else ""
        reason = plain(reason, _LONGEST)
        if reason and not any(finding.targets for finding in group):
            yield f"{start}{', '.join(map(_key, group))}: {reason}"
        else:
            yield from (f"{start}{_key(finding)}{_arrow(finding)}" for finding in group)


def _key(finding: Finding) -> str:
    value = shown(finding.value)
    return f"{plain(finding.source)}{f' = {value}' if value else ''}"


def _arrow(finding: Finding) -> str:
    arrow = f" -> {', '.join(finding.targets)}" if finding.targets else ""
    return f"{arrow}{f': {plain(finding.text, _LONGEST)}' if finding.text else ''}"


def _summary(conversion: Conversion) -> str:
    counts = Counter(finding.fate for finding in conversion.findings)
    parts = [f"{counts[fate]} {fate.value}" for fate in reversed(_ORDER) if counts[fate]]
    return f"{TABLES[conversion.suite].title}: {', '.join(parts)}"
