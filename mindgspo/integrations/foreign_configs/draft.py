"""The experiment that a conversion puts together, with the origin of every value.

What enters: outcomes of rows, and what the suites' modules work out. What leaves: dotted keys here with their values
and origins, and the findings of the report. Filled by `apply` and the suites' modules, written by `document`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import PydanticUndefined

from mindgspo.config.messages import section_of
from mindgspo.config.schema import ExperimentConfig
from mindgspo.config.section import Section
from mindgspo.integrations.foreign_configs.given import Given
from mindgspo.integrations.foreign_configs.reading import Finding
from mindgspo.integrations.foreign_configs.table import Fate, Outcome, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A value and where it came from, as the comment beside it says."""

    value: Any
    origin: str


@dataclass(slots=True, kw_only=True)
class Draft:
    """values: by dotted key here. findings: in the order they came up. used: rows that said something."""

    values: dict[str, Placed] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    used: list[Row] = field(default_factory=list)

    def take(self, row: Row, value: Any, outcome: Outcome, *, source: str, file: str) -> None:
        """What a key of the file became."""
        self.used.append(row)
        for target, placed in outcome.values.items():
            self.values[target] = Placed(value=placed, origin=source)
        targets = tuple(outcome.values) or tuple(filter(None, row.target.split(", ")))
        is_set = outcome.fate in (Fate.MAPPED, Fate.ADJUSTED)
        finding = Finding(
            fate=outcome.fate,
            source=source,
            value=value,
            targets=targets if is_set else (),
            text=outcome.text,
            file=file,
        )
        self.findings.append(finding)

    def take_default(self, row: Row, outcome: Outcome) -> None:
        """What another suite does where a key is not given. Said only where this project would do something else."""
        for target, value in outcome.values.items():
            if target not in self.values and value != own_default(target):
                self.assume(target, value, f"{row.source}, its default", outcome.text)
        if outcome.fate is Fate.NOT_BUILT:
            text = f"its default; {outcome.text}"
            self.findings.append(Finding(fate=outcome.fate, source=row.source, value=row.default, text=text))

    def assume(self, target: str, value: Any, origin: str, text: str = "") -> None:
        """A value that the files do not say."""
        self.values[target] = Placed(value=value, origin=f"assumed: {origin}")
        self.findings.append(
            Finding(fate=Fate.ASSUMED, source=target, value=value, text=f"{origin}{'; ' if text else ''}{text}")
        )

    def place(self, values: Mapping[str, Any], origin: str) -> None:
        """Values that a suite's module worked out of several keys."""
        for target, value in values.items():
            self.values[target] = Placed(value=value, origin=origin)

    def place_from(self, given: Given, key: str, target: str, value: Any) -> None:
        """The value that `key` gives, or its default there, which is said where this project would do something
        else."""
        if key in given:
            self.place({target: value}, key)
        elif value != own_default(target):
            self.assume(target, value, f"{key}, its default")

    def say(self, fate: Fate, source: str, value: Any, text: str) -> None:
        """A remark of a suite's module."""
        self.findings.append(Finding(fate=fate, source=source, value=value, text=text))

    def get(self, target: str, otherwise: Any = None) -> Any:
        """The value so far."""
        return self.values[target].value if target in self.values else otherwise


def own_default(target: str) -> Any:
    """What this project does where a dotted key is not given; None where it must be."""
    *above, leaf = target.split(".")
    section: type[Section] | None = ExperimentConfig
    for step in above:
        section = section_of(section, step)
        assert section is not None, f"{target}: there is no section {step}"
    default = section.model_fields[leaf].default
    return None if default is PydanticUndefined else default
