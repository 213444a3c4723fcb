"""What a reader made of a foreign file: values, and remarks on what is no value.

What enters: one call per value or remark. What leaves: `Reading`. Filled by `verl_source` and `sources`, read by
`apply`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mindgspo.integrations.foreign_configs.table import Fate


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report. source: key there; value: what stood there; targets: keys here; text: why."""

    fate: Fate
    source: str
    value: Any = ""
    targets: tuple[str, ...] = ()
    text: str = ""
    file: str = ""


@dataclass(slots=True, kw_only=True)
class Reading:
    """values: by dotted key. unread_keys: those whose value is not in the file, so that no default stands for them."""

    values: dict[str, Any] = field(default_factory=dict)
    unread_keys: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)

    def remark(self, source: str, value: Any, text: str, fate: Fate = Fate.NOT_NEEDED) -> None:
        """Something that is no setting, or not the one that counts."""
        self.findings.append(Finding(fate=fate, source=source, value=value, text=text))

    def assumed(self, source: str, value: Any, text: str) -> None:
        """A value that stands in for one that is not in the file."""
        self.findings.append(Finding(fate=Fate.ASSUMED, source=source, value=value, text=text))

    def unread(self, source: str, value: Any, text: str) -> None:
        """A setting whose value is not in the file."""
        self.unread_keys.add(source)
        self.values.pop(source, None)
        self.findings.append(Finding(fate=Fate.UNREADABLE, source=source, value=value, text=text))
